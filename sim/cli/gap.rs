//! `windtunnel check SCENARIO --trace-in TRACE`: where the difference between a measured step and its prediction comes from.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::import::On;
use super::{Failure, Outcome, Written, named, output, width};
use windtunnel::files;
use windtunnel::gap::compare::{Choice, compare};
use windtunnel::gap::{bounds, json, text, tracks};
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings;
use windtunnel::trace;

/// Traces of the run that a scenario describes.
#[derive(Debug, clap::Args)]
pub struct Traces {
    /// A trace of the run: a JSON of PyTorch's profiler, an SQLite export of Nsight Systems, an xplane of XLA. Repeat it for other ranks.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lane", "hardware", "grade", "ranks", "row", "html", "runs"])]
    trace_in: Vec<PathBuf>,
    /// With --trace-in: the step with this number in its mark, in place of one of median length.
    #[arg(long, value_name = "N", requires = "trace_in")]
    step: Option<u64>,
    /// With --trace-in: the rank to compare, in place of the first.
    #[arg(long, value_name = "R", requires = "trace_in")]
    rank: Option<u32>,
    #[command(flatten)]
    machine: On,
}

impl Traces {
    /// Whether there are any.
    pub fn are_given(&self) -> bool {
        !self.trace_in.is_empty()
    }

    /// An option that means nothing without a trace.
    pub fn left_over(&self) -> Option<&'static str> {
        self.machine.is_written().then_some("--on, with what belongs to it,")
    }
}

/// What else the command line says.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The scenario, alone.
    pub files: &'a [PathBuf],
    /// Where JSON goes.
    pub json: Option<&'a PathBuf>,
    /// Where both steps go for Perfetto.
    pub trace: Option<&'a PathBuf>,
    /// Bounds.
    pub fail_above: &'a [String],
}

pub fn run(traces: &Traces, wanted: Wanted<'_>) -> Outcome {
    let [scenario] = wanted.files else {
        return Err(Failure::input("--trace-in compares one scenario with its traces: write one scenario"));
    };
    let bounds = wanted.fail_above.iter().map(|spec| bounds::parse(spec));
    let bounds = bounds.collect::<Result<Vec<_>, _>>().map_err(Failure::input)?.concat();
    let (json, tracks) = (output(wanted.json)?, output(wanted.trace)?);
    let scenario = named::at(scenario, &traces.machine)?;
    let traces_read = traces.trace_in.iter().map(|path| read(path)).collect::<Result<Vec<_>, Failure>>()?;
    let bar = files::spinner("simulating");
    let settings = Settings { record: true, remedies: false, ..Settings::default() };
    let answer = predict(&scenario, settings).map_err(Failure::input)?;
    bar.finish_and_clear();
    let choice = Choice { step: traces.step, rank: traces.rank };
    let compared = compare(&scenario, &answer, &traces_read, choice).map_err(Failure::input)?;
    let mut written = Written::default();
    if let Some(file) = json {
        let report = json::Report::of(&compared.about, &compared.gap);
        let text = serde_json::to_string_pretty(&report).map_err(|error| Failure::input(error.to_string()))?;
        written.write(file, &format!("{text}\n"), "");
    }
    if let Some(file) = tracks {
        written.write_with(file, ": open it at ui.perfetto.dev", |out| {
            tracks::write(out, &compared.about, &compared.predicted, &compared.measured)
        });
    }
    let mut report = text::report(&compared.about, &compared.gap, width());
    let broken = bounds::broken(&bounds, &compared.gap);
    if !bounds.is_empty() {
        report += if broken.is_empty() { "\nAll bounds hold.\n" } else { "\nBounds that are exceeded\n\n" };
        for line in &broken {
            report += &format!("  {line}\n");
        }
    }
    written.report(&report)?;
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn read(path: &Path) -> Result<(String, trace::Trace), Failure> {
    let bar = files::bar(None, "reading the trace: {bytes} of {total_bytes}, {eta} left");
    let told = |read: u64, length: u64| {
        bar.set_length(length);
        bar.set_position(read);
        ControlFlow::Continue(())
    };
    let read = trace::read(path, &told).map_err(|error| Failure::input(error.to_string()))?;
    bar.finish_and_clear();
    Ok((path.display().to_string(), read))
}
