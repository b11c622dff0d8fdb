//! Weights and their gradients as XLA:GPU moves them: cast where they are used, gathered a group ahead, reduced in groups
//! (`plan/xla/gpu.rs` says whence that is known).

use std::ops::Range;

use super::moves::{Part, Place, Use};
use super::shards::Gathered;
use super::state::{HALF, Step};
use crate::plan::xla::GpuFlags;
use crate::program::{Category, Collective, GroupId, MemoryKind};
use crate::runtime::spmd::block::Kind;
use crate::runtime::spmd::tape::{At, Value};

/// The most that the combiners put into one collective (`combine_threshold_count`, `xla/service/gpu/gpu_compiler.cc`).
const MOST_COMBINED: usize = 256;

impl Step<'_> {
    fn is_gpu(&self) -> Option<GpuFlags> {
        self.job.gpu()
    }

    /// Weights of some layers, and of the head behind them, will be used by forward in this order.
    pub(super) fn expect_forward(&mut self, layers: Range<usize>) {
        if self.is_gpu().is_none() {
            return;
        }
        for layer in layers {
            let block = &self.variants[self.variant_of[layer]].block;
            let uses: Vec<usize> = (0..block.ops.len()).collect();
            self.expect(layer, &uses);
        }
        let numbers = self.words() * self.job.model.width;
        let own = numbers.div_ceil(u64::from(self.job.mesh.shards()));
        self.moves.uses.push_back(Use { place: self.head_place(), numbers, own });
    }

    /// Weights of some layers will be used by backward: in reverse, and those of what runs again before.
    pub(super) fn expect_backward(&mut self, layers: Range<usize>) {
        if self.is_gpu().is_none() {
            return;
        }
        for layer in layers.rev() {
            let variant = &self.variants[self.variant_of[layer]];
            let again = variant.again.clone();
            let rest = (0..variant.block.ops.len()).rev().filter(|op| !again.contains(op));
            let order: Vec<usize> = again.iter().copied().chain(rest).collect();
            self.expect(layer, &order);
        }
    }

    /// Linears among these operators of a layer will use their weights.
    fn expect(&mut self, layer: usize, ops: &[usize]) {
        let block = self.variants[self.variant_of[layer]].block.clone();
        for &op in ops {
            if let Kind::Linear(index) = block.ops[op].kind {
                let weight = block.weights[index];
                let (numbers, own) = (weight.numbers(), self.own(&weight));
                self.moves.uses.push_back(Use { place: (layer, index), numbers, own });
            }
        }
    }

    /// Where the head is among the weights.
    pub(super) fn head_place(&self) -> Place {
        (self.variant_of.len(), 0)
    }

    /// A weight for the matmul that comes; the next group of weights starts with it, where collectives overlap.
    pub(super) fn fetch(&mut self, place: Place) -> Gathered {
        let Some(flags) = self.is_gpu() else { return Gathered::Own };
        if !self.moves.ready.iter().any(|(known, _)| *known == place) {
            self.gather_group(flags, None);
        }
        let at = self.moves.ready.iter().position(|(known, _)| *known == place);
        let Some(at) = at else { return Gathered::Own };
        let (_, value) = self.moves.ready.swap_remove(at);
        let crosses = !self.job.scan || (flags.pipelined_all_gather && place.0 < self.variant_of.len());
        let next_is_near = self.moves.uses.front().is_some_and(|next| next.place.0 == place.0 || crosses);
        if flags.latency_hiding && self.moves.newest == Some(place) && next_is_near {
            let now = self.tape.now();
            self.gather_group(flags, Some(now));
        }
        Gathered::Whole(value)
    }

    /// Casts and gathers the weights that are used next, up to the combiner's threshold. It starts when `after` is over, or the step waits.
    fn gather_group(&mut self, flags: GpuFlags, after: Option<Vec<At>>) {
        let among = self.all();
        let (mut group, mut bytes) = (vec![], 0);
        while let Some(&next) = self.moves.uses.front() {
            let first: Option<&Use> = group.first();
            let near = first.is_none_or(|first| !self.job.scan || first.place.0 == next.place.0);
            let small = first.is_none() || bytes + HALF * next.numbers <= flags.all_gather;
            let known = group.iter().any(|other: &Use| other.place == next.place);
            if !near || !small || known || group.len() == MOST_COMBINED {
                break;
            }
            self.moves.uses.pop_front();
            bytes += HALF * next.numbers;
            group.push(next);
        }
        let mut cast = vec![];
        for weight in &group {
            let shard = self.tape.value("weight in bf16", HALF * weight.own, Category::AllGatherInput);
            let work = Self::memory(MemoryKind::Elementwise, self.full() * weight.own, HALF * weight.own);
            self.tape.kernel("convert", work, &[], &[shard]);
            cast.push(shard);
        }
        let places = group.iter().map(|weight| weight.place);
        if among.chips() < 2 {
            self.moves.ready.extend(places.zip(cast));
        } else {
            let whole: Vec<Value> = group
                .iter()
                .map(|weight| self.tape.value("gathered", HALF * weight.numbers, Category::UnshardedParameter))
                .collect();
            let comm = self.comm(Collective::AllGather, among.group, bytes);
            let after = after.unwrap_or_else(|| self.tape.now());
            self.tape.exchange(comm, (&cast, &whole), after);
            self.moves.ready.extend(places.zip(whole));
        }
        self.moves.newest = group.first().map(|weight| weight.place);
    }

    /// The gradient of a weight of `numbers` is there, whole.
    pub(super) fn reduce_later(&mut self, flags: GpuFlags, value: Value, numbers: u64) {
        let own = numbers.div_ceil(u64::from(self.job.mesh.shards()));
        let kept = |parts: &[Part]| parts.iter().map(|part| HALF * part.own).sum::<u64>();
        let full = kept(&self.moves.whole) + HALF * own > flags.reduce_scatter;
        if (full && !self.moves.whole.is_empty()) || self.moves.whole.len() == MOST_COMBINED {
            self.reduce_group(flags);
        }
        self.moves.whole.push(Part { value, numbers, own });
    }

    /// Reduces the gradients that wait: over the chips that share weights, each of which keeps its part.
    fn reduce_group(&mut self, flags: GpuFlags) {
        let group = std::mem::take(&mut self.moves.whole);
        let among = self.all();
        let parts = match among.chips() {
            0 | 1 => group,
            _ => self.combined(flags, (Collective::ReduceScatter, among.group), &group),
        };
        for part in parts {
            let bytes = self.moves.parts.iter().map(|part| HALF * part.own).sum::<u64>() + HALF * part.own;
            if (bytes > flags.all_reduce && !self.moves.parts.is_empty()) || self.moves.parts.len() == MOST_COMBINED {
                self.sum_group(flags);
            }
            self.moves.parts.push(part);
        }
    }

    /// Sums the parts that wait over replicas.
    fn sum_group(&mut self, flags: GpuFlags) {
        let parts = std::mem::take(&mut self.moves.parts);
        let (replicas, group) = self.replicas();
        let summed = match replicas {
            0 | 1 => parts,
            _ => self.combined(flags, (Collective::AllReduce, group), &parts),
        };
        self.pending.extend(summed.into_iter().map(|part| (part.value, part.own)));
    }

    /// One collective for some gradients; each chip has its part of each then.
    fn combined(&mut self, flags: GpuFlags, (kind, group): (Collective, GroupId), parts: &[Part]) -> Vec<Part> {
        if parts.is_empty() {
            return vec![];
        }
        let read: Vec<Value> = parts.iter().map(|part| part.value).collect();
        let made: Vec<Part> = parts
            .iter()
            .map(|part| {
                let value = self.tape.value("gradient shard", HALF * part.own, Category::ShardedGradient);
                Part { value, ..*part }
            })
            .collect();
        let numbers: u64 =
            parts.iter().map(|part| if kind == Collective::AllReduce { part.own } else { part.numbers }).sum();
        let comm = self.comm(kind, group, HALF * numbers);
        let written: Vec<Value> = made.iter().map(|part| part.value).collect();
        let at = self.tape.exchange(comm, (&read, &written), vec![]);
        if !flags.latency_hiding {
            self.tape.join(at);
        }
        made
    }

    /// A turn of the loop back is over: its gradients are reduced and stored, or those of the turn before where reductions are pipelined.
    /// Layers that are written out have no turns.
    pub(super) fn end_turn(&mut self) {
        let Some(flags) = self.is_gpu() else { return self.store_gradients() };
        if self.gradients.is_none() {
            return;
        }
        if flags.pipelined_reduction {
            self.store_gradients();
        }
        self.settle_gradients(flags);
        if !flags.pipelined_reduction {
            self.store_gradients();
        }
    }

    /// The loop back is over: what it still owes its stack is stored.
    pub(super) fn end_loop(&mut self) {
        if self.gradients.is_some() {
            self.end_backward();
        }
    }

    /// All gradients are there: what waits is reduced and stored.
    pub(super) fn end_backward(&mut self) {
        if let Some(flags) = self.is_gpu() {
            self.settle_gradients(flags);
            self.store_gradients();
        }
    }

    fn settle_gradients(&mut self, flags: GpuFlags) {
        if !self.moves.whole.is_empty() {
            self.reduce_group(flags);
        }
        if !self.moves.parts.is_empty() {
            self.sum_group(flags);
        }
    }
}
