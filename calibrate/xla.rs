//! `calibrate xla`: XLA through PJRT: what its compiler says of a program, and how long programs take on its devices.

mod compile;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Arguments of `calibrate xla`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compile StableHLO for a slice that need not be here, and say what the compiler made of it.
    Compile(compile::Arguments),
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    match &arguments.command {
        Command::Compile(arguments) => compile::run(arguments),
    }
}
