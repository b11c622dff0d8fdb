//! Matmuls that run in parts beside the exchange they read or feed, over symmetric memory
//! (`torch/distributed/_symmetric_memory/__init__.py`).
//!
//! With t ranks everything is in t parts of the sequence. `_pipelined_multi_all_gather_and_consume`: the rank's own part is
//! copied to where the others read it, and multiplied; t − 1 more are read from their ranks while earlier ones are
//! multiplied. `_pipelined_produce_and_all2all`: each part is multiplied into a buffer that its rank reads from, the rank's
//! own last; the t partial results are added up in one kernel. Buffers that others read lie outside PyTorch's allocator.
//!
//! Assumed: reading a part takes what a collective of its size takes (copy engines do it, so nothing is taken from the
//! matmuls' SMs in truth), and barriers between ranks nothing.

use crate::program::{Collective, Comm, DType, Dispatch, MemoryKind, Work};
use crate::runtime::eager::{COMPUTE, Eager, TensorGroup};
use crate::units::Bytes;

/// The rows of one of `parts` parts of a matmul.
fn part_of(work: Work, parts: u64) -> Work {
    match work {
        Work::Matmul { m, n, k, dtype, layout } => Work::Matmul { m: m / parts, n, k, dtype, layout },
        other => other,
    }
}

impl Eager {
    fn read_part(&mut self, kind: Collective, bytes: u64, dtype: DType, tensor: TensorGroup) {
        self.program.collective(tensor.stream, Comm { kind, group: tensor.group, bytes: Bytes(bytes), dtype });
    }

    fn local_copy(&mut self, name: &'static str, bytes: u64) {
        let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(bytes), written: Bytes(bytes) };
        self.program.launch(COMPUTE, name, work, Dispatch::EagerForward);
    }

    /// Matmuls of a tensor of `bytes` that is gathered while they run.
    pub(super) fn gather_matmuls(
        &mut self,
        name: &'static str,
        works: &[Work],
        (bytes, dtype, keeps): (u64, DType, bool),
        dispatch: Dispatch,
    ) {
        let Some(tensor) = self.framework.tensor() else { return };
        let parts = tensor.ranks;
        self.local_copy("symm_mem.copy_shard", bytes / parts);
        self.program.wait_stream(tensor.stream, COMPUTE);
        for part in 0..parts {
            if part > 0 {
                self.read_part(Collective::AllGather, bytes / (parts - 1), dtype, tensor);
                let arrived = self.program.record(tensor.stream);
                self.program.wait(COMPUTE, arrived);
            }
            for &work in works {
                self.program.launch(COMPUTE, name, part_of(work, parts), dispatch);
            }
        }
        if keeps {
            self.local_copy("symm_mem.copy_shard", bytes / parts);
        }
    }

    /// A matmul whose result, `bytes` in all, is scattered and summed while it runs.
    pub(super) fn matmul_scatter(
        &mut self,
        name: &'static str,
        work: Work,
        (bytes, dtype): (u64, DType),
        dispatch: Dispatch,
    ) {
        let Some(tensor) = self.framework.tensor() else { return };
        let parts = tensor.ranks;
        let partials = self.storage(bytes, "symm_mem.stacked_partials");
        for part in 0..parts {
            self.program.launch(COMPUTE, name, part_of(work, parts), dispatch);
            if part + 1 < parts {
                let made = self.program.record(COMPUTE);
                self.program.wait(tensor.stream, made);
                self.read_part(Collective::ReduceScatter, bytes / (parts - 1), dtype, tensor);
            }
        }
        self.program.wait_stream(COMPUTE, tensor.stream);
        let sum = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(bytes), written: Bytes(bytes / parts) };
        self.program.launch(COMPUTE, "aten.sum", sum, Dispatch::EagerForward);
        self.release(partials);
    }
}
