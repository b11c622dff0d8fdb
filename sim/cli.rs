//! The command line: one small file per subcommand, and the only place that prints.

mod calibrate;
mod ceiling;
mod check;
mod compare;
mod completions;
mod explain;
mod gap;
mod help;
mod import;
mod man;
mod models;
mod named;
mod new;
mod plan;
mod profile;
mod receipt;
mod run;
mod schedule;
mod show;
mod sweep;
mod topology;
mod why;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use windtunnel::files::{self, Output};
use windtunnel::scenario::ScenarioError;

/// A wind tunnel for training clusters: predicts peak memory, pipeline bubble, step time and MFU before the cluster is
/// rented.
#[derive(Debug, Parser)]
#[command(name = "windtunnel", version, after_help = help::WINDTUNNEL)]
struct Cli {
    /// Show no progress and no notes on standard error. Errors stay.
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Predict one scenario.
    Run(run::Args),
    /// Write a scenario to begin with, every default in it as a comment, or a shipped sample.
    New(new::Args),
    /// List the shipped models.
    Models(models::Args),
    /// Write the scenario of another framework's configuration: torchtitan, Megatron-LM, MaxText and others.
    Import(import::Args),
    /// Say what a step's time goes to, and which single change helps against each cause.
    Why(why::Args),
    /// Find the longest sequence that fits in device memory, and what it costs.
    Ceiling(ceiling::Args),
    /// Simulate every combination of some keys' values, and list the best.
    Sweep(sweep::Args),
    /// Say what two scenarios differ in, and what each difference does to time and memory.
    Compare(compare::Args),
    /// Search layouts and machines for the fastest or the cheapest training run.
    Plan(plan::Args),
    /// Compare predictions with measured runs: files of receipts, and scenarios with a [measured] table.
    Check(check::Args),
    /// Write the scenario behind a receipt, or print the table of framework defaults.
    Receipt(receipt::Args),
    /// Print what a scenario becomes on its way to a prediction: the plan, each rank's program, the schedule.
    Show(show::Args),
    /// List the named machines, or show one with its sources.
    Topology(topology::Args),
    /// Show, compare, merge or fit what kernels and collectives cost on a machine.
    Profile(profile::Args),
    /// Explain a key of a scenario, a table of keys, or the code of a refusal.
    Explain(explain::Args),
    /// Print completions for a shell.
    Completions(completions::Args),
    /// Print the manual page of a command, or write those of all commands.
    Man(man::Args),
    /// Compile a scenario's step with XLA's own compiler, and hold the prediction against what it says (starts
    /// windtunnel-calibrate).
    #[command(disable_help_flag = true)]
    CompileCheck(calibrate::Args),
    /// Measure costs on a GPU or a TPU, ask XLA's compilers, or import published costs (starts windtunnel-calibrate).
    #[command(disable_help_flag = true)]
    Calibrate(calibrate::Args),
}

/// Why a command stopped: what to print, and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// For the user.
    message: String,
    /// As `docs/exit-codes.md` has them. 1: the answer is no. 2: the input is wrong. 3: the machine cannot.
    code: u8,
}

impl Failure {
    /// The input is wrong.
    fn input(error: impl std::fmt::Display) -> Failure {
        Failure { message: error.to_string(), code: 2 }
    }

    /// Whoever would have read standard output has what it wanted, and there is nobody to whom it should be said.
    fn unread() -> Failure {
        Failure { message: String::new(), code: NO_READER }
    }

    /// Says so, and ends the program.
    fn end(self) -> ExitCode {
        if !self.message.is_empty() {
            files::complain(&format!("error: {}", self.message));
        }
        ExitCode::from(self.code)
    }
}

/// Prints what clap has to say: help, the version, or what is wrong with the arguments.
fn said_by_clap(said: &clap::Error) -> ExitCode {
    let text = said.render().to_string();
    if said.use_stderr() {
        files::complain(text.trim_end());
        return ExitCode::from(2);
    }
    print(&text).map_or_else(Failure::end, |()| ExitCode::SUCCESS)
}

/// What a command returns.
type Outcome = Result<ExitCode, Failure>;

/// Runs the command line.
pub fn main() -> ExitCode {
    files::take_size_limits_as_errors();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(said) => return said_by_clap(&said),
    };
    windtunnel::bug::report_panics(std::env::args(), std::env::var_os("RUST_BACKTRACE"));
    if cli.quiet {
        files::be_quiet();
    }
    let outcome = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Ceiling(args) => ceiling::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::New(args) => new::run(&args),
        Command::Models(args) => models::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Receipt(args) => receipt::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Topology(args) => topology::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::CompileCheck(args) => calibrate::start("compile-check", &args),
        Command::Calibrate(args) => calibrate::run(&args),
    };
    outcome.unwrap_or_else(Failure::end)
}

/// A scenario file's name and text; a sample's name stands for its file.
fn read(path: &Path) -> Result<(String, String), Failure> {
    if let Some(sample) = named::named_sample(path) {
        return Ok((sample.name.to_owned(), sample.text.to_owned()));
    }
    let text = files::text(path).map_err(|error| Failure::input(ScenarioError::unreadable(path, &error)))?;
    Ok((path.display().to_string(), text))
}

/// The name and text of a file that is no scenario.
fn read_named(path: &Path, what: &str) -> Result<(String, String), Failure> {
    let file = path.display().to_string();
    let text = files::text(path).map_err(|why| Failure::input(format!("cannot read the {what} {file}: {why}")))?;
    Ok((file, text))
}

/// Gets ready to write a file the user asked for, before anything is computed.
fn output(path: Option<&PathBuf>) -> Result<Option<Output>, Failure> {
    path.map(|path| Output::open(path)).transpose().map_err(Failure::input)
}

/// Prints a report.
fn print(text: &str) -> Result<(), Failure> {
    printed(files::print(text))
}

/// Prints JSON.
fn print_json(text: &str) -> Result<(), Failure> {
    printed(files::print_json(text))
}

/// Exit code where a reader has gone away (`| head`), as shells give it: SIGPIPE.
const NO_READER: u8 = 128 + 13;

fn printed(outcome: std::io::Result<()>) -> Result<(), Failure> {
    outcome.map_err(|why| match why.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::unread(),
        _ => Failure::input(format!("cannot write to standard output: {why}")),
    })
}

/// Files that were written. They are before the report is printed, whose reader may go away, and it is printed although one of them
/// could not be.
#[derive(Default)]
struct Written {
    said: String,
    failed: Option<Failure>,
    /// Whether standard output is taken by one of them.
    instead: bool,
}

impl Written {
    /// Writes a file; `hint` says what to do with it.
    fn write(&mut self, output: Output, body: &str, hint: &str) {
        self.write_with(output, hint, |out| out.write_all(body.as_bytes()));
    }

    fn write_with(&mut self, output: Output, hint: &str, body: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) {
        let path = output.path().display().to_string();
        let instead = output.is_standard();
        self.instead |= instead;
        match output.write_with(body) {
            Ok(()) if instead => {}
            Err(why) if instead => self.failed = self.failed.take().or(printed(Err(why.cause())).err()),
            Ok(()) => self.said += &format!("\nwrote {path}{hint}\n"),
            Err(why) => self.failed = self.failed.take().or(Some(Failure::input(why))),
        }
    }

    /// Prints a report, and which files were written.
    fn report(self, report: &str) -> Result<(), Failure> {
        let printed = if self.instead { Ok(()) } else { print(&format!("{report}{}", self.said)) };
        self.ended(printed)
    }

    /// How the command ends, if printing ended so: what was not written is said first.
    fn ended(self, printed: Result<(), Failure>) -> Result<(), Failure> {
        self.failed.map_or(printed, Err)
    }
}

/// Where `--json` goes.
enum Json {
    /// It was not asked for.
    Nowhere,
    /// `-`: instead of the report. No other file is written there.
    Stdout(Output),
    File(Output),
}

impl Json {
    /// Gets ready, before anything is computed.
    fn open(path: Option<&PathBuf>) -> Result<Json, Failure> {
        match path {
            Some(path) if path == Path::new(files::STANDARD) => {
                Output::open(path).map(Json::Stdout).map_err(Failure::input)
            }
            path => Ok(output(path)?.map_or(Json::Nowhere, Json::File)),
        }
    }

    /// Writes it and prints the report, or prints it in the report's stead; other files may have been written.
    fn finish_with(
        self,
        mut written: Written,
        report: impl FnOnce() -> String,
        value: impl FnOnce() -> serde_json::Value,
    ) -> Result<(), Failure> {
        match self {
            Json::Nowhere => written.report(&report()),
            Json::Stdout(_claimed) => written.ended(print_json(&format!("{:#}\n", value()))),
            Json::File(file) => {
                written.write(file, &format!("{:#}\n", value()), "");
                written.report(&report())
            }
        }
    }
}

/// Columns of the terminal; a pipe and a file have as many on every machine.
fn width() -> usize {
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stdout()).then(terminal_size::terminal_size).flatten();
    terminal.map_or(windtunnel::report::text::WIDTH, |(columns, _)| usize::from(columns.0))
}
