//! `windtunnel run SCENARIO`: one prediction.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{Failure, Json, Outcome, output, print};
use windtunnel::files::Output;
use windtunnel::report::{Trace, json, text};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Prediction, Scenario, predict};

#[derive(Debug, clap::Args)]
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
    /// Exit with 1 if the plan does not fit in memory.
    #[arg(long)]
    fail_if_oom: bool,
}

pub fn run(args: &Args) -> Outcome {
    let (json, trace) = (Json::open(args.json.as_ref())?, output(args.trace.as_ref())?);
    let scenario = Scenario::load(&args.scenario).map_err(Failure::input)?;
    let settings = Settings { fold: !args.full, record: trace.is_some(), ..Settings::default() };
    let answer = predict(&scenario, settings).map_err(Failure::input)?;
    let to_stdout = json.is_stdout();
    let detail = text::Detail { all_conventions: args.mfu_all };
    json.finish(|| text::report(&scenario, &answer, detail), || json::report(&scenario, &answer))?;
    if let Some(file) = trace {
        let path = file.path().display().to_string();
        write_trace(file, &scenario, &answer)?;
        if !to_stdout {
            print(&format!("\nwrote {path}: open it at ui.perfetto.dev or chrome://tracing\n"))?;
        }
    }
    let refused = args.fail_if_oom && answer.memory.refused();
    Ok(if refused { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Writes the timeline of a prediction that recorded it.
pub(super) fn write_trace(file: Output, scenario: &Scenario, answer: &Prediction) -> Result<(), Failure> {
    let (programs, class_of) = (answer.programs(), answer.class_of.clone());
    let trace =
        Trace { scenario: &scenario.description, programs, class_of, timeline: &answer.timeline, from_step: None };
    file.write_with(|out| trace.write(out)).map_err(Failure::input)
}
