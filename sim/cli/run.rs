//! `windtunnel run SCENARIO`: one prediction.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{Failure, Outcome, print};
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
    let scenario = Scenario::load(&args.scenario).map_err(Failure::input)?;
    let settings = Settings { fold: !args.full, record: args.trace.is_some(), ..Settings::default() };
    let answer = predict(&scenario, settings).map_err(Failure::input)?;
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    if !to_stdout {
        print(&text::report(&scenario, &answer, text::Detail { all_conventions: args.mfu_all }));
    }
    if let Some(path) = &args.json {
        let value = json::report(&scenario, &answer);
        let body = format!("{value:#}\n");
        if to_stdout {
            print(&body);
        } else {
            std::fs::write(path, body).map_err(|error| cannot_write(path, &error))?;
            print(&format!("\nwrote {}\n", path.display()));
        }
    }
    if let Some(path) = &args.trace {
        write_trace(path, &scenario, &answer)?;
        if !to_stdout {
            print(&format!("\nwrote {}: open it at ui.perfetto.dev or chrome://tracing\n", path.display()));
        }
    }
    let refused = args.fail_if_oom && answer.memory.refused();
    Ok(if refused { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("cannot write {}: {error}", path.display()))
}

/// Writes the timeline of a prediction that recorded it.
pub(super) fn write_trace(path: &Path, scenario: &Scenario, answer: &Prediction) -> Result<(), Failure> {
    let write = || {
        let mut out = BufWriter::new(File::create(path)?);
        let (programs, class_of) = (answer.programs(), answer.class_of.clone());
        let trace =
            Trace { scenario: &scenario.description, programs, class_of, timeline: &answer.timeline, from_step: None };
        trace.write(&mut out)?;
        out.flush()
    };
    write().map_err(|error| cannot_write(path, &error))
}
