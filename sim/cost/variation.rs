//! How chips of one kind differ in pace: published distributions, `variation.toml` beside this file.
//!
//! To add one: an entry in that file, with its source.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::tables;

/// A published distribution of the pace of chips.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variation {
    /// Its name in scenarios.
    pub name: String,
    /// What was measured, in a line.
    pub description: String,
    /// Standard deviation of the logarithm of a chip's time for kernels that are bound by arithmetic.
    pub compute: f64,
    /// The same for kernels that are bound by memory.
    pub memory: f64,
    /// A chip that is slower than this share is taken out of the fleet, and another drawn.
    pub cut: f64,
    /// What other sources say of `compute`: from, to.
    pub interval: [f64; 2],
    /// Who published it.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    variation: Vec<Variation>,
}

static ALL: LazyLock<Vec<Variation>> = LazyLock::new(|| {
    let file: File = tables::read(include_str!("variation.toml")).expect("a test reads variation.toml");
    file.variation
});

impl Variation {
    /// All that are shipped.
    pub fn all() -> &'static [Variation] {
        &ALL
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<&'static Variation> {
        ALL.iter().find(|variation| variation.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_distribution_is_named_and_sourced_and_lies_in_its_interval() {
        assert!(Variation::all().len() >= 2);
        for one in Variation::all() {
            let [low, high] = one.interval;
            assert!(low <= one.compute && one.compute <= high && one.memory <= high, "{}", one.name);
            assert!(one.source.len() > 40 && one.cut > 2.0 * one.compute, "{}", one.name);
            assert_eq!(Variation::named(&one.name), Some(one));
        }
    }
}
