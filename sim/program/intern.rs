//! Items that a program names over and over again, in much the same order, each kept once.

use std::collections::HashMap;
use std::hash::Hash;

use super::hash::Quick;

/// Places that what has come last is told apart by.
const PLACES: usize = 1 << 10;

/// Finds the ids of items.
#[derive(Debug)]
pub(super) struct Interned<T> {
    ids: HashMap<T, u32, Quick>,
    /// What came the last time after the same few items: mostly it comes again, and need not be looked for.
    after: Vec<u32>,
    /// The last few items, as a place in `after`.
    past: usize,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Interned { ids: HashMap::default(), after: vec![0; PLACES], past: 0 }
    }
}

impl<T: Clone + Eq + Hash> Interned<T> {
    /// The id of an item among all those named so far; a new one is added to them.
    pub(super) fn id(&mut self, all: &mut Vec<T>, item: T) -> u32 {
        let guess = self.after[self.past];
        let id = match all.get(guess as usize) {
            Some(guessed) if *guessed == item => guess,
            _ => *self.ids.entry(item).or_insert_with_key(|item| {
                all.push(item.clone());
                all.len() as u32 - 1
            }),
        };
        self.after[self.past] = id;
        // Three bits for each item: the last three or four count.
        self.past = ((self.past << 3) ^ id as usize) % PLACES;
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
