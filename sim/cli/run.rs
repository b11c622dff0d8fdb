//! `windtunnel run SCENARIO`: one prediction.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::named::Named;
use super::{Failure, Json, Outcome, Written, output, width};
use windtunnel::explore::goodput::{self, Length};
use windtunnel::files::{self, Output};
use windtunnel::report::layout::Training;
use windtunnel::report::{html, text};
use windtunnel::scenario::advice::{Advice, Unstated};
use windtunnel::scenario::predict::{Settings, Verdict};
use windtunnel::scenario::{Prediction, Scenario, predict};

#[derive(Debug, clap::Args)]
#[command(after_help = super::help::RUN)]
pub struct Args {
    #[command(flatten)]
    named: Named,
    /// Write the prediction as JSON to this file (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the timeline for Perfetto or chrome://tracing to this file (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the prediction to this file as one HTML page that loads nothing (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Simulate every rank instead of one for all identical ones; the answer is the same.
    #[arg(long)]
    full: bool,
    /// Draw so many clusters from the scenario's [ranks], in place of its ranks.draws.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    draws: Option<u32>,
    /// Print MFU under every convention.
    #[arg(long)]
    mfu_all: bool,
    /// Print everything: all kernels, every default, what each number rests on.
    #[arg(long, short)]
    verbose: bool,
    /// Simulate single changes: those that would make the run faster, and other values of what the file does not state.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    changes: Changes,
    /// Say how long a whole training takes and what it costs, once interruptions, checkpoints and restarts are counted: for a time
    /// (54d, 36h, 3w) or a number of tokens (2T-tokens).
    #[arg(long = "for", value_name = "LENGTH")]
    length: Option<String>,
    /// Exit with 1 if the plan does not fit in memory, or if whether it does is unknown.
    #[arg(long)]
    fail_if_oom: bool,
}

/// When single changes are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Changes {
    /// Where a step is short, so that all of them take a second or two.
    Auto,
    /// However long they take.
    All,
    /// Never.
    None,
}

pub fn run(args: &Args) -> Outcome {
    let (json, trace) = (Json::open(args.json.as_ref())?, output(args.trace.as_ref())?);
    let page = output(args.html.as_ref())?;
    let length = args.length.as_deref().map(Length::parse).transpose().map_err(Failure::input)?;
    let mut scenario = args.named.load()?;
    if length.is_some() {
        scenario.read_interruptions();
    }
    if let Some(draws) = args.draws {
        let file = scenario.file.clone();
        let ranks = scenario.ranks.as_mut().filter(|ranks| !ranks.is_certain());
        ranks.ok_or_else(|| Failure::input(nothing_drawn(&file)))?.draws = draws;
    }
    let settings = Settings { fold: !args.full, record: trace.is_some(), ..Settings::default() };
    let bar = files::spinner("simulating");
    let answer = predict(&scenario, settings).map_err(Failure::input)?;
    bar.finish_and_clear();
    let training = length.map(|length| training(&scenario, &answer, length)).transpose()?;
    let training = training.as_ref();
    let mut written = write_trace(trace, &scenario, &answer);
    let (advice, unstated) = advice(args.changes, &scenario, &answer);
    if let Some(file) = page {
        written.write(
            file,
            &html::page_with(&scenario, &answer, unstated.as_ref(), training),
            ": open it in a browser",
        );
    }
    let (verbose, all_conventions) = (args.verbose, args.mfu_all);
    let (advice, unstated, width, colour) = (advice.as_ref(), unstated.as_ref(), width(), colour());
    let detail = text::Detail { all_conventions, verbose, advice, unstated, training, width, colour };
    let as_json = || answer.report(&scenario).with(advice).unstated(unstated).training(training).json();
    json.finish_with(written, || text::report(&scenario, &answer, detail), as_json)?;
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

/// Why `--draws` is refused.
fn nothing_drawn(file: &str) -> String {
    format!(
        "--draws has nothing to draw from: {file} has no ranks.speed, ranks.spread or jitter\nwrite [ranks] and speed = \"gemm\""
    )
}

/// Draws whole trainings.
fn training(scenario: &Scenario, answer: &Prediction, length: Length) -> Result<Training, Failure> {
    let style = "{bar:30} {pos} of {len} trainings drawn, {eta} left";
    let bar = files::bar(Some(goodput::drawn(scenario)), style);
    let training = goodput::goodput(scenario, answer, length, &|| bar.inc(1)).map_err(Failure::input);
    bar.finish_and_clear();
    training
}

/// Simulates single changes, or those of them that decide, if it was asked for or takes no time to speak of.
fn advice(when: Changes, scenario: &Scenario, answer: &Prediction) -> (Option<Advice>, Option<Unstated>) {
    let bar = ProgressBar::new(0).with_finish(ProgressFinish::AndClear);
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} changes simulated, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let tick = |all: Option<usize>| match all {
        Some(all) => bar.set_length(all as u64),
        None => bar.inc(1),
    };
    let all = when == Changes::All || when == Changes::Auto && Advice::is_quick(answer);
    let advice = all.then(|| Advice::of(scenario, answer, tick));
    let unstated = match &advice {
        Some(advice) => advice.unstated.clone(),
        None if when == Changes::Auto && Unstated::is_quick(answer) => Unstated::of(scenario, answer, tick),
        None => None,
    };
    bar.finish_and_clear();
    (advice, unstated)
}

/// Whether standard output shows colours, and nobody said that it shall not (<https://no-color.org>).
pub fn colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    std::io::stdout().is_terminal() && !refused && !dumb
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
