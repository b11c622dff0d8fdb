//! The table of schedules, and what each is a function of.

pub mod deepspeed;
mod dual_pipe_v;
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

use crate::near::did_you_mean;

use super::{Action, Lists, Schedule, ScheduleError};

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

/// What a schedule is a function of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pipeline ranks.
    pub ranks: u32,
    /// Stages on each rank.
    pub virtual_stages: u32,
    /// Micro-batches of one step.
    pub microbatches: u32,
}

impl Shape {
    /// Stages over all ranks.
    pub fn stages(self) -> u32 {
        self.ranks * self.virtual_stages
    }

    /// The stage that is `chunk`th on `rank`.
    pub fn stage(self, placement: Placement, rank: u32, chunk: u32) -> u16 {
        let within = match placement {
            Placement::V if chunk % 2 == 1 => self.ranks - 1 - rank,
            _ => rank,
        };
        u16::try_from(chunk * self.ranks + within).expect("a shape of at most 65,536 stages")
    }
}

/// Which rank runs which stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Round and round: stage s on rank s mod ranks.
    Loop,
    /// There and back: the last rank runs two neighbouring stages, and so on up.
    V,
}

/// How sends and receives are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Each receive before, each send after its computation, alone.
    Separate,
    /// A send that is followed by a receive for the other direction is issued with it in one batch.
    Paired,
    /// Stages forward in every other step, neighbours in turn, and send what a step has made at the start of the next.
    Parity,
    /// All ranks step together; after a step each sends what it computed and receives what its next one needs.
    Stepwise(megatron::Settings),
    /// Between computations as the lists say, which also hold the vocabulary's parts and exchanges.
    Vocabulary(vocabulary::Spread),
    /// Receives are posted as soon as the sender has issued its send; parameters are gathered and let go stage by stage.
    Eager,
}

/// How the lists come about.
#[derive(Clone, Copy, Debug)]
pub enum Generate {
    /// Each rank's list on its own.
    Rank(fn(Shape, u32, &mut Vec<Action>)),
    /// All together.
    Whole(fn(Shape) -> Lists),
}

/// A schedule of the table.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name; case, dashes and underscores do not matter.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Which rank runs which stage.
    pub placement: Placement,
    /// How sends and receives are issued.
    pub batching: fn(Shape) -> Batching,
    /// Which shapes it is made for.
    pub check: fn(Shape) -> Result<(), ScheduleError>,
    /// How its lists come about.
    pub generate: Generate,
}

impl Entry {
    /// Whether it is one of these.
    pub fn is_of(&self, entries: &[&Entry]) -> bool {
        entries.iter().any(|entry| entry.name == self.name)
    }

    /// The schedule of this shape.
    pub fn build(&self, shape: Shape) -> Result<Schedule, ScheduleError> {
        counts(shape)?;
        (self.check)(shape)?;
        let lists = match self.generate {
            Generate::Whole(write) => write(shape),
            Generate::Rank(write) => {
                let cells = 3 * shape.stages() as usize * shape.microbatches as usize;
                let mut lists = Lists::with_capacity(shape.ranks as usize, cells);
                for rank in 0..shape.ranks {
                    write(shape, rank, lists.open());
                    lists.close();
                }
                lists
            }
        };
        Schedule::new(self.name.to_owned(), lists, (self.batching)(shape))
    }
}

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

/// Counts that can be held.
fn counts(shape: Shape) -> Result<(), ScheduleError> {
    let of = |what: &'static str, found: u64, most: u64| {
        if (1..=most).contains(&found) { Ok(()) } else { Err(ScheduleError::Count { what, found, most }) }
    };
    of("the number of pipeline ranks", u64::from(shape.ranks), 1 << 16)?;
    of("the number of virtual stages", u64::from(shape.virtual_stages), 1 << 16)?;
    of("the number of stages", u64::from(shape.ranks) * u64::from(shape.virtual_stages), 1 << 16)?;
    let cells = u64::from(shape.stages()) * u64::from(shape.microbatches);
    of("the number of micro-batches", u64::from(shape.microbatches), 1 << 30)?;
    if cells <= CELLS {
        return Ok(());
    }
    let Shape { microbatches, .. } = shape;
    let stages = shape.stages();
    let remedy = match CELLS / u64::from(stages) {
        few if few >= u64::from(stages) => format!("{few} micro-batches or fewer"),
        _ => "fewer stages".to_owned(),
    };
    Err(ScheduleError::TooLong { stages, microbatches, cells, most: CELLS, remedy })
}

/// The most stages times micro-batches. Building, replaying and drawing a schedule takes some 100 B and 1 µs of each.
pub const CELLS: u64 = 1 << 21;

/// Any shape will do.
fn any(_: Shape) -> Result<(), ScheduleError> {
    Ok(())
}

/// For schedules of one stage on each rank.
fn one_stage(schedule: &'static str, shape: Shape) -> Result<(), ScheduleError> {
    if shape.virtual_stages == 1 {
        return Ok(());
    }
    Err(ScheduleError::VirtualStages { schedule, expected: "one stage", found: shape.virtual_stages, remedy: 1 })
}

/// For schedules that go there and back.
fn two_stages(schedule: &'static str, shape: Shape) -> Result<(), ScheduleError> {
    if shape.virtual_stages == 2 {
        return Ok(());
    }
    Err(ScheduleError::VirtualStages { schedule, expected: "two stages", found: shape.virtual_stages, remedy: 2 })
}
