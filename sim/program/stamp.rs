//! A stretch of a step that is written once, and again wherever it would come out the same but for its buffers and events.

use std::collections::BTreeMap;
use std::ops::Range;

use super::builder::Section;
use super::{BufferId, Builder, EventId, Instr};

/// How far a program is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Instructions of a step.
    step: usize,
    /// Buffers of all kinds.
    buffers: u32,
    /// Events.
    events: u32,
    /// Instructions outside a step, and marks: a stretch that adds any is written anew each time.
    besides: [usize; 3],
}

/// An instruction that names a buffer or an event of its own time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Site {
    /// Which, from the stretch's first.
    at: u32,
    /// Of a buffer: a place among those given, or behind these among those that the stretch takes.
    buffer: u32,
}

/// A stretch of a step that may be written again.
#[derive(Clone, Debug)]
pub struct Stamp {
    step: Range<usize>,
    buffers: Range<u32>,
    events: Range<u32>,
    sites: Vec<Site>,
}

impl Stamp {
    /// Buffers that each copy takes.
    pub fn buffers(&self) -> &Range<u32> {
        &self.buffers
    }
}

impl Builder {
    /// How far the program is written.
    pub fn so_far(&self) -> Written {
        Written {
            step: self.program.step.len(),
            buffers: self.program.buffers.len() as u32,
            events: self.program.events,
            besides: [self.program.setup.len(), self.program.first.len(), self.program.marks.len()],
        }
    }

    /// What has been written since, if it can be written again for other buffers in the place of those `given`: it uses no
    /// other buffer from before it, and no event.
    pub fn stamp(&self, since: Written, given: &[BufferId]) -> Option<Stamp> {
        let now = self.so_far();
        if self.section != Section::Step || now.besides != since.besides {
            return None;
        }
        // Those of thousands of layers: each is looked up for every instruction that names it.
        let mut places: BTreeMap<BufferId, u32> = BTreeMap::new();
        for (place, &buffer) in given.iter().enumerate() {
            places.entry(buffer).or_insert(place as u32);
        }
        let mut sites = vec![];
        for (at, instr) in self.program.step[since.step..].iter().enumerate() {
            let buffer = match *instr {
                Instr::Alloc { buffer } | Instr::Free { buffer } | Instr::Recategorize { buffer, .. } => {
                    match buffer.0.checked_sub(since.buffers) {
                        Some(own) => given.len() as u32 + own,
                        None => *places.get(&buffer)?,
                    }
                }
                Instr::Record { event, .. } | Instr::Wait { event, .. } | Instr::HostWait { event } => {
                    event.0.checked_sub(since.events)?
                }
                Instr::Launch { .. }
                | Instr::Collective { .. }
                | Instr::Exchange { .. }
                | Instr::Host { .. }
                | Instr::EmptyCache
                | Instr::Graph { .. } => continue,
                Instr::Rename { .. } | Instr::Mark { .. } => return None,
            };
            sites.push(Site { at: at as u32, buffer });
        }
        let (step, buffers, events) = (since.step..now.step, since.buffers..now.buffers, since.events..now.events);
        Some(Stamp { step, buffers, events, sites })
    }

    /// Writes a stretch again. Returns the first of the buffers it takes.
    pub fn again(&mut self, stamp: &Stamp, given: &[BufferId]) -> BufferId {
        self.share.count(stamp.step.len() as u64);
        let program = &mut self.program;
        let (first, event) = (program.buffers.again(&stamp.buffers), program.events);
        program.events += stamp.events.end - stamp.events.start;
        let start = program.step.len();
        program.step.extend_from_within(stamp.step.clone());
        let written = &mut program.step[start..];
        let known = given.len() as u32;
        for &Site { at, buffer: place } in &stamp.sites {
            match &mut written[at as usize] {
                Instr::Alloc { buffer } | Instr::Free { buffer } | Instr::Recategorize { buffer, .. } => {
                    *buffer = if place < known { given[place as usize] } else { BufferId(first.0 + (place - known)) };
                }
                Instr::Record { event: own, .. } | Instr::Wait { event: own, .. } | Instr::HostWait { event: own } => {
                    *own = EventId(event + place);
                }
                _ => unreachable!("sites name a buffer or an event"),
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Category, Dispatch, StreamId, Work};
    use crate::units::Bytes;

    const COMPUTE: StreamId = StreamId(0);

    fn stretch(builder: &mut Builder, given: BufferId) -> BufferId {
        let taken = builder.alloc(Bytes(64), COMPUTE, Category::Activation, "taken");
        builder.launch(COMPUTE, "kernel", Work::HostCopy { bytes: Bytes(4), to_host: true }, Dispatch::EagerForward);
        builder.free(given);
        builder.wait_for_host(COMPUTE);
        builder.transient(Bytes(32), COMPUTE, Category::Workspace, "workspace");
        taken
    }

    #[test]
    fn a_stretch_stamped_again_is_what_writing_it_again_would_give() {
        let program = |stamped: bool| {
            let mut builder = Builder::new(1, &["default"]);
            let parameter = builder.alloc(Bytes(8), COMPUTE, Category::Parameter, "parameter");
            builder.section(Section::Step);
            let input = builder.alloc(Bytes(16), COMPUTE, Category::Activation, "input");
            let since = builder.so_far();
            let mut last = stretch(&mut builder, input);
            let stamp = builder.stamp(since, &[input]).expect("it uses nothing but its input");
            for _ in 0..3 {
                last = if stamped { builder.again(&stamp, &[last]) } else { stretch(&mut builder, last) };
            }
            builder.free(last);
            builder.free(parameter);
            builder.finish()
        };
        let (stamped, written) = (program(true), program(false));
        assert_eq!(stamped.step, written.step);
        assert_eq!((stamped.buffers, stamped.events), (written.buffers, written.events));
    }

    #[test]
    fn a_stretch_that_uses_what_is_not_its_own_is_no_stamp() {
        let mut builder = Builder::new(1, &["default"]);
        builder.section(Section::Step);
        let other = builder.alloc(Bytes(16), COMPUTE, Category::Activation, "other");
        let before = builder.record(COMPUTE);
        let since = builder.so_far();
        builder.free(other);
        assert!(builder.stamp(since, &[]).is_none());
        assert!(builder.stamp(since, &[other]).is_some());
        builder.wait(COMPUTE, before);
        assert!(builder.stamp(since, &[other]).is_none());
    }
}
