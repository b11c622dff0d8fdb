//! `windtunnel completions SHELL`: what a shell needs to complete commands, options and names of files.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::{Cli, Failure, Outcome, help, print};

/// Print completions for a shell, which it reads when it starts.
#[derive(Debug, clap::Args)]
#[command(after_help = help::COMPLETIONS)]
pub struct Args {
    /// The shell.
    shell: Shell,
}

pub fn run(args: &Args) -> Outcome {
    let mut script = vec![];
    generate(args.shell, &mut Cli::command(), "windtunnel", &mut script);
    let script = String::from_utf8(script).map_err(Failure::input)?;
    print(&script)?;
    Ok(ExitCode::SUCCESS)
}
