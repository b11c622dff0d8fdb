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
    /// Devices that a chip has, as JAX counts them.
    of_a_chip: u32,
}

/// A generation of chips, as JAX sees them.
struct Generation {
    /// As libtpu calls it.
    name: &'static str,
    /// The shipped topology.
    machine: &'static str,
    /// How its cores are put together, where libtpu asks.
    cores: Option<&'static str>,
}

/// Generations with a shipped topology. Of a v4 libtpu compiles for each of a chip's two cores, with 15.25 GiB of its own. Jobs on v4 take
/// both for one device, which libtpu is told by `chip_config_name` (0.0.51).
const GENERATIONS: [Generation; 5] = [
    Generation { name: "v6e", machine: "tpu-v6e", cores: None },
    Generation { name: "v5p", machine: "tpu-v5p", cores: None },
    Generation { name: "v5e", machine: "tpu-v5e", cores: None },
    Generation { name: "v4", machine: "tpu-v4", cores: Some("megacore") },
    Generation { name: "tpu7x", machine: "tpu-v7x", cores: None },
];

impl Slice {
    /// The slices that a machine is; none where it is no torus, or one of a generation that libtpu does not know.
    pub fn of(topology: &Topology) -> Option<Self> {
        let sides: Vec<String> = topology.axes()?.iter().map(|axis| axis.size.to_string()).collect();
        let known = GENERATIONS.iter().find(|known| known.machine == topology.name)?;
        let slice: Slice = format!("{}:{}", known.name, sides.join("x")).parse().ok()?;
        Some(slice.times(topology.slices()))
    }

    /// Chips of all slices.
    pub fn chips(&self) -> u32 {
        self.count * self.each()
    }

    /// Devices of all slices, as JAX counts them: a program's partitions.
    pub fn ranks(&self) -> u32 {
        self.chips() * self.of_a_chip
    }

    /// The shipped machine, with as many slices.
    ///
    /// # Errors
    /// Never of a slice that was read.
    pub fn topology(&self) -> Result<Topology, String> {
        let one = Topology::load(generation(&self.generation)?.machine, &Size::Slice(self.shape.clone()))
            .map_err(|why| why.to_string())?;
        Ok(one.times(self.count))
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
        (0..self.count)
            .flat_map(|slice| (0..i64::from(self.each() * self.of_a_chip)).map(move |chip| first(slice) + chip))
            .collect()
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
        if let Ok(Generation { cores: Some(cores), .. }) = generation(&self.generation) {
            settings.push(("chip_config_name".to_owned(), Setting::Text((*cores).to_owned())));
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
        let (name, shape) = text
            .split_once(':')
            .ok_or_else(|| format!("{text:?} names no slice: write a generation and a shape, as v6e:4x4"))?;
        let generation = generation(name)?;
        let topology =
            Topology::load(generation.machine, &Size::Slice(shape.to_owned())).map_err(|why| why.to_string())?;
        let axes = topology.axes().ok_or_else(|| format!("{name} is no torus"))?;
        let axes = axes.iter().map(|axis| (axis.size, axis.wraps)).collect();
        let of_a_chip = topology.chip.devices;
        Ok(Self { generation: name.to_owned(), shape: shape.to_owned(), axes, count: 1, of_a_chip })
    }
}

fn generation(name: &str) -> Result<&'static Generation, String> {
    GENERATIONS.iter().find(|known| known.name == name).ok_or_else(|| {
        let names: Vec<&str> = GENERATIONS.iter().map(|known| known.name).collect();
        format!("no slices of {name:?} are known; generations are: {}", names.join(", "))
    })
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
    fn a_chip_of_v4_is_one_device_and_one_of_tpu7x_two() {
        // Limits and counts of libtpu 0.0.51: v4 with `chip_config_name` 4 devices of 30.75 GiB, tpu7x:2x2x1 8 of 94.74 GiB.
        let four = Slice::from_str("v4:2x2x1").unwrap();
        assert_eq!((four.ranks(), four.devices().len()), (4, 4));
        assert_eq!(four.settings(), [("chip_config_name".to_owned(), Setting::Text("megacore".to_owned()))]);
        let seven = Slice::from_str("tpu7x:2x2x1").unwrap();
        assert_eq!((seven.chips(), seven.ranks(), seven.devices().len()), (4, 8, 8));
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
