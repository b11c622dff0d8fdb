//! A vocabulary that pipeline ranks share: each has V/p words of the embedding and of the head
//! (sail-sg/VocabularyParallelism@6191c3bf, `core/pipeline_parallel/vocab_parallel_schedule.py`,
//! `interlaced_schedule.py`; the order is the schedule's, the parts' operators are in `eager/megatron/vocabulary_parallel.rs`).
//!
//! ```text
//! E  looks up the rank's words        SUM_E   T·D all-reduced, for the first stage        CAST_B, D  the way back
//! CAST_F  the last stage's result, in fp32, and the gradient of the last loss, T·(D+1)    S  the rank's part of the head
//! SUM_S   maximum, target's logit and sum of each token, then the input's gradient T·D: on a stream of its own
//! ```
//!
//! All but the interlaced pipeline's reductions of the head share one communicator, whose collectives are in one order on
//! all ranks; before the words' and their gradients' stands one of four bytes. Blocks that wait for another stream go
//! back to the allocator when Python lets go of them (`record_stream` is neglected).

mod actions;
mod head;
mod meeting;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::batch::Batch;
use super::groups::REDUCTIONS;
use crate::model::NormPlacement;
use crate::plan::megatron::{CrossEntropy, Implementation, MegatronPlan};
use crate::program::{EventId, GroupId};
use crate::runtime::Refusal;
use crate::runtime::eager::Storage;
use crate::runtime::eager::vocabulary_parallel::{HeadFrame, HeadResults, Meet, Part, WordsFrame};
use crate::schedule::order::vocabulary::VocabularySplit;
use crate::schedule::{Action, Kind};

/// What of a job whose vocabulary pipeline ranks share has no rules here, if anything, and what to write.
pub(super) fn refuses(job: &MegatronPlan) -> Option<Refusal> {
    job.split.vocabulary_split()?;
    let model = &job.split.model;
    let elsewhere = "take another model";
    let cases = [
        (
            job.split.mesh.tp > 1,
            Refusal::new(
                "shared-vocabulary-tensor-parallel",
                "a vocabulary over pipeline ranks that tensor-parallel ranks share too",
            )
            .on("mesh.tp")
            .instead("write mesh.tp = 1"),
        ),
        (
            job.split.mesh.cp > 1,
            Refusal::new(
                "shared-vocabulary-context-parallel",
                "a vocabulary over pipeline ranks with context parallelism",
            )
            .on("mesh.cp")
            .instead("write mesh.cp = 1"),
        ),
        (
            model.tied_head,
            Refusal::new(
                "shared-vocabulary-tied-head",
                "a vocabulary over pipeline ranks whose head is tied to its embedding",
            )
            .on("model.tied_head")
            .instead("write model.tied_head = false"),
        ),
        (
            !job.split.padded_vocabulary().is_multiple_of(u64::from(job.split.mesh.pp)),
            Refusal::new("shared-vocabulary-uneven", "words that pipeline ranks cannot share evenly")
                .on("megatron.make_vocab_size_divisible_by")
                .instead("write megatron.make_vocab_size_divisible_by as a multiple of mesh.pp"),
        ),
        (
            job.split.mixture.is_some(),
            Refusal::new("shared-vocabulary-experts", "a vocabulary over pipeline ranks of a mixture of experts")
                .instead("take a dense model"),
        ),
        (
            job.split.matmuls.fp8().is_some(),
            Refusal::new("shared-vocabulary-fp8", "a vocabulary over pipeline ranks with fp8 matmuls")
                .on("megatron.fp8")
                .instead("remove megatron.fp8"),
        ),
        (
            job.gradients.overlap_reduce,
            Refusal::new(
                "shared-vocabulary-overlapped-reduction",
                "a vocabulary over pipeline ranks with overlap_grad_reduce",
            )
            .on("megatron.overlap_grad_reduce")
            .instead("write megatron.overlap_grad_reduce = false"),
        ),
        (
            job.split.block.cross_entropy != CrossEntropy::Composed,
            Refusal::new("shared-vocabulary-fused-loss", "a vocabulary over pipeline ranks with a fused cross-entropy")
                .on("megatron.cross_entropy_loss_fusion")
                .instead("write megatron.cross_entropy_loss_fusion = false"),
        ),
        (
            model.embedding_norm.is_some(),
            Refusal::new(
                "shared-vocabulary-embedding-norm",
                "a vocabulary over pipeline ranks with a norm on the embedding",
            )
            .instead(elsewhere),
        ),
        (
            model.norms().placement != NormPlacement::Pre,
            Refusal::new("shared-vocabulary-last-norm", "a vocabulary over pipeline ranks without a last norm")
                .instead(elsewhere),
        ),
        (
            job.split.block.implementation == Implementation::Local,
            Refusal::new(
                "shared-vocabulary-local",
                "a vocabulary over pipeline ranks without Transformer Engine's modules",
            )
            .on("megatron.implementation")
            .instead("write megatron.implementation = \"transformer_engine\""),
        ),
    ];
    Refusal::first(cases)
}

/// A rank's part, and what of it is under way.
#[derive(Debug)]
pub(super) struct Vocabulary {
    split: VocabularySplit,
    part: Part,
    /// The parameters: the head's table and the embedding's.
    tables: [usize; 2],
    micro_batches: u32,
    /// Micro-batches that have been read, until the last to need them has (`InputStore`).
    batches: BTreeMap<u32, Batch>,
    /// Words looked up, until their gradients come.
    words: VecDeque<WordsFrame>,
    /// Those about to be summed, and the ends of sums that have been started.
    looked_up: Option<Storage>,
    sums: VecDeque<(EventId, Option<Storage>)>,
    /// On the first rank, sums that are there.
    summed: VecDeque<Storage>,
    /// Gradients of the first stage's inputs, there; and the one that all ranks have been sent.
    gradients: VecDeque<Storage>,
    shared_gradient: Option<(Storage, EventId)>,
    /// Results of the last stage, there.
    results: VecDeque<Storage>,
    /// What the last stage has sent to all ranks; and what of that Python still names.
    shared: Option<(Storage, EventId)>,
    named: Option<Storage>,
    /// The part of the head between its forward and its backward, and what both have made last.
    head: Option<HeadFrame>,
    made: HeadResults,
    /// What has been reduced last, and when it is there.
    reduced: HeadResults,
    reduced_at: Option<EventId>,
    /// The gradient of the last loss, on the last rank.
    loss: Option<Storage>,
    /// Sends that are waited for later than at once.
    later: BTreeSet<u32>,
}

impl Vocabulary {
    pub(super) fn new(job: &MegatronPlan, split: VocabularySplit, tables: [usize; 2]) -> Vocabulary {
        let part = Part {
            tokens: job.split.batch * job.split.seq,
            width: job.split.model.width,
            words: job.split.padded_vocabulary() / u64::from(job.split.mesh.pp),
            dtype: job.split.dtype,
        };
        Vocabulary {
            split,
            part,
            tables,
            micro_batches: job.split.micro_batches,
            batches: Default::default(),
            words: Default::default(),
            looked_up: None,
            sums: Default::default(),
            summed: Default::default(),
            gradients: Default::default(),
            shared_gradient: None,
            results: Default::default(),
            shared: None,
            named: None,
            head: None,
            made: HeadResults::default(),
            reduced: HeadResults::default(),
            reduced_at: None,
            loss: None,
            later: Default::default(),
        }
    }

    /// Before a step: which of its sends are waited for later.
    pub(super) fn begin(&mut self, list: &[Action]) {
        let later = list.iter().filter(|action| action.kind == Kind::WaitSendForward);
        self.later = later.map(|action| action.microbatch).collect();
    }

    /// Whether a call's one send is waited for later.
    pub(super) fn waits_later(&self, portion: &[Action]) -> bool {
        matches!(portion, [one] if one.kind == Kind::SendForward && self.later.contains(&one.microbatch))
    }

    /// A sum that has been waited for.
    fn sums_waited(&mut self, words: Storage) {
        self.summed.push_back(words);
    }

    /// The words that the first stage takes next. Where every sum is waited for at once, it may be one of several.
    fn first_input(&mut self) -> Storage {
        self.summed.pop_front().expect("words are summed before the first stage takes them")
    }

    /// The gradient of the words that the first stage was given.
    pub(super) fn words_gradient(&mut self, gradient: Storage) {
        self.gradients.push_back(gradient);
    }

    fn interlaced(&self) -> bool {
        self.split == VocabularySplit::Interlaced
    }

    /// When ranks meet over the head.
    fn meet(&self, group: GroupId) -> Meet {
        match self.split {
            VocabularySplit::OneBarrier => Meet::Together,
            VocabularySplit::TwoBarriers => Meet::Apart,
            VocabularySplit::Interlaced => Meet::AtOnce(group, REDUCTIONS),
        }
    }
}
