//! What a micro-batch reads, besides what the stage before sends (`pretrain_gpt.py`, `get_batch`).
//!
//! What of it a rank has, and how it comes by it:
//!
//! | Megatron-LM | stages that read | how |
//! |---|---|---|
//! | 2.5 (2021) to 0.3 | all | `broadcast_data`: the first tensor-parallel rank reads, and broadcasts sizes, which the host reads back, then the text; each rank makes masks and positions on its device |
//! | 0.4 (2023) | first and last | the same |
//! | 0.5 (2024) to 0.15, 0.18 on | first and last | `get_batch_on_this_tp_rank`: the first tensor-parallel rank copies all to its device, and broadcasts what the stage needs |
//! | 0.16, 0.17 | first and last | the same, and the lengths of packed sequences, of which there are none: each time a number goes to the device, and the host waits |
//! | NeMo, Megatron-Bridge | first and last | each rank has a loader (`gpt_data_step`, `get_batch_from_iterator`), and copies what its stage needs |
//!
//! The mask is made by the loader's workers unless `--no-create-attention-mask-in-dataloader`: a byte for each pair of tokens
//! that crosses from the host. Copies are from pinned memory, but for `broadcast_data`'s. Ranks that share a sequence take
//! their rows of what was read (`get_batch_on_this_cp_rank`, for 0.5 and 0.16 as 0.14 to 0.16 have it). Loaders are always ahead.

use crate::plan::megatron::Loader;
use crate::program::{Category, Collective, Comm, DType, Dispatch, MemoryKind, Work};
use crate::runtime::eager::{Eager, Storage};
use crate::units::Bytes;

/// What is read of a micro-batch, and by whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) loader: Loader,
    pub(super) micro: u64,
    pub(super) seq: u64,
    /// Ranks that share a sequence.
    pub(super) cp: u64,
    /// What its chunk has of the model: the embedding, the loss.
    pub(super) ends: [bool; 2],
}

/// Numbers of `broadcast_data`'s sizes (`_MAX_DATA_DIM`).
const SIZES: u64 = 5;
const INT64: u64 = 8;

const TOKENS: usize = 0;
const LABELS: usize = 1;
const POSITIONS: usize = 2;
const ATTENTION: usize = 3;
const LOSS: usize = 4;

/// In the order in which they are copied to the device.
const LOADED: [usize; 5] = [TOKENS, LABELS, LOSS, ATTENTION, POSITIONS];

/// What the first and the last stage need, in the order in which it is broadcast; a stage that is both needs [`LOADED`].
const NEEDED: [&[usize]; 2] = [&[TOKENS, ATTENTION, POSITIONS], &[LABELS, LOSS, ATTENTION]];

/// The data loader's part of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub(super) tokens: Storage,
    pub(super) labels: Storage,
    pub(super) positions: Storage,
    pub(super) mask: Storage,
    pub(super) loss_mask: Storage,
}

impl Batch {
    /// Has a micro-batch read.
    pub(super) fn read(eager: &mut Eager, reading: Reading) -> Batch {
        match reading.loader {
            Loader::There => Batch::of(reading.own().map(|(bytes, name)| input(eager, bytes, name))),
            Loader::SizesFirst { .. } if reading.has(TOKENS) => {
                let batch = reading.sizes_first(eager);
                reading.own_rows(eager, batch)
            }
            Loader::SizesFirst { .. } => Batch::of([(); 5].map(|()| eager.storage(0, "none"))),
            Loader::EachRank { .. } => {
                let batch = reading.copied(eager);
                reading.own_rows(eager, batch)
            }
            Loader::Broadcast { lengths, .. } => {
                let batch = reading.copied(eager);
                for &part in reading.needed().iter().filter(|&&part| reading.has(part)) {
                    broadcast(eager, reading.whole()[part].0, dtype(part));
                }
                if lengths && reading.has(TOKENS) {
                    reading.lengths(eager);
                }
                reading.own_rows(eager, batch)
            }
        }
    }

    fn of([tokens, labels, positions, mask, loss_mask]: [Storage; 5]) -> Batch {
        Batch { tokens, labels, positions, mask, loss_mask }
    }

    /// All of it.
    pub(super) fn all(self) -> [Storage; 5] {
        [self.tokens, self.labels, self.positions, self.mask, self.loss_mask]
    }
}

/// Of a part's numbers; of the mask, one of a byte.
fn dtype(part: usize) -> DType {
    match part {
        ATTENTION => DType::Fp8,
        LOSS => DType::Fp32,
        _ => DType::Int64,
    }
}

/// Bytes and names of a micro-batch's parts: tokens, labels and positions (8 B each), the attention mask of each sequence of `seq`
/// tokens (1 B for each pair), and the loss mask in fp32.
fn sizes(tokens: u64, seq: u64) -> [(u64, &'static str); 5] {
    [
        (INT64 * tokens, "tokens"),
        (INT64 * tokens, "labels"),
        (INT64 * tokens, "position_ids"),
        (tokens * seq, "attention_mask"),
        (4 * tokens, "loss_mask"),
    ]
}

impl Reading {
    /// Bytes and names of the rank's own parts: of ranks that share a sequence each has its tokens' rows.
    pub(super) fn own(self) -> [(u64, &'static str); 5] {
        self.sizes(self.micro * self.seq / self.cp)
    }

    /// The same before they take them.
    pub(super) fn whole(self) -> [(u64, &'static str); 5] {
        self.sizes(self.micro * self.seq)
    }

    fn sizes(self, tokens: u64) -> [(u64, &'static str); 5] {
        let mut sizes = sizes(tokens, self.seq);
        for (part, (bytes, _)) in sizes.iter_mut().enumerate() {
            *bytes *= u64::from(self.has(part));
        }
        sizes
    }

    /// Whether there is a mask.
    pub(super) fn has_mask(self) -> bool {
        self.has(ATTENTION)
    }

    /// Whether the rank's device has a part.
    fn has(self, part: usize) -> bool {
        let some = self.ends.contains(&true);
        match self.loader {
            Loader::There => true,
            Loader::SizesFirst { everywhere } => some || everywhere,
            Loader::Broadcast { mask, .. } => some && (mask || part != ATTENTION),
            Loader::EachRank { mask } => some && (mask || part != ATTENTION) && self.needed().contains(&part),
        }
    }

    /// Parts that a stage needs, in the order in which they are broadcast.
    fn needed(self) -> &'static [usize] {
        match self.ends {
            [true, true] => &LOADED,
            [true, false] => NEEDED[0],
            _ => NEEDED[1],
        }
    }

    /// Copies what the rank has to its device.
    fn copied(self, eager: &mut Eager) -> [Storage; 5] {
        let whole = self.whole();
        let mut storages = [None; 5];
        for part in LOADED {
            let (bytes, name) = whole[part];
            storages[part] = Some(input(eager, bytes, name));
            if bytes > 0 {
                sent(eager, bytes, false);
            }
        }
        storages.map(|storage| storage.expect("all parts are listed"))
    }

    /// Lengths of packed sequences: how many there are, none, and they. A stage that begins the model says so twice.
    fn lengths(self, eager: &mut Eager) {
        for _ in 0..1 + u64::from(self.ends[0]) {
            sent(eager, INT64, true);
            broadcast(eager, INT64, DType::Int64);
            broadcast(eager, 0, DType::Int32);
        }
    }

    /// Of ranks that share a sequence, each takes its rows of each part, by an index.
    fn own_rows(self, eager: &mut Eager, whole: [Storage; 5]) -> Batch {
        if self.cp == 1 {
            return Batch::of(whole);
        }
        let all = self.own();
        let mut own = whole;
        for part in LOADED {
            let held = eager.bytes(whole[part]);
            if held == 0 {
                continue;
            }
            // One mask may serve all sequences.
            let (bytes, name) = all[part];
            let bytes = if part == ATTENTION { held / self.cp } else { bytes };
            self.index(eager);
            own[part] = input(eager, bytes, name);
            eager.pointwise("aten.index_select", MemoryKind::Copy, bytes, bytes, Dispatch::EagerForward);
            eager.release(whole[part]);
        }
        Batch::of(own)
    }

    /// The two of its pieces, a number each: sent, or filled in on the device.
    fn index(self, eager: &mut Eager) {
        match self.loader {
            Loader::Broadcast { .. } => {
                eager.pointwise("aten.zeros", MemoryKind::Elementwise, 0, 2 * INT64, Dispatch::EagerForward);
                for _ in 0..2 {
                    eager.pointwise("aten.fill_", MemoryKind::Elementwise, 0, INT64, Dispatch::EagerForward);
                }
            }
            Loader::SizesFirst { .. } => sent(eager, 2 * INT64, true),
            Loader::EachRank { .. } | Loader::There => sent(eager, 2 * INT64, false),
        }
    }

    /// `broadcast_data`, and what is made of the text (`get_ltor_masks_and_position_ids`): one mask for all sequences.
    fn sizes_first(self, eager: &mut Eager) -> [Storage; 5] {
        let Reading { micro, seq, .. } = self;
        sent(eager, SIZES * INT64, true);
        broadcast(eager, SIZES * INT64, DType::Int64);
        crossing(eager, SIZES * INT64, true, true);
        let bytes = INT64 * micro * (seq + 1);
        let text = input(eager, bytes, "text");
        sent(eager, bytes, true);
        broadcast(eager, bytes, DType::Int64);
        let tokens = INT64 * micro * seq;
        // A part of one row lies as it should.
        let mut part = |name| match micro {
            1 => eager.retain(text),
            _ => {
                let part = input(eager, tokens, name);
                eager.pointwise("aten.contiguous", MemoryKind::Copy, tokens, tokens, Dispatch::EagerForward);
                part
            }
        };
        let (labels, words) = (part("labels"), part("tokens"));
        let pairs = seq * seq;
        let mut made = |name, bytes, read| {
            // By what it is for, where it stays until the end.
            let made = match name {
                "aten.lt" => input(eager, bytes, "attention_mask"),
                "aten.arange" => input(eager, bytes, "position_ids"),
                _ => eager.storage(bytes, name),
            };
            eager.pointwise(name, MemoryKind::Elementwise, read, bytes, Dispatch::EagerForward);
            made
        };
        let ones = made("aten.ones", 4 * pairs, 0);
        let lower = made("aten.tril", 4 * pairs, 4 * pairs);
        let loss_mask = made("aten.ones", 4 * micro * seq, 0);
        let positions = made("aten.arange", INT64 * seq, 0);
        let mask = made("aten.lt", pairs, 4 * pairs);
        for storage in [ones, lower, text] {
            eager.release(storage);
        }
        [words, labels, positions, mask, loss_mask]
    }
}

/// A part of a micro-batch, which memory reports count among inputs: a mask of a byte for each pair of tokens is no activation.
fn input(eager: &mut Eager, bytes: u64, name: &'static str) -> Storage {
    eager.storage_as(bytes, Category::Buffer, name)
}

/// A copy to the device; the host waits for one that is not from pinned memory.
fn sent(eager: &mut Eager, bytes: u64, waits: bool) {
    crossing(eager, bytes, false, waits);
}

fn crossing(eager: &mut Eager, bytes: u64, to_host: bool, waits: bool) {
    let stream = eager.stream;
    let copy = Work::HostCopy { bytes: Bytes(bytes), to_host };
    eager.program.launch(stream, "aten._to_copy", copy, Dispatch::EagerForward);
    if waits {
        eager.program.wait_for_host(stream);
    }
}

/// The call is made by a rank alone, too; there, and of nothing, it moves nothing.
fn broadcast(eager: &mut Eager, bytes: u64, dtype: DType) {
    match eager.framework.tensor().filter(|_| bytes > 0) {
        Some(tensor) => {
            let stream = eager.stream;
            eager.program.wait_stream(tensor.stream, stream);
            let comm = Comm { kind: Collective::Broadcast, group: tensor.group, bytes: Bytes(bytes), dtype };
            eager.program.collective(tensor.stream, comm);
            eager.program.wait_stream(stream, tensor.stream);
        }
        None => eager.program.host(Dispatch::Collective, 1),
    }
}

#[cfg(test)]
mod tests;
