//! `windtunnel import trace FILE…`: what a profiler's trace says.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use windtunnel::files;
use windtunnel::report::traced::{Choice, Summary};
use windtunnel::trace;

use super::super::{Failure, Json, Outcome, Written, run, width};

#[derive(Debug, clap::Args)]
#[command(after_help = super::super::help::IMPORT_TRACE)]
pub struct Args {
    /// Traces of PyTorch's profiler (JSON), of Nsight Systems (its SQLite export) or of XLA's profiler (xplane.pb, or the trace
    /// viewer's JSON), packed by gzip or not.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The step to look at, by its number [default: the mean of all that end where the next one begins].
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Write the figures as JSON to this file (`-`: standard output, instead of the report): an object for one trace, a list for
    /// several.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let json = Json::open(args.json.as_ref())?;
    let choice = args.step.map_or(Choice::Whole, Choice::Number);
    let mut summaries = vec![];
    for path in &args.files {
        let file = path.display().to_string();
        let trace = read(path)?;
        summaries.push(Summary::new(&file, &trace, choice).map_err(Failure::input)?);
    }
    let (width, colour) = (width(), run::colour());
    let text = || summaries.iter().map(|summary| summary.text(width, colour)).collect::<Vec<_>>().join("\n\n");
    let value = || match summaries.as_slice() {
        [only] => only.json(),
        several => several.iter().map(Summary::json).collect(),
    };
    json.finish_with(Written::default(), text, value)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a trace, with its progress on standard error.
fn read(path: &std::path::Path) -> Result<trace::Trace, Failure> {
    let bar = files::bar(None, "reading {msg} {bar:30} {percent} %, {elapsed}, {eta} left");
    bar.set_message(path.display().to_string());
    let told = |part: u64, whole: u64| {
        bar.set_length(whole);
        bar.set_position(part);
        ControlFlow::Continue(())
    };
    let trace = trace::read(path, &told);
    bar.finish_and_clear();
    trace.map_err(Failure::input)
}
