//! Items that a program names over and over again, in much the same order, each kept once.

use std::collections::HashMap;
use std::hash::Hash;

use super::hash::Quick;

/// Ways on from an item that are told apart by the few before it.
const WAYS: usize = 8;

/// Finds the ids of items.
#[derive(Debug)]
pub(super) struct Interned<T> {
    ids: HashMap<T, u32, Quick>,
    /// By item and way, what came after it the last time: mostly it comes again, and need not be looked for.
    after: Vec<u32>,
    /// The place in `after` that the last few items lead to.
    place: usize,
    /// The last few items, three bits for each.
    past: usize,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Interned { ids: HashMap::default(), after: vec![0], place: 0, past: 0 }
    }
}

impl<T: Clone + Eq + Hash> Interned<T> {
    /// The id of an item among all those named so far; a new one is added to them.
    pub(super) fn id(&mut self, all: &mut Vec<T>, item: T) -> u32 {
        let guess = self.after[self.place];
        let id = match all.get(guess as usize) {
            Some(guessed) if *guessed == item => guess,
            _ => *self.ids.entry(item).or_insert_with_key(|item| {
                all.push(item.clone());
                self.after.resize(WAYS * all.len(), 0);
                all.len() as u32 - 1
            }),
        };
        self.after[self.place] = id;
        self.place = WAYS * id as usize + (self.past ^ (self.past >> 3)) % WAYS;
        self.past = (self.past << 3) ^ id as usize;
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_item_keeps_the_id_it_was_first_given(items in prop::collection::vec(0u64..6, 0..40)) {
            let (mut interned, mut all) = (Interned::default(), vec![]);
            for &item in &items {
                let id = interned.id(&mut all, item);
                prop_assert_eq!(all[id as usize], item);
            }
            let mut distinct = vec![];
            for item in items {
                if !distinct.contains(&item) {
                    distinct.push(item);
                }
            }
            prop_assert_eq!(all, distinct);
        }
    }
}
