//! What is saved, and the backward with everything else computed again.

use std::collections::{BTreeMap, BTreeSet};

use super::compiled::{Launch, Policy, TensorId};
use super::joint::after_addmm;
use super::nodes::{Joint, Kind, Node};
use crate::model::graph::Graph;
use crate::program::Collective;

struct Cut<'j> {
    joint: &'j mut Joint,
    /// The forward node that makes a tensor.
    maker: BTreeMap<TensorId, usize>,
    /// Tensors that may be saved.
    may_save: BTreeSet<TensorId>,
    saved: BTreeSet<TensorId>,
    /// A forward tensor made again.
    again: BTreeMap<TensorId, TensorId>,
    backward: Vec<Node>,
}

/// The saved tensors in the order forward makes them, and the backward.
pub(super) fn partition(joint: &mut Joint, graph: &Graph, policy: Policy) -> (Vec<TensorId>, Vec<Node>) {
    let maker: BTreeMap<TensorId, usize> = joint
        .forward
        .iter()
        .enumerate()
        .flat_map(|(at, node)| node.writes.iter().map(move |&tensor| (tensor, at)))
        .collect();
    let may_save = may_save(joint, graph, policy, &maker);
    let nodes = std::mem::take(&mut joint.backward);
    let mut cut = Cut { joint, maker, may_save, saved: BTreeSet::new(), again: BTreeMap::new(), backward: vec![] };
    for mut node in nodes {
        let before = cut.backward.len();
        for read in &mut node.reads {
            *read = cut.need(*read);
        }
        // What a node needs is made again in forward's order (`reordering_to_mimic_autograd_engine`).
        cut.backward[before..].sort_by_key(|again| again.op);
        cut.backward.push(node);
    }
    (cut.saved.into_iter().collect(), cut.backward)
}

/// Whether torchtitan's operator-level policy keeps a node's result. Exchanges of fp8 scales, and those that gather, are made
/// again.
fn policy_keeps(graph: &Graph, node: &Node) -> bool {
    let made_again = |kind| kind != Collective::ReduceScatter;
    let exchanged = matches!(node.kind, Kind::Extern(Launch::Exchange { kind, .. }) if made_again(kind));
    !exchanged && graph.keeps(node.op)
}

fn may_save(joint: &Joint, graph: &Graph, policy: Policy, maker: &BTreeMap<TensorId, usize>) -> BTreeSet<TensorId> {
    let base = |tensor: TensorId| joint.tensors[tensor].base;
    let made = || joint.forward.iter().flat_map(|node| node.writes.iter().map(move |&tensor| (node, tensor)));
    let mut may: BTreeSet<TensorId> = BTreeSet::from([0]);
    match policy {
        Policy::Input => {}
        Policy::ComputeIntensive => {
            may.extend(made().filter(|(node, _)| node.is_extern() && policy_keeps(graph, node)).map(|(_, t)| t));
            // "For low precision training, it's useful to always save the result of max": one number.
            may.extend(&joint.scales);
        }
        Policy::MinCut => {
            may.extend(made().filter(|(node, _)| !matches!(node.kind, Kind::Point(_))).map(|(_, t)| t));
            for node in joint.backward.iter().filter(|node| node.is_extern()) {
                may.extend(node.reads.iter().map(|&tensor| base(tensor)).filter(|tensor| maker.contains_key(tensor)));
            }
            // A rectifier's mask takes one byte where its input takes two or four: saved unless the input is anyway.
            let reads: BTreeSet<TensorId> =
                joint.backward.iter().flat_map(|node| &node.reads).map(|&tensor| base(tensor)).collect();
            for mask in &joint.masks {
                let source = base(joint.forward[maker[mask]].reads[0]);
                let activation = |node: &Node| {
                    node.writes.iter().any(|tensor| reads.contains(tensor) && !joint.masks.contains(tensor))
                        && node.reads.iter().any(|&tensor| base(tensor) == source)
                        && !may.contains(&node.writes[0])
                };
                if !joint.forward.iter().any(activation)
                    && !after_addmm(graph, &graph.ops[joint.forward[maker[mask]].op])
                {
                    may.insert(*mask);
                }
            }
        }
    }
    may
}

impl Cut<'_> {
    /// A tensor that backward may read in place of `tensor`: itself if it is saved or of backward, else a new one.
    fn need(&mut self, tensor: TensorId) -> TensorId {
        let base = self.joint.tensors[tensor].base;
        if base != 0 && !self.maker.contains_key(&base) {
            return tensor;
        }
        if self.may_save.contains(&base) {
            self.saved.insert(base);
            return tensor;
        }
        let made = self.make_again(base);
        if tensor == base {
            return made;
        }
        let mut view = self.joint.tensors[tensor].clone();
        view.base = made;
        self.joint.tensors.push(view);
        self.joint.tensors.len() - 1
    }

    fn make_again(&mut self, tensor: TensorId) -> TensorId {
        if let Some(&made) = self.again.get(&tensor) {
            return made;
        }
        let mut node = self.joint.forward[self.maker[&tensor]].clone();
        for read in &mut node.reads {
            *read = self.need(*read);
        }
        for write in &mut node.writes {
            let old = self.joint.tensors[*write].clone();
            let new = self.joint.tensor(old.name, old.elements, old.bytes);
            self.again.insert(*write, new);
            *write = new;
        }
        node.recompute = true;
        self.backward.push(node);
        self.again[&tensor]
    }
}
