//! Messages between stages as DeepSpeed's pipeline engine passes them (`deepspeed/runtime/pipe/engine.py`, `p2p.py`,
//! `deepspeed/runtime/utils.py`, `PartitionedTensor`; 0.5.10 and 0.6.0).
//!
//! ```text
//! forward    own slice ─► the next stage ─► gathered over the tensor-parallel ranks ─► input
//! backward   own slice ─► the stage before ─► output, then gradient, gathered ─► gradient of the output
//! ```
//!
//! Tensor-parallel ranks hold the same activation, so each sends a slice of it, behind a message that says what it is a
//! slice of; the other side reads that on the host, which waits, and gathers. Every send and receive is a call that the
//! computation waits for, on the pair's one communicator. What one rank holds whole goes as one message.
//!
//! Left out: what a step does beside moving gradients and parameters (overflow and norm are read back tensor by tensor:
//! milliseconds), and buckets of 5·10⁸ gradients, which move one after the other what is moved here at once.

use super::groups::TENSOR;
use super::p2p::End;
use super::state::{Key, Rank, Received};
use crate::program::{Category, Collective, Comm, DType, Dispatch, MemoryKind, Work};
use crate::runtime::eager::{COMPUTE, Storage};
use crate::schedule::Kind;
use crate::units::Bytes;

impl Rank<'_> {
    /// Whether what is passed on is a slice.
    fn sliced(&self) -> bool {
        self.job.split.mesh.tp > 1
    }

    /// Bytes of a slice.
    fn slice(&self) -> u64 {
        self.p2p.bytes().0 / u64::from(self.job.split.mesh.tp)
    }

    /// Bytes of what describes a slice: how many sizes the whole has, those, how many slices, which one, and where each begins
    /// and the last ends (`PartitionedTensor.to_meta`).
    fn meta(&self) -> Bytes {
        let sizes = 1 + 3 + 1 + 1;
        Bytes((sizes + u64::from(self.job.split.mesh.tp) + 1) * DType::Int64.bytes())
    }

    /// One send or receive.
    pub(super) fn pass(&mut self, end: End) {
        let key = (end.action.stage, end.action.microbatch);
        let bytes = self.slice();
        let storage = match end.action.kind {
            Kind::RecvForward => self.eager.storage_as(bytes, Category::Activation, "recv_activation"),
            Kind::RecvBackward => self.eager.storage_as(bytes, Category::BackwardTemporary, "recv_grad"),
            Kind::SendForward => self.outputs.remove(&key).expect("what is sent has been computed"),
            _ => self.input_gradients.remove(&key).expect("what is sent has been computed"),
        };
        let meta = self.sliced().then(|| (self.meta(), DType::Int64));
        for message in meta.into_iter().chain([(Bytes(bytes), self.job.split.dtype)]) {
            self.p2p.call(&mut self.eager.program, end, message);
        }
        let received = Received { storage, event: None };
        match end.action.kind {
            Kind::RecvForward => drop(self.inputs.insert(key, received)),
            Kind::RecvBackward => drop(self.gradients.insert(key, received)),
            Kind::SendForward => {
                // Its backward gathers it again.
                let open = self.open.get_mut(&key).expect("what is sent forward goes back later");
                open.output = Some(storage);
            }
            _ => self.eager.release(storage),
        }
    }

    /// Before its first and its last stage compute, a micro-batch is read by one of the tensor-parallel ranks and
    /// broadcast, sizes first, which the host reads (`mpu.broadcast_data`).
    pub(super) fn load(&mut self) {
        if !self.sliced() {
            return;
        }
        let tokens = Bytes((self.job.split.seq + 1) * self.job.split.batch * DType::Int64.bytes());
        for (bytes, host_reads) in [(Bytes(DType::Int64.bytes()), true), (tokens, false)] {
            self.over_tensor(Collective::Broadcast, bytes, DType::Int64);
            if host_reads {
                super::data::read_back(&mut self.eager.program, "aten._to_copy");
            }
        }
    }

    /// What a stage has been passed, whole: gathered over the tensor-parallel ranks, if it is a slice.
    pub(super) fn whole(&mut self, slice: Storage, category: Category) -> Storage {
        if !self.sliced() {
            return slice;
        }
        let whole = self.gathered(category);
        self.eager.release(slice);
        whole
    }

    /// What the ranks' slices make together (`PartitionedTensor.full`): zeros, the own slice, the others', a copy.
    fn gathered(&mut self, category: Category) -> Storage {
        let (bytes, slice) = (self.p2p.bytes().0, self.slice());
        // The host reads what the slices are slices of.
        super::data::read_back(&mut self.eager.program, "aten._to_copy");
        let flat = self.eager.storage_as(bytes, category, "aten.zeros");
        self.copy("aten.zeros", 0, bytes);
        self.copy("aten.copy_", slice, slice);
        // A gathering into a list goes through a tensor of the whole.
        let staged = self.eager.storage_as(bytes, category, "all_gather");
        self.over_tensor(Collective::AllGather, Bytes(bytes), self.job.split.dtype);
        self.copy("aten.copy_", bytes, bytes);
        self.eager.release(staged);
        let whole = self.eager.storage_as(bytes, category, "aten.clone");
        self.copy("aten.clone", bytes, bytes);
        self.eager.release(flat);
        whole
    }

    /// What a stage passes on: the rank's slice of it, whose description the host sends to the device and waits.
    pub(super) fn part(&mut self, whole: Storage, category: Category) -> Storage {
        if !self.sliced() {
            return whole;
        }
        let bytes = self.slice();
        let slice = self.eager.storage_as(bytes, category, "aten.clone");
        self.copy("aten.clone", bytes, bytes);
        self.eager.release(whole);
        let work = Work::HostCopy { bytes: self.meta(), to_host: false };
        self.eager.program.launch(COMPUTE, "aten._to_copy", work, Dispatch::EagerForward);
        self.eager.program.wait_for_host(COMPUTE);
        slice
    }

    /// Before a backward, the output it is of is gathered too, for its shape.
    pub(super) fn gather_output(&mut self, key: Key) {
        if self.sliced() && self.open.contains_key(&key) {
            let output = self.gathered(Category::BackwardTemporary);
            self.eager.release(output);
        }
    }

    fn over_tensor(&mut self, kind: Collective, bytes: Bytes, dtype: DType) {
        let (program, group) = (&mut self.eager.program, self.groups.tensor);
        program.wait_stream(TENSOR, COMPUTE);
        program.collective(TENSOR, Comm { kind, group, bytes, dtype });
        program.wait_stream(COMPUTE, TENSOR);
    }

    fn copy(&mut self, name: &'static str, read: u64, written: u64) {
        let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(read), written: Bytes(written) };
        self.eager.program.launch(COMPUTE, name, work, Dispatch::EagerForward);
    }
}
