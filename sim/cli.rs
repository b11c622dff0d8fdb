//! The command line: one small file per subcommand, and the only place that prints.

mod calibrate;
mod ceiling;
mod check;
mod compare;
mod profile;
mod receipt;
mod run;
mod schedule;
mod show;
mod topology;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use windtunnel::files::{self, Output};
use windtunnel::scenario::ScenarioError;

/// A wind tunnel for training clusters: predicts peak memory, pipeline bubble, step time and MFU before the cluster is
/// rented.
#[derive(Debug, Parser)]
#[command(name = "windtunnel", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Predict one scenario.
    Run(run::Args),
    /// Find the longest sequence that fits in device memory, and what the way there costs.
    Ceiling(ceiling::Args),
    /// Say what two scenarios differ in, and what each difference does to time and memory.
    Compare(compare::Args),
    /// Hold predictions against measured runs: files of receipts, and scenarios with a [measured] table.
    Check(check::Args),
    /// Write the scenario behind a receipt, or print the table of framework defaults.
    Receipt(receipt::Args),
    /// Print a stage of the way from a scenario to its prediction.
    Show(show::Args),
    /// List the named machines, or show one with its sources.
    Topology(topology::Args),
    /// Show, compare, merge or fit what kernels and collectives cost on a machine.
    Profile(profile::Args),
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
    /// 2: the input is wrong. 1: the answer is no. 3: the machine cannot.
    code: u8,
}

impl Failure {
    /// The input is wrong.
    fn input(error: impl std::fmt::Display) -> Failure {
        Failure { message: error.to_string(), code: 2 }
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
fn explain(said: &clap::Error) -> ExitCode {
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
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(said) => return explain(&said),
    };
    windtunnel::bug::report_panics();
    let outcome = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Ceiling(args) => ceiling::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Receipt(args) => receipt::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Topology(args) => topology::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::CompileCheck(args) => calibrate::start("compile-check", &args),
        Command::Calibrate(args) => calibrate::run(&args),
    };
    outcome.unwrap_or_else(Failure::end)
}

/// A scenario file's name and text.
fn read(path: &Path) -> Result<(String, String), Failure> {
    let file = path.display().to_string();
    match files::text(path) {
        Ok(text) => Ok((file, text)),
        Err(error) => Err(Failure::input(ScenarioError::Unreadable { path: file, reason: error.to_string() })),
    }
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
        // The reader has what it wanted, and nobody to whom it should be said.
        std::io::ErrorKind::BrokenPipe => Failure { message: String::new(), code: NO_READER },
        _ => Failure::input(format!("cannot write to standard output: {why}")),
    })
}

/// Writes a file and says so; `hint` says what to do with it.
fn write(output: Output, body: &str, hint: &str) -> Result<(), Failure> {
    let path = output.path().display().to_string();
    output.write(body).map_err(Failure::input)?;
    print(&format!("\nwrote {path}{hint}\n"))
}

/// Where `--json` goes.
enum Json {
    /// It was not asked for.
    Nowhere,
    /// `-`: instead of the report.
    Stdout,
    File(Output),
}

impl Json {
    /// Gets ready, before anything is computed.
    fn open(path: Option<&PathBuf>) -> Result<Json, Failure> {
        match path {
            Some(path) if path == Path::new("-") => Ok(Json::Stdout),
            path => Ok(output(path)?.map_or(Json::Nowhere, Json::File)),
        }
    }

    fn is_stdout(&self) -> bool {
        matches!(self, Json::Stdout)
    }

    /// Writes it after the report, or prints it in the report's stead.
    fn finish(self, report: impl FnOnce() -> String, value: impl FnOnce() -> serde_json::Value) -> Result<(), Failure> {
        match self {
            Json::Nowhere => print(&report()),
            Json::Stdout => print_json(&format!("{:#}\n", value())),
            Json::File(file) => {
                print(&report())?;
                write(file, &format!("{:#}\n", value()), "")
            }
        }
    }
}
