//! Times in which nothing ran, on both sides, by their reason and by what came after.

use std::collections::BTreeMap;

use super::charge::Charges;
use super::side::{Doing, Side};
use crate::program::Pass;
use crate::units::Time;

/// Why nothing ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// The host had not launched what ran next.
    Host,
    /// It had been launched and was not yet at work: an event, or the launch itself.
    Latency,
}

/// Time in which nothing ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Why.
    pub why: Why,
    /// Before kernels of which pass; none: at the end of the step, or before kernels of which nobody says.
    pub before: Option<Pass>,
    /// As predicted \[ps\].
    pub predicted: Time,
    /// As measured \[ps\].
    pub measured: Time,
    /// What the host was at meanwhile as the trace has it, longest first \[ps\].
    pub host: Vec<(String, Time)>,
}

/// A difference of two times \[ps\].
pub fn difference(predicted: Time, measured: Time) -> i128 {
    i128::from(measured.0) - i128::from(predicted.0)
}

impl Idle {
    /// What it adds to the step \[ps\].
    pub fn gap(&self) -> i128 {
        difference(self.predicted, self.measured)
    }
}

/// What is gathered of one reason before kernels of one pass.
#[derive(Debug, Default)]
struct Gathered {
    predicted: Time,
    measured: Time,
    host: BTreeMap<String, Time>,
}

/// Times in which nothing ran; `pass_of` is the pass of a measured item.
pub(super) fn idle(
    predicted: (&Side, &Charges),
    measured: (&Side, &Charges),
    pass_of: impl Fn(usize) -> Option<Pass>,
) -> Vec<Idle> {
    let mut all: BTreeMap<(Why, Option<Pass>), Gathered> = BTreeMap::new();
    for gap in &predicted.1.gaps {
        let pass = gap.before.and_then(|item| predicted.0.items[item].pass);
        all.entry((Why::Host, pass)).or_default().predicted += gap.late - gap.begin;
        all.entry((Why::Latency, pass)).or_default().predicted += gap.end - gap.late;
    }
    for gap in &measured.1.gaps {
        let pass = gap.before.and_then(&pass_of);
        let host = all.entry((Why::Host, pass)).or_default();
        host.measured += gap.late - gap.begin;
        let thread = gap.before.map(|item| measured.0.items[item].thread);
        for (what, time) in doing(&measured.0.host, thread, gap.begin, gap.late) {
            *host.host.entry(what).or_default() += time;
        }
        all.entry((Why::Latency, pass)).or_default().measured += gap.end - gap.late;
    }
    let all = all.into_iter().filter(|(_, gathered)| gathered.predicted > Time::ZERO || gathered.measured > Time::ZERO);
    let mut all: Vec<Idle> = all
        .map(|((why, before), Gathered { predicted, measured, host })| {
            let mut host: Vec<(String, Time)> = host.into_iter().collect();
            host.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
            Idle { why, before, predicted, measured, host }
        })
        .collect();
    all.sort_by_key(|idle| std::cmp::Reverse(idle.gap().abs()));
    all
}

/// What a thread was at between two moments, each with how much of that time it took; what is left was not recorded.
fn doing(host: &[Doing], thread: Option<u32>, begin: Time, end: Time) -> Vec<(String, Time)> {
    // Nobody launches anything after the end of a step: the thread that launched its first kernel will launch the next.
    let Some(thread) = thread.or(host.first().map(|doing| doing.thread)).filter(|_| begin < end) else { return vec![] };
    let first = host.partition_point(|doing| (doing.thread, doing.end) <= (thread, begin));
    let during = host.get(first..).unwrap_or_default();
    let during = during.iter().take_while(|doing| doing.thread == thread && doing.start < end);
    let mut left = end - begin;
    let mut parts = vec![];
    for doing in during {
        let time = doing.end.min(end) - doing.start.max(begin);
        left = left.saturating_sub(time);
        parts.push((doing.words(), time));
    }
    if left > Time::ZERO {
        parts.push((NOTHING.to_owned(), left));
    }
    parts
}

/// What the host was at where no range and no operator was recorded.
pub(super) const NOTHING: &str = "nothing that was recorded";
