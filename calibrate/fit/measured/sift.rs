//! Which points a fit can use, and why not the others.
//!
//! Here goes what no family could use: nothing of any size, words that no profile knows, clocks and spans that no section
//! has, work beside somebody else's. Each is counted by its reason. What a family leaves out for reasons of its own (too
//! few, too small) it says itself.

use std::collections::BTreeMap;

use windtunnel::cost::attention::Backend;

use super::{attention, calls, collectives, matmul, memory};
use crate::fit::median;
use crate::points::{Point, Points, Regime, What, sizes};

/// How far apart measurements of one thing may lie without a note, as a ratio.
const APART: f64 = 1.1;

/// Points that can be used, one of each kind, and what became of the rest.
#[derive(Debug, Default)]
pub struct Sifted<'a> {
    /// Points.
    pub points: BTreeMap<(&'a What, Regime), Point>,
    /// How many are not used, by reason.
    pub left_out: BTreeMap<String, usize>,
    /// Remarks on the file.
    pub notes: Vec<String>,
}

/// Sifts the points of a file.
pub fn sift(file: &Points) -> Sifted<'_> {
    let mut sifted = Sifted::default();
    let mut several: BTreeMap<(&What, Regime), Vec<&Point>> = BTreeMap::new();
    for (machine, point) in &file.points {
        let disturbed = file.machines[*machine].disturbed.is_some();
        let shared = || "others used the device while they were measured (--busy-ok)".to_owned();
        match disturbed.then(shared).or_else(|| unusable(&point.what, point.regime)) {
            Some(why) => *sifted.left_out.entry(why).or_default() += 1,
            None => several.entry((&point.what, point.regime)).or_default().push(point),
        }
    }
    let burst: Vec<&What> =
        several.keys().filter(|(_, regime)| *regime == Regime::Burst).map(|(what, _)| *what).collect();
    several.retain(|(what, regime), points| {
        let alone = *regime == Regime::Sustained && burst.binary_search(what).is_err();
        if alone {
            let why = "measured at sustained clocks alone: a clock's factor takes the same in a burst";
            *sifted.left_out.entry(why.to_owned()).or_default() += points.len();
        }
        !alone
    });
    sifted.notes.extend(repeated(&several));
    sifted.points = several.into_iter().map(|(kind, points)| (kind, middle(&points))).collect();
    sifted
        .notes
        .extend(file.half.map(|line| format!("line {line} breaks off, as an interrupt leaves it: it is left out")));
    let mut skipped: BTreeMap<&str, usize> = BTreeMap::new();
    // Another try may have gone well.
    for skip in file.skipped.iter().filter(|skip| !sifted.points.contains_key(&(&skip.what, skip.regime))) {
        *skipped.entry(&skip.why).or_default() += 1;
    }
    sifted.notes.extend(skipped.into_iter().map(|(why, count)| format!("{count} could not be measured: {why}")));
    if !file.compiled.is_empty() {
        sifted.notes.push(format!("{} are a compiler's word, not measured: they are left out", file.compiled.len()));
    }
    sifted
}

/// Of several measurements of one thing, the median of each figure; of an even number, the slower of the middle two.
fn middle(points: &[&Point]) -> Point {
    let of = |figure: fn(&Point) -> f64| median(&points.iter().map(|point| figure(point)).collect::<Vec<_>>());
    Point { median: of(|p| p.median), p10: of(|p| p.p10), p90: of(|p| p.p90), ..points[0].clone() }
}

/// A note on what was measured more than once.
fn repeated(several: &BTreeMap<(&What, Regime), Vec<&Point>>) -> Option<String> {
    let again: Vec<&Vec<&Point>> = several.values().filter(|points| points.len() > 1).collect();
    let farthest = again.iter().map(|points| {
        let times = points.iter().map(|point| point.median);
        times.clone().fold(0.0, f64::max) / times.fold(f64::INFINITY, f64::min)
    });
    let farthest = farthest.fold(1.0, f64::max);
    let apart =
        if farthest > APART { format!("; the farthest apart by a factor of {farthest:.2}") } else { String::new() };
    (!again.is_empty()).then(|| {
        let points: usize = again.iter().map(|points| points.len()).sum();
        format!(
            "{} things were measured more than once, {points} times in all: the median of each counts{apart}",
            again.len()
        )
    })
}

/// Why no section can be made of a point; none if one can.
fn unusable(what: &What, regime: Regime) -> Option<String> {
    if sizes::check(what).is_err() {
        return Some("of no size, or of more than any device holds".to_owned());
    }
    if regime == Regime::Sustained && !matches!(what, What::Matmul { .. }) {
        return Some("measured at sustained clocks: only matmuls make a clock's factor".to_owned());
    }
    match what {
        What::Matmul { dtype, layout, .. } => {
            let formats = matmul::DTYPES.iter().map(|(name, ..)| *name).chain(matmul::SCALED);
            let word = unknown("matmuls", "number format", dtype, formats);
            let word = word.or_else(|| unknown("matmuls", "layout", layout, matmul::LAYOUTS));
            let hot = regime == Regime::Sustained && !calls::clocked(dtype, layout);
            let why = "measured at sustained clocks: a clock's factor is of forward matmuls in bf16 and fp8_tensor";
            word.or_else(|| hot.then(|| why.to_owned()))
        }
        What::Attention { backend, .. } => {
            unknown("attention", "library", backend, Backend::ALL.iter().map(|backend| backend.name()))
                .or_else(|| attention::plain(what, 1.0).err().map(|why| format!("attention: {why}")))
        }
        What::Memory { family, .. } => unknown("memory", "family", family, memory::FAMILIES),
        What::Overhead { call } => unknown("calls", "call", call, calls::CALLS),
        What::Overlap { slowed, beside, .. } => {
            let word = unknown("overlap", "kernel beside", beside, calls::BESIDE);
            word.or_else(|| {
                calls::class(slowed).is_none().then(|| "overlap: no section has what was slowed".to_owned())
            })
        }
        What::Collective { kind, ranks, nodes, .. } => collectives::unusable(kind, *ranks, *nodes),
        What::GroupedMatmul { .. } | What::HostCopy { .. } => None,
    }
}

/// Names a word that no profile knows.
fn unknown<'w>(family: &str, kind: &str, word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<String> {
    let known = known.into_iter().any(|other| other == word);
    (!known).then(|| format!("{family}: no profile knows the {kind} {word:?}"))
}
