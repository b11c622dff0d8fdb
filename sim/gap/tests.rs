//! Whatever ran on either side, the parts add up to the gap, and every kernel of a step is in one part.

use proptest::prelude::*;

use super::late::waits;
use super::parts::gap;
use super::side::{Class, Item, Shape, Side};
use crate::units::{Bytes, Time};

const NAMES: [&str; 4] = ["aten.mm", "aten.mul", "aten._foreach_add_", "nccl"];

/// Something that ran: its class, its shape, when, for how long, how late the host was, and whether it is of the step.
type Drawn = (usize, u64, u64, u64, u64, bool);

fn items(drawn: &[Drawn]) -> Vec<Item> {
    let item = |(at, &(class, shape, start, length, launched, own)): (usize, &Drawn)| {
        let class = Class::ALL[class];
        Item {
            class,
            name: NAMES[class as usize % NAMES.len()].into(),
            head: None,
            shape: if class == Class::Matmul { Shape::matmul(shape, 2, 3) } else { Shape::None },
            stream: at as u32 % 3,
            start: Time(start),
            end: Time(start + length),
            waited: None,
            behind: None,
            launched: Some(Time(launched)),
            scope: format!("layers.{shape}").into(),
            pass: None,
            group: "all".into(),
            thread: 0,
            bytes: Bytes(0),
            own,
        }
    };
    drawn.iter().enumerate().map(item).collect()
}

fn side(drawn: &[Drawn], begin: u64, length: u64) -> Side {
    Side { begin: Time(begin), end: Time(begin + length), items: items(drawn), host: vec![] }
}

fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
    let one = (0..Class::ALL.len(), 1_u64..4, 0_u64..300, 0_u64..50, 0_u64..300, prop::bool::weighted(0.9));
    prop::collection::vec(one, 0..50)
}

proptest! {
    #[test]
    fn parts_add_up_to_the_gap_and_hold_every_kernel_once(
        predicted in drawn(), measured in drawn(), begins in (0_u64..100, 0_u64..100), lengths in (1_u64..250, 1_u64..250),
    ) {
        let (predicted, measured) = (side(&predicted, begins.0, lengths.0), side(&measured, begins.1, lengths.1));
        let gap = gap(&predicted, &measured);
        prop_assert_eq!(gap.gap(), i128::from(lengths.1) - i128::from(lengths.0));
        prop_assert_eq!(gap.explained(), gap.gap());
        let own = |side: &Side| side.items.iter().filter(|item| item.own).count() as u64;
        prop_assert_eq!(gap.parts.iter().map(|part| part.predicted.count).sum::<u64>(), own(&predicted));
        prop_assert_eq!(gap.parts.iter().map(|part| part.measured.count).sum::<u64>(), own(&measured));
        let classes: i128 = gap.classes().iter().map(|(_, sum)| sum.gap()).sum();
        prop_assert_eq!(classes, gap.parts.iter().map(|part| part.gap()).sum::<i128>());
    }

    #[test]
    fn of_every_exchange_one_rank_waits_for_nobody(lengths in prop::collection::vec((1_u64..100, 1_u64..100, 1_u64..100), 1..10)) {
        let rank = |of: fn(&(u64, u64, u64)) -> u64| {
            let mut at = 0;
            let drawn: Vec<Drawn> = lengths.iter().map(|lengths| {
                let start = at;
                at += 100;
                (Class::AllGather as usize, 1, start, of(lengths), start, true)
            }).collect();
            side(&drawn, 0, 1000)
        };
        let mut sides = vec![(0, rank(|l| l.0)), (3, rank(|l| l.1)), (7, rank(|l| l.2))];
        prop_assert!(waits(&mut sides).is_empty());
        for at in 0..lengths.len() {
            let items: Vec<(u32, &Item)> = sides.iter().map(|(rank, side)| (*rank, &side.items[at])).collect();
            prop_assert!(items.iter().any(|(_, item)| item.waited == Some(Time::ZERO)));
            let runs: std::collections::BTreeSet<Time> = items.iter().map(|(_, item)| item.time() - item.waited.unwrap_or(Time::ZERO)).collect();
            prop_assert_eq!(runs.len(), 1, "an exchange takes all of its ranks as long");
            // Whom one waits for, itself waits for nobody.
            for (_, item) in &items {
                if let Some(behind) = item.behind {
                    let last = items.iter().find(|(rank, _)| *rank == behind);
                    prop_assert_eq!(last.and_then(|(_, item)| item.waited), Some(Time::ZERO));
                }
            }
        }
    }
}

#[test]
fn a_step_against_itself_has_no_gap_and_only_what_is_the_same() {
    let drawn: Vec<Drawn> = (0..40).map(|at| (at as usize % 12, 1 + at % 3, at * 10, 8, at * 10, true)).collect();
    let side = side(&drawn, 0, 400);
    let gap = gap(&side, &side);
    assert_eq!((gap.gap(), gap.explained()), (0, 0));
    assert!(gap.parts.iter().all(|part| part.gap() == 0 && part.ratio() == Some(1.0)), "{:?}", gap.parts);
}
