//! How long a compiled program would take: each of its instructions priced from the scenario's profile, in the order that the compiler
//! gave them.
//!
//! ```text
//! Module ─► instructions in their schedule ─► TensorCore, links and copies to the host, each with its own clock ─► step
//! ```
//!
//! Matmuls are priced by what they multiply, all else by the bytes that it reads and writes in HBM: of a slice those of the slice, of an
//! update in place those of the update, of what lies in VMEM none. A collective that starts and ends apart runs beside what stands between.
//! Copies between HBM and VMEM run beside everything. Nobody sees into a call of a kernel written by hand: calls share what the
//! scenario's own attention takes.

mod moved;

use std::collections::BTreeMap;

use windtunnel::Time;
use windtunnel::cost::{Cost, CostModel};
use windtunnel::hardware::Topology;
use windtunnel::program::{Comm, DType, GroupId, Instr, MatmulLayout, MemoryKind, Program, Work};
use windtunnel::runtime::Parts;
use windtunnel::scenario::Scenario;
use windtunnel::{Bytes, program};

use crate::pjrt::hlo::flow::turns;
use crate::pjrt::hlo::{Computation, Instruction, Module, Shape, collectives, flops};
use crate::step::KERNEL;
use moved::{Estimate, in_hbm, kind_of, read_of, written_by};

/// What a step of a program takes on each chip.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Priced {
    /// All of it \[s\].
    pub step_s: f64,
    /// Half the width of an interval around it, by the profile's evidence, if all costs are off together \[s\].
    pub half_s: f64,
    /// In matmuls \[s\].
    pub matmul_s: f64,
    /// In what memory bounds \[s\].
    pub memory_s: f64,
    /// In kernels written by hand, at what the scenario's attention takes \[s\].
    pub kernels_s: f64,
    /// In collectives, exposed or not \[s\].
    pub exchanges_s: f64,
    /// Waiting for collectives and for the host's memory \[s\].
    pub waiting_s: f64,
    /// What takes longest, by what it came from in the program, with how long it takes in all \[s\]: a call, a loop's body or a fusion
    /// counts with its like.
    pub longest: Vec<(String, f64)>,
    /// Kernels written by hand that say nothing of what they compute, with how often each runs: what they are given and give is moved, no
    /// more, so a step takes at least as long.
    pub unsaid: BTreeMap<String, u64>,
    /// Calls that nothing is known of, with how often each runs: they are taken to be over at once.
    pub unpriced: BTreeMap<String, u64>,
}

/// Memory of the host, by XLA's number.
const HOST: i64 = 5;

fn on_host(shape: &Shape) -> bool {
    shape.layout.as_ref().is_some_and(|layout| layout.memory == HOST) || shape.tuple.iter().any(on_host)
}

/// Instructions that move nothing.
const FREE: [&str; 12] = [
    "parameter",
    "constant",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
    "opt-barrier",
    "add-dependency",
    "domain",
    "get-dimension-size",
];

/// How many of what takes longest are listed.
const LONGEST: usize = 8;

/// What an instruction is: how it runs, and what it came from.
fn source(one: &Instruction) -> String {
    let name = one.metadata.as_ref().map(|from| from.name.as_str()).filter(|name| !name.is_empty());
    // Behind the framework's own words of where in the step it stands.
    let behind =
        |name: &str| name.rsplit('/').take(2).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("/");
    format!("{} of {}", one.opcode, name.map_or_else(|| "the compiler".to_owned(), behind))
}

struct Pricer<'m> {
    module: &'m Module,
    topology: &'m Topology,
    model: CostModel<'m>,
    mesh: Vec<u32>,
    calls: Calls,
    by_source: BTreeMap<String, f64>,
    all: Priced,
}

/// The clocks of one function, and when what was started is over.
#[derive(Default)]
struct Clocks {
    now: f64,
    /// Of links one way round, and the other.
    links: [f64; 2],
    host: f64,
    over: BTreeMap<i64, f64>,
}

impl Clocks {
    /// Begins what takes so long on links, when they are free: all of them, or those one way round.
    fn exchange(&mut self, (seconds, way): (f64, Option<usize>)) -> f64 {
        let ways = way.map_or(0..2, |way| way..way + 1);
        let end = self.links[ways.clone()].iter().fold(self.now, |latest, &busy| latest.max(busy)) + seconds;
        self.links[ways].fill(end);
        end
    }

    fn all_over(&self) -> f64 {
        self.links.iter().fold(self.now, |latest, &busy| latest.max(busy))
    }
}

/// The ring that a permutation goes round, as its size and stride, and which way.
fn ring(pairs: &[Vec<u64>]) -> Option<(u32, u32, usize)> {
    let next = |at: u64| pairs.iter().find(|pair| pair[0] == at).map(|pair| pair[1]);
    let [first, second] = pairs.first()?[..] else { return None };
    let (mut at, mut size, mut stride) = (second, 1_u32, first.abs_diff(second));
    while at != first {
        // One that ends somewhere is a line, all of whose ends count.
        let Some(to) = next(at).filter(|_| (size as usize) < pairs.len()) else { break };
        stride = stride.min(at.abs_diff(to));
        (at, size) = (to, size + 1);
    }
    let size = if at == first { size } else { size + 1 };
    Some((size, u32::try_from(stride).unwrap_or(1).max(1), usize::from(second < first)))
}

/// What calls of kernels written by hand are priced by.
#[derive(Clone, Copy, Debug)]
enum Calls {
    /// Each takes this: its share of the scenario's own attention.
    Share(Time),
    /// What each says of itself, or else the bytes that it is given and gives.
    Own,
}

/// Chips that a program runs on.
pub struct On<'m> {
    /// The machine.
    pub topology: &'m Topology,
    /// What things cost there.
    pub model: CostModel<'m>,
    /// Sizes of the mesh's axes, the slowest first.
    pub mesh: Vec<u32>,
}

/// A step of a program of which no more is known than its instructions.
pub fn alone(module: &Module, on: On<'_>) -> Priced {
    all(module, on, Calls::Own)
}

fn all(module: &Module, on: On<'_>, calls: Calls) -> Priced {
    let On { topology, model, mesh } = on;
    let mut pricer =
        Pricer { module, topology, model, mesh, calls, by_source: BTreeMap::new(), all: Priced::default() };
    let step = module.computation(module.entry).map_or(0.0, |entry| pricer.run(entry, 1.0));
    let mut longest: Vec<(String, f64)> = pricer.by_source.into_iter().collect();
    longest.sort_by(|one, other| other.1.total_cmp(&one.1));
    longest.truncate(LONGEST);
    Priced { step_s: step, longest, ..pricer.all }
}

/// A step of the program, priced for a scenario of which `predicted` is the own program.
pub fn priced(module: &Module, scenario: &Scenario, predicted: &Program) -> Priced {
    let model = CostModel::new(&scenario.profile, scenario.regime).with(scenario.software);
    let attention = |instr: &Instr| match instr {
        Instr::Launch { kernel, .. } => {
            let kernel = predicted.kernel(*kernel);
            matches!(kernel.work, Work::Attention { .. }).then(|| model.kernel(kernel).time.seconds())
        }
        _ => None,
    };
    let kernels: f64 = predicted.step.iter().filter_map(attention).sum();
    let calls = flops::flops(module).unseen.get(KERNEL).copied().unwrap_or(0);
    let mesh = match scenario.job.parts() {
        Parts::Compiled(job) => job.mesh.laid().to_vec(),
        _ => vec![],
    };
    let call = Time::from_seconds(if calls == 0 { 0.0 } else { kernels / calls as f64 });
    all(module, On { topology: &scenario.topology, model, mesh }, Calls::Share(call))
}

impl<'m> Pricer<'m> {
    /// How long a function takes, which runs `times` in all.
    fn run(&mut self, computation: &'m Computation, times: f64) -> f64 {
        let order = self.module.schedule.as_ref().and_then(|all| all.sequences.get(&computation.id));
        let in_order: Vec<&Instruction> = match order {
            Some(order) => {
                let by: BTreeMap<i64, &Instruction> =
                    computation.instructions.iter().map(|one| (one.id, one)).collect();
                order.instructions.iter().filter_map(|id| by.get(id).copied()).collect()
            }
            None => computation.instructions.iter().collect(),
        };
        let mut clocks = Clocks::default();
        for instruction in in_order {
            self.step(computation, instruction, &mut clocks, times);
        }
        clocks.all_over()
    }

    /// One instruction.
    fn step(&mut self, within: &'m Computation, one: &'m Instruction, clocks: &mut Clocks, times: f64) {
        let opcode = one.opcode.as_str();
        if FREE.contains(&opcode) {
            return;
        }
        let called = one.calls.first().and_then(|id| self.module.computation(*id));
        if let Some(kind) = collectives::kind(opcode) {
            let cost = self.exchange(within, one, kind.0, times);
            let end = clocks.exchange(cost);
            match kind.1 {
                true => drop(clocks.over.insert(one.id, end)),
                false => self.wait(clocks, end, times),
            }
            return;
        }
        if opcode.ends_with("-done") || opcode == "async-update" {
            let end = one.operands.first().and_then(|id| clocks.over.get(id)).copied().unwrap_or(clocks.now);
            match opcode {
                "async-update" => drop(clocks.over.insert(one.id, end)),
                _ => self.wait(clocks, end, times),
            }
            return;
        }
        match opcode {
            "while" => {
                let turns = turns(self.module, within, one).unwrap_or(1) as f64;
                let turn = called.map_or(0.0, |body| self.run(body, times * turns));
                clocks.now += turns * turn;
            }
            "call" | "conditional" => clocks.now += called.map_or(0.0, |inner| self.run(inner, times)),
            "async-start" => {
                let exchanged = called.and_then(|inner| self.exchanged(inner, times));
                let end = match exchanged {
                    Some(cost) => clocks.exchange((cost, None)),
                    None => clocks.now,
                };
                clocks.over.insert(one.id, end);
            }
            "copy-start" | "slice-start" | "dynamic-slice-start" => {
                let operand = within.operand(one, 0).and_then(|operand| operand.shape.as_ref());
                let ends = [operand, one.shape.as_ref()];
                let hosts = ends.into_iter().flatten().any(on_host);
                if let (true, Some(shape)) = (hosts, operand) {
                    let work = Work::HostCopy { bytes: Bytes(shape.bytes()), to_host: !on_host(shape) };
                    let cost = self.cost(&work, times);
                    clocks.host = clocks.now.max(clocks.host) + cost;
                    clocks.over.insert(one.id, clocks.host);
                }
            }
            "custom-call" if one.target == KERNEL => {
                let seconds = match self.calls {
                    Calls::Share(call) => call.seconds(),
                    Calls::Own => self.called(within, one, times),
                };
                self.all.kernels_s += times * seconds;
                clocks.now += self.noted(one, seconds, times);
            }
            "custom-call" if one.target == "AsyncCollectiveDone" => self.wait(clocks, clocks.all_over(), times),
            "custom-call" if flops::IDLE.contains(&one.target.as_str()) => {}
            "custom-call" => {
                *self.all.unpriced.entry(one.target.clone()).or_default() += times as u64;
            }
            "fusion" => {
                let Some(inner) = called else { return };
                if let Some(cost) = self.exchanged(inner, times) {
                    let end = clocks.exchange((cost, None));
                    let apart = inner.instructions.iter().any(|one| collectives::fused(one).is_some());
                    if !apart {
                        self.wait(clocks, end, times);
                    }
                }
                let seconds = self.fusion(within, one, inner, times);
                clocks.now += self.noted(one, seconds, times);
            }
            _ => {
                let seconds = self.plain(within, one, times);
                clocks.now += self.noted(one, seconds, times);
            }
        }
    }

    fn noted(&mut self, one: &Instruction, seconds: f64, times: f64) -> f64 {
        *self.by_source.entry(source(one)).or_default() += seconds * times;
        seconds
    }

    /// A kernel written by hand, by what it says of itself (Pallas' `cost_estimate`), and never less than what it is given and gives
    /// takes to move. One that says nothing may take any time more.
    fn called(&mut self, within: &Computation, one: &Instruction, times: f64) -> f64 {
        let own = Estimate::of(one);
        if own.is_none() {
            *self.all.unsaid.entry(one.target.clone()).or_default() += times as u64;
        }
        let shapes = one.operands.iter().filter_map(|id| within.instruction(*id)?.shape.as_ref());
        let (read, written) = (shapes.map(in_hbm).sum(), one.shape.as_ref().map_or(0, in_hbm));
        let estimate = own.unwrap_or_default();
        let read = estimate.bytes.saturating_sub(written).max(read);
        let memory = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(read), written: Bytes(written) };
        let memory = self.cost(&memory, times);
        // As many operations in one large matmul.
        let side = libm::cbrt(estimate.flops as f64 / 2.0).round().max(1.0) as u64;
        let product = Work::Matmul { m: side, n: side, k: side, dtype: DType::Bf16, layout: MatmulLayout::Forward };
        if estimate.flops == 0 { memory } else { self.cost(&product, times).max(memory) }
    }

    fn wait(&mut self, clocks: &mut Clocks, end: f64, times: f64) {
        self.all.waiting_s += times * (end - clocks.now).max(0.0);
        clocks.now = clocks.now.max(end);
    }

    /// A collective, and which way round it goes if one way only. A permutation takes a link what its share of an all-gather over its ring
    /// does, which goes both ways.
    fn exchange(&mut self, within: &Computation, one: &Instruction, kind: &str, times: f64) -> (f64, Option<usize>) {
        let groups = collectives::groups::of(one, u64::from(self.topology.ranks()));
        let bytes = collectives::bytes(kind, within, one);
        let kind = match kind {
            "all-gather" => Some(program::Collective::AllGather),
            "reduce-scatter" => Some(program::Collective::ReduceScatter),
            "all-reduce" => Some(program::Collective::AllReduce),
            "all-to-all" | "ragged-all-to-all" => Some(program::Collective::AllToAll),
            "collective-broadcast" => Some(program::Collective::Broadcast),
            _ => None,
        };
        let Some(kind) = kind else {
            let Some((size, stride, way)) = ring(&groups) else { return (0.0, None) };
            let whole = (program::Collective::AllGather, bytes.saturating_mul(u64::from(size)));
            let share = 2.0 / f64::from((size - 1).max(1));
            // Two chips have one link between them.
            let share = if size > 2 { share } else { 1.0 };
            let seconds = share * self.exchanged_by(whole, (size, stride), times * share);
            return (seconds, Some(way).filter(|_| size > 2));
        };
        let Some([first, second]) = groups.first().and_then(|group| group.get(..2)) else { return (0.0, None) };
        let placed = (groups.first().map_or(1, Vec::len) as u32, first.abs_diff(*second).max(1) as u32);
        (self.exchanged_by((kind, bytes), placed, times), None)
    }

    fn exchanged_by(
        &mut self,
        (kind, bytes): (program::Collective, u64),
        (size, stride): (u32, u32),
        times: f64,
    ) -> f64 {
        let Some(torus) = self.topology.on_torus(size, stride, &self.mesh) else { return 0.0 };
        let comm = Comm { kind, group: GroupId(0), bytes: Bytes(bytes), dtype: DType::Bf16 };
        let cost = self.model.collective(&comm, torus);
        let seconds = cost.time.seconds();
        self.all.exchanges_s += times * seconds;
        self.all.half_s += times * seconds * cost.spread;
        seconds
    }

    /// Collectives of a function that another instruction wraps, but for those that another fusion began.
    fn exchanged(&mut self, inner: &'m Computation, times: f64) -> Option<f64> {
        let mut sum = None;
        for one in &inner.instructions {
            let Some((kind, _)) = collectives::kind(&one.opcode) else { continue };
            if collectives::fused(one) != Some(collectives::Fused::GoesOn) {
                *sum.get_or_insert(0.0) += self.exchange(inner, one, kind, times).0;
            }
        }
        sum
    }

    fn cost(&mut self, work: &Work, times: f64) -> f64 {
        let cost: Cost = self.model.work(work);
        self.all.half_s += times * cost.time.seconds() * cost.spread;
        cost.time.seconds()
    }

    /// Matmuls of a function and of those that it calls.
    fn products(&mut self, inner: &'m Computation, times: f64) -> f64 {
        let mut sum = 0.0;
        for one in &inner.instructions {
            if let Some([m, n, k]) = flops::sides(inner, one) {
                let operand = inner.operand(one, 0).and_then(|operand| operand.shape.as_ref());
                let dtype = match operand.and_then(Shape::element_name) {
                    Some("f32") => DType::Fp32,
                    _ => DType::Bf16,
                };
                sum += self.cost(&Work::Matmul { m, n, k, dtype, layout: MatmulLayout::Forward }, times);
            }
            if one.opcode == "fusion"
                && let Some(called) = one.calls.first().and_then(|id| self.module.computation(*id))
            {
                sum += self.products(called, times);
            }
        }
        sum
    }

    fn fusion(&mut self, within: &Computation, one: &Instruction, inner: &'m Computation, times: f64) -> f64 {
        let products = self.products(inner, times);
        let read: u64 = one
            .operands
            .iter()
            .enumerate()
            .filter_map(|(at, id)| Some((at, within.instruction(*id)?.shape.as_ref()?)))
            .map(|(at, shape)| match in_hbm(shape) {
                0 => 0,
                whole => inner
                    .instructions
                    .iter()
                    .find(|inside| inside.opcode == "parameter" && inside.parameter == at as i64)
                    .and_then(|parameter| read_of(inner, parameter))
                    .map_or(whole, |part| part.min(whole)),
            })
            .sum();
        let made = one.shape.as_ref().map_or(0, in_hbm);
        let written = inner.instruction(inner.root).map_or(made, |root| written_by(inner, root).min(made));
        let kind = kind_of(inner);
        let memory = self.cost(&Work::Memory { kind, read: Bytes(read), written: Bytes(written) }, 0.0);
        match products >= memory {
            true => {
                self.all.matmul_s += times * products;
                products
            }
            false => {
                let work = Work::Memory { kind, read: Bytes(read), written: Bytes(written) };
                self.all.memory_s += times * memory;
                self.cost(&work, times)
            }
        }
    }

    /// An instruction in no fusion.
    fn plain(&mut self, within: &'m Computation, one: &Instruction, times: f64) -> f64 {
        if let Some([m, n, k]) = flops::sides(within, one) {
            let work = Work::Matmul { m, n, k, dtype: DType::Bf16, layout: MatmulLayout::Forward };
            let seconds = self.cost(&work, times);
            self.all.matmul_s += times * seconds;
            return seconds;
        }
        let shapes = one.operands.iter().filter_map(|id| within.instruction(*id)?.shape.as_ref());
        let written = one.shape.as_ref().map_or(0, in_hbm);
        let read: u64 = shapes.map(in_hbm).sum();
        let (read, written) = match one.opcode.as_str() {
            "dynamic-slice" | "slice" | "gather" => (written, written),
            "dynamic-update-slice" => {
                let update = within.operand(one, 1).and_then(|update| update.shape.as_ref()).map_or(0, in_hbm);
                (update, update)
            }
            _ => (read, written),
        };
        if read + written == 0 {
            return 0.0;
        }
        let kind = match one.opcode.as_str() {
            "gather" => MemoryKind::Gather,
            "scatter" => MemoryKind::Scatter,
            "copy" | "transpose" | "reshape" | "slice" | "concatenate" | "pad" => MemoryKind::Copy,
            _ => MemoryKind::Elementwise,
        };
        let seconds = self.cost(&Work::Memory { kind, read: Bytes(read), written: Bytes(written) }, times);
        self.all.memory_s += times * seconds;
        seconds
    }
}

#[cfg(test)]
mod tests;
