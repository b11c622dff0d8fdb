//! The command line: one small file per subcommand, and the only place that prints.

mod bug;
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

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
}

/// What a command returns.
type Outcome = Result<ExitCode, Failure>;

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    bug::report_panics();
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
    outcome.unwrap_or_else(|failure| {
        eprintln!("error: {}", failure.message);
        ExitCode::from(failure.code)
    })
}

/// A scenario file's name and text.
fn read(path: &Path) -> Result<(String, String), Failure> {
    let file = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => Ok((file, text)),
        Err(error) => Err(Failure::input(ScenarioError::Unreadable { path: file, reason: error.to_string() })),
    }
}

/// Writes a file the user asked for.
fn write(path: &Path, body: &str) -> Result<(), Failure> {
    std::fs::write(path, body).map_err(|error| Failure::input(format!("cannot write {}: {error}", path.display())))
}

/// Prints to standard output; a reader that has gone away (`| head`) is no error.
fn print(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// Writes a file and says so.
fn write_file(path: &Path, body: &str) -> Result<(), Failure> {
    write(path, body)?;
    print(&format!("\nwrote {}\n", path.display()));
    Ok(())
}
