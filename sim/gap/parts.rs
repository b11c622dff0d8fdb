//! Where the difference between a measured and a predicted step comes from: parts that add up to it exactly.

use std::collections::BTreeMap;

use super::align::{Pair, align};
use super::charge::{Charges, charge};
use super::idle::{Idle, difference, idle};
use super::side::{Class, Item, Shape, Side};
use crate::program::Pass;
use crate::units::Time;

/// Whether a part was foreseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Match {
    /// Predicted and measured, with one name and shape.
    Same,
    /// Predicted and measured in one place, with another name or shape.
    Other,
    /// Predicted, and not in the trace.
    NotSeen,
    /// In the trace, and not predicted.
    NotPredicted,
}

/// One side of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub count: u64,
    /// How long they ran, overlapped or not, without what they are known to have waited for other ranks \[ps\].
    pub busy: Time,
    /// How much of the step is charged to their running \[ps\].
    pub ran: Time,
    /// How much of the step is charged to their waiting for other ranks, where that is known \[ps\].
    pub waited: Time,
}

/// One of a part's kernels that took far longer than the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Which, counted from 0 in the order of launches.
    pub at: usize,
    /// The module that it belongs to; empty if nobody says.
    pub scope: String,
    /// How long it took \[ps\].
    pub took: Time,
    /// How long the median of the part took \[ps\].
    pub usual: Time,
}

/// Kernels or exchanges of one name, shape, pass and kind of module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Whether it was foreseen.
    pub matched: Match,
    /// What kind of work it is.
    pub class: Class,
    /// The operator.
    pub name: String,
    /// Its shape, as predicted if it was.
    pub shape: Shape,
    /// The module, with numbers left out: `blocks.*.attn`; empty if nobody says.
    pub scope: String,
    /// The pass; none if nobody says.
    pub pass: Option<Pass>,
    /// As predicted.
    pub predicted: Sum,
    /// As measured.
    pub measured: Sum,
    /// Measured ones that took far longer than the others.
    pub slow: Vec<Slow>,
}

/// Time that exchanges waited for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// The rank that came last.
    pub rank: u32,
    /// What kind of exchange waited for it.
    pub class: Class,
    /// How many waited.
    pub count: u64,
    /// How much of the step is charged to it \[ps\].
    pub waited: Time,
}

/// A step measured against a step predicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The predicted step \[ps\].
    pub predicted: Time,
    /// The measured step \[ps\].
    pub measured: Time,
    /// Parts, the one that makes the largest difference first.
    pub parts: Vec<Part>,
    /// Times in which nothing ran, the largest difference first.
    pub idle: Vec<Idle>,
    /// Time charged to what is left over of another step: predicted, measured \[ps\].
    pub left_over: (Time, Time),
    /// For whom exchanges waited in the trace, as far as traces of other ranks tell, longest first.
    pub late: Vec<Late>,
}

impl Part {
    /// What it adds to the step \[ps\].
    pub fn gap(&self) -> i128 {
        difference(self.predicted.ran + self.predicted.waited, self.measured.ran + self.measured.waited)
    }

    /// How much longer it took than predicted, as a factor on the busy time; `None` if only one side has it.
    pub fn ratio(&self) -> Option<f64> {
        let both = self.predicted.busy > Time::ZERO && self.measured.count > 0;
        both.then(|| self.measured.busy.0 as f64 / self.predicted.busy.0 as f64)
    }
}

/// What a class adds, and how far its kernels are off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassSum {
    /// All of it, predicted.
    pub predicted: Sum,
    /// All of it, measured.
    pub measured: Sum,
    /// Busy time of what both sides have: predicted, measured \[ps\].
    pub both: (Time, Time),
}

impl ClassSum {
    /// How much longer what both sides have took than predicted; `None` if there is nothing.
    pub fn ratio(&self) -> Option<f64> {
        (self.both.0 > Time::ZERO).then(|| self.both.1.0 as f64 / self.both.0.0 as f64)
    }

    /// What it adds to the step \[ps\].
    pub fn gap(&self) -> i128 {
        difference(self.predicted.ran + self.predicted.waited, self.measured.ran + self.measured.waited)
    }
}

impl Gap {
    /// Measured less predicted \[ps\].
    pub fn gap(&self) -> i128 {
        difference(self.predicted, self.measured)
    }

    /// The sum of all parts \[ps\]: the gap.
    pub fn explained(&self) -> i128 {
        let parts: i128 = self.parts.iter().map(Part::gap).sum();
        let idle: i128 = self.idle.iter().map(Idle::gap).sum();
        parts + idle + difference(self.left_over.0, self.left_over.1)
    }

    /// Sums of each class that either side has.
    pub fn classes(&self) -> Vec<(Class, ClassSum)> {
        let mut classes: BTreeMap<Class, ClassSum> = BTreeMap::new();
        for part in &self.parts {
            let sum = classes.entry(part.class).or_default();
            sum.predicted += part.predicted;
            sum.measured += part.measured;
            // What memory bounds is fused differently on the two sides: only the whole can be compared.
            if part.class == Class::Memory || matches!(part.matched, Match::Same | Match::Other) {
                sum.both.0 += part.predicted.busy;
                sum.both.1 += part.measured.busy;
            }
        }
        classes.into_iter().collect()
    }
}

impl std::ops::AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        self.count += other.count;
        self.busy += other.busy;
        self.ran += other.ran;
        self.waited += other.waited;
    }
}

/// What items are grouped by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    matched: Match,
    class: Class,
    name: String,
    shape: Shape,
    scope: String,
    pass: Option<Pass>,
}

/// A part under construction.
#[derive(Debug, Default)]
struct Gathered {
    predicted: Sum,
    measured: Sum,
    /// How long each measured one ran, in the order of launches, and its module.
    items: Vec<(Time, String)>,
}

/// Lines a measured step up with a predicted one.
pub fn gap(predicted: &Side, measured: &Side) -> Gap {
    let (left, right) = (charge(predicted), charge(measured));
    let mut pairs = align(&predicted.items, &measured.items);
    // In the order of measured launches, so that a part's kernels can be counted.
    pairs.sort_by_key(|pair| match *pair {
        Pair::Both { measured, .. } | Pair::Measured(measured) => (0, measured),
        Pair::Predicted(predicted) => (1, predicted),
    });
    let (of_left, of_right) = (further(predicted), further(measured));
    let mut partner = vec![None; measured.items.len()];
    let mut parts: BTreeMap<Key, Gathered> = BTreeMap::new();
    for pair in pairs {
        let (matched, p, m) = match pair {
            Pair::Both { predicted, measured, exact: true } => (Match::Same, Some(predicted), Some(measured)),
            Pair::Both { predicted, measured, exact: false } => (Match::Other, Some(predicted), Some(measured)),
            Pair::Predicted(predicted) => (Match::NotSeen, Some(predicted), None),
            Pair::Measured(measured) => (Match::NotPredicted, None, Some(measured)),
        };
        let from = p.map(|p| &predicted.items[p]).or(m.map(|m| &measured.items[m]));
        let Some(from) = from else { continue };
        let key = Key {
            matched,
            class: from.class,
            name: from.name.to_string(),
            shape: from.shape,
            scope: without_numbers(&from.scope),
            pass: from.pass,
        };
        let part = parts.entry(key).or_default();
        if let Some(p) = p {
            part.predicted += sum(&predicted.items[p], &left, p);
            for &kernel in of_left.get(&p).into_iter().flatten() {
                part.predicted += Sum { count: 0, ..sum(&predicted.items[kernel], &left, kernel) };
            }
        }
        if let Some(m) = m {
            let mut all = sum(&measured.items[m], &right, m);
            for &kernel in of_right.get(&m).into_iter().flatten() {
                all += Sum { count: 0, ..sum(&measured.items[kernel], &right, kernel) };
                partner[kernel] = p;
            }
            part.measured += all;
            part.items.push((all.busy, from.scope.to_string()));
            partner[m] = p;
        }
    }
    let pass_of = |item: usize| {
        let own = measured.items[item].pass;
        partner[item].and_then(|p| predicted.items[p].pass).or(own)
    };
    let mut parts: Vec<Part> = parts.into_iter().map(|(key, gathered)| part(key, gathered)).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.gap().abs()));
    let left_over = |side: &Side, charges: &Charges| {
        let items = side.items.iter().zip(&charges.items).filter(|(item, _)| !item.own);
        items.map(|(_, charge)| charge.ran + charge.waited).sum()
    };
    Gap {
        predicted: predicted.step(),
        measured: measured.step(),
        parts,
        idle: idle((predicted, &left), (measured, &right), pass_of),
        left_over: (left_over(predicted, &left), left_over(measured, &right)),
        late: late(measured, &right),
    }
}

fn sum(item: &Item, charges: &Charges, at: usize) -> Sum {
    let charge = charges.items[at];
    let busy = item.time().saturating_sub(item.waited.unwrap_or(Time::ZERO));
    Sum { count: 1, busy, ran: charge.ran, waited: charge.waited }
}

/// A kernel that took more than so many times the median of its part is told apart.
const FAR: u64 = 2;

fn part(key: Key, gathered: Gathered) -> Part {
    let Gathered { predicted, measured, items } = gathered;
    let mut times: Vec<Time> = items.iter().map(|(time, _)| *time).collect();
    times.sort_unstable();
    // The upper of the middle two: where half are of one kind and half of another, neither is slow.
    let usual = times.get(times.len() / 2).copied().unwrap_or(Time::ZERO);
    // Of two nobody can say which is usual, and an exchange that is long may only wait.
    let told = times.len() > 2 && !key.class.is_exchange();
    let far = items.into_iter().enumerate().filter(|(_, (time, _))| told && time.0 > usual.0.saturating_mul(FAR));
    let slow = far.map(|(at, (took, scope))| Slow { at, scope, took, usual }).collect();
    let Key { matched, class, name, shape, scope, pass } = key;
    Part { matched, class, name, shape, scope, pass, predicted, measured, slow }
}

/// Further kernels of the step's operators, by the first.
fn further(side: &Side) -> BTreeMap<usize, Vec<usize>> {
    let mut further: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, item) in side.items.iter().enumerate() {
        if let Some(head) = item.head.filter(|&head| item.own && side.items[head].own) {
            further.entry(head).or_default().push(index);
        }
    }
    further
}

/// For whom exchanges waited.
fn late(measured: &Side, charges: &Charges) -> Vec<Late> {
    let mut late: BTreeMap<(u32, Class), (u64, Time)> = BTreeMap::new();
    for (item, charge) in measured.items.iter().zip(&charges.items) {
        let Some(rank) = item.behind.filter(|_| charge.waited > Time::ZERO) else { continue };
        let sum = late.entry((rank, item.class)).or_default();
        sum.0 += 1;
        sum.1 += charge.waited;
    }
    let late = late.into_iter().map(|((rank, class), (count, waited))| Late { rank, class, count, waited });
    let mut late: Vec<Late> = late.collect();
    late.sort_by_key(|late| std::cmp::Reverse(late.waited));
    late
}

/// A module's name with `*` for each number in it: `blocks.*.attn`.
fn without_numbers(scope: &str) -> String {
    let parts = scope.split('.').map(|part| match !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
        true => "*",
        false => part,
    });
    parts.collect::<Vec<_>>().join(".")
}
