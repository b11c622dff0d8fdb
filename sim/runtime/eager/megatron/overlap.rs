//! Exchanges of tensor-parallel ranks overlapped with matmuls (`--tp-comm-overlap`): Transformer Engine's user buffers
//! (`common/comm_gemm_overlap/comm_gemm_overlap.cpp`, `userbuffers/userbuffers.cu`, `pytorch/module/base.py`, 2.9), as
//! `initialize_ub` sets them up where nobody says otherwise:
//!
//! | matmul | exchange | method |
//! |---|---|---|
//! | qkv and fc1 forward; gradients of the inputs of proj and fc2 | what is multiplied is gathered | ring: a part of the rows for each rank |
//! | proj and fc2 forward | the product is reduced and scattered | pipeline: four parts of the columns; if configured so, ring: a part of the rows for each rank |
//! | gradients of the inputs of qkv and fc1 | the norm's result is gathered, for the weight's | bulk: one exchange, one matmul |
//! | gradients of the weights of qkv and fc1 | the input's gradient is reduced and scattered | bulk |
//!
//! All of a matmul's parts are launched in C++ by one call from Python. In a ring a copy engine writes each part into the next
//! rank's buffer, and a kernel of one thread says that it is there; parts are multiplied on three streams in turn. A ring that
//! scatters sends each part to the rank it is for, which adds all up at the end. In a
//! pipeline and in bulk a kernel of few SMs exchanges. What is gathered is copied into the buffer first; what bulk has
//! scattered is cloned out of it. Without autograd nothing is gathered in a ring.
//!
//! Matmuls of a pipeline leave 16 SMs, or as many as are configured, to the kernels that exchange meanwhile (`num_sm`,
//! `set_sm_margin`), and those in bulk do; in bulk they may be configured not to, as in NeMo: then they are slowed while the
//! exchange runs. What else frameworks configure (SMs of bulk exchanges and rings, aggregated rings, parts scattered in
//! fp8) is not told apart.
//!
//! Assumed: a ring's copies take the bandwidth from one chip to another, and nothing of a matmul that they overlap with; kernels that
//! exchange take what NCCL's take, and slow nothing on other SMs; a further part costs the host a launch (cuBLASLt's choice of a kernel is not told apart); barriers take nothing.
//! Parts of a pipeline fill the SMs, so they run one after the other, though their streams are three.

use super::super::shape::Exchanged;
use super::super::{BUFFER_STREAMS as STREAMS, UserBuffers};
use super::super::{Eager, Storage};
use super::products::{Product, Sizes};
use crate::program::{Collective, Comm, Direction, Dispatch, Kernel, MemoryKind, Transfer};
use crate::units::Bytes;

/// Parts of a pipeline (`num_splits`).
const SPLITS: u64 = 4;

impl Eager {
    /// Calls of the driver that the program has no instructions for.
    fn driver(&mut self, calls: u32) {
        self.program.host(Dispatch::Extra, calls);
    }

    /// Copies the rank's part of what will be gathered into the buffer (`copy_into_buffer`).
    fn fill_buffer(&mut self, part: u64) {
        self.pointwise("ub.copy_into_buffer", MemoryKind::Copy, part, part, Dispatch::Extra);
    }

    /// What the exchange during a weight's gradient has left in the buffer, cloned; none where it left it elsewhere.
    pub(super) fn clone_out(&mut self, sizes: Sizes, bytes: u64) -> Option<Storage> {
        sizes.overlap.then(|| {
            let part = self.temporary(bytes, "aten.clone");
            self.pointwise("aten.clone", MemoryKind::Copy, bytes, bytes, Dispatch::EagerForward);
            part
        })
    }

    /// The tensor-parallel ranks' user buffers, where they have some.
    fn buffers(&self) -> Option<UserBuffers> {
        self.framework.megatron()?.buffers
    }

    /// A matmul of rows that arrive while it runs, `bytes` in all (`split_overlap_ag`).
    pub(super) fn gather_overlapped(&mut self, product: Product, Exchanged { bytes, dtype }: Exchanged) {
        let Some(UserBuffers { group, ranks, compute, exchange, .. }) = self.buffers() else { return };
        let parts = u64::from(ranks);
        let lanes = &compute[..STREAMS.min(ranks as usize)];
        let part = bytes / parts;
        self.fill_buffer(part);
        let start = self.program.record(self.stream);
        for &stream in [exchange].iter().chain(lanes) {
            self.program.wait(stream, start);
        }
        let end = |direction, ahead| Transfer { direction, group, ahead, bytes: Bytes(part), dtype };
        let ends = [end(Direction::Send, 1), end(Direction::Receive, ranks - 1)];
        let lane = |part: u64| lanes[part as usize % lanes.len()];
        for at in 0..parts {
            self.program.launch(lane(at), Kernel::PART, product.part(parts, 1), product.launch_of(at));
            if at + 1 < parts {
                self.program.exchange(exchange, &ends);
                let arrived = self.program.record(exchange);
                self.program.wait(lane(at + 1), arrived);
                // The signal behind the copy, and the next copy's wait for what it passes on.
                self.driver(2);
            }
        }
        for &stream in [exchange].iter().chain(lanes) {
            self.program.wait_stream(self.stream, stream);
        }
        // Sends and receives have a stream each.
        self.driver(3);
    }

    /// A matmul whose product, `bytes` in all, is reduced and scattered while it runs (`CommOverlapBase::split_overlap_rs`).
    pub(super) fn scatter_in_pipeline(&mut self, product: Product, Exchanged { bytes, dtype }: Exchanged, sms: u8) {
        let Some(UserBuffers { group, slowing, compute: [lane, ..], exchange, .. }) = self.buffers() else { return };
        let (name, group) = match sms {
            0 => ("te.generic_gemm", slowing),
            leaves => (Kernel::beside(leaves), group),
        };
        let start = self.program.record(self.stream);
        self.program.wait(lane, start);
        self.program.wait(exchange, start);
        let comm = Comm { kind: Collective::ReduceScatter, group, bytes: Bytes(bytes / SPLITS), dtype };
        for at in 0..SPLITS {
            self.program.launch(lane, name, product.part(1, SPLITS), product.launch_of(at));
            self.program.wait_stream(exchange, lane);
            self.program.collective(exchange, comm);
        }
        self.program.wait_stream(self.stream, lane);
        self.program.wait_stream(self.stream, exchange);
        // Each further stream waits for the start, and is waited for.
        self.driver(3 * (STREAMS as u32 - 1));
    }

    /// The same with a part for each rank (`CommOverlapP2PBase::split_overlap_rs`): the rank's own comes last.
    pub(super) fn scatter_in_ring(&mut self, product: Product, Exchanged { bytes, dtype }: Exchanged) {
        let Some(UserBuffers { group, ranks, compute, exchange, .. }) = self.buffers() else { return };
        let lanes = &compute[..STREAMS.min(ranks as usize)];
        let part = bytes / u64::from(ranks);
        let start = self.program.record(self.stream);
        for &stream in [exchange].iter().chain(lanes) {
            self.program.wait(stream, start);
        }
        let lane = |at: u32| lanes[at as usize % lanes.len()];
        for at in 0..ranks {
            let launch = product.launch_of(u64::from(at));
            self.program.launch(lane(at), Kernel::PART, product.part(u64::from(ranks), 1), launch);
            if at > 0 {
                self.program.wait_stream(exchange, lane(at - 1));
                let end = |direction, ahead| Transfer { direction, group, ahead, bytes: Bytes(part), dtype };
                self.program.exchange(exchange, &[end(Direction::Send, at), end(Direction::Receive, ranks - at)]);
                // The signal behind the copy, and the wait of the stream that receives.
                self.driver(2);
            }
        }
        for &stream in [exchange].iter().chain(lanes) {
            self.program.wait_stream(self.stream, stream);
        }
        // Three streams send, one receives.
        self.driver(3 * STREAMS as u32);
        self.pointwise("ub.reduce_bf16", MemoryKind::Elementwise, bytes, part, Dispatch::Extra);
    }

    /// Begins an exchange that overlaps with what comes next on the stream: in bulk (`bulk_overlap`), or by NCCL.
    pub(super) fn begin_overlapped(&mut self, sizes: Sizes, kind: Collective, Exchanged { bytes, dtype }: Exchanged) {
        let Some(buffers) = self.buffers().filter(|_| sizes.overlap) else {
            return self.begin_exchange(kind, bytes, dtype);
        };
        let UserBuffers { group, slowing, bulk_margin, ranks, exchange, .. } = buffers;
        let group = if bulk_margin { group } else { slowing };
        if kind == Collective::AllGather {
            self.fill_buffer(bytes / u64::from(ranks));
        }
        self.program.wait_stream(exchange, self.stream);
        self.program.collective(exchange, Comm { kind, group, bytes: Bytes(bytes), dtype });
    }

    /// A matmul that an exchange in bulk overlaps with, where there is one.
    pub(super) fn product_overlapped(&mut self, sizes: Sizes, product: Product) {
        let leaves = self.buffers().is_some_and(|buffers| sizes.overlap && buffers.bulk_margin);
        let name = if leaves { Kernel::BESIDE } else { "te.generic_gemm" };
        self.launch(name, product.part(1, 1), product.dispatch);
    }

    /// Waits for it.
    pub(super) fn end_overlapped(&mut self, sizes: Sizes) {
        let Some(buffers) = self.buffers().filter(|_| sizes.overlap) else { return self.end_exchange() };
        self.program.wait_stream(self.stream, buffers.exchange);
        // The matmul has a stream of its own, which waits for the start and is waited for.
        self.driver(3);
    }
}
