//! What a schedule has to say of itself, and the conditions that several share.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Serialize, Serializer};

use super::super::{Action, Batching, Lists, Placement, Schedule, ScheduleError, Shape};

/// How the lists come about.
#[derive(Clone, Copy, Debug)]
pub enum Generate {
    /// Each rank's list on its own.
    Rank(fn(Shape, u32, &mut Vec<Action>)),
    /// All together.
    Whole(fn(Shape) -> Lists),
}

/// A schedule of the table. Its name stands for it: two of one name are equal, and it is printed and written as its name.
#[derive(Clone, Copy)]
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

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.name == other.name
    }
}

impl Eq for Entry {}

impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
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

/// Counts that can be held.
pub(super) fn counts(shape: Shape) -> Result<(), ScheduleError> {
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
pub(super) fn any(_: Shape) -> Result<(), ScheduleError> {
    Ok(())
}

/// For schedules of one stage on each rank.
pub(super) fn one_stage(schedule: &'static str, shape: Shape) -> Result<(), ScheduleError> {
    if shape.virtual_stages == 1 {
        return Ok(());
    }
    Err(ScheduleError::VirtualStages { schedule, expected: "one stage", found: shape.virtual_stages, remedy: 1 })
}

/// For schedules that go there and back.
pub(super) fn two_stages(schedule: &'static str, shape: Shape) -> Result<(), ScheduleError> {
    if shape.virtual_stages == 2 {
        return Ok(());
    }
    Err(ScheduleError::VirtualStages { schedule, expected: "two stages", found: shape.virtual_stages, remedy: 2 })
}
