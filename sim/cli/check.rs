//! `windtunnel check FILES…`: predictions held against measured runs.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{Failure, Outcome, Written, gap, help, output, width};
use windtunnel::cost::Variation;
use windtunnel::files::{self, Answers, Output};
use windtunnel::near::did_you_mean;
use windtunnel::receipt::check::{self, Choice};
use windtunnel::receipt::table::Tables;
use windtunnel::receipt::{Case, html, json, runs, summary, text, threshold};
use windtunnel::report::text as report;

/// Compare predictions with measured runs: files of receipts (JSON lines), and scenarios with a [measured] table.
#[derive(Debug, clap::Args)]
#[command(after_help = help::CHECK)]
pub struct Args {
    /// Files of receipts (*.jsonl), scenarios with a [measured] table (*.toml), and folders of both.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Only these lanes.
    #[arg(long, value_name = "L,…", value_delimiter = ',')]
    lane: Vec<String>,
    /// Only receipts counted under this hardware, such as A100,H100.
    #[arg(long, value_name = "H,…", value_delimiter = ',')]
    hardware: Vec<String>,
    /// Only receipts of these grades: A (complete), B (a switch or two inferred), C.
    #[arg(long, value_name = "G,…", value_delimiter = ',')]
    grade: Vec<String>,
    /// Predict with chips that differ in pace as published: a name that ranks.speed takes, such as gemm.
    #[arg(long, value_name = "NAME", conflicts_with = "row")]
    ranks: Option<String>,
    /// Show one receipt: its scenario, assumptions, prediction and where the time goes.
    #[arg(long, value_name = "ID", conflicts_with_all = ["lane", "hardware", "grade", "json", "html", "runs", "fail_above"])]
    row: Option<String>,
    /// Write the check as JSON to this file (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the check as an HTML page to this file (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the errors of step times by kind of run to this file, as sim/cost/profiles/measured-runs.csv has them.
    #[arg(long, value_name = "FILE")]
    runs: Option<PathBuf>,
    /// With --row: write the timeline for Perfetto to this file; with --trace-in: the measured and the predicted one (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Exit with 1 if a figure is worse: step_time.median=8%,reserved.median=5%, or a .toml file of thresholds; with --trace-in:
    /// step=5%,matmul=10%. Repeat it for several files.
    #[arg(long, value_name = "SPEC")]
    fail_above: Vec<String>,
    /// Keep answers in this file: a row or scenario that stands as it stood, asked of the same windtunnel, is not simulated again.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["row", "trace_in"])]
    cache: Option<PathBuf>,
    #[command(flatten)]
    traces: gap::Traces,
}

pub fn run(args: &Args) -> Outcome {
    if args.traces.are_given() {
        let wanted = gap::Wanted {
            files: &args.files,
            json: args.json.as_ref(),
            trace: args.trace.as_ref(),
            fail_above: &args.fail_above,
        };
        return gap::run(&args.traces, wanted);
    }
    if let Some(option) = args.traces.left_over() {
        return Err(Failure::input(format!("{option} needs --trace-in: write the trace of the run, too")));
    }
    if args.trace.is_some() && args.row.is_none() {
        return Err(Failure::input("--trace needs --row or --trace-in: one timeline goes into one file"));
    }
    let [json, runs, html, trace] = [&args.json, &args.runs, &args.html, &args.trace].map(|path| output(path.as_ref()));
    let (json, runs, html, trace) = (json?, runs?, html?, trace?);
    let specs = args.fail_above.iter().map(|spec| threshold::parse(spec));
    let bounds = specs.collect::<Result<Vec<_>, _>>().map_err(Failure::input)?;
    let (files, refused) = check::read_what_can_be(&args.files);
    for error in &refused {
        files::complain(&format!("error: {error}"));
    }
    let tables = Tables::shipped();
    if let Some(id) = &args.row {
        return row(trace, &files, &tables, id);
    }
    let speed = args.ranks.as_deref().map(variation).transpose()?;
    let choice =
        Choice { lanes: args.lane.clone(), hardware: args.hardware.clone(), grades: args.grade.clone(), speed };
    if files.receipts.entries.is_empty() && files.own.is_empty() && files.receipts.faults.is_empty() {
        return match refused.is_empty() {
            true => {
                Err(Failure::input("the files hold no receipts: expected JSON lines, or a scenario with [measured]"))
            }
            false => Ok(ExitCode::from(2)),
        };
    }
    let (count, missing) = choice.count(&files);
    for error in &missing {
        files::complain(&format!("note: {error}"));
    }
    if count == 0 && !missing.is_empty() {
        files::complain("nothing is left to check");
        return Ok(ExitCode::from(2));
    }
    let known = args.cache.as_deref().map(Answers::open).transpose().map_err(Failure::input)?;
    let bar = files::bar(Some(count as u64), "{bar:30} {pos}/{len} receipts, {elapsed}, {eta} left");
    let outcome = check::check_with(&files, &tables, &choice, (known.as_ref(), &|| bar.inc(1)));
    bar.finish_and_clear();
    if let Some((known, file)) = known.as_ref().zip(args.cache.as_ref()) {
        files::note(&format!("{} of {count} answers were in {}", known.found(), file.display()));
    }
    let kept = known.map_or(Ok(()), Answers::finish);
    let groups = summary::summary(&outcome);
    let mut written = Written::default();
    if let Some(file) = json {
        written.write(file, &format!("{:#}\n", json::report(&outcome, &groups)), "");
    }
    if let Some(file) = runs {
        written.write(file, &runs::table(&outcome), "");
    }
    if let Some(file) = html {
        written.write(file, &html::page(&outcome, &groups), "");
    }
    let bounded = !bounds.is_empty();
    let broken: Vec<threshold::Broken> = bounds.iter().flat_map(|bounds| bounds.broken(&outcome)).collect();
    let mut report = text::report(&outcome, &groups, width());
    if bounded && broken.is_empty() {
        report += "\nAll bounds hold.\n";
    }
    if !broken.is_empty() {
        report += &format!("\nBounds that are exceeded\n{}", text::broken(&broken, &outcome));
    }
    written.report(&report)?;
    // The check stands, though its answers could not be kept.
    kept.map_err(Failure::input)?;
    if outcome.panicked() {
        return Ok(ExitCode::from(windtunnel::bug::CODE));
    }
    Ok(ExitCode::from(match (outcome.faults.iter().all(|fault| fault.read) && refused.is_empty(), broken.is_empty()) {
        (false, _) => 2,
        (true, false) => 1,
        (true, true) => 0,
    }))
}

/// The published distribution of that name.
fn variation(name: &str) -> Result<&'static Variation, Failure> {
    Variation::named(name).ok_or_else(|| {
        let known: Vec<&str> = Variation::all().iter().map(|known| known.name.as_str()).collect();
        let hint = did_you_mean(name, known.iter().copied());
        let list = known.join(", ");
        Failure::input(format!("--ranks: no distribution of paces is called {name:?}{hint}\nwrite one of: {list}"))
    })
}

fn row(trace: Option<Output>, files: &check::Files, tables: &Tables, id: &str) -> Outcome {
    let own = files.own.iter().find(|case| case.id == id);
    let mapped = match own {
        Some(_) => None,
        None => {
            let entry = check::find(files, id).map_err(Failure::input)?;
            let refused = |reason: windtunnel::receipt::Reason| Failure {
                message: format!("{id} is not checked: {}", reason.words()),
                code: 1,
            };
            Some(check::case(entry, tables).map_err(refused)?)
        }
    };
    let Some(case): Option<&Case> = own.or(mapped.as_ref()) else {
        return Err(Failure::input(format!("no receipt has the id {id:?}")));
    };
    let answer = case.fly(trace.is_some()).map_err(Failure::input)?;
    let written = super::run::write_trace(trace, &case.scenario, &answer);
    let report = report::report(&case.scenario, &answer, report::Detail::default());
    written.report(&format!("{}\n{}\n{report}", text::row(case, &answer), case.text))?;
    Ok(ExitCode::SUCCESS)
}
