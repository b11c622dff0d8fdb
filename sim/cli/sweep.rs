//! `windtunnel sweep SCENARIO --vary key=a,b`: every combination of some keys' values, a row each.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use super::{Failure, Outcome, Written, help, output, read, width};
use windtunnel::explore::sweep::{self, Grid, Held, Row, text};
use windtunnel::files::{self, Journal, Place, WriteError};
use windtunnel::scenario::Scenario;

#[derive(Debug, clap::Args)]
#[command(after_help = help::SWEEP)]
pub struct Args {
    /// The scenario file.
    scenario: PathBuf,
    /// A key and its values, such as mesh.tp=1,2,4 or megatron.recompute=none,core_attn,{uniform=1}. A bare word is text, `unset`
    /// leaves the key to its default, and all else is TOML. Of several, the last changes fastest.
    #[arg(long, value_name = "KEY=A,B,…", required = true)]
    vary: Vec<String>,
    /// Append each row as a line of JSON to this file. Where the file ends, the same command goes on.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write all rows to this file as comma-separated values (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// How many of the best rows to print.
    #[arg(long, value_name = "ROWS", default_value_t = 10)]
    best: usize,
    /// Start the file of --out anew, whatever is in it.
    #[arg(long, requires = "out")]
    force: bool,
}

pub fn run(args: &Args) -> Outcome {
    if args.out.as_deref().is_some_and(|out| out == std::path::Path::new(files::STANDARD)) {
        let why = "--out keeps rows in a file, to be gone on with: name one, or print all rows with --csv -";
        return Err(Failure::input(why));
    }
    let csv = output(args.csv.as_ref())?;
    let place = args.out.as_ref().map(|path| Place::take(path)).transpose().map_err(Failure::input)?;
    let (file, scenario) = read(&args.scenario)?;
    let base = Scenario::proofread(&file, &scenario).map_err(Failure::input)?;
    let grid = Grid::new(base, &args.vary).map_err(Failure::input)?;
    let (mut journal, held) = match place {
        Some(place) => {
            let (journal, held) = open(args, place, &grid)?;
            (Some(journal), held)
        }
        None => (None, Held::default()),
    };
    let (lines, failed) = simulate(&grid, journal.as_mut(), held);
    // What is in the file is on the disk before anything is said of it.
    let finished = journal.map(Journal::finish).transpose();
    if let Some(why) = failed.or(finished.err()) {
        return Err(Failure::input(why));
    }
    let broken = |why: serde_json::Error| Failure::input(format!("a row cannot be read back: {why}"));
    let rows: Vec<Row> = lines.iter().map(|line| Row::read(line)).collect::<Result<_, _>>().map_err(broken)?;
    let mut written = Written::default();
    if let Some(csv) = csv {
        written.write(csv, &sweep::csv(&lines).map_err(broken)?, "");
    }
    written.report(&text::report(&grid, &rows, args.best, width()))?;
    Ok(if rows.iter().any(Row::is_a_bug) { ExitCode::from(windtunnel::bug::CODE) } else { ExitCode::SUCCESS })
}

/// Opens the file of rows. What it holds of this sweep is kept; what it holds of another is refused, unless it may go.
fn open(args: &Args, place: Place, grid: &Grid) -> Result<(Journal, Held), Failure> {
    let (mut journal, bytes) = place.open().map_err(Failure::input)?;
    let held = if args.force {
        Held::default()
    } else {
        sweep::held(grid, &bytes).map_err(|why| {
            let path = args.out.as_deref().unwrap_or(&args.scenario).display();
            Failure::input(format!(
                "cannot go on with {path}: {why}\n  name another file, or start this one anew with --force"
            ))
        })?
    };
    if held.bytes < bytes.len() as u64 {
        journal.cut(held.bytes).map_err(Failure::input)?;
    }
    if !held.lines.is_empty() {
        files::note(&format!("{} of {} rows are in the file already", held.lines.len(), grid.runs()));
    }
    Ok((journal, held))
}

/// Simulates what is left of a grid. Returns all lines, and why the file took no more.
fn simulate(grid: &Grid, mut journal: Option<&mut Journal>, held: Held) -> (Vec<String>, Option<WriteError>) {
    let (mut lines, mut failed) = (held.lines, None);
    let from = lines.len() as u64;
    let bar = files::bar(Some(grid.runs() - from), "{bar:30} {pos}/{len} runs, {per_sec}, {elapsed}, {eta} left");
    sweep::sweep(grid, from, &mut |row| {
        let line = row.line();
        if let Some(journal) = journal.as_deref_mut()
            && let Err(why) = journal.append(&line)
        {
            failed = Some(why);
            return ControlFlow::Break(());
        }
        lines.push(line);
        bar.inc(1);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    (lines, failed)
}
