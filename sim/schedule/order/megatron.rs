//! Megatron-Core's two schedules (`core/pipeline_parallel/schedules.py`, `get_pp_rank_microbatches` and
//! `get_schedule_table`).
//!
//! Its 1F1B is PyTorch's, without a least number of micro-batches. Its interleaved order is PyTorch's where micro-batches
//! are a multiple of ranks; it differs with `microbatch_group_size_per_vp_stage` other than the number of ranks, where the
//! last round is what is left, and with `overlap_moe_expert_parallel_comm`, which warms up with one more forward. Versions
//! that do not know a group size run all forwards first where there are as many micro-batches as ranks.

pub use super::super::batching::Settings;

use super::super::{Batching, Lists, Placement, Schedule, ScheduleError, Shape};
use super::entry::{Entry, Generate, counts, one_stage};
use super::interleaved::{Plan, write};
use super::one_forward_one_backward;

/// `forward_backward_pipelining_without_interleaving`.
pub const MEGATRON_1F1B: Entry = Entry {
    name: "Megatron1F1B",
    about: "Megatron-Core without virtual stages: 1F1B with any number of micro-batches",
    placement: Placement::Loop,
    batching: |_| Batching::Paired,
    check: |shape| one_stage("Megatron1F1B", shape),
    generate: Generate::Rank(one_forward_one_backward::write),
};

/// `forward_backward_pipelining_with_interleaving`, with its defaults.
pub const MEGATRON_INTERLEAVED: Entry = Entry {
    name: "MegatronInterleaved",
    about: "Megatron-Core with virtual stages: micro-batches in rounds of as many as there are ranks",
    placement: Placement::Loop,
    batching: |shape| Batching::Stepwise(Settings::of(shape)),
    check: |shape| check(shape, Settings::of(shape)),
    generate: Generate::Rank(|shape, rank, out| write(shape, rank, plan(Settings::of(shape), shape, rank), out)),
};

/// The same with `overlap_moe_expert_parallel_comm`: a step's forward and backward run block beside block. So they do without a
/// pipeline, one micro-batch ahead of the other (`combined_1f1b_schedule_for_no_pipelining`).
pub const MEGATRON_COMBINED: Entry = Entry {
    name: "MegatronCombined1F1B",
    about: "Megatron-Core with virtual stages, or without a pipeline, and overlap_moe_expert_parallel_comm: a forward overlapped with a backward",
    placement: Placement::Loop,
    batching: |shape| Batching::Stepwise(Settings { overlap_experts: true, ..Settings::of(shape) }),
    check: |shape| if shape.ranks * shape.virtual_stages == 1 { Ok(()) } else { check(shape, Settings::of(shape)) },
    generate: Generate::Rank(|shape, rank, out| {
        let settings = Settings { overlap_experts: true, ..Settings::of(shape) };
        write(shape, rank, plan(settings, shape, rank), out);
    }),
};

/// What a rank's list is made of under some settings.
fn plan(settings: Settings, shape: Shape, rank: u32) -> Plan {
    Plan { round: settings.group, warmup: settings.warmup(shape, rank), weights_after: None }
}

/// The interleaved order with settings other than the defaults.
pub fn interleaved(shape: Shape, settings: Settings) -> Result<Schedule, ScheduleError> {
    counts(shape)?;
    check(shape, settings)?;
    let mut lists = Lists::default();
    for rank in 0..shape.ranks {
        write(shape, rank, plan(settings, shape, rank), lists.open());
        lists.close();
    }
    Schedule::new(MEGATRON_INTERLEAVED.name.to_owned(), lists, Batching::Stepwise(settings))
}

/// Megatron's own condition: a round as long as the pipeline, and the last one too, if there is one.
fn check(shape: Shape, settings: Settings) -> Result<(), ScheduleError> {
    let schedule = MEGATRON_INTERLEAVED.name;
    if shape.virtual_stages == 1 {
        return Err(ScheduleError::VirtualStages { schedule, expected: "several stages", found: 1, remedy: 2 });
    }
    let left = shape.microbatches % settings.group.max(1);
    if settings.group >= shape.ranks && (left == 0 || left >= shape.ranks) {
        return Ok(());
    }
    let remedy = format!(
        "the last round of {left} would be shorter than the {} pipeline ranks (microbatch_group_size_per_vp_stage = {})",
        shape.ranks, settings.group
    );
    let rounds = settings.group;
    Err(ScheduleError::Rounds { schedule, found: shape.microbatches, rounds, remedy })
}
