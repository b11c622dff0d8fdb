//! `windtunnel calibrate …`: starts the member binary, which alone may touch an accelerator.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use super::{Failure, Outcome};
use windtunnel::files;

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

/// What one of the binary's subcommands prints, with its exit code; what it says on standard error is seen.
pub fn ask(arguments: &[String]) -> Result<(String, u8), Failure> {
    let out = command().args(arguments).stderr(Stdio::inherit()).output().map_err(|why| missing(&why))?;
    let code = out.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok((String::from_utf8_lossy(&out.stdout).into_owned(), code))
}

fn launch(arguments: &[String]) -> Outcome {
    become_or_wait(command().args(arguments)).map_err(|why| missing(&why))
}

/// The binary, which is told to be quiet where this one was.
fn command() -> Command {
    let mut command = Command::new(program());
    command.args(files::is_quiet().then_some("--quiet"));
    command
}

/// The binary: beside this one, or where the system finds it.
fn program() -> PathBuf {
    let name = name();
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(&name)));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(&name))
}

fn name() -> String {
    format!("windtunnel-calibrate{}", std::env::consts::EXE_SUFFIX)
}

fn missing(why: &std::io::Error) -> Failure {
    let remedy = "build it with: cargo build --release --workspace";
    Failure { message: format!("cannot start {}: {why}\n{remedy}", name()), code: 3 }
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
