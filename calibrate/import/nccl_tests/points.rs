//! What came out of a log, as lines of a file of points.
//!
//! nccl-tests prints the mean of its repetitions, so a point's median and both percentiles are that mean. What a log does
//! not say of the machine stays zero or empty; ranks and nodes it must say, or the reader.

use std::collections::BTreeSet;

use windtunnel::budget;

use super::kind::Kind;
use super::row::Row;
use super::run::Run;
use super::{Imported, Known, Mistake};
use crate::points::{Line, Machine, Point, What};

/// Writes all runs of one log, of which so many bytes were read.
pub fn write(path: &str, read: u64, runs: &[Run], known: &Known, imported: &mut Imported) -> Result<(), Mistake> {
    let mut text = String::new();
    let mut before: Option<Machine> = None;
    let (mut points, mut remarks) = (0, Vec::new());
    let mut of_nodes = None;
    for run in runs {
        let mut remark = |line: usize, what: &str| remarks.push(format!("{path}:{line}: {what}"));
        if let Some(line) = run.cut {
            remark(line, "the table breaks off inside this row; what is whole of it was kept");
        }
        let rows: Vec<Row> = run.rows.iter().filter(|row| row.bytes > 0).cloned().collect();
        if rows.is_empty() {
            remark(run.line, "a run without rows: it ended before it timed anything");
            continue;
        }
        let Understood { kind, ranks, nodes, filled } = understand(run, &rows, known)?;
        if filled && *of_nodes.get_or_insert(ranks) != ranks {
            let why = "runs of different numbers of ranks cannot all lie on --nodes: give each a file of its own";
            return Err((run.line, why.to_owned()));
        }
        if !kind.is_modelled() {
            remark(run.line, &format!("{} is left out: no cost model asks for it", kind.name()));
            continue;
        }
        if ranks < 2 {
            remark(run.line, "one rank alone moves nothing; the run is left out");
            continue;
        }
        if run.parameters.as_ref().is_some_and(|parameters| parameters.graph) {
            remark(run.line, "launched from a CUDA graph: small sizes are faster than calls issued one by one");
        }
        let machine = machine(path, run, ranks, known);
        if before.as_ref() != Some(&machine) {
            text.push_str(&Line::Machine(machine.clone()).text());
            before = Some(machine);
        }
        let repeats = run.parameters.as_ref().and_then(|parameters| parameters.iterations).unwrap_or(1);
        for row in &rows {
            budget::within(read, points as u64 * budget::POINT).map_err(|why| (row.line, why))?;
            for (in_place, body) in [false, true].into_iter().zip(&row.bodies) {
                let Some(body) = body else { continue };
                let us = body.time.value;
                if !(us > 0.0 && us.is_finite()) {
                    return Err((
                        row.line,
                        format!("a time of {us} us for {} bytes is none: remove the row", row.bytes),
                    ));
                }
                let what = What::Collective {
                    kind: kind.name().to_owned(),
                    ranks,
                    nodes,
                    bytes: row.bytes,
                    in_place,
                    dtype: row.dtype.to_owned(),
                };
                text.push_str(&Line::Point(Point::published(what, us, repeats)).text());
                points += 1;
            }
        }
    }
    imported.text.push_str(&text);
    imported.points += points;
    imported.remarks.append(&mut remarks);
    Ok(())
}

/// What a run measured.
struct Understood {
    kind: Kind,
    ranks: u64,
    nodes: u64,
    /// Whether the reader said how many nodes.
    filled: bool,
}

fn understand(run: &Run, rows: &[Row], known: &Known) -> Result<Understood, Mistake> {
    let place = rows.first().map_or(run.line, |row| row.line);
    let groups: BTreeSet<_> = run.ranks.iter().map(|rank| rank.group).collect();
    if groups.len() > 1 {
        let why = format!(
            "{} groups of ranks ran at once (NCCL_TESTS_SPLIT): their times share links; run one group alone",
            groups.len()
        );
        return Err((run.line, why));
    }
    let listed = listed(run);
    let said = known.ranks.or(listed);
    let kind = match (run.named, known.collective) {
        (Some(named), Some(said)) if named != said => {
            let why =
                format!("the log says that this is {}, not {}: leave --collective out", named.name(), said.name());
            return Err((run.line, why));
        }
        (Some(kind), _) | (None, Some(kind)) => kind,
        (None, None) => {
            let candidates = Kind::candidates(rows, said);
            match (run.hinted.filter(|kind| candidates.contains(kind)), candidates.as_slice()) {
                (Some(kind), _) | (None, &[kind]) => kind,
                (None, []) => {
                    let shown = run.hinted.unwrap_or(Kind::AllReduce);
                    if let Some(ranks) = said {
                        shown.check(rows, ranks)?;
                    }
                    let why = "the figures fit no collective of nccl-tests: were they typed by hand?".to_owned();
                    return Err((place, why));
                }
                (None, several) => {
                    let names: Vec<&str> = several.iter().map(|kind| kind.name()).collect();
                    let why = format!(
                        "the log does not say which collective this is (by its figures {}): say --collective NAME",
                        names.join(" or ")
                    );
                    return Err((place, why));
                }
            }
        }
    };
    let Some(ranks) = said.or_else(|| kind.ranks(rows)) else {
        let why = "the log lists no ranks and its figures do not tell how many there were: say --ranks N";
        return Err((place, why.to_owned()));
    };
    kind.check(rows, ranks)?;
    let hosts: BTreeSet<&str> = run.ranks.iter().map(|rank| rank.host.as_str()).collect();
    // Where one process drives all ranks there is one node.
    let one_process = run.parameters.as_ref().and_then(|parameters| parameters.per_process) == Some(ranks);
    let nodes = one_process.then_some(1).or(known.nodes).or(listed.map(|_| hosts.len() as u64));
    let Some(nodes) = nodes else {
        let why = "the log lists no devices, so it does not say on how many nodes its ranks were: say --nodes N";
        return Err((place, why.to_owned()));
    };
    if nodes == 0 || nodes > ranks {
        return Err((place, format!("{ranks} ranks cannot lie on {nodes} nodes: say --nodes N")));
    }
    let filled = !one_process && listed.is_none();
    Ok(Understood { kind, ranks, nodes, filled })
}

/// Ranks, where the list has no gaps.
fn listed(run: &Run) -> Option<u64> {
    let numbers: BTreeSet<u64> = run.ranks.iter().map(|rank| rank.rank).collect();
    let count = numbers.len() as u64;
    (count > 0 && numbers.last() == Some(&(count - 1))).then_some(count)
}

fn machine(path: &str, run: &Run, ranks: u64, known: &Known) -> Machine {
    let chips: BTreeSet<&str> = run.ranks.iter().map(|rank| rank.chip.as_str()).collect();
    let chip = chips.into_iter().collect::<Vec<_>>().join(" and ");
    let source = known.source.as_deref().unwrap_or(path);
    Machine::published(&chip, ranks, run.versions.clone(), "import nccl-tests", source)
}
