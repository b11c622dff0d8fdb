//! What steps are written with: multi-tensor operators over all parameters, kernels of one, and temporaries.

use super::param::{self, Owned};
use crate::program::{BufferId, Builder, Category, DType, Dispatch, MemoryKind, StreamId, Work};
use crate::units::Bytes;

/// Elements of a chunk, and chunks of a launch.
pub(super) const CHUNK: u64 = 65_536;
const CHUNKS: u64 = 320;

/// How many launches a multi-tensor operator takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launches {
    /// Each tensor is cut into chunks (`aten/src/ATen/native/cuda/MultiTensorApply.cuh`).
    OfEach,
    /// All elements together are (Apex's and Transformer Engine's `multi_tensor_apply.cuh`).
    OfAll,
    /// One.
    One,
}

impl Launches {
    /// Launches after the first.
    pub fn more(self, params: &[Owned]) -> u32 {
        let more = match self {
            Launches::OfEach => {
                let chunks: u64 = params.iter().map(|param| param.elements().div_ceil(CHUNK)).sum();
                chunks.div_ceil(CHUNKS).saturating_sub(1)
            }
            Launches::OfAll => param::elements(params) / (CHUNK * CHUNKS),
            Launches::One => 0,
        };
        u32::try_from(more).unwrap_or(u32::MAX)
    }
}

/// A step that is being written: over which parameters, and into which program.
#[derive(Debug)]
pub struct Step<'a> {
    /// The program.
    pub program: &'a mut Builder,
    /// What is stepped.
    pub params: &'a [Owned],
    /// Bytes of an element of parameters and gradients.
    pub element: u64,
    /// How many launches a multi-tensor operator takes.
    pub launches: Launches,
}

impl Step<'_> {
    /// One multi-tensor operator over all parameters, reading and writing so many numbers of each element.
    pub fn foreach(&mut self, name: &'static str, (reads, writes): (u64, u64)) {
        let total = param::elements(self.params) * self.element;
        self.multi_tensor(name, (reads * total, writes * total));
    }

    /// One multi-tensor operator, reading and writing so many bytes.
    pub fn multi_tensor(&mut self, name: &'static str, moved: (u64, u64)) {
        self.multi_tensor_of(MemoryKind::Foreach, name, moved);
    }

    /// A fused step over all parameters, reading and writing so many numbers of each element.
    pub fn fused(&mut self, name: &'static str, (reads, writes): (u64, u64)) {
        let total = param::elements(self.params) * self.element;
        let wide = self.element >= DType::Fp32.bytes();
        let kind = if wide { MemoryKind::FusedOptimizer } else { MemoryKind::FusedOptimizer16 };
        self.multi_tensor_of(kind, name, (reads * total, writes * total));
    }

    /// One multi-tensor operator of a family, reading and writing so many bytes.
    pub fn multi_tensor_of(&mut self, kind: MemoryKind, name: &'static str, (read, written): (u64, u64)) {
        let work = Work::Memory { kind, read: Bytes(read), written: Bytes(written) };
        self.program.launch(StreamId(0), name, work, Dispatch::EagerForward);
        self.program.host(Dispatch::Foreach, self.launches.more(self.params));
    }

    /// Temporaries of the size of each parameter's part, which one multi-tensor operator makes.
    pub fn made(&mut self, name: &'static str, numbers: (u64, u64)) -> Vec<BufferId> {
        let params = self.params;
        let buffers = params.iter().map(|param| self.temporary(param.elements() * self.element, name)).collect();
        self.foreach(name, numbers);
        buffers
    }

    /// Lets go of a list of tensors, as Python does: the last first.
    pub fn let_go(&mut self, buffers: Vec<BufferId>) {
        buffers.into_iter().rev().for_each(|buffer| self.program.free(buffer));
    }

    /// A temporary.
    pub fn temporary(&mut self, bytes: u64, name: &'static str) -> BufferId {
        self.program.alloc(Bytes(bytes), StreamId(0), Category::OptimizerTemporary, name)
    }

    /// One elementwise kernel, reading and writing so many bytes.
    pub fn kernel(&mut self, name: &'static str, read: u64, written: u64) {
        let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(read), written: Bytes(written) };
        self.program.launch(StreamId(0), name, work, Dispatch::EagerForward);
    }

    /// The host reads a number back, and waits for it.
    pub fn read_back(&mut self) {
        let copy = Work::HostCopy { bytes: Bytes(4), to_host: true };
        self.program.launch(StreamId(0), "aten._local_scalar_dense", copy, Dispatch::EagerForward);
        self.program.wait_for_host(StreamId(0));
    }
}
