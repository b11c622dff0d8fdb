//! Gradients of DeepSpeed's `BF16_Optimizer`: those in bf16 that autograd makes stay beside the fp32 sums that they are added to
//! (`deepspeed/runtime/bf16_optimizer.py`, `update_hp_grads`; `deepspeed/runtime/pipe/engine.py`, `_exec_backward_pass`, which calls it
//! with `clear_lp_grads=False`; 0.7.0 to 0.8.3).

use super::buckets::Slot;
use crate::plan::megatron::{Engine, MegatronPlan};
use crate::program::{Builder, Category, Comm, DType, Dispatch, MemoryKind, StreamId, Work};
use crate::runtime::eager::COMPUTE;
use crate::units::Bytes;

/// A stage's gradients in the type of its parameters.
#[derive(Debug, Default)]
pub(super) struct NarrowGradients {
    /// Bytes of each.
    each: Vec<Bytes>,
}

impl NarrowGradients {
    /// Those of a stage's trained parameters, where gradients in bf16 are summed in fp32; else none.
    pub(super) fn of(job: &MegatronPlan, experts: bool, slots: &[Vec<Slot>]) -> NarrowGradients {
        let types = (job.split.dtype, job.gradients.dtype);
        if job.engine != Engine::DeepSpeed || types != (DType::Bf16, DType::Fp32) {
            return NarrowGradients::default();
        }
        let held = |slot: &&Slot| slot.trained && slot.expert == experts;
        let bytes = |slot: &Slot| Bytes(slot.elements * job.split.dtype.bytes());
        NarrowGradients { each: slots.iter().flatten().filter(held).map(bytes).collect() }
    }

    /// Whether there are any.
    pub(super) fn are_held(&self) -> bool {
        !self.each.is_empty()
    }

    /// They are let go when the next backward starts, and are all there when one has ended: taken once, for good.
    pub(super) fn take(&self, program: &mut Builder) {
        for bytes in &self.each {
            program.alloc(*bytes, COMPUTE, Category::UnshardedGradient, "grad");
        }
    }

    /// After a backward each is widened, in a block of its own, before it is added.
    pub(super) fn widened(&self, program: &mut Builder) {
        for &narrow in &self.each {
            let wide = widened(narrow);
            let block = program.alloc(wide, COMPUTE, Category::BackwardTemporary, "aten._to_copy");
            copy(program, narrow, wide);
            program.free(block);
        }
    }
}

/// Sums are reduced in bf16 (`communication_data_type`), through a block of half their size, and copied back: once from the block, and once from
/// themselves onto themselves (`PipelineEngine`, `_bf16_reduce_grads`; `engine.py`, `buffered_allreduce_fallback`, whose
/// 500,000,000 elements a flat tensor exceeds at once). `comm` has the sums' bytes.
pub(super) fn reduce(program: &mut Builder, stream: StreamId, comm: Comm, ranks: u64) {
    let wide = comm.bytes;
    let narrow = Bytes(wide.0 * DType::Bf16.bytes() / DType::Fp32.bytes());
    let block = program.alloc(narrow, COMPUTE, Category::BackwardTemporary, "allreduce");
    copy(program, wide, narrow);
    if ranks > 1 {
        program.wait_stream(stream, COMPUTE);
        program.collective(stream, Comm { bytes: narrow, ..comm });
        program.wait_stream(COMPUTE, stream);
    }
    let work = Work::Memory { kind: MemoryKind::Elementwise, read: narrow, written: narrow };
    program.launch(COMPUTE, "aten.mul_", work, Dispatch::EagerForward);
    copy(program, narrow, wide);
    copy(program, wide, wide);
    program.free(block);
}

fn widened(narrow: Bytes) -> Bytes {
    Bytes(narrow.0 * DType::Fp32.bytes() / DType::Bf16.bytes())
}

fn copy(program: &mut Builder, read: Bytes, written: Bytes) {
    let work = Work::Memory { kind: MemoryKind::Copy, read, written };
    program.launch(COMPUTE, "aten.copy_", work, Dispatch::EagerForward);
}
