//! `DistributedDataParallel` with the hook of `optim/gradient_accumulator.py`: in the last backward of a step each bucket
//! of gradients is added to the buffer in fp32, whose parts are then all-reduced beside the rest of the backward.
//!
//! A bucket closes with the parameter that fills it; the first is filled by 1 MiB, so that reductions start early
//! (`torch/csrc/distributed/c10d/reducer.cpp`, `compute_bucket_assignment_by_size`). Buckets are those of the order in which
//! gradients arrive, as DDP makes them anew after the first step.

use crate::program::{Builder, Collective, Comm, DType, Dispatch, GroupId, MemoryKind, StreamId, Work};
use crate::runtime::eager::COMPUTE;
use crate::runtime::eager::main_gradients::ParamHooks;
use crate::units::Bytes;
use std::cell::RefCell;
use std::rc::Rc;

/// What fills the first bucket \[B\] (`torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`).
const FIRST: u64 = 1 << 20;

/// Buckets being filled.
#[derive(Debug)]
pub(super) struct Buckets {
    /// Elements of each parameter.
    pub(super) sizes: Vec<u64>,
    pub(super) dtype: DType,
    /// What fills all buckets but the first \[B\].
    pub(super) most: u64,
    pub(super) group: GroupId,
    pub(super) stream: StreamId,
    /// Whether the last backward runs.
    pub(super) reducing: bool,
    pub(super) waiting: Vec<usize>,
    pub(super) bytes: u64,
    pub(super) closed: usize,
}

impl Buckets {
    fn arrived(&mut self, program: &mut Builder, param: usize) {
        if !self.reducing {
            return;
        }
        let bytes = self.sizes[param] * self.dtype.bytes();
        copy(program, "aten.copy_", bytes);
        self.bytes += bytes;
        self.waiting.push(param);
        if self.bytes >= if self.closed == 0 { FIRST } else { self.most } {
            self.close(program);
        }
    }

    fn close(&mut self, program: &mut Builder) {
        let params = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        if params.is_empty() {
            return;
        }
        self.closed += 1;
        let mut wide = 0;
        for param in params {
            add_to_fp32(program, self.sizes[param], self.dtype, Dispatch::EagerForward);
            wide += self.sizes[param] * DType::Fp32.bytes();
        }
        program.wait_stream(self.stream, COMPUTE);
        let comm = Comm { kind: Collective::AllReduce, group: self.group, bytes: Bytes(wide), dtype: DType::Fp32 };
        program.collective(self.stream, comm);
    }

    /// After the last backward: what is left, then buckets are copied back into gradients nobody reads, and the last
    /// reduction is waited for.
    pub(super) fn finish(&mut self, program: &mut Builder) {
        self.close(program);
        for &elements in &self.sizes {
            copy(program, "aten.copy_", elements * self.dtype.bytes());
        }
        program.wait_stream(COMPUTE, self.stream);
        self.reducing = false;
        self.closed = 0;
    }
}

/// `fp32_grad.add_(half_grad)`.
pub(super) fn add_to_fp32(program: &mut Builder, elements: u64, dtype: DType, dispatch: Dispatch) {
    let (wide, narrow) = (elements * DType::Fp32.bytes(), elements * dtype.bytes());
    let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(wide + narrow), written: Bytes(wide) };
    program.launch(COMPUTE, "aten.add_", work, dispatch);
}

fn copy(program: &mut Builder, name: &'static str, bytes: u64) {
    let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(bytes), written: Bytes(bytes) };
    program.launch(COMPUTE, name, work, Dispatch::EagerBackward);
}

/// Tells the buckets of gradients that have arrived.
#[derive(Debug)]
pub(super) struct Hooks(pub(super) Rc<RefCell<Buckets>>);

impl ParamHooks for Hooks {
    fn read(&mut self, _program: &mut Builder, _param: usize) {}

    fn arrived(&mut self, program: &mut Builder, param: usize) {
        self.0.borrow_mut().arrived(program, param);
    }
}
