//! `calibrate plan`: what is worth measuring.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use windtunnel::{bug, files};

use crate::plan::{Job, between, family, ranked, runs};
use crate::points::What;

/// Share of all worth that the matmuls between real ones get: assumed, it only orders the measuring.
const BETWEEN: f64 = 0.05;

/// Say what is worth measuring: kernels of real runs, by the share of a step's time that rests on them.
#[derive(Debug, clap::Args)]
#[command(after_help = super::help::PLAN)]
pub struct Args {
    /// Scenarios (*.toml), receipts (*.jsonl), or folders of them.
    #[arg(default_values = ["scenarios", "tests/receipts"])]
    runs: Vec<PathBuf>,
    /// One JSON object a line, as `calibrate cuda --plan` reads it.
    #[arg(long)]
    json: bool,
    /// Only the most valuable.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Matmuls to lay between those of real runs, for interpolation.
    #[arg(long, value_name = "N", default_value_t = 96, value_parser = between_limit)]
    between: usize,
}

/// Matmuls between real ones, at most: the grid they are picked from has no more.
const MOST: usize = 4096;

fn between_limit(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count <= MOST);
    count.ok_or_else(|| format!("expected a whole number from 0 to {MOST}, the size of the grid they are picked from"))
}

/// Flies the runs and lists what they issue; a run that meets a bug is named, and the others are listed all the same.
pub fn run(args: &Args) -> ExitCode {
    match planned(args) {
        Ok((text, panicked)) => {
            for row in &panicked {
                files::complain(&format!("error: {row}"));
            }
            super::said(&text, if panicked.is_empty() { 0 } else { bug::CODE })
        }
        Err(why) => super::failed(&why, super::INPUT),
    }
}

/// The list, and the runs that met a bug.
fn planned(args: &Args) -> Result<(String, Vec<String>), String> {
    let bar = files::bar(None, "{bar:30} {pos}/{len} runs, {elapsed}, {eta} left");
    let worth = runs::worth(&args.runs, &|count| {
        bar.set_length(count as u64);
        bar.inc(1);
    });
    bar.finish_and_clear();
    let worth = worth.map_err(|why| why.to_string())?;
    let filling = between(worth.values.keys(), args.between);
    // The farthest first: what comes early is worth more.
    let rest = |at: usize| BETWEEN * 2.0 * (args.between - at) as f64 / (args.between * (args.between + 1)) as f64;
    let between = filling.iter().enumerate().map(|(at, what)| Job { what: what.clone(), value: rest(at) });
    let mut jobs = ranked(worth.jobs().chain(between));
    if let Some(limit) = args.limit {
        jobs.truncate(limit);
    }
    let text = match args.json {
        true => jobs.iter().map(line).collect::<Result<_, _>>()?,
        false => words(&worth, &jobs, filling.len()),
    };
    Ok((text, worth.panicked))
}

fn line(job: &Job) -> Result<String, String> {
    serde_json::to_string(job).map(|text| text + "\n").map_err(|why| why.to_string())
}

fn words(worth: &runs::Worth, jobs: &[Job], filling: usize) -> String {
    let mut text = format!(
        "{} runs of different configurations ({} rows map to none); share of a step's time that rests on each kernel\n\n",
        worth.runs, worth.unmapped
    );
    let mut families: BTreeMap<&str, (usize, f64, f64)> = BTreeMap::new();
    for (what, value) in &worth.values {
        let entry = families.entry(family(what)).or_default();
        entry.0 += 1;
        entry.1 += value;
    }
    for job in jobs.iter().filter(|job| worth.values.contains_key(&job.what)) {
        families.entry(family(&job.what)).or_default().2 += worth.values[&job.what];
    }
    for (family, (kinds, all, listed)) in families {
        let _ = writeln!(
            text,
            "{family:10} {kinds:6} kernels, {:5.1} % of a step's time, {:5.1} % of that below",
            100.0 * all,
            100.0 * listed / all
        );
    }
    let _ = writeln!(text, "{:10} {filling:6} matmuls between those, for interpolation\n", "");
    for job in jobs {
        let _ = writeln!(text, "{:7.4} %  {}", 100.0 * job.value, name(&job.what));
    }
    text
}

fn name(what: &What) -> String {
    match what {
        What::Matmul { m, n, k, dtype, layout } => format!("matmul {m} x {n} x {k} {dtype} {layout}"),
        What::Attention { backward, batch, heads, kv_heads, queries, head_dim, causal, window, .. } => format!(
            "attention {} {batch} x {queries} tokens, {heads} heads ({kv_heads}) of {head_dim}, {}{}",
            if *backward { "backward" } else { "forward" },
            if *causal { "causal" } else { "full" },
            window.map_or(String::new(), |window| format!(", window {window}"))
        ),
        What::Memory { family, kernel, read, written } => {
            format!("memory {family} ({kernel}), {read} B read, {written} B written")
        }
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::between_limit;

    #[test]
    fn more_matmuls_between_than_the_grid_has_are_refused() {
        assert_eq!(between_limit("0"), Ok(0));
        assert_eq!(between_limit("4096"), Ok(4096));
        for text in ["4097", "99999999999", "-1", "99999999999999999999999", "many"] {
            assert!(between_limit(text).is_err_and(|why| why.contains("from 0 to 4096")), "{text}");
        }
    }
}
