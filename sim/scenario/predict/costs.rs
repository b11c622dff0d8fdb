//! What a class's program costs, part by part, and on what evidence.

use std::collections::BTreeMap;

use super::route::Routes;
use crate::cost::{Cost, CostModel, OnNodes, Placed};
use crate::engine::{CommCost, Costs, KernelCost};
use crate::hardware::{OnTorus, Topology};
use crate::network::LEVELS;
use crate::program::{Collective, Comm, Discipline, Dispatch, Group, Kernel, Program, Transfer, TransferId, Work};
use crate::runtime::Parts;
use crate::scenario::Scenario;

/// The costs a prediction used, by kernel, collective, exchange and dispatch class.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// By `KernelId`.
    pub kernels: Vec<Cost>,
    /// By `CommId`.
    pub comms: Vec<Cost>,
    /// By `ExchangeId`: the longest of its messages, with the weakest evidence among them.
    pub exchanges: Vec<Cost>,
    /// By dispatch class.
    pub dispatch: Vec<Cost>,
    /// How long after an event a stream that waits for it goes on.
    pub event: Cost,
}

/// The host's price of recording an event or making a stream wait for one. `cudaEventRecord` and `cudaStreamWaitEvent`
/// are driver calls as short as a launch's enqueue: taken as one further kernel of an operator.
const EVENT: Dispatch = Dispatch::Extra;

/// Kernels that were costed for an earlier class.
pub(super) type Known = BTreeMap<Kernel, Cost>;

/// Costs of a class's program, `ranks` being the class.
pub(super) fn costs(
    scenario: &Scenario,
    (program, ranks): (&Program, &[u32]),
    model: &CostModel<'_>,
    known: &mut Known,
) -> (Costs, Evidence) {
    let mut cost = |kernel: &Kernel| *known.entry(*kernel).or_insert_with(|| model.kernel(kernel));
    let kernels: Vec<Cost> = program.kernels.iter().map(&mut cost).collect();
    let mut costs = Costs::free(program);
    for ((slot, cost), kernel) in costs.kernel.iter_mut().zip(&kernels).zip(&program.kernels) {
        *slot = KernelCost { time: cost.time, slowdown: model.overlap(&kernel.work), share: share(kernel, model) };
    }
    costs.uplinks = scenario.topology.uplinks();
    let mut routes = Routes::new(&scenario.topology, &costs.uplinks);
    let mut comms = vec![];
    for (slot, comm) in costs.comm.iter_mut().zip(&program.comms) {
        let group = program.group(comm.group);
        let cost = model.collective_by(comm, placed(scenario, group), routes.of(comm.group, group, ranks));
        let mut use_of = [0.0; LEVELS];
        use_of[0] = cost.inside;
        use_of[1] = cost.across;
        *slot = CommCost { time: cost.time, use_of, outer: cost.outer };
        comms.push(Cost { time: cost.time, spread: cost.spread, basis: cost.basis });
    }
    let mut transfers = vec![];
    for (slot, transfer) in costs.transfer.iter_mut().zip(&program.transfers) {
        let Transfer { group, bytes, dtype, .. } = *transfer;
        let message = Comm { kind: Collective::SendRecv, group, bytes, dtype };
        let placed = between(&scenario.topology, program, transfer, ranks);
        let route = routes.between(group, program.group(group), transfer, ranks);
        let cost = model.collective_by(&message, placed, route);
        let mut use_of = [0.0; LEVELS];
        use_of[0] = cost.inside;
        use_of[1] = cost.across;
        *slot = CommCost { time: cost.time, use_of, outer: cost.outer };
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
    let dispatch: Vec<Cost> = Dispatch::ALL.iter().copied().map(|class| model.dispatch(class)).collect();
    for (slot, cost) in costs.dispatch.iter_mut().zip(&dispatch) {
        *slot = cost.time;
    }
    // A compiled program's units wait for one another without the host; on GPUs the host is ahead of them.
    if program.memory == Discipline::Static {
        costs.dispatch[Dispatch::Collective as usize] = costs.dispatch[Dispatch::Static as usize];
    }
    let event = if program.memory == Discipline::Static { Dispatch::Static } else { EVENT };
    costs.record = costs.dispatch[event as usize];
    costs.wait = costs.dispatch[event as usize];
    let event = model.event();
    costs.event_latency = event.time;
    (costs, Evidence { kernels, comms, exchanges, dispatch, event })
}

/// How much of the processors a kernel takes. Of parts of a matmul that run side by side three take what one of three times
/// the rows does; a third of that is one's.
fn share(kernel: &Kernel, model: &CostModel<'_>) -> f64 {
    match kernel.work {
        Work::HostCopy { .. } | Work::HostMemory { .. } | Work::Disk { .. } => 0.0,
        Work::Matmul { m, n, k, dtype, layout } if kernel.name == Kernel::PART => {
            let seconds = |m| model.work(&Work::Matmul { m, n, k, dtype, layout }).time.seconds();
            (seconds(3 * m) / (3.0 * seconds(m))).clamp(0.0, 1.0)
        }
        _ => 1.0,
    }
}

/// Where the ranks of a group are.
fn placed(scenario: &Scenario, group: &Group) -> Placed {
    let topology = &scenario.topology;
    let mesh = match scenario.job.parts() {
        Parts::Compiled(job) => job.mesh.laid().to_vec(),
        _ => vec![],
    };
    if let Some(torus) = topology.on_torus(group.size, group.stride, &mesh) {
        return torus.into();
    }
    let nodes = topology.on_nodes(group.size, group.stride);
    // A group that does not fill its nodes is as slow as its thinnest part.
    let ranks_per_node = (group.size / nodes.nodes).clamp(1, nodes.ranks_per_node);
    OnNodes { ranks_per_node, nodes: nodes.nodes }.into()
}

/// How the two ends of a message lie: on two nodes, if the peer of any of the ranks that issue it is on another.
fn between(topology: &Topology, program: &Program, transfer: &Transfer, ranks: &[u32]) -> Placed {
    let group = program.group(transfer.group);
    // A torus' neighbours are on one slice, whatever hosts they are on.
    let slice = topology.grid().map(|grid| grid.ranks());
    let chips = slice.unwrap_or(topology.ranks_per_node()).max(1);
    let leaves = |rank: u32| group.peer(rank, transfer.ahead).is_some_and(|peer| peer / chips != rank / chips);
    let nodes = if ranks.iter().copied().any(leaves) { 2 } else { 1 };
    match slice {
        Some(_) => OnTorus::chain(2 / nodes, nodes).into(),
        None => OnNodes { ranks_per_node: 2 / nodes, nodes }.into(),
    }
}
