//! The TPU slices that can be rented, and what a plugin must be told to compile for one.
//!
//! libtpu compiles for shapes that nobody rents (3x5, 16x32), so a slice is looked up in the shipped topology first.

use std::fmt;
use std::str::FromStr;

use windtunnel::hardware::{Size, Topology};

use super::ffi::Setting;

/// A slice by its generation and shape, `v6e:4x4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    generation: String,
    shape: String,
    /// Lengths of its axes, and whether each closes into a ring.
    axes: Vec<(u32, bool)>,
}

/// Generations with a shipped topology, and its name.
const GENERATIONS: [(&str, &str); 1] = [("v6e", "tpu-v6e")];

impl Slice {
    /// Chips of the slice.
    pub fn chips(&self) -> u32 {
        self.axes.iter().map(|(length, _)| length).product()
    }

    /// The name that libtpu knows it by.
    pub fn name(&self) -> String {
        self.to_string()
    }

    /// What libtpu must be told besides the name: which axes are rings, and that a single chip shares its host.
    pub fn settings(&self) -> Vec<(String, Setting)> {
        let mut settings = vec![];
        if self.axes.iter().any(|(_, ring)| *ring) {
            let wraps = self.axes.iter().map(|(_, ring)| i64::from(*ring)).chain([0]).collect();
            settings.push(("wrap".to_owned(), Setting::List(wraps)));
        }
        if self.chips() == 1 {
            settings.push(("chips_per_host_bounds".to_owned(), Setting::List(vec![1, 1, 1])));
        }
        settings
    }

    /// One chip of the same kind.
    pub fn single(&self) -> Self {
        Self { shape: "1x1".to_owned(), axes: vec![(1, false); self.axes.len()], ..self.clone() }
    }

    /// What its chips are called in files of points.
    pub fn chip(&self) -> String {
        format!("TPU {}", self.generation)
    }

    /// The accelerator type that Google names it by, as `v6e-16`.
    pub fn accelerator(&self) -> String {
        format!("{}-{}", self.generation, self.chips())
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.generation, self.shape)
    }
}

impl FromStr for Slice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || GENERATIONS.map(|(generation, _)| generation).join(", ");
        let (generation, shape) = text
            .split_once(':')
            .ok_or_else(|| format!("{text:?} names no slice: write a generation and a shape, as v6e:4x4"))?;
        let (_, topology) = GENERATIONS
            .iter()
            .find(|(known, _)| *known == generation)
            .ok_or_else(|| format!("no slices of {generation:?} are known; generations are: {}", known()))?;
        let topology = Topology::load(topology, &Size::Slice(shape.to_owned())).map_err(|why| why.to_string())?;
        let axes = topology.axes().ok_or_else(|| format!("{generation} is no torus"))?;
        let axes = axes.iter().map(|axis| (axis.size, axis.wraps)).collect();
        Ok(Self { generation: generation.to_owned(), shape: shape.to_owned(), axes })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn slices_that_are_rented_are_taken_and_others_are_not() {
        let four = Slice::from_str("v6e:4x4").unwrap();
        assert_eq!((four.chips(), four.name(), four.accelerator()), (16, "v6e:4x4".to_owned(), "v6e-16".to_owned()));
        for none in ["v6e:3x5", "v6e:16x32", "v6e:0x4", "v6e:", "v6e:4x4x4"] {
            let why = Slice::from_str(none).unwrap_err();
            assert!(why.contains("1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"), "{none}: {why}");
        }
        assert!(Slice::from_str("v9:4x4").unwrap_err().contains("generations are: v6e"));
        assert!(Slice::from_str("4x4").unwrap_err().contains("as v6e:4x4"));
    }

    #[test]
    fn only_axes_of_sixteen_are_rings() {
        let settings = |name: &str| Slice::from_str(name).unwrap().settings();
        assert_eq!(settings("v6e:8x8"), []);
        assert_eq!(settings("v6e:8x16"), [("wrap".to_owned(), Setting::List(vec![0, 1, 0]))]);
        assert_eq!(settings("v6e:16x16"), [("wrap".to_owned(), Setting::List(vec![1, 1, 0]))]);
        assert_eq!(settings("v6e:1x1"), [("chips_per_host_bounds".to_owned(), Setting::List(vec![1, 1, 1]))]);
    }
}
