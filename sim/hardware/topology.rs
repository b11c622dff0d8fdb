//! The types of a machine: what is asked of it everywhere, once a file has been read.

use crate::units::{Bandwidth, Bytes, FlopRate, Frequency, Power, Time};

/// A machine of a certain size.
///
/// ```
/// use windtunnel::Topology;
/// use windtunnel::machine::{Size, registry};
///
/// let machine = Topology::load("h100-sxm-80gb", &Size::Nodes(4))?;
/// assert_eq!(machine.chips(), 32);
/// assert_eq!(machine.chip.memory_bandwidth.to_string(), "3.35 TB/s");
/// for fact in &machine.facts {
///     println!("{} = {}: {}", fact.name, fact.value, fact.source);
/// }
/// assert!(registry().iter().any(|listed| listed.name == machine.name));
/// # Ok::<(), windtunnel::machine::HardwareError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Name of the family, such as `h200-sxm-141gb`.
    pub name: String,
    /// The machine that the file names as its base, if it names one.
    pub base: Option<String>,
    /// The family in one line.
    pub description: String,
    /// Name of the cost profile measured on this chip and fabric.
    pub profile: String,
    /// The accelerator.
    pub chip: Chip,
    /// The host and what it holds.
    pub node: Node,
    /// How many nodes are rented.
    pub nodes: u32,
    /// Links between chips, innermost level first; the outermost joins every chip there is.
    pub fabric: Vec<Level>,
    /// Price of one chip for one hour \[USD\], where the file gives one.
    pub usd_per_chip_hour: Option<f64>,
    /// Every number of the file with its source, for `topology show`.
    pub facts: Vec<Fact>,
    /// The file; one that names a base, laid over it.
    pub text: String,
}

/// An accelerator, as its vendor and its driver describe it; where JAX shows a chip as several devices, one of these.
#[derive(Clone, Debug, PartialEq)]
pub struct Chip {
    /// Name as people say it.
    pub name: String,
    /// Who makes it, which decides the software that runs on it.
    pub vendor: Vendor,
    /// Memory a process can see, contexts included (torch's `total_memory`, not the number on the box) \[B\].
    pub memory: Bytes,
    /// Peak memory bandwidth, reads and writes together \[B/s\].
    pub memory_bandwidth: Bandwidth,
    /// Dense peak arithmetic rates.
    pub peak: Peak,
    /// Streaming multiprocessors; TensorCores on a TPU.
    pub cores: u32,
    /// Devices that JAX shows of one chip, each a rank.
    pub devices: u32,
    /// Last on-chip memory: the L2 cache; VMEM on a TPU \[B\].
    pub l2: Bytes,
    /// NVIDIA's name for what its processors can do, such as 9.0 on Hopper; none where nobody says.
    pub compute_capability: Option<f64>,
    /// Board power limit \[W\]; none where the vendor does not publish it.
    pub power: Option<Power>,
    /// Highest clock \[Hz\]; none where the vendor does not publish it.
    pub clock: Option<Frequency>,
    /// Link to the host \[B/s\], one direction.
    pub host_bandwidth: Bandwidth,
}

/// Who makes a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// CUDA, NCCL.
    Nvidia,
    /// XLA on TPU.
    Google,
}

/// Dense peak arithmetic rate by number format \[FLOP/s\]; none where the hardware lacks the format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// bfloat16 inputs, fp32 accumulation.
    pub bf16: FlopRate,
    /// IEEE half inputs, fp32 accumulation.
    pub fp16: Option<FlopRate>,
    /// fp32 inputs cut to tf32 on the matrix units.
    pub tf32: Option<FlopRate>,
    /// IEEE single on the vector units.
    pub fp32: Option<FlopRate>,
    /// 8-bit float inputs.
    pub fp8: Option<FlopRate>,
}

/// A host and what it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Chips in one node.
    pub chips: u32,
    /// Physical host cores.
    pub host_cores: u32,
    /// Memory of the host, if the file says how much.
    pub host_memory: Option<Bytes>,
    /// Rate at which the node's local disks are read, all of them together, if the file says it \[B/s\].
    pub disk_read: Option<Bandwidth>,
    /// The same of writing \[B/s\].
    pub disk_write: Option<Bandwidth>,
    /// Network cards that carry traffic between chips.
    pub nics: u32,
    /// Line rate of one card \[B/s\], one direction.
    pub nic_bandwidth: Bandwidth,
}

/// One level of the fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// Name, such as `nvswitch` or `rail`.
    pub name: String,
    /// How its links are laid out.
    pub kind: LevelKind,
    /// How many ranks one instance joins, all inner levels counted.
    pub reach: Reach,
    /// What one rank can send over its links at this level, all of them together \[B/s\], one direction.
    pub bandwidth: Bandwidth,
    /// Time of the smallest message between two chips that this level joins and no inner one does \[ps\].
    pub latency: Time,
    /// What the chips below one uplink can send over what the uplink carries, 1 or more ([`super::Uplink`]).
    pub oversubscription: f64,
}

impl Level {
    /// What one rank has of this level when all send at once \[B/s\], one direction.
    pub fn carries(&self) -> Bandwidth {
        Bandwidth(self.bandwidth.0 / self.oversubscription)
    }
}

/// How the links of a level are laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelKind {
    /// Every chip sends to every other at its full rate (NVSwitch, a non-blocking network).
    Switch,
    /// One network per position in the node: chip `i` of a node reaches chip `i` of another directly.
    Rails,
    /// Neighbours on a grid, some of whose axes close into rings.
    Torus {
        /// Axes in the order of the slice's name; chips count through the last axis first, devices of a chip before them.
        axes: Vec<Axis>,
        /// Links of one chip.
        links: u32,
    },
}

/// One axis of a torus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Chips along it.
    pub size: u32,
    /// Whether its ends are joined.
    pub wraps: bool,
}

/// How many chips a level joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// This many.
    Chips(u32),
    /// As many as are rented.
    Unbounded,
}

/// How much of a family is rented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Size {
    /// Whole nodes.
    Nodes(u32),
    /// A slice of a torus, by name, such as `4x4`.
    Slice(String),
    /// The smallest there is: one node, or the first slice listed.
    Smallest,
}

/// One number of a topology file, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Where it stands in the file, such as `chip.memory`.
    pub name: String,
    /// The quantity with its unit, as written.
    pub value: String,
    /// Whence; begins with `assumed` where nobody published it.
    pub source: String,
}

impl Topology {
    /// What one rank has of the NICs: its share of the node's cards, and no more than the network behind them.
    pub fn rail(&self) -> Bandwidth {
        let each = f64::from(self.node.nics) / f64::from(self.ranks_per_node().max(1));
        let network = self.fabric.get(1).map_or(f64::INFINITY, |level| level.carries().0);
        Bandwidth((self.node.nic_bandwidth.0 * each).min(network))
    }

    /// Chips rented.
    pub fn chips(&self) -> u32 {
        // The reader has checked that these products fit.
        self.nodes * self.node.chips
    }

    /// Ranks of a job on all of it: its chips, or their devices where JAX shows a chip as several.
    pub fn ranks(&self) -> u32 {
        self.nodes.saturating_mul(self.ranks_per_node())
    }

    /// Ranks on one node.
    pub fn ranks_per_node(&self) -> u32 {
        self.node.chips.saturating_mul(self.chip.devices)
    }

    /// What a rank is called: a chip, or a device.
    pub fn rank_is(&self) -> &'static str {
        if self.chip.devices > 1 { "device" } else { "chip" }
    }

    /// Several of a slice, joined by the network outside it.
    pub fn times(mut self, slices: u32) -> Topology {
        self.nodes = self.nodes.saturating_mul(slices);
        self
    }

    /// Slices of a torus that there are; one where nothing is sliced.
    pub fn slices(&self) -> u32 {
        match self.fabric.first() {
            Some(Level { kind: LevelKind::Torus { .. }, reach: Reach::Chips(slice), .. }) => {
                (self.ranks() / (*slice).max(1)).max(1)
            }
            _ => 1,
        }
    }

    /// Some chips of each node, with their share of its network cards.
    ///
    /// # Panics
    /// If a node has fewer chips.
    pub fn part(mut self, chips: u32) -> Topology {
        let whole = self.node.chips;
        assert!((1..=whole).contains(&chips), "{chips} chips of {}", self.size_in_words());
        self.node.nics = (self.node.nics * chips / whole).max(1);
        self.node.chips = chips;
        // Levels between nodes join as many nodes as before.
        for level in self.fabric.iter_mut().filter(|_| self.nodes > 1) {
            if let Reach::Chips(reach) = &mut level.reach {
                *reach = (*reach / whole).max(1).saturating_mul(chips);
            }
        }
        self
    }

    /// The axes of the slice, where the machine is a torus.
    pub fn axes(&self) -> Option<&[Axis]> {
        self.fabric.iter().find_map(|level| match &level.kind {
            LevelKind::Torus { axes, .. } => Some(axes.as_slice()),
            LevelKind::Switch | LevelKind::Rails => None,
        })
    }
}
