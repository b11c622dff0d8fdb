//! `windtunnel compare A B`: what two scenarios differ in, and what each difference does.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{Failure, Outcome, print, read, write};
use windtunnel::explore::compare::{json, text};
use windtunnel::explore::{Side, compare};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The scenario to start from.
    a: PathBuf,
    /// The scenario to arrive at.
    b: PathBuf,
    /// Write the comparison as JSON to this file (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let side = |path: &Path| {
        let (file, text) = read(path)?;
        Side::read(&file, &file, &text).map_err(Failure::input)
    };
    let answer = compare(&side(&args.a)?, &side(&args.b)?).map_err(Failure::input)?;
    let body = || format!("{:#}\n", json::report(&answer));
    match &args.json {
        Some(path) if path == Path::new("-") => print(&body()),
        path => {
            print(&text::report(&answer));
            if let Some(path) = path {
                write(path, &body())?;
                print(&format!("\nwrote {}\n", path.display()));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
