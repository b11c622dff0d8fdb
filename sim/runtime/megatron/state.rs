//! A pipeline rank while it writes its program: what it holds, and how that changes hands.

use std::collections::BTreeMap;

use super::chunk::{Chunk, ChunkFrame};
use super::counts::Counts;
use super::groups::Groups;
use super::optimizer::Shards;
use super::p2p::{End, P2p, Peer};
use super::replicas::Shared;
use super::vocabulary::Vocabulary;
use crate::plan::megatron::MegatronPlan;
use crate::program::{BufferId, EventId, ScopeId, StreamId};
use crate::runtime::eager::main_gradients::WeightWork;
use crate::runtime::eager::{COMPUTE, Eager, Later, Stamps, Storage};
use crate::schedule::{Action, Kind, Placement, Schedule};

/// What is known of one micro-batch on one stage.
pub(super) type Key = (u16, u32);

/// A tensor from another stage, and the event that says it is there, until somebody has waited for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) storage: Storage,
    pub(super) event: Option<EventId>,
}

/// A micro-batch between its forward and its backward.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) frame: ChunkFrame,
    pub(super) input: Option<Storage>,
    /// What is left of an output that was sent: one number (`deallocate_output_tensor`). Of the last stage, the loss.
    pub(super) output: Option<Storage>,
}

/// The last input that a chunk was given, which its decoder names until it is given the next, and with it the input's
/// gradient (`set_input_tensor`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) key: Key,
    pub(super) input: Storage,
    pub(super) gradient: Option<Storage>,
}

/// A send that nobody has waited for yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) storage: Storage,
    pub(super) event: EventId,
}

/// What a rank's chunks have written so far.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) forward: Stamps<(ChunkFrame, Storage)>,
    pub(super) backward: Stamps<Option<Storage>>,
}

/// A pipeline rank, writing its program.
pub(super) struct Rank<'j> {
    pub(super) job: &'j MegatronPlan,
    pub(super) schedule: &'j Schedule,
    pub(super) rank: u32,
    pub(super) groups: Groups,
    /// The stage of each of its chunks.
    pub(super) stages: Vec<usize>,
    pub(super) chunks: Vec<Chunk>,
    pub(super) scopes: Vec<ScopeId>,
    pub(super) eager: Eager,
    /// How it shares its parameters with replicas: those that all ranks have, and experts that they do not.
    pub(super) data: Vec<Shared>,
    pub(super) shards: Shards,
    pub(super) p2p: P2p,
    pub(super) counts: Counts,
    pub(super) inputs: BTreeMap<Key, Received>,
    pub(super) gradients: BTreeMap<Key, Received>,
    pub(super) outputs: BTreeMap<Key, Storage>,
    pub(super) input_gradients: BTreeMap<Key, Storage>,
    pub(super) open: BTreeMap<Key, Open>,
    /// By chunk, the last input it was given.
    pub(super) given: Vec<Option<Given>>,
    /// By chunk, what the last input and its gradient are known as from one step to the next.
    pub(super) kept: Vec<Option<[BufferId; 2]>>,
    /// Weight gradients that the first halves of backwards have left.
    pub(super) deferred: BTreeMap<Key, Vec<WeightWork>>,
    /// Whether backwards come in halves.
    pub(super) halves: bool,
    /// Sends that are waited for at the end of the iteration, where backwards come in halves.
    pub(super) unwaited: Vec<EventId>,
    /// Sends forward and backward that have been issued beside the computation.
    pub(super) sent: [Option<Sent>; 2],
    /// What Python's variables still name: the last gradients received and made.
    pub(super) named: [Option<Storage>; 2],
    /// The loss that the loop's variable names, and its count of tokens.
    pub(super) loss: Option<[Storage; 2]>,
    /// What the last stage keeps for the log.
    pub(super) reports: Vec<Storage>,
    /// Copies of main gradients in fp32, where those are not: what they are known as from one step to the next.
    pub(super) copies: Vec<BufferId>,
    /// Chunks whose gradients are being reduced.
    pub(super) started: Vec<bool>,
    /// Its part of a vocabulary that pipeline ranks share.
    pub(super) vocabulary: Option<Vocabulary>,
    /// The stream of experts' exchanges, where a step's forward and backward run block beside block.
    pub(super) exchanges: Option<StreamId>,
    /// The end of the last forward of these, which nothing has waited for yet.
    pub(super) after: Option<EventId>,
    /// Weight gradients of the last backward of these, yet to be made.
    pub(super) left: (Option<ScopeId>, Vec<Later>),
    /// What micro-batches write alike; none: each is written on its own.
    pub(super) stamps: Option<Written>,
}

impl Rank<'_> {
    pub(super) fn chunk_of(&self, stage: u16) -> usize {
        usize::from(stage) / self.schedule.ranks()
    }

    /// Whom a message goes to or comes from. Where stages go round and round, forward is towards the next rank, from the
    /// last to the first too.
    fn peer(&self, kind: Kind, other: usize) -> Peer {
        let next = match self.job.split.pipeline.schedule.placement {
            Placement::Loop => matches!(kind, Kind::SendForward | Kind::RecvBackward),
            Placement::V => self.schedule.rank_of[other] > self.rank,
        };
        if next { Peer::Next } else { Peer::Previous }
    }

    pub(super) fn end(&self, action: Action) -> End {
        let stage = usize::from(action.stage);
        let other = match action.kind {
            Kind::SendForward | Kind::RecvBackward => stage + 1,
            _ => stage - 1,
        };
        End { action, peer: self.peer(action.kind, other) }
    }

    /// What another stage has sent, once it is there.
    pub(super) fn received(&mut self, key: Key) -> Storage {
        let received = self.inputs.remove(&key).expect("a schedule receives before it computes");
        if let Some(event) = received.event {
            self.eager.program.wait(COMPUTE, event);
        }
        received.storage
    }

    /// A chunk is given an input, and lets go of the one before: that of the step before, at first.
    pub(super) fn give(&mut self, chunk: usize, key: Key, input: Storage) {
        let given = Given { key, input: self.eager.retain(input), gradient: None };
        match self.given[chunk].replace(given) {
            Some(before) => {
                for storage in [Some(before.input), before.gradient].into_iter().flatten() {
                    self.eager.release(storage);
                }
            }
            None => self.kept[chunk].into_iter().flatten().for_each(|buffer| self.eager.program.free(buffer)),
        }
    }

    /// A variable takes another value.
    pub(super) fn name(&mut self, which: usize, storage: Storage) {
        if let Some(before) = self.named[which].replace(storage) {
            self.eager.release(before);
        }
    }

    /// A computation has ended.
    pub(super) fn counts_of(&mut self, forward: bool) {
        self.counts.last_was_forward = forward;
        self.counts.portions = 0;
    }
}
