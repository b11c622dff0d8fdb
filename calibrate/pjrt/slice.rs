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
    /// How many of it there are, with a network between them.
    count: u32,
}

/// Generations with a shipped topology, and its name. Of a v4 libtpu 0.0.51 compiles for each of a chip's two cores, with 15.25 GiB of its own, where
/// a job on v4 has the chip as one device; a TPU7x has two devices.
const GENERATIONS: [(&str, &str); 3] = [("v6e", "tpu-v6e"), ("v5p", "tpu-v5p"), ("v5e", "tpu-v5e")];

impl Slice {
    /// Chips of all slices.
    pub fn chips(&self) -> u32 {
        self.count * self.each()
    }

    /// Chips of one slice.
    fn each(&self) -> u32 {
        self.axes.iter().map(|(length, _)| length).product()
    }

    /// So many of the same.
    pub fn times(self, count: u32) -> Self {
        Self { count, ..self }
    }

    /// What libtpu calls the chips, slice by slice: counted from 0 in a single slice, from the slice's number times 100,000 in
    /// several (libtpu 0.0.42.1, the devices of a topology with `num_slices`).
    pub fn devices(&self) -> Vec<i64> {
        let first = |slice: u32| if self.count == 1 { 0 } else { 100_000 * (i64::from(slice) + 1) };
        (0..self.count).flat_map(|slice| (0..i64::from(self.each())).map(move |chip| first(slice) + chip)).collect()
    }

    /// The name that libtpu knows it by.
    pub fn name(&self) -> String {
        format!("{}:{}", self.generation, self.shape)
    }

    /// What libtpu must be told besides the name: which axes are rings, that a single chip shares its host, and how many
    /// slices there are.
    pub fn settings(&self) -> Vec<(String, Setting)> {
        let mut settings = vec![];
        if self.axes.iter().any(|(_, ring)| *ring) {
            // Of a plane, too, it takes three.
            let flat = std::iter::repeat_n(0, 3_usize.saturating_sub(self.axes.len()));
            let wraps = self.axes.iter().map(|(_, ring)| i64::from(*ring)).chain(flat).collect();
            settings.push(("wrap".to_owned(), Setting::List(wraps)));
        }
        if self.count > 1 {
            settings.push(("num_slices".to_owned(), Setting::Int(self.count.into())));
        }
        if self.each() == 1 {
            settings.push(("chips_per_host_bounds".to_owned(), Setting::List(vec![1, 1, 1])));
        }
        settings
    }

    /// One chip of the same kind.
    pub fn single(&self) -> Self {
        let shape = vec!["1"; self.axes.len()].join("x");
        Self { shape, axes: vec![(1, false); self.axes.len()], count: 1, ..self.clone() }
    }

    /// What its chips are called in files of points.
    pub fn chip(&self) -> String {
        format!("TPU {}", self.generation)
    }

    /// The accelerator type that Google names it by, as `v6e-16`.
    pub fn accelerator(&self) -> String {
        format!("{}-{}", self.generation, self.each())
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "{}", self.name()),
            count => write!(f, "{count} x {}", self.name()),
        }
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
        Ok(Self { generation: generation.to_owned(), shape: shape.to_owned(), axes, count: 1 })
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
    fn a_cube_has_three_axes_and_rings_only_of_whole_cubes() {
        let cube = Slice::from_str("v5p:4x4x4").unwrap();
        assert_eq!((cube.chips(), cube.name()), (64, "v5p:4x4x4".to_owned()));
        assert_eq!(cube.settings(), [("wrap".to_owned(), Setting::List(vec![1, 1, 1]))]);
        assert_eq!(cube.single().name(), "v5p:1x1x1");
        assert_eq!(Slice::from_str("v5p:2x2x1").unwrap().settings(), []);
        assert!(Slice::from_str("v5p:2x2").is_err());
    }

    #[test]
    fn several_slices_have_their_chips_one_slice_after_the_other() {
        let two = Slice::from_str("v6e:2x2").unwrap().times(2);
        assert_eq!((two.chips(), two.name(), two.accelerator()), (8, "v6e:2x2".to_owned(), "v6e-4".to_owned()));
        // What jax 0.10.2 lists of `get_topology_desc("v6e:2x2", num_slices=2)`.
        let listed = [100_000, 100_001, 100_002, 100_003, 200_000, 200_001, 200_002, 200_003];
        assert_eq!(two.devices(), listed);
        assert_eq!(two.settings(), [("num_slices".to_owned(), Setting::Int(2))]);
        assert_eq!(Slice::from_str("v6e:2x2").unwrap().devices(), [0, 1, 2, 3]);
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
