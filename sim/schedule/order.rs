//! The table of schedules, and the search for one by name.

pub mod deepspeed;
mod dual_pipe_v;
mod entry;
mod gpipe;
mod interleaved;
mod interleaved_zero_bubble;
mod looped_bfs;
pub mod megatron;
mod nanotron;
mod one_forward_one_backward;
pub mod vocabulary;
mod zb_h1;
mod zb_h2;
mod zbv;
pub mod zero_bubble;

pub use entry::{CELLS, Entry, Generate};

use crate::near::did_you_mean;

use super::{Schedule, ScheduleError, Shape};

/// The schedules there are.
pub const ENTRIES: [Entry; 19] = [
    gpipe::GPIPE,
    one_forward_one_backward::ONE_FORWARD_ONE_BACKWARD,
    interleaved::INTERLEAVED,
    looped_bfs::LOOPED_BFS,
    interleaved_zero_bubble::INTERLEAVED_ZERO_BUBBLE,
    zb_h1::ZB_H1,
    zb_h2::ZB_H2,
    zero_bubble::ZB_1P,
    zero_bubble::ZB_2P,
    zbv::ZBV,
    dual_pipe_v::DUAL_PIPE_V,
    megatron::MEGATRON_1F1B,
    megatron::MEGATRON_INTERLEAVED,
    megatron::MEGATRON_COMBINED,
    nanotron::AFAB,
    deepspeed::DEEPSPEED_1F1B,
    vocabulary::VOCAB_1,
    vocabulary::VOCAB_2,
    vocabulary::INTERLACED,
];

/// Those of `torch.distributed.pipelining`.
pub const TORCH: [&Entry; 7] = [
    &one_forward_one_backward::ONE_FORWARD_ONE_BACKWARD,
    &gpipe::GPIPE,
    &interleaved::INTERLEAVED,
    &looped_bfs::LOOPED_BFS,
    &interleaved_zero_bubble::INTERLEAVED_ZERO_BUBBLE,
    &zbv::ZBV,
    &dual_pipe_v::DUAL_PIPE_V,
];

/// Those of them whose backwards come in halves.
pub const TORCH_HALVES: [&Entry; 3] =
    [&interleaved_zero_bubble::INTERLEAVED_ZERO_BUBBLE, &zbv::ZBV, &dual_pipe_v::DUAL_PIPE_V];

/// Those of a Megatron: Megatron-Core's, of which 1F1B is PyTorch's too, those of sail-sg's zero-bubble fork, and of its
/// vocabulary parallelism.
pub const MEGATRON: [&Entry; 12] = [
    &one_forward_one_backward::ONE_FORWARD_ONE_BACKWARD,
    &megatron::MEGATRON_1F1B,
    &megatron::MEGATRON_INTERLEAVED,
    &megatron::MEGATRON_COMBINED,
    &zb_h1::ZB_H1,
    &zb_h2::ZB_H2,
    &zero_bubble::ZB_1P,
    &zero_bubble::ZB_2P,
    &zbv::ZBV,
    &vocabulary::VOCAB_1,
    &vocabulary::VOCAB_2,
    &vocabulary::INTERLACED,
];

/// Those of them whose backwards come in halves.
pub const MEGATRON_HALVES: [&Entry; 5] =
    [&zb_h1::ZB_H1, &zb_h2::ZB_H2, &zero_bubble::ZB_1P, &zero_bubble::ZB_2P, &zbv::ZBV];

/// Those that are searched: what they repeat takes as many micro-batches as the search finds.
pub const SEARCHED: [&Entry; 2] = [&zero_bubble::ZB_1P, &zero_bubble::ZB_2P];

/// Megatron-Core's schedule of one stage a rank.
pub const MEGATRON_PLAIN: &Entry = &megatron::MEGATRON_1F1B;

/// The entry of a name.
pub fn find(name: &str) -> Result<&'static Entry, ScheduleError> {
    let plain = |name: &str| name.to_lowercase().replace(['-', '_', ' '], "");
    ENTRIES.iter().find(|entry| plain(entry.name) == plain(name)).ok_or_else(|| ScheduleError::Unknown {
        name: name.to_owned(),
        hint: did_you_mean(name, ENTRIES.map(|entry| entry.name)),
        known: ENTRIES.map(|entry| entry.name).join(", "),
    })
}

/// The schedule of a name and a shape.
pub fn build(name: &str, shape: Shape) -> Result<Schedule, ScheduleError> {
    find(name)?.build(shape)
}
