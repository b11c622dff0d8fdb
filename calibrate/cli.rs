//! The subcommands that read and write files, one small file each.

pub mod fit;
pub mod plan;
pub mod plugins;
pub mod residuals;

use std::process::ExitCode;

/// Exit code of input that is wrong.
const INPUT: u8 = 2;

/// Prints what went well, or says what did not and which exit code that is.
pub fn finish(outcome: Result<String, String>) -> ExitCode {
    match outcome {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(INPUT)
        }
    }
}

/// Prints to standard output; a reader that has gone away (`| head`) is no error.
pub fn print(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
