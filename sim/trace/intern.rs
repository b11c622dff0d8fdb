//! Strings that are kept once: an open table of hashes over one long text, in the order of first appearance.

use super::id::Id;
use super::parts::{Name, Names};

/// Gives every string an id, the same string the same one.
#[derive(Debug, Default)]
pub(super) struct Interner {
    names: Names,
    /// One more than the id at each place, zero where there is none; its length is a power of two.
    table: Vec<u32>,
}

/// FNV-1a over words of eight bytes: nothing depends on its quality but speed.
fn hash(text: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    let mut words = text.chunks_exact(8);
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for word in words.by_ref() {
        hash = mix(hash, word.iter().fold(0, |all, &byte| all << 8 | u64::from(byte)));
    }
    hash = mix(hash, words.remainder().iter().fold(text.len() as u64, |all, &byte| all << 8 | u64::from(byte)));
    hash ^ hash >> 32
}

impl Interner {
    /// The id of a string.
    pub(super) fn id(&mut self, text: &str) -> Id<Name> {
        if (self.names.len() + 1) * 2 > self.table.len() {
            self.grow();
        }
        let mask = self.table.len() - 1;
        let mut place = hash(text.as_bytes()) as usize & mask;
        loop {
            match self.table[place].checked_sub(1) {
                Some(index) if self.names.get(Id::new(index as usize)) == text => return Id::new(index as usize),
                Some(_) => place = (place + 1) & mask,
                None => break,
            }
        }
        let index = self.names.len();
        self.names.text += text;
        self.names.ends.push(self.names.text.len());
        self.table[place] = index as u32 + 1;
        Id::new(index)
    }

    /// The string of an id.
    pub(super) fn get(&self, id: Id<Name>) -> &str {
        self.names.get(id)
    }

    /// All strings.
    pub(super) fn finish(self) -> Names {
        self.names
    }

    fn grow(&mut self) {
        let size = (self.table.len() * 2).max(64);
        self.table = vec![0; size];
        for index in 0..self.names.len() {
            let text = self.names.get(Id::new(index));
            let mut place = hash(text.as_bytes()) as usize & (size - 1);
            while self.table[place] != 0 {
                place = (place + 1) & (size - 1);
            }
            self.table[place] = index as u32 + 1;
        }
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
