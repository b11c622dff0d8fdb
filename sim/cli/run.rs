//! `windtunnel run SCENARIO`: one prediction.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{Failure, Json, Outcome, Written, output};
use windtunnel::files::Output;
use windtunnel::report::{json, text};
use windtunnel::scenario::predict::{Settings, Verdict};
use windtunnel::scenario::{Prediction, Scenario, predict};

#[derive(Debug, clap::Args)]
#[command(after_help = super::help::RUN)]
pub struct Args {
    /// The scenario file.
    scenario: PathBuf,
    /// Write the prediction as JSON to this file (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the timeline for Perfetto or chrome://tracing to this file.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Simulate every rank instead of one for all identical ones; the answer is the same.
    #[arg(long)]
    full: bool,
    /// Print MFU under every convention.
    #[arg(long)]
    mfu_all: bool,
    /// Exit with 1 if the plan does not fit in memory, or if whether it does is unknown.
    #[arg(long)]
    fail_if_oom: bool,
}

pub fn run(args: &Args) -> Outcome {
    let (json, trace) = (Json::open(args.json.as_ref())?, output(args.trace.as_ref())?);
    let scenario = Scenario::load(&args.scenario).map_err(Failure::input)?;
    let settings = Settings { fold: !args.full, record: trace.is_some(), ..Settings::default() };
    let answer = predict(&scenario, settings).map_err(Failure::input)?;
    let detail = text::Detail { all_conventions: args.mfu_all };
    let written = write_trace(trace, &scenario, &answer);
    json.finish_with(written, || text::report(&scenario, &answer, detail), || json::report(&scenario, &answer))?;
    match (args.fail_if_oom, answer.memory.verdict()) {
        (true, Verdict::Unknown) => {
            let why = "states no node.host_memory: state it, or leave out --fail-if-oom";
            let message = format!("whether the plan fits is unknown: {} {why}", scenario.topology.name);
            Err(Failure { message, code: 1 })
        }
        (true, _) if answer.memory.refused() => Ok(ExitCode::from(1)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Writes the timeline of a prediction that recorded it, if that was asked for.
pub(super) fn write_trace(file: Option<Output>, scenario: &Scenario, answer: &Prediction) -> Written {
    let mut written = Written::default();
    if let Some(file) = file {
        let trace = answer.trace(scenario);
        written.write_with(file, ": open it at ui.perfetto.dev or chrome://tracing", |out| trace.write(out));
    }
    written
}
