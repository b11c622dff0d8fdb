//! Exchanges in parts beside the matmul they feed or are fed by (`--tp-comm-overlap`, Transformer Engine's user buffers,
//! `transformer_engine/common/comm_gemm_overlap/comm_gemm_overlap.cpp`).
//!
//! With t ranks the matmul runs in t parts of its rows. A gather passes parts around a ring: the rank's own is there at
//! once, t − 1 more arrive while earlier ones are multiplied. A scatter sends each part as soon as it is multiplied; the
//! last is exposed. What is exchanged lies in buffers outside PyTorch's allocator. Assumed: a part costs what a collective
//! of its size costs.

use super::super::{COMPUTE, Eager};
use crate::program::{Collective, Comm, DType, Dispatch, MatmulLayout};
use crate::units::Bytes;

/// An exchange in parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// Bytes of all of it.
    pub bytes: u64,
    /// Parts: ranks.
    pub parts: u64,
    /// Element type.
    pub dtype: DType,
    /// Type that is multiplied.
    pub multiplied: DType,
}

impl Eager {
    fn exchange_part(&mut self, kind: Collective, bytes: u64, dtype: DType) {
        let Some(tensor) = self.tensor else { return };
        self.program.collective(tensor.stream, Comm { kind, group: tensor.group, bytes: Bytes(bytes), dtype });
    }

    /// A matmul of `m` rows that are gathered while it runs.
    pub(super) fn gather_beside(
        &mut self,
        (m, n, k): (u64, u64, u64),
        layout: MatmulLayout,
        exchange: Parts,
        dispatch: Dispatch,
    ) {
        let Some(tensor) = self.tensor else { return };
        let Parts { bytes, parts, dtype, multiplied } = exchange;
        self.program.wait_stream(tensor.stream, COMPUTE);
        for part in 0..parts {
            if part > 0 {
                self.exchange_part(Collective::AllGather, bytes / (parts - 1), dtype);
            }
            let arrived = self.program.record(tensor.stream);
            self.program.wait(COMPUTE, arrived);
            self.engine_matmul((m / parts, n, k), multiplied, layout, dispatch);
        }
    }

    /// A matmul of `m` rows that are reduced and scattered while it runs.
    pub(super) fn scatter_beside(&mut self, (m, n, k): (u64, u64, u64), exchange: Parts, dispatch: Dispatch) {
        let Some(tensor) = self.tensor else { return };
        let Parts { bytes, parts, dtype, multiplied } = exchange;
        for _ in 0..parts {
            self.engine_matmul((m / parts, n, k), multiplied, MatmulLayout::Forward, dispatch);
            let multiplied = self.program.record(COMPUTE);
            self.program.wait(tensor.stream, multiplied);
            self.exchange_part(Collective::ReduceScatter, bytes / parts, dtype);
        }
        self.program.wait_stream(COMPUTE, tensor.stream);
    }
}
