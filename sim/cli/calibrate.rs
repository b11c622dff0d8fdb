//! `windtunnel calibrate …`: starts the member binary, which alone may touch an accelerator.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use super::{Failure, Outcome};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Arguments for windtunnel-calibrate.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub fn run(args: &Args) -> Outcome {
    launch(&args.rest)
}

/// Starts one of the binary's subcommands.
pub fn start(subcommand: &str, args: &Args) -> Outcome {
    let rest: Vec<String> = std::iter::once(subcommand.to_owned()).chain(args.rest.iter().cloned()).collect();
    launch(&rest)
}

fn launch(arguments: &[String]) -> Outcome {
    let name = format!("windtunnel-calibrate{}", std::env::consts::EXE_SUFFIX);
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(&name)));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(&name));
    become_or_wait(Command::new(&program).args(arguments)).map_err(|error| Failure {
        message: format!("cannot start {name}: {error}\nbuild it with: cargo build --release --workspace"),
        code: 3,
    })
}

/// Becomes the program, so that signals reach it; returns only if that fails.
#[cfg(unix)]
fn become_or_wait(command: &mut Command) -> std::io::Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    Err(command.exec())
}

/// Waits for the program, where a process cannot become another.
#[cfg(not(unix))]
fn become_or_wait(command: &mut Command) -> std::io::Result<ExitCode> {
    let status = command.status()?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
