//! Inputs of checkpointed blocks kept in pinned host memory (torchtune's `OffloadActivations`, and prime-rl's copy of it).
//!
//! On a stream of its own, a copy overlaps with compute: the stream waits for what made the value, and the value stays until
//! [`STASH`] later ones have been sent; then compute waits for its copy and the storage goes. What is still there when
//! backward begins is used as it is. On the default stream a copy stands in compute's way, and the storage goes at once,
//! because whatever takes it next runs behind the copy. In backward the value is copied into a new storage (of the copying
//! stream's pool) when the recompute asks for it. Sources: `torchtune/training/_activation_offloading.py` (two streams),
//! `prime_rl/utils/act_offloading.py` (one).

use super::offload::Sent;
use super::{COMPUTE, Eager, Storage};
use crate::plan::eager::Offload;
use crate::program::{Category, Dispatch, StreamId, Work};
use crate::units::Bytes;

/// Values that stay on the device, the latest sent among them (`max_fwd_stash_size`).
const STASH: u32 = 5;

impl Eager {
    fn copy(&mut self, stream: StreamId, bytes: u64, to_host: bool) {
        let name = if to_host { "aten.copy_ to the host" } else { "aten.copy_ from the host" };
        let copy = Work::HostCopy { bytes: Bytes(bytes), to_host };
        self.program.launch(stream, name, copy, Dispatch::EagerForward);
    }

    /// Sends a value to the host.
    pub(in crate::runtime) fn send(&mut self, value: Storage, offload: Offload) -> Sent {
        let sent = Sent { number: self.stash.next, bytes: self.bytes(value) };
        self.stash.next += 1;
        self.program.pin(sent.bytes);
        let Offload::OwnStream(stream) = offload else {
            self.copy(COMPUTE, sent.bytes, true);
            return sent;
        };
        while self.stash.list.first().is_some_and(|&(number, ..)| number + STASH <= sent.number) {
            self.let_oldest_go();
        }
        self.program.wait_stream(stream, COMPUTE);
        self.copy(stream, sent.bytes, true);
        let event = self.program.record(stream);
        let held = self.retain(value);
        self.stash.list.push((sent.number, held, event));
        sent
    }

    fn let_oldest_go(&mut self) {
        let (_, value, event) = self.stash.list.remove(0);
        self.program.wait(COMPUTE, event);
        self.release(value);
    }

    /// The value again, with one reference.
    pub(in crate::runtime) fn bring_back(&mut self, sent: Sent, offload: Offload) -> Storage {
        self.program.unpin(sent.bytes);
        let Offload::OwnStream(stream) = offload else {
            let value = self.storage_as(sent.bytes, Category::Recompute, "activation from the host");
            self.copy(COMPUTE, sent.bytes, false);
            return value;
        };
        let here = self.stash.list.iter().find(|&&(number, ..)| number == sent.number).map(|&(_, value, _)| value);
        let value = match here {
            Some(value) => self.retain(value),
            None => {
                let value = self.storage_on(stream, sent.bytes, Category::Recompute, "activation from the host");
                self.copy(stream, sent.bytes, false);
                self.program.wait_stream(COMPUTE, stream);
                value
            }
        };
        while !self.stash.list.is_empty() {
            self.let_oldest_go();
        }
        value
    }
}
