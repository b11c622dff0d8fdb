//! What many of Megatron-Core's rules are put together from: storages that are kept, kernels, exchanges of the tensor-parallel
//! ranks.

use super::super::frame::Results;
use super::super::{Eager, Frame, Storage};
use crate::program::{Collective, Comm, DType, Dispatch, MemoryKind, Work};
use crate::units::Bytes;

impl Eager {
    /// Lets go of what compiled functions have kept, when the checkpoint around them returns.
    pub fn let_go_of_lingering(&mut self) {
        let lingering = self.take_lingering();
        lingering.into_iter().rev().for_each(|storage| self.release(storage));
    }

    fn take_lingering(&mut self) -> Vec<Storage> {
        self.framework.megatron_mut().map(|megatron| std::mem::take(&mut megatron.lingering)).unwrap_or_default()
    }

    /// What compiled functions have kept stays as long as a result that is a view of theirs.
    pub fn lingers_with(&mut self, result: Storage) {
        let lingering = self.take_lingering();
        self.storages.lingers_with.extend(lingering.into_iter().map(|kept| (result, kept)));
    }

    /// A live value of a running frame.
    pub(in crate::runtime::eager) fn value(frame: &Frame, value: usize) -> Storage {
        frame.slots[value].expect("an operator reads live values")
    }

    /// Keeps storages for backward, whose references it takes over, or lets go of them.
    pub(in crate::runtime::eager) fn keep(&mut self, frame: &mut Frame, results: Results, saved: &[Storage]) {
        if results == Results::Save {
            frame.saved.extend_from_slice(saved);
            frame.saved_end.push(frame.saved.len() as u32);
        } else {
            for &storage in saved {
                self.release(storage);
            }
        }
    }

    /// A new storage and the memory-bound kernel that writes it.
    pub(in crate::runtime::eager) fn made(
        &mut self,
        name: &'static str,
        bytes: u64,
        read: u64,
        dispatch: Dispatch,
    ) -> Storage {
        let storage = self.storage(bytes, name);
        self.pointwise(name, MemoryKind::Elementwise, read, bytes, dispatch);
        storage
    }

    /// The same of operands whose dimensions do not merge: `elements` take its time.
    pub(in crate::runtime::eager) fn made_strided(
        &mut self,
        name: &'static str,
        bytes: u64,
        elements: u64,
        dispatch: Dispatch,
    ) -> Storage {
        let storage = self.storage(bytes, name);
        self.strided(name, elements, dispatch);
        storage
    }

    /// Issues a collective of the tensor-parallel ranks, to be waited for later. `bytes`: the whole buffer.
    pub(in crate::runtime::eager) fn begin_exchange(&mut self, kind: Collective, bytes: u64, dtype: DType) {
        let Some(tensor) = self.framework.tensor() else { return };
        self.program.wait_stream(tensor.stream, self.stream);
        self.program.collective(tensor.stream, Comm { kind, group: tensor.group, bytes: Bytes(bytes), dtype });
    }

    /// Waits for the collectives of the tensor-parallel ranks issued so far.
    pub(in crate::runtime::eager) fn end_exchange(&mut self) {
        let Some(tensor) = self.framework.tensor() else { return };
        self.program.wait_stream(self.stream, tensor.stream);
    }

    /// A collective that the stream at hand waits for at once.
    pub(in crate::runtime::eager) fn exchange_now(&mut self, kind: Collective, bytes: u64, dtype: DType) {
        if self.in_line()
            && let Some(tensor) = self.framework.tensor()
        {
            let comm = Comm { kind, group: tensor.group, bytes: Bytes(bytes), dtype };
            return self.program.collective(self.stream, comm);
        }
        self.begin_exchange(kind, bytes, dtype);
        self.end_exchange();
    }

    /// Launches a kernel.
    pub(in crate::runtime::eager) fn launch(&mut self, name: &'static str, work: Work, dispatch: Dispatch) {
        self.program.launch(self.stream, name, work, dispatch);
    }

    /// All parts of what ranks have parts of.
    pub(in crate::runtime::eager) fn gathered(&mut self, bytes: u64, dtype: DType) -> Storage {
        let whole = self.storage(bytes, "all_gather_into_tensor");
        self.exchange_now(Collective::AllGather, bytes, dtype);
        whole
    }
}
