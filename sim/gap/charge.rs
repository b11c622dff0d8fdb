//! Who the time of a step is charged to: every instant to exactly one, so that the charges add up to the step.
//!
//! While anything computes, the instant is charged to what began first of all that computes. While nothing does but something is
//! exchanged, it is charged to the exchange that the computation after it can have waited for: the one that ended last before it
//! went on. Its beginning, as far as it is known to have waited for other ranks, is charged as such. While nothing runs at all,
//! the host was late until it had launched what ran next; the rest is latency: an event that was not yet visible, a kernel that
//! was not yet at work. A measured step and a predicted one are charged by this same rule, so what differs between them is
//! never a matter of definition.

use super::side::{Item, Side};
use crate::units::Time;

/// Time charged to an item \[ps\].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// It ran.
    pub ran: Time,
    /// It waited for other ranks.
    pub waited: Time,
}

/// Time in which nothing ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// When it began \[ps\].
    pub begin: Time,
    /// When the host had launched what ran next; the begin if it was not late \[ps\].
    pub late: Time,
    /// When it ended \[ps\].
    pub end: Time,
    /// What ran next; none at the end of the step.
    pub before: Option<usize>,
}

/// Where a step's time went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charges {
    /// By item.
    pub items: Vec<Charge>,
    /// Times in which nothing ran, in order.
    pub gaps: Vec<Gap>,
}

impl Charges {
    /// The sum of all \[ps\]: the step.
    pub fn total(&self) -> Time {
        let items: Time = self.items.iter().map(|charge| charge.ran + charge.waited).sum();
        items + self.gaps.iter().map(|gap| gap.end - gap.begin).sum()
    }
}

/// A stretch of time, and what it is charged to.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    begin: Time,
    end: Time,
}

/// What a step's items are looked up by.
#[derive(Debug)]
struct Index<'a> {
    side: &'a Side,
    /// All items, by start.
    by_start: Vec<usize>,
    /// Exchanges, by start.
    exchanges: Vec<usize>,
    /// By exchange in that order, the latest end of those up to it.
    ends: Vec<Time>,
}

/// Charges the time of a step.
pub fn charge(side: &Side) -> Charges {
    let index = Index::of(side);
    let mut charges = Charges { items: vec![Charge::default(); side.items.len()], gaps: vec![] };
    let mut at = side.begin;
    for item in index.by_start.iter().copied().filter(|&item| !side.items[item].class.is_exchange()) {
        let (begin, end) = (side.items[item].start.max(at), side.items[item].end.min(side.end));
        if begin >= end {
            continue;
        }
        index.uncomputed(Stretch { begin: at, end: begin }, &mut charges);
        charges.items[item].ran += end - begin;
        at = end;
    }
    index.uncomputed(Stretch { begin: at, end: side.end }, &mut charges);
    charges
}

impl Index<'_> {
    fn of(side: &Side) -> Index<'_> {
        let mut by_start: Vec<usize> = (0..side.items.len()).collect();
        by_start.sort_by_key(|&item| (side.items[item].start, item));
        let exchanges: Vec<usize> =
            by_start.iter().copied().filter(|&item| side.items[item].class.is_exchange()).collect();
        let mut latest = Time::ZERO;
        let ends = exchanges.iter().map(|&item| {
            latest = latest.max(side.items[item].end);
            latest
        });
        Index { side, ends: ends.collect(), exchanges, by_start }
    }

    /// Exchanges that run during some of a stretch.
    fn exchanging(&self, during: Stretch) -> impl Iterator<Item = usize> {
        let first = self.ends.partition_point(|&end| end <= during.begin);
        let last = self.exchanges.partition_point(|&item| self.side.items[item].start < during.end);
        let some = self.exchanges.get(first..last).unwrap_or_default();
        some.iter().copied().filter(move |&item| self.side.items[item].end > during.begin)
    }

    /// What begins at a moment or after it, before the step ends.
    fn next(&self, at: Time) -> Option<usize> {
        let place = self.by_start.partition_point(|&item| self.side.items[item].start < at);
        self.by_start.get(place).copied().filter(|&item| self.side.items[item].start < self.side.end)
    }

    /// Time in which nothing computes: exchanges from the last back, then what is left.
    fn uncomputed(&self, window: Stretch, charges: &mut Charges) {
        if window.begin >= window.end {
            return;
        }
        let items = &self.side.items;
        let mut order: Vec<usize> = self.exchanging(window).collect();
        // Those that go on while computation does were not waited for: they come last, the one that ends first before the others.
        order.sort_by_key(|&item| {
            let (end, background) = (items[item].end, items[item].end > window.end);
            (background, if background { end.0 } else { u64::MAX - end.0 }, item)
        });
        let mut free = vec![window];
        for item in order {
            let Item { start, end, waited, .. } = items[item];
            let met = start + waited.unwrap_or(Time::ZERO);
            let mut left = vec![];
            for stretch in free {
                let (from, to) = (stretch.begin.max(start), stretch.end.min(end));
                if from >= to {
                    left.push(stretch);
                    continue;
                }
                let ran = to - met.clamp(from, to);
                charges.items[item].ran += ran;
                charges.items[item].waited += (to - from) - ran;
                let around = [Stretch { end: from, ..stretch }, Stretch { begin: to, ..stretch }];
                left.extend(around.into_iter().filter(|stretch| stretch.begin < stretch.end));
            }
            free = left;
        }
        free.sort_by_key(|stretch| stretch.begin);
        for Stretch { begin, end } in free {
            let before = self.next(end);
            // At the end of the step there is nothing left to launch: what is left is the host's.
            let launched = before.map_or(Some(end), |item| items[item].launched);
            let late = launched.unwrap_or(begin).clamp(begin, end);
            charges.gaps.push(Gap { begin, late, end, before });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::side::{Class, Shape};
    use super::*;
    use crate::units::Bytes;

    fn item(class: Class, start: u64, end: u64) -> Item {
        Item {
            class,
            name: "aten.mm".into(),
            head: None,
            shape: Shape::None,
            stream: 0,
            start: Time(start),
            end: Time(end),
            waited: None,
            behind: None,
            launched: Some(Time(start)),
            scope: "".into(),
            pass: None,
            group: "".into(),
            thread: 0,
            bytes: Bytes(0),
            own: true,
        }
    }

    #[test]
    fn an_exchange_is_charged_where_nothing_computes_and_its_wait_apart() {
        let gather = Item { waited: Some(Time(3)), ..item(Class::AllGather, 8, 20) };
        let items = vec![item(Class::Matmul, 0, 10), gather, item(Class::Matmul, 20, 30)];
        let charges = charge(&Side { begin: Time(0), end: Time(30), items, host: vec![] });
        assert_eq!(charges.items[1], Charge { ran: Time(9), waited: Time(1) });
        assert_eq!((charges.items[0].ran, charges.items[2].ran), (Time(10), Time(10)));
    }

    #[test]
    fn of_two_exchanges_the_one_that_computation_waited_for_is_charged() {
        let items = vec![item(Class::ReduceScatter, 0, 25), item(Class::AllGather, 5, 15), item(Class::Matmul, 15, 30)];
        let charges = charge(&Side { begin: Time(0), end: Time(30), items, host: vec![] });
        assert_eq!((charges.items[1].ran, charges.items[0].ran), (Time(10), Time(5)));
    }

    #[test]
    fn the_host_is_late_until_it_has_launched_what_runs_next() {
        let next = Item { launched: Some(Time(14)), ..item(Class::Matmul, 16, 20) };
        let charges = charge(&Side {
            begin: Time(0),
            end: Time(24),
            items: vec![item(Class::Matmul, 0, 10), next],
            host: vec![],
        });
        let gap = |begin, late, end, before| Gap { begin: Time(begin), late: Time(late), end: Time(end), before };
        assert_eq!(charges.gaps, [gap(10, 14, 16, Some(1)), gap(20, 24, 24, None)]);
    }

    proptest! {
        #[test]
        fn charges_add_up_to_the_step(spans in prop::collection::vec((0_usize..12, 0_u64..200, 0_u64..60, 0_u64..80), 0..60)) {
            let items = spans.iter().map(|&(class, start, length, waited)| Item {
                waited: Some(Time(waited.min(length))),
                ..item(Class::ALL[class], start, start + length)
            });
            let side = Side { begin: Time(20), end: Time(180), items: items.collect(), host: vec![] };
            let charges = charge(&side);
            prop_assert_eq!(charges.total(), Time(160));
            for (item, charge) in side.items.iter().zip(&charges.items) {
                prop_assert!(charge.ran + charge.waited <= item.time());
            }
        }
    }
}
