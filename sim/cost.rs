//! What kernels, collectives and host calls cost, answered from a profile of measured parts.
//!
//! A [`Profile`] is what was measured about one chip and its fabric; a [`CostModel`] answers from it at one clock
//! [`Regime`] and labels every answer with a [`Basis`] and a spread. Times are finite and never zero for work that is
//! not nothing; more bytes never take less time, and a matmul never takes longer than one with a dimension doubled.
//!
//! To add a chip: put its profile into `sim/cost/profiles/` and one line into `registry.rs`. To add a kernel family:
//! one file here with its section as written and as understood, and one field in `profile.rs`.

pub mod allocator;
pub mod attention;
pub mod basis;
pub mod batched;
mod carried;
pub mod clock;
pub mod collective;
mod comm;
pub mod cublas;
pub mod curve;
pub mod deepep;
pub mod disk;
mod floor;
pub mod fusion;
pub mod grouping;
pub mod host;
pub mod hybridep;
pub mod lines;
pub mod matmul;
pub mod memory;
mod nearby;
pub mod overlap;
pub mod profile;
mod protocols;
mod registry;
mod route;
pub mod sections;
mod sound;
mod table;
#[cfg(test)]
mod tests;
pub mod torus;
pub mod variation;
pub mod waves;

pub use attention::{Backend, Blocks, FLEX_OVER_FLASH2};
pub use basis::{Basis, Cost, Evidence};
pub use carried::FARTHEST;
pub use comm::{CommCost, OnNodes, Placed};
pub use disk::Disks;
use grouping::Streams;
pub use host::Overheads;
pub use profile::{Profile, ProfileError};
pub use route::Route;
pub use table::Shape;
pub use variation::Variation;

use matmul::Matmul;

use crate::program::{
    Collective, Comm, DType, Dispatch, ExchangeLibrary, Grouping, Kernel, MatmulLayout, MemoryKind, Work,
};
use crate::units::{Bandwidth, Bytes, Time};

/// Which clocks the chip runs at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Regime {
    /// Boost clocks: a short run on a cool board.
    Burst,
    /// Throttled to the board's power limit, as training runs.
    #[default]
    Sustained,
}

/// Settings of the software that decide which kernels run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Software {
    /// Which attention kernels.
    pub attention: Backend,
    /// Whether attention's backward adds up in one order (`torch.use_deterministic_algorithms`).
    pub deterministic: bool,
    /// Whether fp32 matmuls run in tf32 (`torch.set_float32_matmul_precision`).
    pub tf32: bool,
    /// Another release of cuBLAS than the profile's: its place in [`Profile::cublas`].
    pub cublas: Option<usize>,
    /// Line rate of the NICs that one GPU owns, one direction; none: the profile's own fabric.
    pub rail: Option<Bandwidth>,
    /// How attention is cut into blocks, where its kernels are told (splash attention on TPUs).
    pub blocks: Option<Blocks>,
    /// What a rank has of its node's disks, where something is kept on them.
    pub disks: Option<Disks>,
}

/// Matmuls of one shape that fill the chip together.
#[derive(Clone, Copy)]
struct Matmuls<'a> {
    /// Their curves, where they have some of their own.
    own: Option<&'a Matmul>,
    groups: u64,
    /// Kernels that they are launched in.
    launches: u64,
    shape: Shape,
    dtype: DType,
    layout: MatmulLayout,
    /// Processors that they leave to others.
    idle: f64,
}

impl Matmuls<'_> {
    fn one(shape: Shape, dtype: DType, layout: MatmulLayout) -> Self {
        Matmuls { own: None, groups: 1, launches: 1, shape, dtype, layout, idle: 0.0 }
    }
}

/// Answers what things cost on one chip.
#[derive(Clone, Debug)]
pub struct CostModel<'p> {
    profile: &'p Profile,
    regime: Regime,
    software: Software,
}

impl<'p> CostModel<'p> {
    /// Costs from a profile at one clock regime, with PyTorch's default kernels.
    pub fn new(profile: &'p Profile, regime: Regime) -> Self {
        CostModel { profile, regime, software: Software::default() }
    }

    /// The same with other kernels chosen.
    pub fn with(self, software: Software) -> Self {
        CostModel { software, ..self }
    }

    /// The profile behind the answers.
    pub fn profile(&self) -> &'p Profile {
        self.profile
    }

    /// Time of a kernel alone on the device.
    pub fn kernel(&self, kernel: &Kernel) -> Cost {
        let cost = match kernel.work {
            Work::Matmul { m, n, k, dtype, layout } => {
                let aside = f64::from(kernel.aside());
                let cost = self.matmuls(&Matmuls { idle: aside, ..Matmuls::one((m, n, k), dtype, layout) });
                self.no_less(&kernel.work, cost)
            }
            ref work => self.work(work),
        };
        let is_matmul = matches!(kernel.work, Work::Matmul { .. } | Work::GroupedMatmul { .. });
        match &self.profile.fusion {
            Some(fusion) if is_matmul && kernel.dispatch == Dispatch::Static => fusion.slowed(cost),
            _ => cost,
        }
    }

    /// Time of a piece of work alone on the device.
    pub fn work(&self, work: &Work) -> Cost {
        let profile = self.profile;
        let cost = match *work {
            Work::Matmul { m, n, k, dtype, layout } => self.matmul(m, n, k, dtype, layout),
            Work::GroupedMatmul { groups, rows, inputs, outputs, dtype, layout, kernels } => {
                self.grouped((groups, rows), (inputs, outputs), (dtype, layout), kernels)
            }
            Work::Attention { ref shape, backward, dtype } => {
                let Software { attention, deterministic, blocks, .. } = self.software;
                let cost = profile.attention.cost((attention, blocks), backward, shape, |seconds, flops| {
                    let share = flops / (profile.bf16.peak().0 * seconds);
                    match self.regime {
                        Regime::Burst => seconds,
                        Regime::Sustained => profile.clock.attention(seconds, share, dtype),
                    }
                });
                // In fp32 it is the memory-efficient kernel, which splits no keys to begin with.
                let cost = match dtype {
                    DType::Fp32 => self.fp32_attention(work, cost),
                    _ if deterministic && backward => profile.attention.in_order(attention, shape, cost),
                    _ => cost,
                };
                self.throttled(cost)
            }
            Work::Memory { kind, read, written } => {
                let narrows = kind == MemoryKind::Cast && written <= read;
                let kind = if narrows { MemoryKind::Elementwise } else { kind };
                profile.memory.cost(kind, Bytes(read.0.saturating_add(written.0)))
            }
            Work::HostMemory { bytes } => host::memory(bytes),
            Work::HostCopy { bytes, to_host } => profile.memory.host_copy(bytes, to_host),
            Work::Disk { bytes, write } => self.software.disks.map_or(Cost::NOTHING, |disks| disks.cost(bytes, write)),
        };
        self.no_less(work, cost)
    }

    /// A kernel's cost, or the least that the chip allows.
    fn no_less(&self, work: &Work, cost: Cost) -> Cost {
        let dtype = match *work {
            Work::Matmul { dtype, .. } | Work::GroupedMatmul { dtype, .. } | Work::Attention { dtype, .. } => dtype,
            _ => DType::Bf16,
        };
        Cost { time: cost.time.max(floor::least(self.profile, self.section(dtype), work)), ..cost }
    }

    /// Matmuls of groups of rows: their tiles fill the chip together, and each group's operands are read.
    fn grouped(
        &self,
        (groups, rows): (u64, u64),
        (inputs, outputs): (u64, u64),
        (dtype, layout): (DType, MatmulLayout),
        kernels: Grouping,
    ) -> Cost {
        let profile = self.profile;
        // Groups without a row have no tile.
        let groups = groups.min(rows).max(1);
        let each = rows.div_ceil(groups);
        let shape = match layout {
            MatmulLayout::Forward => (each, outputs, inputs),
            MatmulLayout::DataGradient => (each, inputs, outputs),
            MatmulLayout::WeightGradient | MatmulLayout::MainGradient(_) => (inputs, outputs, each),
        };
        let launches = if kernels == Grouping::Streams { groups } else { 1 };
        let together = Matmuls { groups, launches, ..Matmuls::one(shape, dtype, layout) };
        let own = match (dtype, &profile.grouped, kernels) {
            (DType::Bf16 | DType::Fp16, Some(grouped), Grouping::OneKernel) => Some(&grouped.bf16),
            (DType::Fp8, Some(grouped), Grouping::OneKernel) => Some(&grouped.fp8),
            _ => None,
        };
        if own.is_some() {
            return self.matmuls(&Matmuls { own, ..together });
        }
        if let (Grouping::Streams, Some(streams)) = (kernels, &profile.streams) {
            return self.on_streams(streams, &together);
        }
        let rows = [inputs, outputs].map(|numbers| numbers * dtype.bytes());
        let release = self.software.cublas.and_then(|at| profile.cublas.get(at));
        let cost = match release.and_then(|release| release.unaligned_batched) {
            Some(as_if) if !batched::are_aligned(rows) => self.matmuls(&Matmuls { dtype: as_if, ..together }),
            _ => {
                let cost = self.matmuls(&together);
                profile.batched.as_ref().map_or(cost, |batched| batched.slowed(cost, rows))
            }
        };
        Cost { spread: cost.spread.max(0.3), basis: Basis::Assumed, ..cost }
    }

    /// Groups on several streams, between one after another and all `together`.
    fn on_streams(&self, streams: &Streams, asked: &Matmuls<'_>) -> Cost {
        let together = self.matmuls(asked);
        let one = self.matmuls(&Matmuls { groups: 1, launches: 1, ..*asked }).time.seconds() * asked.groups as f64;
        let seconds = one + streams.together * (together.time.seconds() - one).min(0.0);
        Cost {
            time: Time::from_seconds(seconds),
            spread: libm::hypot(together.spread, streams.evidence.spread()),
            basis: together.basis.and(streams.evidence.basis).and(Basis::Interpolated),
        }
    }

    /// No rates of fp32 attention are known: it takes at least as long as the same FLOPs, half of them if the mask is
    /// causal, in an fp32 matmul of a size that fills the chip.
    fn fp32_attention(&self, work: &Work, cost: Cost) -> Cost {
        const SIDE: u64 = 4096;
        let matmul = self.matmul(SIDE, SIDE, SIDE, DType::Fp32, MatmulLayout::Forward);
        let Work::Attention { shape, .. } = work else { return cost };
        let share = if shape.causal { 0.5 } else { 1.0 };
        let cubes = work.flops().0 as f64 * share / (2.0 * (SIDE as f64) * (SIDE as f64) * (SIDE as f64));
        let least = Time::from_seconds(matmul.time.seconds() * cubes);
        Cost { time: cost.time.max(least), spread: matmul.spread.max(0.5), basis: cost.basis.and(Basis::Datasheet) }
    }

    fn matmul(&self, m: u64, n: u64, k: u64, dtype: DType, layout: MatmulLayout) -> Cost {
        self.matmuls(&Matmuls::one((m, n, k), dtype, layout))
    }

    /// Matmuls of a type, as the software runs it.
    fn section(&self, dtype: DType) -> &'p Matmul {
        let profile = self.profile;
        match (dtype, self.software.tf32) {
            (DType::Bf16 | DType::Fp16, _) => &profile.bf16,
            (DType::Fp8, _) => &profile.fp8,
            (DType::Fp32, true) => &profile.tf32,
            (DType::Fp32 | DType::Int32 | DType::Int64, _) => &profile.fp32,
        }
    }

    /// Matmuls by the curves of their section. Those that leave processors idle are slower by what the wave model says, at a clock of
    /// their lower utilisation.
    fn matmuls(&self, asked: &Matmuls<'_>) -> Cost {
        let &Matmuls { own, groups, launches, shape: (m, n, k), dtype, layout, idle } = asked;
        let profile = self.profile;
        let matmul = own.unwrap_or_else(|| self.section(dtype));
        let factor = match (layout, dtype) {
            (MatmulLayout::Forward, _) => 1.0,
            (_, DType::Fp8) => profile.layout.fp8_gradient,
            (MatmulLayout::DataGradient, _) => profile.layout.data_gradient,
            (MatmulLayout::WeightGradient, _) => profile.layout.weight_gradient,
            (MatmulLayout::MainGradient(_), _) => {
                profile.layout.main_gradient.unwrap_or(profile.layout.weight_gradient)
            }
        };
        // A main gradient's traffic comes on top: so it is in the table that the factor is from.
        let added = match layout {
            MatmulLayout::MainGradient(main) => {
                let bytes = groups as f64 * m as f64 * n as f64 * (2.0 * main.bytes() as f64 - 2.0);
                bytes / (matmul.chip.bandwidth.0 * matmul.waves.memory)
            }
            _ => 0.0,
        };
        let launch = matmul.waves.launch.seconds();
        let half = matches!(dtype, DType::Bf16 | DType::Fp16);
        let release = self.software.cublas.and_then(|at| profile.cublas.get(at)).filter(|_| half && own.is_none());
        let factor = factor * release.map_or(1.0, |release| release.bf16);
        let slower = matmul.slower_without(idle, (m, n, k));
        let cost = matmul.cost_with(groups, (m, n, k), |seconds, share| {
            // The layout changes what the kernel does, not its launch.
            let seconds = (seconds + (seconds - launch).max(0.0) * (factor - 1.0) + added) * slower;
            let share = share / slower;
            match self.regime {
                Regime::Burst => seconds,
                Regime::Sustained => {
                    clock::throttled(seconds, share, profile.clock.matmul(seconds / launches as f64, dtype))
                }
            }
        });
        let cost = release.map_or(cost, |release| Cost {
            spread: libm::hypot(cost.spread, release.evidence.spread()),
            basis: cost.basis.and(release.evidence.basis),
            ..cost
        });
        self.throttled(cost)
    }

    /// Adds the clock section's uncertainty, and its basis where that is weaker than an interpolation.
    fn throttled(&self, cost: Cost) -> Cost {
        let evidence = &self.profile.clock.evidence;
        match self.regime {
            Regime::Burst => cost,
            Regime::Sustained => Cost {
                spread: libm::hypot(cost.spread, evidence.spread()),
                basis: cost.basis.and(evidence.basis.min(Basis::Extrapolated)),
                ..cost
            },
        }
    }

    /// Time of a collective alone on the machine, and how busy it keeps the links.
    pub fn collective(&self, comm: &Comm, placed: impl Into<Placed>) -> CommCost {
        self.collective_by(comm, placed, &Route::default())
    }

    /// The same over a fabric that is told: its shared uplinks, and its latencies.
    pub fn collective_by(&self, comm: &Comm, placed: impl Into<Placed>, route: &Route) -> CommCost {
        let (placed, rail) = (placed.into(), self.software.rail);
        let (collectives, deepep) = (&self.profile.collectives, self.profile.deepep.as_ref());
        match (comm.kind, placed) {
            (Collective::Rows(rows), Placed::Nodes(spread)) => {
                let (rows_of, placed) = ((rows, comm.bytes), (spread, route));
                match rows.library {
                    ExchangeLibrary::DeepEp => deepep::cost(collectives, deepep, rows_of, placed, rail),
                    ExchangeLibrary::HybridEp => {
                        let sections = (self.profile.hybridep.as_ref(), deepep);
                        hybridep::cost(collectives, sections, rows_of, placed, rail)
                    }
                }
            }
            (kind, placed) => collectives.cost(kind, comm.bytes, (placed, route), rail),
        }
    }

    /// What the host thread pays for one dispatch; where the profile has no host, whose programs have `Static` ones only (the
    /// plan check says so before anything runs), nothing but for waiting.
    pub fn dispatch(&self, dispatch: Dispatch) -> Cost {
        if let Some(cost) = self.profile.lazy.as_ref().and_then(|lazy| lazy.cost(dispatch)) {
            return cost;
        }
        match (&self.profile.host, &self.profile.host_sync) {
            (Some(host), _) => host.cost(dispatch),
            (None, Some(sync)) if dispatch == Dispatch::Synchronize => sync.cost(),
            _ => Cost::NOTHING,
        }
    }

    /// How long after an event a stream that waits for it goes on, beyond what kernels of one stream lie apart; in a program
    /// compiled whole, part of what its instructions take.
    pub fn event(&self) -> Cost {
        self.profile.event.as_ref().map_or(Cost::NOTHING, |event| event.cost())
    }

    /// Time of `work` while a collective is active, over its time alone.
    pub fn overlap(&self, work: &Work) -> f64 {
        self.profile.overlap.factor(work)
    }

    /// Device memory that no tensor owns.
    pub fn overheads(&self) -> &'p Overheads {
        &self.profile.overheads
    }
}
