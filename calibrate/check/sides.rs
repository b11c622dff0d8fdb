//! Both answers as the same figures: of one chip, in one step.

use std::collections::BTreeMap;

use windtunnel::program::{Category, Collective, Instr, Program, Work};
use windtunnel::scenario::predict::Prediction;

use crate::pjrt::buffers::Buffers;
use crate::pjrt::compile::Compiled;

/// What the compiler says.
pub enum Compiler {
    /// It compiles and fits.
    Fits(Box<Compiled>),
    /// At first it would hold this; whether it fits, and what it computes, was not asked.
    Holds(Box<Buffers>),
    /// It does not fit.
    OutOfMemory {
        /// What it would need \[B\], where the compiler says so.
        needed: Option<u64>,
        /// What there is \[B\], where the compiler says so.
        limit: Option<u64>,
        /// The compiler's words.
        message: String,
        /// How long it took to find out \[s\].
        seconds: f64,
        /// What would lie in memory, where the compiler says so.
        account: Option<Box<Buffers>>,
    },
}

impl Compiler {
    /// What was compiled, if it was.
    pub fn compiled(&self) -> Option<&Compiled> {
        match self {
            Self::Fits(compiled) => Some(compiled),
            Self::Holds(_) | Self::OutOfMemory { .. } => None,
        }
    }

    /// What lies in memory at the peak, where it gives an account.
    pub fn account(&self) -> Option<&Buffers> {
        match self {
            Self::Fits(compiled) => compiled.account.as_ref(),
            Self::Holds(buffers) => Some(buffers),
            Self::OutOfMemory { account, .. } => account.as_deref(),
        }
    }

    /// Whether it fits, if that was asked.
    pub fn fits(&self) -> Option<bool> {
        match self {
            Self::Fits(_) => Some(true),
            Self::Holds(_) => None,
            Self::OutOfMemory { .. } => Some(false),
        }
    }

    /// How long it took \[s\].
    pub fn seconds(&self) -> f64 {
        match self {
            Self::Fits(compiled) => compiled.compile_seconds,
            Self::Holds(buffers) => buffers.seconds,
            Self::OutOfMemory { seconds, .. } => *seconds,
        }
    }

    /// Bytes of arguments and at the peak, if it fits.
    pub fn memory(&self) -> Option<(u64, u64)> {
        match self {
            Self::Fits(compiled) => Some((compiled.memory.argument, compiled.peak())),
            Self::Holds(buffers) => Some((buffers.argument, buffers.peak)),
            Self::OutOfMemory { .. } => None,
        }
    }

    /// Collectives that are alike, with how often they run.
    pub fn collectives(&self) -> BTreeMap<Exchange, u64> {
        let mut all = BTreeMap::new();
        for one in self.compiled().into_iter().flat_map(|compiled| &compiled.collectives) {
            let ranks = one.groups.first().map_or(0, |group| group.len() as u64);
            let (kind, bytes) = (one.kind.clone(), one.bytes);
            *all.entry(Exchange { kind, bytes, ranks }).or_default() += one.count;
        }
        all
    }
}

/// A collective: what, how much, and how many take part. Of a permutation, whose ranks send and receive in pairs, two do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exchange {
    /// XLA's name.
    pub kind: String,
    /// Of the whole buffer \[B\].
    pub bytes: u64,
    /// Of a group.
    pub ranks: u64,
}

impl Exchange {
    /// Bytes that one chip sends in it, by the fewest that the collective takes: rings, or one shard to each other.
    pub fn traffic(&self) -> f64 {
        let (bytes, ranks) = (self.bytes as f64, self.ranks.max(1) as f64);
        let others = bytes * (ranks - 1.0) / ranks;
        match self.kind.as_str() {
            "all-reduce" => 2.0 * others,
            "collective-permute" | "collective-broadcast" => bytes,
            _ => others,
        }
    }

    /// Whether everybody sends something else to everybody.
    pub fn swaps(&self) -> bool {
        self.kind.ends_with("all-to-all")
    }
}

/// What is predicted.
#[derive(Clone, Debug)]
pub struct Ours {
    /// Parameters, moments and the batch \[B\].
    pub arguments: u64,
    /// The most at one time \[B\].
    pub peak: u64,
    /// What is copied to the host's memory and stays there until backward \[B\].
    pub host: u64,
    /// FLOPs of matmuls.
    pub matmul: u128,
    /// FLOPs of attention kernels, of whole squares of queries and keys.
    pub attention: u128,
    /// Collectives, and how often each runs.
    pub collectives: BTreeMap<Exchange, u64>,
    /// What there is \[B\].
    pub capacity: u64,
    /// Whether it fits.
    pub fits: bool,
}

impl Ours {
    /// Of a prediction: all chips run the same program.
    pub fn of(prediction: &Prediction) -> Self {
        let (class, memory) = (&prediction.classes[0], &prediction.memory);
        let program = &class.program;
        let mut ours = Self {
            arguments: arguments(program),
            peak: memory.report.peak_allocated.0,
            host: 0,
            matmul: 0,
            attention: 0,
            collectives: BTreeMap::new(),
            capacity: memory.capacity.0,
            fits: memory.on_device,
        };
        for instruction in &program.step {
            match instruction {
                Instr::Launch { kernel, .. } => match program.kernel(*kernel).work {
                    Work::HostCopy { bytes, to_host: true } => ours.host += bytes.0,
                    work @ Work::Attention { .. } => ours.attention += work.flops().0,
                    work => ours.matmul += work.flops().0,
                },
                Instr::Collective { comm, .. } => {
                    let comm = program.comm(*comm);
                    let group = u64::from(program.group(comm.group).size);
                    let ranks = if comm.kind == Collective::SendRecv { 2 } else { group };
                    let exchange = Exchange { kind: kind(comm.kind).to_owned(), bytes: comm.bytes.0, ranks };
                    *ours.collectives.entry(exchange).or_default() += 1;
                }
                _ => {}
            }
        }
        ours
    }
}

/// What is there before the step.
fn arguments(program: &Program) -> u64 {
    let of = |instruction: &Instr| match instruction {
        Instr::Alloc { buffer } => {
            let buffer = program.buffer(*buffer);
            let given = [Category::Parameter, Category::OptimizerState, Category::Buffer];
            given.contains(&buffer.category).then_some(buffer.bytes.0)
        }
        _ => None,
    };
    program.setup.iter().filter_map(of).sum()
}

/// XLA's name of a collective.
fn kind(kind: Collective) -> &'static str {
    match kind {
        Collective::AllGather => "all-gather",
        Collective::ReduceScatter => "reduce-scatter",
        Collective::AllReduce => "all-reduce",
        Collective::AllToAll | Collective::Rows(_) => "all-to-all",
        Collective::Broadcast => "collective-broadcast",
        Collective::SendRecv => "collective-permute",
    }
}
