//! How far a prediction may be from the compiler's answer.

use std::collections::{BTreeMap, BTreeSet};

use super::sides::{Compiler, Exchange, Ours};

/// Arguments: a sum of shards, rounded up by the compiler.
pub const ARGUMENTS: f64 = 0.002;
/// The peak: an order of instructions that the compiler chooses.
pub const PEAK: f64 = 0.1;

/// FLOPs of matmuls: counted alike on both sides.
pub const FLOPS: f64 = 0.01;
/// Bytes that collectives move, over all that the compiler's move: which collectives there are is the partitioner's choice.
pub const TRAFFIC: f64 = 0.1;

/// Figures that are further apart than they may be.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// One sentence each.
    pub apart: Vec<String>,
}

/// Of ours over the compiler's, what it differs by; none where the compiler has none.
pub fn difference(compiler: f64, ours: f64) -> Option<f64> {
    (compiler > 0.0).then(|| ours / compiler - 1.0)
}

/// What of the answer was for the question: without a slice it compiled for this machine's processors, and its peak, and whether it
/// fits, is that of another chip; and matmuls within kernels are not seen.
#[derive(Clone, Copy, Debug)]
pub struct Comparable {
    /// Whether it is for the slice.
    pub slice: bool,
    /// Whether all matmuls are seen.
    pub matmuls: bool,
}

/// Holds a prediction against the compiler, with the exit code.
pub fn verdict(compiler: &Compiler, ours: &Ours, comparable: Comparable) -> (Verdict, u8) {
    let mut apart = vec![];
    let mut hold = |what: &str, theirs: u128, own: u128, most: f64| {
        let by = difference(theirs as f64, own as f64).unwrap_or(0.0);
        if by.abs() > most {
            let [by, most] = [by * 100.0, most * 100.0];
            apart.push(format!("{what} {by:+.2} % off, and may be {most} %"));
        }
    };
    if let Some((argument, _)) = compiler.memory() {
        hold("arguments are predicted", argument.into(), ours.arguments.into(), ARGUMENTS);
    }
    if let Some(compiled) = compiler.compiled() {
        if comparable.slice {
            // Predictions know of no VMEM, and count what the compiler keeps there.
            hold("the peak is predicted", compiled.with_vmem().into(), ours.peak.into(), PEAK);
        }
        if comparable.matmuls {
            hold("matmuls are predicted", compiled.flops.matmul.into(), ours.matmul, FLOPS);
        }
    }
    if compiler.compiled().is_some() && comparable.slice {
        apart.extend(exchanges(&compiler.collectives(), &ours.collectives));
    }
    match compiler.fits().filter(|_| comparable.slice) {
        Some(true) if !ours.fits => apart.push("it fits, and is predicted not to".to_owned()),
        Some(false) if ours.fits => apart.push("it does not fit, and is predicted to".to_owned()),
        _ => {}
    }
    let code = match (apart.is_empty(), compiler) {
        (false, _) => super::APART,
        (true, Compiler::OutOfMemory { .. }) => super::OUT_OF_MEMORY,
        (true, _) => 0,
    };
    (Verdict { apart }, code)
}

/// Collectives, and how often each runs.
type Exchanges = BTreeMap<Exchange, u64>;

/// Where collectives move more or less than predicted: those in which tokens change places, and all others as one, since a weight
/// that is gathered in windows is permuted by the compiler, and a gradient may be all-reduced and cut.
fn exchanges(theirs: &Exchanges, own: &Exchanges) -> Vec<String> {
    let moved = |side: &Exchanges, swaps: bool| -> f64 {
        let of = |(one, count): (&Exchange, &u64)| one.traffic() * *count as f64;
        side.iter().filter(|(one, _)| one.swaps() == swaps).map(of).sum()
    };
    let most = TRAFFIC * (moved(theirs, true) + moved(theirs, false)).max(moved(own, true) + moved(own, false));
    let mut apart = vec![];
    for (what, swaps) in [("all-to-alls move", true), ("collectives other than all-to-alls move", false)] {
        let (compiler, predicted) = (moved(theirs, swaps), moved(own, swaps));
        if (compiler - predicted).abs() > most {
            let [compiler, predicted] = [compiler, predicted].map(|bytes| bytes / 1e9);
            apart.push(format!(
                "{what} {compiler:.3} GB on each chip, and are predicted to move {predicted:.3} GB; may be {} % of all that is \
                 moved; the largest: {}",
                TRAFFIC * 100.0,
                largest(theirs, own, swaps)
            ));
        }
    }
    apart
}

/// The collectives that differ most, as the reader finds them in the table.
fn largest(theirs: &Exchanges, own: &Exchanges, swaps: bool) -> String {
    let all: BTreeSet<&Exchange> = theirs.keys().chain(own.keys()).filter(|one| one.swaps() == swaps).collect();
    let count = |side: &Exchanges, one: &Exchange| side.get(one).copied().unwrap_or(0);
    let mut all: Vec<(&Exchange, u64, u64)> =
        all.into_iter().map(|one| (one, count(theirs, one), count(own, one))).collect();
    let by = |(one, theirs, own): &(&Exchange, u64, u64)| one.traffic() * theirs.abs_diff(*own) as f64;
    all.sort_by(|one, other| by(other).total_cmp(&by(one)));
    let shown = all.iter().filter(|one| by(one) > 0.0).take(3);
    let words: Vec<String> = shown
        .map(|(one, theirs, own)| {
            format!("{} of {} B on {} {theirs} x, predicted {own} x", one.kind, one.bytes, one.ranks)
        })
        .collect();
    words.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(kind: &str, bytes: u64, ranks: u64, count: u64) -> (Exchange, u64) {
        (Exchange { kind: kind.to_owned(), bytes, ranks }, count)
    }

    #[test]
    fn a_gather_in_windows_is_as_much_as_its_permutes() {
        // Sixteen chips: each passes fifteen shards on.
        let theirs = [one("collective-permute", 1 << 20, 2, 15)].into();
        let own = [one("all-gather", 16 << 20, 16, 1)].into();
        assert!(exchanges(&theirs, &own).is_empty());
    }

    #[test]
    fn an_all_to_all_where_the_compiler_gathers_and_reduces_is_named() {
        let theirs = [one("all-gather", 1 << 30, 8, 1), one("all-reduce", 1 << 30, 8, 1)].into();
        let own = [one("all-to-all", 1 << 20, 8, 2)].into();
        let apart = exchanges(&theirs, &own);
        assert!(
            apart.len() == 1 && apart[0].contains("all-reduce of 1073741824 B on 8 1 x, predicted 0 x"),
            "{apart:?}"
        );
    }
}
