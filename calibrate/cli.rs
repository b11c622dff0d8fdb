//! The subcommands that read and write files, one small file each.

pub mod fit;
pub mod help;
pub mod plan;
pub mod plugins;
pub mod residuals;

use std::io::ErrorKind;
use std::process::ExitCode;

use windtunnel::files;

/// Exit code of input that is wrong.
const INPUT: u8 = 2;
/// Exit code where a reader has gone away (`| head`), as shells give it: SIGPIPE.
const NO_READER: u8 = 128 + 13;

/// Prints what went well, or says what did not and which exit code that is.
pub fn finish(outcome: Result<String, String>) -> ExitCode {
    match outcome {
        Ok(text) => said(&text, 0),
        Err(why) => failed(&why, INPUT),
    }
}

/// Prints a report and ends with a code, unless standard output takes no more.
pub fn said(text: &str, code: u8) -> ExitCode {
    printed(files::print(text), code)
}

/// The same of JSON.
pub fn said_json(text: &str, code: u8) -> ExitCode {
    printed(files::print_json(text), code)
}

fn printed(outcome: std::io::Result<()>, code: u8) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::from(code),
        Err(why) if why.kind() == ErrorKind::BrokenPipe => ExitCode::from(NO_READER),
        Err(why) => failed(&format!("cannot write to standard output: {why}"), INPUT),
    }
}

/// Says why a command ends with a code.
pub fn failed(why: &dyn std::fmt::Display, code: u8) -> ExitCode {
    files::complain(&format!("error: {why}"));
    ExitCode::from(code)
}
