//! How far each class of ranks has come while the tape is written.

use std::collections::VecDeque;

use super::super::super::Options;
use super::super::super::plan::{Action, Plan, StreamOp};
use super::super::tape::{Issued, Kept, Register};

/// How far one class has come.
pub(super) struct Class {
    /// The host's next action, and what it has paid since it last counted.
    pub(super) action: usize,
    pub(super) owed: u64,
    pub(super) streams: Vec<Stream>,
    /// By slot: its register once recorded, and who has still to wait for it.
    pub(super) slots: Vec<(Option<Register>, u32)>,
    pub(super) free: Vec<Register>,
    pub(super) registers: u32,
    /// Events recorded.
    pub(super) recorded: u32,
    /// Where rounds begin on the default stream, and how many of them it may begin; none where nobody asks.
    pub(super) begins: Vec<u32>,
    pub(super) may: usize,
}

/// How far one stream has come.
pub(super) struct Stream {
    pub(super) at: usize,
    /// What was issued and not yet reached: when, if that is needed.
    pub(super) issued: VecDeque<Option<Issued>>,
    /// Places of the queue taken, and left.
    pub(super) taken: u32,
    pub(super) left: u32,
    /// Whether it waits for other ranks.
    pub(super) away: bool,
    /// Places that must be remembered; 0 if the queue never fills.
    pub(super) queue: u32,
}

impl Class {
    pub(super) fn new(plan: &Plan, options: Options, further: bool) -> Class {
        let mut slots = vec![(None, 0); plan.slots.len()];
        for op in &plan.ops {
            if let StreamOp::Wait { slot, .. } = op {
                slots[*slot as usize].1 += 1;
            }
        }
        let mut queued = vec![0_u32; plan.first.len()];
        for op in &plan.host {
            match op.action {
                Action::Wait { slot } => slots[slot as usize].1 += 1,
                Action::Issue { stream, queued: true } => queued[stream as usize] += 1,
                _ => {}
            }
        }
        // Further rounds issue any number of operations.
        let fills = |queued: u32| queued > 0 && (further || queued.saturating_mul(options.steps) > options.queue_limit);
        let streams = plan.first.iter().zip(queued).map(|(&first, queued)| Stream {
            at: first as usize,
            issued: VecDeque::new(),
            taken: 0,
            left: 0,
            away: false,
            queue: if fills(queued) { options.queue_limit } else { 0 },
        });
        let begins = if further { plan.rounds.clone() } else { vec![] };
        Class {
            action: 0,
            owed: 0,
            streams: streams.collect(),
            slots,
            free: vec![],
            registers: 0,
            recorded: 0,
            begins,
            may: 0,
        }
    }

    /// Whether the default stream has to wait with its next round.
    pub(super) fn begins_round(&self) -> bool {
        self.begins.get(self.may).is_some_and(|&begin| self.streams[0].at >= begin as usize)
    }

    /// Whether a stream waits: for others, or with its next round.
    pub(super) fn waits(&self) -> bool {
        self.streams.iter().any(|stream| stream.away) || self.begins_round()
    }

    /// What registers hold that is needed later, but for exchanges.
    pub(super) fn kept(&self) -> Vec<(Kept, Register)> {
        let issued = (0..).zip(&self.streams).flat_map(|(stream, of)| {
            let kept = (0..).zip(&of.issued).filter_map(|(place, &issued)| match issued {
                Some(Issued::At(register)) => Some((place, register)),
                _ => None,
            });
            kept.map(move |(place, register)| (Kept::Issued { stream, place }, register))
        });
        let recorded = self.recorded.into();
        let events = (0..).zip(&self.slots).filter_map(|(slot, &(register, waits))| {
            register.filter(|_| waits > 0).map(|register| (Kept::Event { slot, recorded }, register))
        });
        issued.chain(events).collect()
    }
}
