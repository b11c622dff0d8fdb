//! Which rank an exchange waited for, from the traces of several ranks.
//!
//! A kernel of NCCL runs from when its rank reaches it until all have exchanged. The rank that comes last waits for nobody, so the
//! shortest of the ranks' times is what the exchange itself takes, and what the others are longer is their waiting.

use std::collections::BTreeMap;

use super::side::{Class, Item, Side};
use crate::units::Time;

/// What the same exchanges are found by on all ranks.
type Key = (Class, Box<str>);

/// Tells each exchange of the sides how long it waited, and for whom; returns what cannot be told. Sides are of one step, with their ranks.
pub fn waits(sides: &mut [(u32, Side)]) -> Vec<String> {
    let mut notes = vec![];
    if sides.len() < 2 {
        return notes;
    }
    let lists: Vec<BTreeMap<Key, Vec<usize>>> = sides.iter().map(|(_, side)| exchanges(side)).collect();
    let keys: std::collections::BTreeSet<Key> = lists.iter().flat_map(|list| list.keys().cloned()).collect();
    for key in keys {
        let with: Vec<usize> = (0..sides.len()).filter(|&at| lists[at].contains_key(&key)).collect();
        let count = lists[with[0]][&key].len();
        if with.iter().any(|&at| lists[at][&key].len() != count) {
            let (class, group) = (key.0.name(), &key.1);
            notes.push(format!(
                "ranks do not agree on how many {class} exchanges group {group:?} has: who waits is not told"
            ));
            continue;
        }
        if with.len() < 2 {
            continue;
        }
        let place = |at: usize, number: usize| lists[at][&key][number];
        for number in 0..count {
            let item = |at: usize| &sides[at].1.items[place(at, number)];
            let last = with.iter().copied().min_by_key(|&at| (item(at).time(), at));
            let Some(last) = last else { continue };
            let (shortest, rank) = (item(last).time(), sides[last].0);
            for &at in &with {
                let item: &mut Item = &mut sides[at].1.items[place(at, number)];
                let waited = item.time() - shortest;
                item.waited = Some(waited);
                item.behind = (waited > Time::ZERO).then_some(rank);
            }
        }
    }
    notes
}

/// A side's exchanges of the step by kind and group, in order. Which end of a message waits its time does not tell.
fn exchanges(side: &Side) -> BTreeMap<Key, Vec<usize>> {
    let mut all: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
    for (index, item) in side.items.iter().enumerate() {
        if item.own && item.class.is_exchange() && item.class != Class::SendRecv {
            all.entry((item.class, item.group.clone())).or_default().push(index);
        }
    }
    all
}
