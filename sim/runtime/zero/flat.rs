//! ZeRO-1's and 2's gradients, from a leaf to the rank's own part (`stage_1_and_2.py`).
//!
//! A gradient is copied into a buffer as large as a bucket, and its own block goes. Before one that does not fit, what is
//! there is divided, all-reduced, and what the rank owns a piece of is copied, whole, to a block that lives until the step.
//! Under ZeRO-1 gradients first add up in the leaves, and go through the bucket after the last backward, in the order of
//! registration. With `overlap_comm` there are two buffers in turn: reductions run on a stream of their own, behind the
//! default stream, which itself waits for the reduction before.

use std::cell::RefCell;
use std::rc::Rc;

use super::host::cross;
use super::kernels::{BF16, copy, elementwise, look_through, made, reduced};
use super::reduce::{AllReduce, Buckets, Partition};
use super::streams::{REDUCE, drain};
use crate::plan::zero::{Stage, Zero, ZeroPlan};
use crate::program::{BufferId, Builder, Category, Collective, Comm, DType, GroupId, Pass, StreamId};
use crate::runtime::eager::around::Around;
use crate::runtime::eager::{COMPUTE, Eager, Storage};
use crate::units::Bytes;

/// Gradients on their way.
#[derive(Debug)]
pub(super) struct Flat {
    zero: Zero,
    group: GroupId,
    /// Elements of each parameter.
    elements: Vec<u64>,
    /// Elements of each parameter that the rank owns anything of.
    own: Vec<(usize, u64)>,
    rank: u64,
    buckets: Buckets,
    /// Whether this backward is the step's last.
    pub(super) boundary: bool,
    /// The bucket's buffers, while there are gradients to come.
    buffers: Vec<BufferId>,
    /// Gradients larger than a bucket, which have no place in it.
    large: Vec<(usize, Storage)>,
    /// What this backward leaves of the rank's own.
    kept: Option<BufferId>,
    /// What the backwards of this step have left.
    pub(super) averaged: Option<BufferId>,
    /// Norms of gradients that have gone to the host's memory.
    norms: Vec<BufferId>,
    /// Backwards of this step that have reduced.
    reduced: u32,
    /// Of the chip.
    sms: u32,
}

impl Flat {
    pub(super) fn new(
        job: &ZeroPlan,
        partition: &Partition,
        (rank, group): (u64, GroupId),
        elements: Vec<u64>,
    ) -> Flat {
        let zero = job.zero;
        Flat {
            zero,
            group,
            elements,
            own: partition.of_rank(rank),
            rank,
            buckets: Buckets::new(partition),
            boundary: true,
            buffers: vec![],
            large: vec![],
            kept: None,
            averaged: None,
            norms: vec![],
            reduced: 0,
            sms: job.whole.eager.sms,
        }
    }

    /// Elements of what the rank owns, piece by piece.
    pub(super) fn own(&self) -> Vec<u64> {
        self.own.iter().map(|&(_, elements)| elements).collect()
    }

    /// The step begins: what of its gradients was counted goes.
    pub(super) fn take_norms(&mut self) -> Vec<BufferId> {
        self.reduced = 0;
        std::mem::take(&mut self.norms)
    }

    fn reduces_at_once(&self) -> bool {
        self.zero.stage == Stage::Two || (self.zero.overlap && self.boundary)
    }

    fn stream(&self) -> StreamId {
        if self.zero.overlap { REDUCE } else { COMPUTE }
    }

    /// `process_gradients`.
    fn arrived(&mut self, eager: &mut Eager, param: usize) {
        if self.buffers.is_empty() {
            let bytes = Bytes(self.zero.bucket * BF16);
            let buffer = |_| eager.program.alloc(bytes, COMPUTE, Category::ReduceScatterInput, "contiguous gradients");
            self.buffers = (0..=u32::from(self.zero.overlap)).map(buffer).collect();
        }
        if self.reduces_at_once() {
            self.take(eager, param);
        }
    }

    /// `reduce_independent_p_g_buckets_and_remove_grads`.
    fn take(&mut self, eager: &mut Eager, param: usize) {
        if self.buckets.full(param) {
            self.reduce(eager);
        }
        self.buckets.ready(param);
        let Some((gradient, _)) = eager.take_leaf(param) else { return };
        if self.elements[param] > self.zero.bucket {
            return self.large.push((param, gradient));
        }
        copy(&mut eager.program, COMPUTE, self.elements[param]);
        eager.release(gradient);
    }

    /// `reduce_ipg_grads`.
    fn reduce(&mut self, eager: &mut Eager) {
        let stream = self.stream();
        let program = &mut eager.program;
        let pass = program.set_pass(Pass::Communication);
        if self.zero.overlap {
            program.wait_stream(REDUCE, COMPUTE);
            program.wait_stream(COMPUTE, REDUCE);
        }
        let (open, elements) = self.buckets.open();
        let open = open.to_vec();
        if elements > 0 {
            elementwise(program, stream, "aten.div_", (elements * BF16, elements * BF16));
        }
        for all_reduce in self.buckets.flush() {
            self.all_reduce(program, &all_reduce);
        }
        let mut gone = vec![];
        for param in open {
            let large = self.large.iter().position(|&(large, _)| large == param);
            let own = self.own.iter().find(|&&(own, _)| own == param).copied();
            let goes = match own {
                Some((_, own)) if self.zero.offload.optimizer => self.send(program, param, own) && !self.names(param),
                Some(_) => self.keep(program, param),
                None => self.zero.stage == Stage::Two,
            };
            if let Some(at) = large.filter(|_| goes) {
                gone.push(self.large.remove(at).1);
            }
        }
        gone.into_iter().for_each(|gradient| eager.release(gradient));
        eager.program.set_pass(pass);
    }

    /// `allreduce_and_copy_with_multiple_ranks`: several pieces are made one block, and what is the rank's copied back.
    fn all_reduce(&self, program: &mut Builder, all_reduce: &AllReduce) {
        let (stream, elements) = (self.stream(), all_reduce.elements());
        let bytes = Bytes(elements * BF16);
        let flat = (all_reduce.pieces.len() > 1).then(|| {
            let flat = program.alloc(bytes, stream, Category::ReduceScatterInput, "flattened pieces");
            copy(program, stream, elements);
            flat
        });
        let dtype = self.zero.reduced();
        let reduced = elements * dtype.bytes();
        let wide = (dtype != DType::Bf16).then(|| made(program, stream, "aten._to_copy", (bytes.0, reduced)));
        if self.zero.ranks > 1 {
            let comm = Comm { kind: Collective::AllReduce, group: self.group, bytes: Bytes(reduced), dtype };
            program.collective(stream, comm);
        }
        if let Some(wide) = wide {
            elementwise(program, stream, "aten.copy_", (reduced, bytes.0));
            program.free(wide);
        }
        if let Some(flat) = flat {
            let own = all_reduce.kept_by(self.rank);
            if own > 0 {
                copy(program, stream, own);
            }
            program.free(flat);
        }
    }

    /// `copy_grads_in_partition`; a gradient of its own then goes.
    fn keep(&mut self, program: &mut Builder, param: usize) -> bool {
        let stream = self.stream();
        self.kept.get_or_insert_with(|| {
            let whole: u64 = self.own.iter().map(|&(own, _)| self.elements[own]).sum();
            program.alloc(Bytes(whole * BF16), stream, Category::ShardedGradient, "grads_in_partition")
        });
        copy(program, stream, self.elements[param]);
        true
    }

    /// `copy_grads_in_partition` with an optimizer on the host: a gradient of which the rank owns so many elements crosses. Says
    /// whether it was the step's last, which goes.
    fn send(&mut self, program: &mut Builder, param: usize, own: u64) -> bool {
        let (stream, all) = (self.stream(), self.elements[param]);
        if self.reduced > 0 || !self.boundary {
            if self.reduced > 0 {
                cross(program, stream, all * BF16, false);
                elementwise(program, stream, "aten.add_", (2 * all * BF16, all * BF16));
            }
            cross(program, stream, all * BF16, true);
        }
        if !self.boundary {
            return false;
        }
        let double = made(program, stream, "aten._to_copy", (own * BF16, 8 * own));
        self.norms.push(reduced(program, stream, "aten.linalg_vector_norm", (own, 8), self.sms));
        program.free(double);
        look_through(program, stream, all, self.sms);
        program.wait_for_host(stream);
        let wide = made(program, stream, "aten._to_copy", (own * BF16, own * DType::Fp32.bytes()));
        cross(program, stream, own * DType::Fp32.bytes(), true);
        program.free(wide);
        true
    }

    /// Whether ZeRO-1's loop over all gradients still names a parameter's when it has ended (`reduce_gradients`).
    fn names(&self, param: usize) -> bool {
        self.zero.stage == Stage::One && !self.zero.overlap && param + 1 == self.elements.len()
    }

    /// `_clear_param_grad_only`: what is left goes in the order of registration, and buffers with the last gradient in them.
    fn clear(&mut self, eager: &mut Eager) {
        let owned = |param| self.own.iter().any(|&(own, _)| own == param);
        let left = |&param: &usize| if owned(param) { !self.boundary } else { self.zero.stage == Stage::One };
        let last = (0..self.elements.len()).rev().filter(left).find(|&param| self.elements[param] <= self.zero.bucket);
        self.large.sort_by_key(|&(param, _)| param);
        let early = self.large.partition_point(|&(param, _)| last.is_some_and(|last| param < last));
        self.large.drain(..early).for_each(|(_, gradient)| eager.release(gradient));
        self.buffers.drain(..).for_each(|buffer| eager.program.free(buffer));
        self.large.drain(..).for_each(|(_, gradient)| eager.release(gradient));
    }

    /// The end of a backward: under ZeRO-1 all gradients go through the bucket, if it is the step's last; under ZeRO-2
    /// what is left (`independent_gradient_partition_epilogue`).
    fn ended(&mut self, eager: &mut Eager) {
        if self.zero.stage == Stage::One && !self.boundary {
            return;
        }
        if !self.reduces_at_once() {
            (0..self.elements.len()).for_each(|param| self.take(eager, param));
        }
        self.reduce(eager);
        if self.zero.overlap {
            drain(&mut eager.program);
        }
        self.reduced += 1;
        if self.zero.offload.optimizer {
            return self.clear(eager);
        }
        let mut second = None;
        match self.averaged {
            None => self.averaged = self.kept.take(),
            Some(_) => {
                for &(param, _) in &self.own {
                    let bytes = self.elements[param] * BF16;
                    elementwise(&mut eager.program, COMPUTE, "aten.add_", (2 * bytes, bytes));
                }
                second = self.kept.take();
            }
        }
        self.large.drain(..).for_each(|(_, gradient)| eager.release(gradient));
        let gone = self.buffers.drain(..).chain(second);
        gone.for_each(|buffer| eager.program.free(buffer));
    }
}

/// Gradients on their way, which the hooks and the step both reach.
#[derive(Clone, Debug)]
pub(super) struct Shared(pub(super) Rc<RefCell<Flat>>);

impl Shared {
    pub(super) fn ended(&self, eager: &mut Eager) {
        self.0.borrow_mut().ended(eager);
    }
}

impl Around for Shared {
    fn arrived(&mut self, eager: &mut Eager, param: usize) {
        self.0.borrow_mut().arrived(eager, param);
    }
}
