//! Parameters gathered group by group (`megatron_fsdp/param_and_grad_buffer.py`, `AllGatherPipeline`, 0.16.1).
//!
//! Who asks for a group has others gathered ahead of it, in the order of groups or against it, until those have half of
//! `suggested_communication_unit_size` in elements (the one that goes beyond it is still taken). A block of its own holds a
//! gathered group where parameters are shared, taken on the gathering stream; parameters are views of it. A block that is let
//! go of *lazily* goes when the next one is taken.

use super::cut::Group;
use super::lanes::Lanes;
use super::pool::Pool;
use crate::program::{BufferId, Builder, Category, Collective, Comm, DType, EventId, StreamId};
use crate::runtime::eager::COMPUTE;
use crate::units::Bytes;

/// Which way to look ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Towards {
    /// As forward goes.
    Last,
    /// As backward goes.
    First,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Absent,
    /// Under way until the event.
    Coming(EventId),
    There,
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    state: State,
    block: Option<BufferId>,
    /// Whether it goes when the next block is taken.
    lazily: bool,
}

/// What of the groups is gathered.
#[derive(Debug)]
pub(super) struct Gathers {
    held: Vec<Held>,
    lanes: Lanes,
    dtype: DType,
    /// Elements gathered ahead.
    ahead: u64,
    /// Whether gathered groups are in blocks of their own.
    blocks: bool,
    pool: Pool,
}

impl Gathers {
    pub(super) fn new(
        groups: usize,
        (lanes, dtype): (Lanes, DType),
        (ahead, blocks): (u64, bool),
        pool: Pool,
    ) -> Gathers {
        Gathers { held: vec![Held::default(); groups], lanes, dtype, ahead, blocks, pool }
    }

    /// Has a group gathered, and others ahead of it.
    pub(super) fn ask(&mut self, program: &mut Builder, groups: &[Group], asked: usize, towards: Option<Towards>) {
        self.held[asked].lazily = false;
        let mut all = vec![asked];
        if let Some(towards) = towards {
            all.extend(self.ahead_of(groups, asked, towards));
        }
        all.sort_unstable();
        for at in all {
            if self.held[at].state == State::Absent {
                self.gather(program, groups, (at, self.lanes.gather));
            }
        }
    }

    fn ahead_of(&self, groups: &[Group], asked: usize, towards: Towards) -> Vec<usize> {
        let mut units = self.pool.taker(&groups[asked]);
        let (mut taken, mut elements, mut at) = (vec![], 0, asked);
        while elements < self.ahead {
            let next = match towards {
                Towards::Last => Some(at + 1).filter(|&next| next < groups.len()),
                Towards::First => at.checked_sub(1),
            };
            let Some(next) = next else { break };
            units.insert(groups[next].unit);
            if self.pool.exists() && units.len() > 2 {
                break;
            }
            taken.push(next);
            elements += groups[next].elements;
            at = next;
        }
        taken
    }

    /// Gathers a group on a stream.
    fn gather(&mut self, program: &mut Builder, groups: &[Group], (at, stream): (usize, StreamId)) {
        if stream != COMPUTE {
            program.wait_stream(stream, COMPUTE);
        }
        self.held[at].lazily = false;
        self.recycle(program, groups, stream);
        let bytes = Bytes(groups[at].elements * self.dtype.bytes());
        if self.blocks && !self.pool.holds(&groups[at]) {
            let block = program.alloc(bytes, stream, Category::UnshardedParameter, "all_gather_into_tensor");
            self.held[at].block = Some(block);
        }
        let (group, on) = self.lanes.gathered_over;
        program.wait_stream(on, stream);
        program.collective(on, Comm { kind: Collective::AllGather, group, bytes, dtype: self.dtype });
        self.held[at].state = State::Coming(program.record(on));
    }

    /// Makes a stream wait for a group, if that is under way.
    pub(super) fn wait(&mut self, program: &mut Builder, at: usize, stream: StreamId) {
        if let State::Coming(event) = self.held[at].state {
            program.wait(stream, event);
            self.held[at].state = State::There;
        }
    }

    /// Lets go of a group at once.
    pub(super) fn release(&mut self, program: &mut Builder, at: usize, stream: StreamId) {
        self.wait(program, at, stream);
        if let Some(block) = self.held[at].block.take() {
            program.free(block);
        }
        self.held[at].state = State::Absent;
    }

    /// Lets go of a group when the next one is gathered.
    pub(super) fn release_lazily(&mut self, at: usize) {
        if self.held[at].state != State::Absent {
            self.held[at].lazily = true;
        }
    }

    /// Every group of a unit may go when the next one is gathered (`_root_pre_backward`).
    pub(super) fn release_units_lazily(&mut self, groups: &[Group]) {
        for (held, _) in self.held.iter_mut().zip(groups).filter(|(_, group)| group.unit.is_some()) {
            held.lazily = true;
        }
    }

    fn recycle(&mut self, program: &mut Builder, groups: &[Group], stream: StreamId) {
        for at in 0..groups.len() {
            if std::mem::take(&mut self.held[at].lazily) {
                self.release(program, at, stream);
            }
        }
    }

    /// Lets go of everything (`reset`).
    pub(super) fn reset(&mut self, program: &mut Builder) {
        for at in 0..self.held.len() {
            self.release(program, at, COMPUTE);
            self.held[at].lazily = false;
        }
    }

    /// Gathers everything from the default stream, and waits for it.
    pub(super) fn gather_all(&mut self, program: &mut Builder, groups: &[Group]) {
        self.reset(program);
        for at in 0..groups.len() {
            self.gather(program, groups, (at, COMPUTE));
        }
        for at in 0..groups.len() {
            self.wait(program, at, COMPUTE);
        }
    }
}
