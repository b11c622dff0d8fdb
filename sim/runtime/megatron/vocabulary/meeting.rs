//! How pipeline ranks meet over the vocabulary.

use super::Vocabulary;
use crate::program::{Collective, Comm, DType, EventId, StreamId};
use crate::runtime::eager::vocabulary_parallel::Cast;
use crate::runtime::eager::{COMPUTE, Storage};
use crate::runtime::megatron::groups::VOCABULARY;
use crate::runtime::megatron::state::Rank;
use crate::units::Bytes;

impl Rank<'_> {
    pub(super) fn shared(&mut self) -> &mut Vocabulary {
        self.vocabulary.as_mut().expect("a schedule that spreads the vocabulary is a rank's that has a part of it")
    }

    pub(super) fn is_last(&self) -> bool {
        self.rank as usize + 1 == self.schedule.ranks()
    }

    /// A collective of all pipeline ranks, behind what the computation has issued; when it will have ended.
    pub(super) fn meet(
        &mut self,
        kind: Collective,
        (bytes, dtype): (u64, DType),
        (from, stream): (StreamId, StreamId),
    ) -> EventId {
        let group = self.groups.pipeline;
        self.eager.program.wait_stream(stream, from);
        self.eager.program.collective(stream, Comm { kind, group, bytes: Bytes(bytes), dtype });
        self.eager.program.record(stream)
    }

    /// One number, before the words' and their gradients' collectives (`comm_wait_tensor`).
    pub(super) fn tick(&mut self) {
        if !self.shared().interlaced() {
            self.meet(Collective::AllReduce, (4, DType::Fp32), (COMPUTE, VOCABULARY));
        }
    }

    /// What the last rank's module hands on in fp32, and takes back (`Float16Module`): the words' rows, and their gradient.
    pub(super) fn through_fp32(&mut self, storage: Storage) -> Storage {
        let part = self.shared().part;
        if !self.is_last() || part.dtype == DType::Fp32 {
            return storage;
        }
        let elements = part.tokens * part.width;
        let wide = self.eager.cast(storage, elements, Cast { from: part.dtype, to: DType::Fp32 });
        self.eager.cast(wide, elements, Cast { from: DType::Fp32, to: part.dtype })
    }
}
