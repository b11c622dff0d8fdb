//! Seeds of the fuzz targets (`tests/fuzz/seeds`), each as it is and with small damage: what CI can do of fuzzing without its tools.

use std::path::Path;

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// What damage puts in: ends of lines, numbers beyond all bounds, what opens and closes, what is no UTF-8.
const BITS: [&[u8]; 12] =
    [b"\n", b",", b"-1", b"18446744073709551615", b"1e999", b"nan", b"\"", b"{[", b"]}", b"\0", b"\xff\xfe", b" = "];

/// Names a seed of other damage than that of every run of the tests, for `cargo wild`.
pub const SEED: &str = "MUTATIONS_SEED";

/// Hands out every seed of a target, and each with so many kinds of damage; how many there were.
pub fn each(seeds: &Path, damaged: usize, mut read: impl FnMut(&[u8])) -> usize {
    let mut files: Vec<_> = std::fs::read_dir(seeds).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut from = [25; 32];
    if let Some(seed) = std::env::var(SEED).ok().and_then(|seed| seed.parse::<u64>().ok()) {
        from[..8].copy_from_slice(&seed.to_le_bytes());
    }
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &from);
    let mut below = |count: usize| (rng.next_u64() % count.max(1) as u64) as usize;
    for file in &files {
        let seed = std::fs::read(file).unwrap();
        read(&seed);
        for _ in 0..damaged {
            let mut bytes = seed.clone();
            for _ in 0..=below(4) {
                let (from, length) = (below(bytes.len()), below(24));
                let to = (from + length).min(bytes.len());
                match below(4) {
                    0 => drop(bytes.drain(from..to)),
                    1 => drop(bytes.splice(from..to, BITS[below(BITS.len())].iter().copied())),
                    2 if !bytes.is_empty() => bytes[from] ^= 1 << below(8),
                    _ => {
                        let copied = bytes[from..to].to_vec();
                        let at = below(bytes.len() + 1);
                        drop(bytes.splice(at..at, copied));
                    }
                }
            }
            read(&bytes);
        }
    }
    files.len() * (damaged + 1)
}
