//! Which measured kernel is which predicted one: the two lists in the order of their launches, lined up.
//!
//! First what is the same in name and shape is lined up ([`runs`]). Between two of these, what is of the same class is lined up in its
//! order: it has another shape, or another name. What is left on one side only stays so.

use std::collections::BTreeMap;

use super::runs::runs;
use super::side::{Class, Item, Shape};

/// What became of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    /// Both sides have it.
    Both {
        /// Its place among the predicted items.
        predicted: usize,
        /// Its place among the measured ones.
        measured: usize,
        /// Whether name and shape are the same, or the class only.
        exact: bool,
    },
    /// Only predicted.
    Predicted(usize),
    /// Only measured.
    Measured(usize),
}

/// A list of items whose order both sides agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    /// What computes, whatever stream it is on.
    Compute,
    /// Exchanges of a kind: those of different kinds pass each other.
    Exchange(Class),
}

impl Lane {
    fn of(item: &Item) -> Lane {
        if item.class.is_exchange() { Lane::Exchange(item.class) } else { Lane::Compute }
    }
}

/// What two items have in common if they are the same.
type Token<'a> = (Class, &'a str, Shape);

fn token(item: &Item) -> Token<'_> {
    // Multi-tensor operators pack tensors for exchanges, clip gradients and step: which of these, a profiler does not always tell.
    let class = if item.class == Class::Optimizer { Class::Memory } else { item.class };
    // An operator goes by many names, a matmul or an attention of one shape is the same whoever launches it.
    match item.shape {
        Shape::Matmul(_) | Shape::Attention { .. } | Shape::Bytes(_) => (class, "", item.shape),
        Shape::None => (class, synonym(&item.name), item.shape),
    }
}

/// Operators that launch the same kernel.
fn synonym(name: &str) -> &str {
    match name {
        "aten._to_copy" | "aten.clone" | "aten.contiguous" | "aten.to" => "aten.copy_",
        "aten.zeros" | "aten.zeros_like" | "aten.new_zeros" | "aten.zero_" | "aten.ones" | "aten.ones_like"
        | "aten.full" => "aten.fill_",
        _ => name,
    }
}

/// Lines the items of two sides up: every item of the step, of either side, is in exactly one pair.
pub fn align(predicted: &[Item], measured: &[Item]) -> Vec<Pair> {
    let lanes = |items: &[Item]| {
        let mut lanes: BTreeMap<Lane, Vec<usize>> = BTreeMap::new();
        // What follows a kernel of another step has nothing else to follow.
        let leads = |item: &Item| item.own && item.head.is_none_or(|head| !items[head].own);
        for (index, item) in items.iter().enumerate().filter(|(_, item)| leads(item)) {
            lanes.entry(Lane::of(item)).or_default().push(index);
        }
        lanes
    };
    let (mut left, mut right) = (lanes(predicted), lanes(measured));
    let all: Vec<Lane> = left.keys().chain(right.keys()).copied().collect();
    let mut pairs = vec![];
    for lane in all {
        // The second time a lane comes up, there is nothing left in it.
        let (left, right) = (left.remove(&lane).unwrap_or_default(), right.remove(&lane).unwrap_or_default());
        lane_up(predicted, measured, &left, &right, &mut pairs);
    }
    pairs
}

fn lane_up(predicted: &[Item], measured: &[Item], left: &[usize], right: &[usize], pairs: &mut Vec<Pair>) {
    let mut numbers: BTreeMap<Token<'_>, u32> = BTreeMap::new();
    let mut number = |item| {
        let next = numbers.len() as u32;
        *numbers.entry(token(item)).or_insert(next)
    };
    let a: Vec<u32> = left.iter().map(|&index| number(&predicted[index])).collect();
    let b: Vec<u32> = right.iter().map(|&index| number(&measured[index])).collect();
    let both = |predicted, measured, exact| Pair::Both { predicted, measured, exact };
    let (mut from, mut to) = (0, 0);
    for run in runs(&a, &b) {
        by_class(predicted, measured, (&left[from..run.old], &right[to..run.new]), pairs);
        (from, to) = (run.old + run.length, run.new + run.length);
        let same = left[run.old..from].iter().zip(&right[run.new..to]);
        pairs.extend(same.map(|(&predicted, &measured)| both(predicted, measured, true)));
    }
    by_class(predicted, measured, (&left[from..], &right[to..]), pairs);
}

/// Lines up by class what stands between two items that are the same.
fn by_class(predicted: &[Item], measured: &[Item], (left, right): (&[usize], &[usize]), pairs: &mut Vec<Pair>) {
    // Whatever memory bounds may be fused with its neighbours: one by one it cannot be told which is which.
    let one_by_one = |class: Class| class != Class::Memory;
    let (a, fused): (Vec<usize>, Vec<usize>) = left.iter().partition(|&&at| one_by_one(predicted[at].class));
    pairs.extend(fused.into_iter().map(Pair::Predicted));
    let (b, fused): (Vec<usize>, Vec<usize>) = right.iter().partition(|&&at| one_by_one(measured[at].class));
    pairs.extend(fused.into_iter().map(Pair::Measured));
    let classes = |list: &[usize], items: &[Item]| list.iter().map(|&at| items[at].class as u32).collect::<Vec<u32>>();
    let (mut from, mut to) = (0, 0);
    let alone = |pairs: &mut Vec<Pair>, a: &[usize], b: &[usize]| {
        pairs.extend(a.iter().copied().map(Pair::Predicted));
        pairs.extend(b.iter().copied().map(Pair::Measured));
    };
    for run in runs(&classes(&a, predicted), &classes(&b, measured)) {
        alone(pairs, &a[from..run.old], &b[to..run.new]);
        (from, to) = (run.old + run.length, run.new + run.length);
        let both = a[run.old..from].iter().zip(&b[run.new..to]);
        pairs.extend(both.map(|(&predicted, &measured)| Pair::Both { predicted, measured, exact: false }));
    }
    alone(pairs, &a[from..], &b[to..]);
}
