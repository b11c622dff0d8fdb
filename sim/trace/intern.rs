//! Strings that are kept once: one long text, in the order of first appearance.
//!
//! The text is a trace's, which anyone may have written, so the hash is keyed: names that were chosen to collide cost no more than others.
//! The key is random and decides nothing: an id is how many different strings came before, whatever their hashes.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::id::Id;
use super::parts::{Name, Names};

/// Gives every string an id, the same string the same one.
#[derive(Debug, Default)]
pub(super) struct Interner {
    names: Names,
    /// Every id, by the hash of its string.
    ids: HashTable<Id<Name>>,
    key: RandomState,
}

impl Interner {
    /// The id of a string.
    pub(super) fn id(&mut self, text: &str) -> Id<Name> {
        let Interner { names, ids, key } = self;
        let hash = key.hash_one(text);
        if let Some(&known) = ids.find(hash, |&id| names.get(id) == text) {
            return known;
        }
        let id = Id::new(names.len());
        names.text += text;
        names.ends.push(names.text.len());
        ids.insert_unique(hash, id, |&id| key.hash_one(names.get(id)));
        id
    }

    /// The string of an id.
    pub(super) fn get(&self, id: Id<Name>) -> &str {
        self.names.get(id)
    }

    /// All strings.
    pub(super) fn finish(self) -> Names {
        self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_has_one_id_however_many_there_are() {
        let mut names = Interner::default();
        let words: Vec<String> = (0..5000).map(|n| format!("kernel<{n}>{}", "x".repeat(n % 17))).collect();
        let first: Vec<_> = words.iter().map(|word| names.id(word)).collect();
        let again: Vec<_> = words.iter().map(|word| names.id(word)).collect();
        assert_eq!(first, again);
        assert_eq!(names.id(""), names.id(""));
        let names = names.finish();
        assert_eq!(names.len(), 5001);
        assert!(words.iter().zip(&first).all(|(word, &id)| names.get(id) == word));
    }
}
