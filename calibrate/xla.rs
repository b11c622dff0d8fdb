//! `calibrate xla`: XLA through PJRT: how long programs take on its devices, and what its compiler says of those that are not
//! here.
//!
//! `jobs` plans, `programs` writes StableHLO, `execute` runs and times it, `check` looks at the results, `estimate` asks the
//! compiler only; `compile` takes a program from a file.

mod attention;
mod check;
mod compile;
mod error;
mod estimate;
mod execute;
mod jobs;
mod measure;
mod programs;

pub use compile::flag;
pub use error::Failure;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Arguments of `calibrate xla`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = crate::cli::help::XLA)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    measure: measure::Measured,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compile StableHLO for a slice that need not be here, and say what the compiler made of it.
    Compile(compile::Arguments),
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    error::finish(match &arguments.command {
        Some(Command::Compile(arguments)) => compile::compiled(arguments),
        None => measure::measure(&arguments.measure),
    })
}
