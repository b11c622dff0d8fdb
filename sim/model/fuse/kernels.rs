//! Which nodes become one kernel.

use std::collections::{BTreeMap, BTreeSet};

use super::compiled::{Kernel, Launch, Tensor, TensorId};
use super::nodes::{Kind, Node};
use crate::program::{MemoryKind, Work};
use crate::units::Bytes;

/// A kernel while it grows.
#[derive(Clone, Debug)]
struct Group {
    name: &'static str,
    launch: Option<Launch>,
    kind: MemoryKind,
    columns: bool,
    space: u64,
    reads: BTreeSet<TensorId>,
    writes: Vec<TensorId>,
    parts: Vec<Part>,
    recompute: bool,
    op: usize,
}

/// What a node in a kernel writes and reads.
#[derive(Clone, Debug, Default)]
struct Part {
    writes: Vec<TensorId>,
    reads: BTreeSet<TensorId>,
    /// Those of the reads that are in other places than what is written.
    elsewhere: BTreeSet<TensorId>,
}

struct Grouping<'t> {
    tensors: &'t [Tensor],
    /// The node that makes a pointwise value nobody stores.
    inlined: BTreeMap<TensorId, &'t Node>,
    groups: Vec<Option<Group>>,
    /// The group that makes a stored tensor.
    maker: BTreeMap<TensorId, usize>,
}

/// Kernels of a list of nodes, of which `results` (tensors) are needed afterwards.
pub(super) fn group(tensors: &[Tensor], nodes: &[Node], results: &[TensorId]) -> Vec<Kernel> {
    let base = |tensor: TensorId| tensors[tensor].base;
    let mut stored: BTreeSet<TensorId> = results.iter().map(|&tensor| base(tensor)).collect();
    for node in nodes {
        if node.is_extern() {
            stored.extend(node.reads.iter().map(|&tensor| base(tensor)));
        }
        if !matches!(node.kind, Kind::Point(_)) {
            stored.extend(&node.writes);
        }
    }
    let mut grouping = Grouping { tensors, inlined: BTreeMap::new(), groups: vec![], maker: BTreeMap::new() };
    for node in nodes {
        grouping.add(node, &stored);
    }
    grouping.finish(results)
}

impl Group {
    /// Results that could be written over something read: nobody in the kernel reads it but the node that writes, and those
    /// it builds on (`decide_inplace_update` leaves out a node's ancestors), and that node reads it nowhere but where it
    /// writes (a user of two reads is in place only if both are, `NodeUser.merge`).
    fn in_place(&self) -> Vec<(TensorId, TensorId)> {
        let mut pairs = vec![];
        for (at, part) in self.parts.iter().enumerate().filter(|_| self.launch.is_none()) {
            for &read in part.reads.difference(&part.elsewhere) {
                let reads_it = |&other: &usize| self.parts[other].reads.contains(&read);
                if (0..self.parts.len()).filter(reads_it).all(|other| other == at || self.builds_on(at, other)) {
                    pairs.extend(part.writes.iter().map(|&write| (write, read)));
                }
            }
        }
        pairs
    }

    /// Whether one node of the kernel reads what another writes, by way of others perhaps.
    fn builds_on(&self, at: usize, other: usize) -> bool {
        let reads = |from: usize| self.parts[at].reads.iter().any(|read| self.parts[from].writes.contains(read));
        (0..self.parts.len()).any(|from| from != at && reads(from) && (from == other || self.builds_on(from, other)))
    }
}

impl<'t> Grouping<'t> {
    fn base(&self, tensor: TensorId) -> TensorId {
        self.tensors[tensor].base
    }

    fn add(&mut self, node: &'t Node, stored: &BTreeSet<TensorId>) {
        if !node.writes.iter().any(|tensor| stored.contains(tensor)) {
            for &tensor in &node.writes {
                self.inlined.insert(tensor, node);
            }
            return;
        }
        let mut group = Group {
            name: node.name,
            launch: None,
            kind: MemoryKind::Elementwise,
            columns: matches!(node.kind, Kind::Columns(_)),
            space: node.space,
            reads: BTreeSet::new(),
            writes: node.writes.clone(),
            parts: vec![],
            recompute: node.recompute,
            op: node.op,
        };
        match &node.kind {
            Kind::Extern(launch) => {
                group.launch = Some(launch.clone());
                group.reads.extend(&node.reads);
            }
            Kind::Point(kind) | Kind::Rows(kind) | Kind::Columns(kind) => {
                group.kind = *kind;
                let mut part = Part { writes: node.writes.clone(), ..Part::default() };
                for &read in &node.reads {
                    self.leaves(read, node.elsewhere, &mut group, &mut part);
                }
                group.parts.push(part);
            }
        }
        let at = self.partner(&group).unwrap_or(self.groups.len());
        for &tensor in &group.writes {
            self.maker.insert(tensor, at);
        }
        match self.groups.get_mut(at) {
            Some(Some(partner)) => {
                partner.kind = dominant(partner.kind, group.kind);
                partner.recompute &= group.recompute;
                partner.op = partner.op.min(group.op);
                partner.reads.append(&mut group.reads);
                partner.parts.append(&mut group.parts);
                partner.writes.append(&mut group.writes);
            }
            _ => self.groups.push(Some(group)),
        }
    }

    /// The stored tensors a value is computed from; `elsewhere` if it is taken from other places than the result's.
    fn leaves(&self, tensor: TensorId, elsewhere: bool, group: &mut Group, part: &mut Part) {
        match self.inlined.get(&self.base(tensor)) {
            None => {
                group.reads.insert(tensor);
                part.reads.insert(self.base(tensor));
                if elsewhere {
                    part.elsewhere.insert(self.base(tensor));
                }
            }
            Some(node) => {
                if let Kind::Point(kind) = node.kind {
                    group.kind = dominant(group.kind, kind);
                }
                for &read in &node.reads {
                    self.leaves(read, elsewhere || node.elsewhere, group, part);
                }
            }
        }
    }

    /// The latest kernel a new one can be part of.
    fn partner(&self, group: &Group) -> Option<usize> {
        if group.launch.is_some() {
            return None;
        }
        (0..self.groups.len()).rev().find(|&at| {
            let Some(other) = &self.groups[at] else { return false };
            let related = other.writes.iter().any(|&tensor| group.reads.iter().any(|&read| self.base(read) == tensor))
                || group.reads.iter().any(|tensor| other.reads.contains(tensor) && self.tensors[*tensor].bytes > 0);
            let direct = |read: &TensorId| self.maker.get(&self.base(*read)) == Some(&at);
            other.launch.is_none()
                && other.columns == group.columns
                && other.space == group.space
                && related
                && !group.reads.iter().any(|read| !direct(read) && self.depends(*read, at))
        })
    }

    /// Whether a tensor is computed, by way of any kernel, from what kernel `on` makes.
    fn depends(&self, tensor: TensorId, on: usize) -> bool {
        self.reaches(tensor, on, &mut vec![false; self.groups.len()])
    }

    /// The same, without kernels that were looked at before.
    fn reaches(&self, tensor: TensorId, on: usize, seen: &mut [bool]) -> bool {
        let Some(&maker) = self.maker.get(&self.base(tensor)) else { return false };
        if maker == on {
            return true;
        }
        if std::mem::replace(&mut seen[maker], true) {
            return false;
        }
        let Some(group) = &self.groups[maker] else { return false };
        group.reads.iter().any(|&read| !group.writes.contains(&self.base(read)) && self.reaches(read, on, seen))
    }

    fn finish(self, results: &[TensorId]) -> Vec<Kernel> {
        let results: BTreeSet<TensorId> = results.iter().map(|&tensor| self.base(tensor)).collect();
        let mut read_by: BTreeMap<TensorId, BTreeSet<usize>> = BTreeMap::new();
        for (at, group) in self.groups.iter().enumerate() {
            for &read in group.iter().flat_map(|group| &group.reads) {
                read_by.entry(self.base(read)).or_default().insert(at);
            }
        }
        let mut kernels = vec![];
        for (at, group) in self.groups.iter().enumerate() {
            let Some(group) = group else { continue };
            let needed = |tensor: &TensorId| {
                group.launch.is_some()
                    || results.contains(tensor)
                    || read_by.get(tensor).is_some_and(|by| by.iter().any(|&other| other != at))
            };
            let writes: Vec<TensorId> = group.writes.iter().copied().filter(needed).collect();
            if writes.is_empty() {
                continue;
            }
            let outside = |tensor: &TensorId| !group.writes.contains(&self.base(*tensor));
            let reads: Vec<TensorId> = group.reads.iter().copied().filter(outside).collect();
            let bytes = |list: &[TensorId]| Bytes(list.iter().map(|&tensor| self.tensors[tensor].bytes).sum());
            let launch = group.launch.clone().unwrap_or(Launch::Fused(Work::Memory {
                kind: group.kind,
                read: bytes(&reads),
                written: bytes(&writes),
            }));
            let in_place = group.in_place();
            let Group { name, recompute, op, .. } = *group;
            kernels.push(Kernel { name, launch, reads, writes, in_place, recompute, op });
        }
        kernels
    }
}

/// The family whose bandwidth a fused kernel has: a reduction outranks pointwise work.
fn dominant(a: MemoryKind, b: MemoryKind) -> MemoryKind {
    let rank = |kind| match kind {
        MemoryKind::NormBackward => 3,
        MemoryKind::Norm => 2,
        MemoryKind::Copy => 0,
        _ => 1,
    };
    if rank(b) > rank(a) { b } else { a }
}
