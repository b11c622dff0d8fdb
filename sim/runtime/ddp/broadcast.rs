//! The model's buffers and parameters on their way from the first rank (`torch/csrc/distributed/c10d/comm.cpp`, `broadcast_coalesced`).
//!
//! Tensors of one type are laid side by side, up to 250 MiB at a time, and copied out again; a single one goes as it is, and is copied
//! onto itself. At most two such pieces are on their way.

use std::collections::VecDeque;

use super::{REDUCE, assignment};
use crate::program::{BufferId, Builder, Category, Collective, Comm, DType, Dispatch, GroupId, MemoryKind, Work};
use crate::runtime::eager::COMPUTE;
use crate::units::Bytes;

/// What fills a piece \[B\] (`DistributedDataParallel.broadcast_bucket_size`).
const PIECE: u64 = 250 << 20;
/// Pieces that are on their way at once.
const IN_FLIGHT: usize = 2;

/// The ranks that share gradients.
#[derive(Clone, Copy, Debug)]
pub(in crate::runtime) struct Ranks {
    /// Their communicator.
    pub group: GroupId,
    /// How many there are.
    pub count: u32,
}

/// Tensors of one type, each so many bytes.
type Typed = (DType, Vec<u64>);

/// The model's buffers, by type.
#[derive(Clone, Debug, Default)]
pub(in crate::runtime) struct Buffers(pub(in crate::runtime) Vec<Typed>);

/// A piece that is on its way: its block, unless it is a tensor itself, and the tensors in it.
struct Piece {
    flat: Option<BufferId>,
    tensors: Vec<u64>,
}

impl Piece {
    fn begin(program: &mut Builder, ranks: Ranks, (dtype, tensors): Typed) -> Piece {
        let bytes = tensors.iter().sum();
        let flat = (tensors.len() > 1).then(|| {
            let flat = program.alloc(Bytes(bytes), COMPUTE, Category::Workspace, "aten.cat");
            copy(program, "aten.cat", bytes);
            flat
        });
        if ranks.count > 1 {
            program.wait_stream(REDUCE, COMPUTE);
            let comm = Comm { kind: Collective::Broadcast, group: ranks.group, bytes: Bytes(bytes), dtype };
            program.collective(REDUCE, comm);
        }
        Piece { flat, tensors }
    }

    fn finish(self, program: &mut Builder, ranks: Ranks) {
        if ranks.count > 1 {
            program.wait_stream(COMPUTE, REDUCE);
        }
        for bytes in self.tensors {
            copy(program, "aten.copy_", bytes);
        }
        self.flat.into_iter().for_each(|flat| program.free(flat));
    }
}

impl Buffers {
    /// Broadcasts them.
    pub(super) fn broadcast(&self, program: &mut Builder, ranks: Ranks) {
        let mut in_flight = VecDeque::new();
        for (dtype, tensors) in &self.0 {
            for piece in assignment::by_size(tensors.iter().copied().enumerate(), &[PIECE]) {
                if in_flight.len() >= IN_FLIGHT
                    && let Some(oldest) = in_flight.pop_front()
                {
                    Piece::finish(oldest, program, ranks);
                }
                let tensors = piece.into_iter().map(|at| tensors[at]).collect();
                in_flight.push_back(Piece::begin(program, ranks, (*dtype, tensors)));
            }
        }
        in_flight.into_iter().for_each(|piece| piece.finish(program, ranks));
    }
}

fn copy(program: &mut Builder, name: &'static str, bytes: u64) {
    let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(bytes), written: Bytes(bytes) };
    program.launch(COMPUTE, name, work, Dispatch::EagerForward);
}
