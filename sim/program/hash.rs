//! A quick hash for interning: the keys are our own, so nobody chooses them to collide.

use std::hash::{BuildHasherDefault, Hasher};

/// Makes a table hash by [`Mix`].
pub(super) type Quick = BuildHasherDefault<Mix>;

/// Each word is turned into the last, and the sum multiplied by an odd number near 2^64 divided by the golden ratio
/// (Knuth, "The Art of Computer Programming", volume 3, section 6.4), whose upper bits depend on all lower ones.
#[derive(Debug, Default)]
pub(super) struct Mix(u64);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Mix {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(29) ^ value).wrapping_mul(GOLDEN);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The table takes the lowest bits for a place and the highest for a tag.
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, Hash};

    #[test]
    fn keys_that_differ_in_one_word_lie_apart() {
        let hash = |key: (u64, u32, &str)| Quick::default().hash_one(key);
        let mut low: Vec<u64> = (0..256).flat_map(|a| (0..4).map(move |b| hash((a << 20, b, "mm")) & 0xffff)).collect();
        low.sort_unstable();
        low.dedup();
        // A thousand balls in 65,536 boxes: some eight pairs would share one by chance.
        assert!(low.len() > 1000, "{} of 1,024", low.len());
        assert_ne!(hash((1, 2, "aten.mm")), hash((1, 2, "aten.mul")));
        let mut one = Mix::default();
        [1u64, 2].hash(&mut one);
        let mut other = Mix::default();
        [2u64, 1].hash(&mut other);
        assert_ne!(one.finish(), other.finish());
    }
}
