//! The straight line from a scenario to an answer: program → memory, costs → timeline → prediction.

mod mfu;
mod trust;

use std::ops::Range;

pub use mfu::Mfu;
pub(super) use mfu::mfu_conventions;

use mfu::mfu;
use trust::trust;

use super::error::ScenarioError;
use super::limits;
use super::remedy::{self, Remedy};
use super::understood::Scenario;
use crate::cost::{Basis, Cost, CostModel, Spread};
use crate::engine::{self, Breakdown, CommCost, Costs, KernelCost, Options, Timeline};
use crate::hardware::Topology;
use crate::memory::{self, MemoryReport};
use crate::network::LEVELS;
use crate::program::{Collective, Comm, Dispatch, Instr, Pass, Program, Transfer, TransferId, Work};
use crate::runtime::train;
use crate::units::{Bytes, Time};

/// Settings of a prediction that do not change its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Simulate one rank for all identical ones.
    pub fold: bool,
    /// Keep every span, for a trace.
    pub record: bool,
    /// Try single changes that would make a plan fit that does not.
    pub remedies: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { fold: true, record: false, remedies: true }
    }
}

/// Memory of one device.
#[derive(Clone, Debug)]
pub struct DeviceMemory {
    /// Allocated and reserved, with breakdowns.
    pub report: MemoryReport,
    /// Outside the allocator: CUDA context and communicators.
    pub outside: Bytes,
    /// What the device has.
    pub capacity: Bytes,
    /// Reserved without any limit, plus what is outside: what the plan would like to have.
    pub wanted: Bytes,
    /// How far [`DeviceMemory::outside`] may be off, relative (half-width of an 80 % interval).
    pub outside_spread: f64,
    /// Whether the plan runs.
    pub fits: bool,
    /// Changes that would make it fit, if it does not.
    pub remedies: Vec<Remedy>,
}

impl DeviceMemory {
    /// Reserved plus what is outside the allocator.
    pub fn device_total(&self) -> Bytes {
        self.report.peak_reserved + self.outside
    }

    /// How far what lives outside the allocator may be off: a plan with less to spare fits only perhaps.
    pub fn doubt(&self) -> Bytes {
        Bytes((self.outside.0 as f64 * self.outside_spread).round() as u64)
    }

    /// Whether the plan runs however far the memory outside the allocator is off.
    pub fn fits_beyond_doubt(&self) -> bool {
        self.fits && self.capacity.saturating_sub(self.device_total()) > self.doubt()
    }

    /// How much is missing.
    pub fn shortfall(&self) -> Bytes {
        self.wanted.saturating_sub(self.capacity)
    }
}

/// Where a part of the step's time went.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Pass, or the collective.
    pub group: &'static str,
    /// Kernel or collective.
    pub name: String,
    /// How often in a step.
    pub count: u64,
    /// Time it ran \[ps\].
    pub busy: Time,
    /// Time it ran with nothing else to do for the rank \[ps\].
    pub exposed: Time,
    /// The weakest evidence among its costs.
    pub basis: Basis,
}

/// What the run would do.
#[derive(Debug)]
pub struct Prediction {
    /// The program of a rank.
    pub program: Program,
    /// Costs of its parts, with their evidence.
    pub evidence: Evidence,
    /// What happened when.
    pub timeline: Timeline,
    /// Memory.
    pub memory: DeviceMemory,
    /// The steady step \[ps\].
    pub step: Time,
    /// An 80 % interval around it, from the residuals of the costs \[ps\].
    pub interval: (Time, Time),
    /// Where the step's time went.
    pub breakdown: Breakdown,
    /// Share of the step that rests on each kind of evidence.
    pub shares: Vec<(Basis, f64)>,
    /// Parts by kernel and pass, largest first.
    pub parts: Vec<Part>,
    /// Model FLOPs of one step of the whole job, by convention.
    pub mfu: Vec<Mfu>,
    /// Tokens of one step of the whole job.
    pub tokens: u64,
}

/// The costs a prediction used, by kernel, collective, exchange and dispatch class.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// By `KernelId`.
    pub kernels: Vec<Cost>,
    /// By `CommId`.
    pub comms: Vec<Cost>,
    /// By `ExchangeId`: the longest of its messages, with the weakest evidence among them.
    pub exchanges: Vec<Cost>,
    /// By dispatch class.
    pub dispatch: Vec<Cost>,
}

impl Prediction {
    /// Tokens per second and chip.
    pub fn tokens_per_second_per_chip(&self, chips: u32) -> f64 {
        self.tokens as f64 / self.step.seconds() / f64::from(chips)
    }

    /// Share of rank-time that a pipeline leaves without work; without a pipeline there is none.
    pub fn bubble(&self) -> f64 {
        self.timeline.bubble()
    }

    /// What bounds the step: the largest of its parts.
    pub fn bound(&self) -> &'static str {
        let parts = [
            (self.breakdown.exposed_communication, "communication"),
            (self.breakdown.host_bound, "host"),
            (self.breakdown.bubble + self.breakdown.waiting, "waiting"),
            (self.memory_bound_time(), "memory bandwidth"),
            (self.breakdown.compute.saturating_sub(self.memory_bound_time()), "compute"),
        ];
        parts.into_iter().max_by_key(|part| part.0).map_or("compute", |part| part.1)
    }

    fn memory_bound_time(&self) -> Time {
        let busy = self.timeline.busy[0].kernel.iter().zip(&self.program.kernels);
        busy.filter(|(_, kernel)| matches!(kernel.work, Work::Memory { .. }) && kernel.pass != Pass::Communication)
            .map(|(&time, _)| time)
            .sum()
    }
}

/// Flies a scenario.
pub fn predict(scenario: &Scenario, settings: Settings) -> Result<Prediction, ScenarioError> {
    scenario.simulable()?;
    let program = train::compile(&scenario.job);
    let model = CostModel::new(&scenario.profile, scenario.regime).with(scenario.software);
    let (costs, evidence) = costs(scenario, &program, &model);
    limits::check_time(scenario, &program, &costs)?;
    let memory = device_memory(scenario, &program, settings.remedies);
    let options = Options { fold: settings.fold, record: settings.record, ..Options::default() };
    let timeline =
        engine::simulate(&program, &costs, options).map_err(|error| ScenarioError::Engine(Box::new(error)))?;
    let step = timeline.step;
    let breakdown = timeline.breakdown[0];
    let parts = parts(&program, &timeline, &evidence);
    let (interval, shares) = trust(&program, &timeline, &evidence, &breakdown);
    let tokens = scenario.job.tokens();
    let mfu = mfu(scenario, &program, step, tokens);
    Ok(Prediction { program, evidence, timeline, memory, step, interval, breakdown, shares, parts, mfu, tokens })
}

/// Memory outside the allocator: the context, and NCCL's buffers for each communicator.
fn outside(scenario: &Scenario, program: &Program) -> Bytes {
    let overheads = &scenario.profile.overheads;
    let communicators = program.groups.iter().filter(|group| group.size > 1).count() as u64;
    let nccl = match communicators {
        0 => 0,
        count => overheads.nccl_first.0 + (count - 1) * overheads.nccl_each.0,
    };
    overheads.context + Bytes(nccl)
}

/// Memory of a program on a scenario's device.
pub(super) fn device_memory(scenario: &Scenario, program: &Program, remedies: bool) -> DeviceMemory {
    let outside = outside(scenario, program);
    let capacity = scenario.topology.chip.memory;
    let limit = capacity.saturating_sub(outside);
    let unlimited =
        memory::Settings { expandable_segments: scenario.expandable_segments, capacity: Bytes(u64::MAX / 4) };
    let free = memory::replay(program, unlimited);
    let wanted = free.peak_reserved + outside;
    // A plan whose cache would outgrow the device gives cached segments back first, and may still run.
    let report = if free.peak_reserved <= limit {
        free
    } else {
        let tight = memory::replay(program, memory::Settings { capacity: limit, ..unlimited });
        if tight.out_of_memory.is_some() {
            MemoryReport { out_of_memory: tight.out_of_memory, retries: tight.retries, ..free }
        } else {
            tight
        }
    };
    let fits = report.out_of_memory.is_none();
    let remedies = if fits || !remedies { vec![] } else { remedy::find(scenario) };
    let outside_spread = scenario.profile.overheads.evidence.spread();
    DeviceMemory { report, outside, outside_spread, capacity, wanted, fits, remedies }
}

/// The host's price of recording an event or making a stream wait for one. `cudaEventRecord` and `cudaStreamWaitEvent`
/// are driver calls as short as a launch's enqueue: taken as one further kernel of an operator.
const EVENT: Dispatch = Dispatch::Extra;

fn costs(scenario: &Scenario, program: &Program, model: &CostModel<'_>) -> (Costs, Evidence) {
    let kernels: Vec<Cost> = program.kernels.iter().map(|kernel| model.kernel(kernel)).collect();
    let mut costs = Costs::free(program);
    for ((slot, cost), kernel) in costs.kernel.iter_mut().zip(&kernels).zip(&program.kernels) {
        let fills = !matches!(kernel.work, Work::HostCopy { .. } | Work::HostMemory { .. });
        *slot = KernelCost { time: cost.time, slowdown: model.overlap(&kernel.work), fills };
    }
    let mut comms = vec![];
    for (slot, comm) in costs.comm.iter_mut().zip(&program.comms) {
        let group = program.group(comm.group);
        let spread = scenario.topology.spread(group.size, group.stride);
        // A group that does not fill its nodes is as slow as its thinnest part.
        let ranks_per_node = (group.size / spread.nodes).clamp(1, spread.ranks_per_node);
        let cost = model.collective(comm, Spread { ranks_per_node, nodes: spread.nodes });
        let mut use_of = [0.0; LEVELS];
        use_of[0] = cost.inside;
        use_of[1] = cost.across;
        *slot = CommCost { time: cost.time, use_of };
        comms.push(Cost { time: cost.time, spread: cost.spread, basis: cost.basis });
    }
    let mut transfers = vec![];
    for (slot, transfer) in costs.transfer.iter_mut().zip(&program.transfers) {
        let Transfer { group, bytes, dtype, .. } = *transfer;
        let message = Comm { kind: Collective::SendRecv, group, bytes, dtype };
        let cost = model.collective(&message, between(&scenario.topology, program, transfer, 0..program.ranks));
        let mut use_of = [0.0; LEVELS];
        use_of[0] = cost.inside;
        use_of[1] = cost.across;
        *slot = CommCost { time: cost.time, use_of };
        transfers.push(Cost { time: cost.time, spread: cost.spread, basis: cost.basis });
    }
    let weakest = |exchange: &Vec<TransferId>| {
        let ends = exchange.iter().map(|id| transfers[id.0 as usize]);
        ends.reduce(|one, other| Cost {
            time: one.time.max(other.time),
            spread: one.spread.max(other.spread),
            basis: one.basis.and(other.basis),
        })
    };
    let exchanges = program.exchanges.iter().filter_map(weakest).collect();
    let dispatch: Vec<Cost> = Dispatch::ALL.into_iter().map(|class| model.dispatch(class)).collect();
    for (slot, cost) in costs.dispatch.iter_mut().zip(&dispatch) {
        *slot = cost.time;
    }
    costs.record = costs.dispatch[EVENT as usize];
    costs.wait = costs.dispatch[EVENT as usize];
    (costs, Evidence { kernels, comms, exchanges, dispatch })
}

/// How the two ends of a message lie: on two nodes, if the peer of any of the ranks that issue it is on another.
fn between(topology: &Topology, program: &Program, transfer: &Transfer, mut ranks: Range<u32>) -> Spread {
    let (group, chips) = (program.group(transfer.group), topology.node.chips.max(1));
    let leaves = |rank: u32| group.peer(rank, transfer.ahead).is_some_and(|peer| peer / chips != rank / chips);
    let nodes = if ranks.any(leaves) { 2 } else { 1 };
    Spread { ranks_per_node: 2 / nodes, nodes }
}

fn parts(program: &Program, timeline: &Timeline, evidence: &Evidence) -> Vec<Part> {
    let (mut kernels, mut comms) = (vec![0u64; program.kernels.len()], vec![0u64; program.comms.len()]);
    let mut exchanges = vec![0u64; program.exchanges.len()];
    for instr in &program.step {
        match instr {
            Instr::Launch { kernel, .. } => kernels[kernel.0 as usize] += 1,
            Instr::Collective { comm, .. } => comms[comm.0 as usize] += 1,
            Instr::Exchange { exchange, .. } => exchanges[exchange.0 as usize] += 1,
            _ => {}
        }
    }
    let busy = &timeline.busy[0];
    let mut table = std::collections::BTreeMap::<(&'static str, String), Part>::new();
    let mut add = |group: &'static str, name: String, count, time, exposed, basis| {
        let entry = table.entry((group, name.clone())).or_insert(Part {
            group,
            name,
            count: 0,
            busy: Time::ZERO,
            exposed: Time::ZERO,
            basis,
        });
        entry.count += count;
        entry.busy += time;
        entry.exposed += exposed;
        entry.basis = entry.basis.and(basis);
    };
    for (index, kernel) in program.kernels.iter().enumerate().filter(|&(index, _)| kernels[index] > 0) {
        let basis = evidence.kernels[index].basis;
        let name = kernel.name.to_owned();
        let exposed = busy.kernel_exposed[index];
        add(kernel.pass.name(), name, kernels[index], busy.kernel[index], exposed, basis);
    }
    for (index, comm) in program.comms.iter().enumerate().filter(|&(index, _)| comms[index] > 0) {
        let group = program.group(comm.group);
        let name = format!("{} over {} ({})", comm.kind.name(), group.name, group.size);
        let basis = evidence.comms[index].basis;
        add("collective", name, comms[index], busy.comm[index], busy.comm_exposed[index], basis);
    }
    for (index, ends) in program.exchanges.iter().enumerate().filter(|&(index, _)| exchanges[index] > 0) {
        let Some(first) = ends.first() else { continue };
        let group = program.group(program.transfers[first.0 as usize].group);
        let name = format!("{} over {} ({})", Collective::SendRecv.name(), group.name, group.size);
        let basis = evidence.exchanges[index].basis;
        add("collective", name, exchanges[index], busy.exchange[index], busy.exchange_exposed[index], basis);
    }
    let mut list: Vec<Part> = table.into_values().collect();
    list.sort_by_key(|part| std::cmp::Reverse(part.busy));
    list
}
