//! Measured collectives inside a node: a curve for each kind and number of ranks, and one pair of GPUs.
//!
//! The section is replaced as a whole, when all four kinds were measured for the same numbers of ranks and those reach as
//! far as the base's. Errors are by leaving out one size at a time and asking the simulator for it. Of several element
//! types the one that gradients have counts; collectives across nodes are not fitted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use windtunnel::cost::sections::Section;
use windtunnel::cost::{CostModel, OnNodes, Profile, Regime as Clocks};
use windtunnel::program::{Collective, Comm, DType, GroupId};
use windtunnel::units::Bytes;

use super::{FitError, Made, Measured};
use crate::fit::{Residual, error, evidence, positive, rounded};
use crate::points::What;

const KINDS: [(&str, Collective); 4] = [
    ("all_gather", Collective::AllGather),
    ("reduce_scatter", Collective::ReduceScatter),
    ("all_reduce", Collective::AllReduce),
    ("all_to_all", Collective::AllToAll),
];

/// Element types, the preferred first.
const DTYPES: [&str; 3] = ["bfloat16", "half", "float"];
/// Between two GPUs.
const PAIR: &str = "send_recv";
/// Sizes that a curve needs.
const ENOUGH: usize = 8;

/// Seconds by kind, ranks and bytes.
type Times<'a> = BTreeMap<(&'a str, u64), BTreeMap<u64, f64>>;

/// How little a point is preferred: by its element type, and whether it ran in place.
type Rank = (usize, bool);

/// Why no section can be made of a collective; none if one can.
pub(super) fn unusable(kind: &str, ranks: u64, nodes: u64) -> Option<String> {
    let known = kind == PAIR || KINDS.iter().any(|(name, _)| *name == kind);
    if nodes > 1 {
        return Some("collectives across nodes are not fitted".to_owned());
    }
    if !known {
        return Some(format!("collectives: no section has {kind:?}"));
    }
    (kind == PAIR && ranks != 2).then(|| "collectives: sends and receives are fitted between two ranks".to_owned())
}

fn times<'a>(measured: &Measured<'a>, made: &mut Made) -> Times<'a> {
    let mut ranked: BTreeMap<(&str, u64, u64), (Rank, f64)> = BTreeMap::new();
    let mut points = 0;
    for (what, seconds) in measured.burst(Some) {
        let What::Collective { kind, ranks, bytes, in_place, dtype, .. } = what else { continue };
        points += 1;
        let place = DTYPES.iter().position(|known| known == dtype).unwrap_or(DTYPES.len());
        let entry = ranked.entry((kind, *ranks, *bytes)).or_insert(((place, *in_place), seconds));
        if (place, *in_place) < entry.0 {
            *entry = ((place, *in_place), seconds);
        }
    }
    let why = "collectives: the same size counts out of place, and in the element type that gradients have";
    made.leave(points - ranked.len(), why);
    let mut times = Times::new();
    for ((kind, ranks, bytes), (_, seconds)) in ranked {
        times.entry((kind, ranks)).or_default().insert(bytes, seconds);
    }
    times
}

/// Makes the sections `collectives.node` and `collectives.node.pair`.
pub(super) fn fit(measured: &Measured<'_>, made: &mut Made) -> Result<(), FitError> {
    let mut times = times(measured, made);
    pair(measured, made, times.remove(&(PAIR, 2)).unwrap_or_default());
    if times.is_empty() {
        return Ok(());
    }
    let whole =
        |ranks: &u64| KINDS.iter().all(|(name, _)| times.get(&(*name, *ranks)).is_some_and(|t| t.len() >= ENOUGH));
    let ranks: BTreeSet<u64> = times.keys().map(|(_, ranks)| *ranks).filter(whole).collect();
    let points: usize = times.values().map(BTreeMap::len).sum();
    let reach = ranks.iter().max().copied().unwrap_or(0);
    let known = base_reach(measured);
    if ranks.is_empty() || reach < known {
        made.leave(points, "collectives: the base knows more ranks, or a kind was not measured");
        made.notes.push(format!(
            "collectives: all four kinds were measured up to {reach} ranks, but the base knows {known}: the base's stay"
        ));
        return Ok(());
    }
    // Sizes that every curve has.
    let curves: Vec<_> = KINDS.iter().flat_map(|(name, _)| ranks.iter().map(|r| &times[&(*name, *r)])).collect();
    let sizes: Vec<u64> =
        curves[0].keys().filter(|size| curves.iter().all(|c| c.contains_key(size))).copied().collect();
    if sizes.len() < ENOUGH {
        made.leave(points, format!("collectives: {ENOUGH} sizes common to all kinds are needed"));
        made.notes.push(format!("collectives: {} sizes are common to all, but {ENOUGH} are needed", sizes.len()));
        return Ok(());
    }
    let errors = left_out(measured, &times, &ranks, &sizes)?;
    let used = sizes.len() * curves.len();
    let why = format!("collectives: ranks or sizes that not all four kinds were measured for, {ENOUGH} sizes at least");
    made.leave(points - used, why);
    let e = measured.evidence(&errors, used, floor(measured), &measured.source(&["nccl"]));
    made.sections.push(("collectives.node".to_owned(), section(&times, &ranks, &sizes, &e)));
    made.residuals.push(Residual::of("collectives in a node", used, &errors));
    Ok(())
}

/// The most ranks that the base has a curve for.
fn base_reach(measured: &Measured<'_>) -> u64 {
    let text = measured.sections.get("collectives.node").map_or("", |section| section.text.as_str());
    let ranks =
        text.lines().filter_map(|line| line.trim_start().strip_prefix("{ ranks = ")?.split(',').next()?.parse().ok());
    ranks.max().unwrap_or(0)
}

fn section(times: &Times<'_>, ranks: &BTreeSet<u64>, sizes: &[u64], evidence: &str) -> String {
    let mut text = format!("[collectives.node]\nevidence = {evidence}\nbytes = {sizes:?}\n");
    for (name, _) in KINDS {
        let _ = writeln!(text, "{name} = [");
        for ranks in ranks {
            let us: Vec<f64> = sizes.iter().map(|size| rounded(times[&(name, *ranks)][size] * 1e6)).collect();
            let _ = writeln!(text, "  {{ ranks = {ranks}, us = {us:?} }},");
        }
        text.push_str("]\n");
    }
    text
}

/// Errors on each size between the first and the last, left out.
fn left_out(
    measured: &Measured<'_>,
    times: &Times<'_>,
    ranks: &BTreeSet<u64>,
    sizes: &[u64],
) -> Result<Vec<f64>, FitError> {
    let mut errors = vec![];
    for out in 1..sizes.len() - 1 {
        let rest: Vec<u64> = sizes.iter().filter(|size| **size != sizes[out]).copied().collect();
        let text = section(times, ranks, &rest, &evidence("measured", rest.len(), 0.0, 0.0, "a trial"));
        let mut whole = measured.sections.clone();
        whole.put(Section { name: "collectives.node".to_owned(), text });
        let profile = Profile::parse("a trial", &whole.text())?;
        let costs = CostModel::new(&profile, Clocks::Burst);
        for (name, kind) in KINDS {
            for ranks in ranks {
                let comm = Comm { kind, group: GroupId(0), bytes: Bytes(sizes[out]), dtype: DType::Bf16 };
                let cost = costs.collective(&comm, OnNodes { ranks_per_node: *ranks as u32, nodes: 1 });
                errors.push(error(cost.time.seconds(), times[&(name, *ranks)][&sizes[out]]));
            }
        }
    }
    Ok(errors)
}

/// The least error that collectives may claim.
fn floor(measured: &Measured<'_>) -> f64 {
    measured.floor(|what| matches!(what, What::Collective { .. }))
}

/// Between two GPUs: a latency and a bandwidth.
fn pair(measured: &Measured<'_>, made: &mut Made, rows: BTreeMap<u64, f64>) {
    if rows.len() < ENOUGH {
        made.leave(rows.len(), format!("collectives: a pair of GPUs needs {ENOUGH} sizes"));
        return;
    }
    let fitted = |without: Option<u64>| {
        positive(&[7e-6, 300e9], 200, |p| {
            let rest = rows.iter().filter(|(bytes, _)| Some(**bytes) != without);
            rest.map(|(bytes, t)| libm::fabs(libm::log((p[0] + *bytes as f64 / p[1]) / t))).sum()
        })
    };
    let off = |(bytes, t): (&u64, &f64)| {
        let p = fitted(Some(*bytes));
        error(p[0] + *bytes as f64 / p[1], *t)
    };
    let errors: Vec<f64> = rows.iter().map(off).collect();
    let best = fitted(None);
    let text = format!(
        "[collectives.node.pair]\nlatency = \"{} us\"\nbandwidth = \"{} GB/s\"\nevidence = {}\n",
        rounded(best[0] * 1e6),
        rounded(best[1] / 1e9),
        measured.evidence(&errors, rows.len(), floor(measured), &measured.source(&["nccl"]))
    );
    made.residuals.push(Residual::of("collectives: a pair", rows.len(), &errors));
    made.sections.push(("collectives.node.pair".to_owned(), text));
}
