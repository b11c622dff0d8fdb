//! Asynchronous tensor parallelism: an all-gather and the matmuls that read it, or a matmul and the reduce-scatter of its
//! result, become one operator that runs in parts (`torch/_inductor/fx_passes/micro_pipeline_tp.py`, with
//! `torch._inductor.config._micro_pipeline_tp`).
//!
//! - A gather is fused with every matmul whose first operand it is, for which no copy brings parts into their places. Who else
//!   reads the whole (a weight's gradient, which takes it transposed) is given it too, and copies it.
//! - A reduce-scatter is fused with the matmul before it if nothing else reads the matmul's result. The input gradients of
//!   two or three linears that read one tensor are added up before they are scattered, so those stay as they are.
//!
//! Held against what the pass makes of a block (PyTorch 2.15) in `tests/oracle/float8.rs`.

use std::collections::BTreeSet;

use super::compiled::{Launch, Tensor, TensorId};
use super::nodes::{Kind, Node};
use crate::program::{Collective, MatmulLayout, Work};

/// Fuses what the pass would in a list of nodes; `results` are needed afterwards.
pub(super) fn fuse(tensors: &[Tensor], mut nodes: Vec<Node>, results: &[TensorId]) -> Vec<Node> {
    let gathers = exchanges(&nodes, Collective::AllGather);
    for gathered in gathers {
        fuse_gather(tensors, &mut nodes, gathered, results);
    }
    let scatters = exchanges(&nodes, Collective::ReduceScatter);
    for scattered in scatters {
        fuse_scatter(tensors, &mut nodes, scattered, results);
    }
    in_order(tensors, nodes)
}

/// What collectives of a kind write.
fn exchanges(nodes: &[Node], of: Collective) -> Vec<TensorId> {
    let wanted = |node: &&Node| matches!(node.kind, Kind::Extern(Launch::Exchange { kind, .. }) if kind == of);
    nodes.iter().filter(wanted).map(|node| node.writes[0]).collect()
}

fn maker(nodes: &[Node], tensor: TensorId) -> Option<usize> {
    nodes.iter().position(|node| node.writes.contains(&tensor))
}

fn readers(tensors: &[Tensor], nodes: &[Node], tensor: TensorId) -> Vec<usize> {
    let reads = |node: &Node| node.reads.iter().any(|&read| tensors[read].base == tensor);
    (0..nodes.len()).filter(|&at| reads(&nodes[at])).collect()
}

fn matmul(node: &Node) -> Option<Work> {
    match node.kind {
        Kind::Extern(Launch::Matmul(work)) => Some(work),
        _ => None,
    }
}

/// Removes nodes and puts one in the place of the first of them.
fn replace(nodes: &mut Vec<Node>, gone: &BTreeSet<usize>, with: Node) {
    let mut with = Some(with);
    let old = std::mem::take(nodes);
    for (at, node) in old.into_iter().enumerate() {
        if !gone.contains(&at) {
            nodes.push(node);
        } else if let Some(with) = with.take() {
            nodes.push(with);
        }
    }
}

fn fuse_gather(tensors: &[Tensor], nodes: &mut Vec<Node>, gathered: TensorId, results: &[TensorId]) {
    let Some(gather) = maker(nodes, gathered) else { return };
    let Kind::Extern(Launch::Exchange { bytes, dtype, .. }) = nodes[gather].kind else { return };
    let mut gone = BTreeSet::from([gather]);
    let (mut whole, mut moves) = (gathered, None);
    if let [copy] = readers(tensors, nodes, gathered)[..]
        && nodes[copy].name == super::exchange::COPY
    {
        moves = Some(copy);
        whole = nodes[copy].writes[0];
    }
    let all = readers(tensors, nodes, whole);
    // A weight's gradient takes the whole transposed.
    let transposes = |work: Work| matches!(work, Work::Matmul { layout: MatmulLayout::WeightGradient, .. });
    let first = |&&at: &&usize| {
        matmul(&nodes[at]).is_some_and(|work| !transposes(work)) && nodes[at].reads.first() == Some(&whole)
    };
    let matmuls: Vec<usize> = all.iter().filter(first).copied().collect();
    if matmuls.is_empty() {
        return;
    }
    // Backward may have been left the gather itself, from which it makes the whole once more.
    let needed = [gathered, whole].iter().any(|tensor| results.contains(tensor));
    let keeps = all.len() > matmuls.len() || needed;
    let mut reads = nodes[gather].reads.clone();
    let mut writes = vec![];
    for &at in &matmuls {
        reads.extend(&nodes[at].reads[1..]);
        writes.extend(&nodes[at].writes);
    }
    let works = matmuls.iter().filter_map(|&at| matmul(&nodes[at])).collect();
    if keeps {
        writes.push(gathered);
    } else {
        gone.extend(moves);
    }
    gone.extend(&matmuls);
    let recompute = gone.iter().all(|&at| nodes[at].recompute);
    let fused = Node {
        name: "symm_mem.fused_all_gather_matmul",
        kind: Kind::Extern(Launch::GatherMatmuls { works, bytes, dtype, keeps }),
        reads,
        writes,
        recompute,
        ..nodes[gather].clone()
    };
    replace(nodes, &gone, fused);
}

fn fuse_scatter(tensors: &[Tensor], nodes: &mut Vec<Node>, scattered: TensorId, results: &[TensorId]) {
    let Some(scatter) = maker(nodes, scattered) else { return };
    let Kind::Extern(Launch::Exchange { bytes, dtype, .. }) = nodes[scatter].kind else { return };
    let Some(copy) = maker(nodes, nodes[scatter].reads[0]).filter(|&at| nodes[at].name == super::exchange::COPY) else {
        return;
    };
    let product = nodes[copy].reads[0];
    let Some(at) = maker(nodes, product) else { return };
    let Some(work) = matmul(&nodes[at]) else { return };
    if readers(tensors, nodes, product).len() > 1 || results.contains(&product) {
        return;
    }
    let fused = Node {
        name: "symm_mem.fused_matmul_reduce_scatter",
        kind: Kind::Extern(Launch::MatmulScatter { work, bytes, dtype }),
        reads: nodes[at].reads.clone(),
        writes: vec![scattered],
        recompute: nodes[at].recompute && nodes[scatter].recompute,
        ..nodes[scatter].clone()
    };
    replace(nodes, &BTreeSet::from([at, copy, scatter]), fused);
}

/// Each node after what it needs, else as written.
fn in_order(tensors: &[Tensor], nodes: Vec<Node>) -> Vec<Node> {
    let mut left: Vec<Option<Node>> = nodes.into_iter().map(Some).collect();
    let mut order = vec![];
    while let Some(at) = left.iter().position(Option::is_some) {
        take(tensors, &mut left, at, &mut order);
    }
    order
}

fn take(tensors: &[Tensor], left: &mut [Option<Node>], at: usize, order: &mut Vec<Node>) {
    let Some(node) = left[at].take() else { return };
    for &read in &node.reads {
        let base = tensors[read].base;
        let makes = |node: &Option<Node>| node.as_ref().is_some_and(|node| node.writes.contains(&base));
        if let Some(maker) = left.iter().position(makes) {
            take(tensors, left, maker, order);
        }
    }
    order.push(node);
}
