//! A vocabulary that pipeline ranks share: each has V/p words of the embedding and of the head
//! (sail-sg/VocabularyParallelism@6191c3bf, `core/pipeline_parallel/vocab_parallel_schedule.py`,
//! `interlaced_schedule.py`; the order is the schedule's, the parts' operators are in `eager/megatron/spread.rs`).
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

mod head;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::batch::Batch;
use super::groups::{PIPELINE, REDUCTIONS, VOCABULARY};
use super::job::{CrossEntropy, Implementation, Job};
use super::step::{Key, Open, Rank};
use crate::model::NormPlacement;
use crate::program::{Category, Collective, Comm, DType, Dispatch, EventId, GroupId, Pass, StreamId};
use crate::runtime::Refusal;
use crate::runtime::eager::spread::{HeadFrame, HeadResults, Meet, Part, WordsFrame};
use crate::runtime::eager::{COMPUTE, Storage};
use crate::schedule::order::vocabulary::Spread;
use crate::schedule::{Action, Kind};
use crate::units::Bytes;

/// What of a job whose vocabulary pipeline ranks share has no rules here, if anything, and what to write.
pub(super) fn refuses(job: &Job) -> Option<Refusal> {
    job.spread()?;
    let model = &job.model;
    let elsewhere = "take another model";
    let cases = [
        (
            job.mesh.tp > 1,
            Refusal::new(
                "shared-vocabulary-tensor-parallel",
                "a vocabulary over pipeline ranks that tensor-parallel ranks share too",
            )
            .on("mesh.tp")
            .instead("write mesh.tp = 1"),
        ),
        (
            job.mesh.cp > 1,
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
            !job.padded_vocabulary().is_multiple_of(u64::from(job.mesh.pp)),
            Refusal::new("shared-vocabulary-uneven", "words that pipeline ranks cannot share evenly")
                .on("megatron.make_vocab_size_divisible_by")
                .instead("write megatron.make_vocab_size_divisible_by as a multiple of mesh.pp"),
        ),
        (
            job.mixture.is_some(),
            Refusal::new("shared-vocabulary-experts", "a vocabulary over pipeline ranks of a mixture of experts")
                .instead("take a dense model"),
        ),
        (
            job.matmuls.fp8().is_some(),
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
            job.block.cross_entropy != CrossEntropy::Composed,
            Refusal::new("shared-vocabulary-fused-loss", "a vocabulary over pipeline ranks with a fused cross-entropy")
                .on("megatron.cross_entropy_loss_fusion")
                .instead("write megatron.cross_entropy_loss_fusion = false"),
        ),
        (
            model.embedding_norm,
            Refusal::new(
                "shared-vocabulary-embedding-norm",
                "a vocabulary over pipeline ranks with a norm on the embedding",
            )
            .instead(elsewhere),
        ),
        (
            model.norm_placement != NormPlacement::Pre,
            Refusal::new("shared-vocabulary-last-norm", "a vocabulary over pipeline ranks without a last norm")
                .instead(elsewhere),
        ),
        (
            job.block.implementation == Implementation::Local,
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
    spread: Spread,
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
    pub(super) fn new(job: &Job, spread: Spread, tables: [usize; 2]) -> Vocabulary {
        let part = Part {
            tokens: job.batch * job.seq,
            width: job.model.width,
            words: job.padded_vocabulary() / u64::from(job.mesh.pp),
            dtype: job.dtype,
        };
        Vocabulary {
            spread,
            part,
            tables,
            micro_batches: job.micro_batches,
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
        self.spread == Spread::Interlaced
    }

    /// When ranks meet over the head.
    fn meet(&self, group: GroupId) -> Meet {
        match self.spread {
            Spread::OneBarrier => Meet::Together,
            Spread::TwoBarriers => Meet::Apart,
            Spread::Interlaced => Meet::AtOnce(group, REDUCTIONS),
        }
    }
}

impl Rank<'_> {
    fn shared(&mut self) -> &mut Vocabulary {
        self.vocabulary.as_mut().expect("a schedule that spreads the vocabulary is a rank's that has a part of it")
    }

    fn is_last(&self) -> bool {
        self.rank as usize + 1 == self.schedule.ranks()
    }

    /// An action beside the blocks'.
    pub(super) fn of_vocabulary(&mut self, action: Action) {
        let micro_batch = action.microbatch;
        let (scope, pass) = match action.kind {
            Kind::Embed | Kind::SumEmbed | Kind::WaitSumEmbed => (2, Pass::Forward),
            Kind::ShareGradient | Kind::EmbedBackward => (2, Pass::Backward),
            _ => (1, Pass::Forward),
        };
        let before = (self.eager.program.enter(self.scopes[scope]), self.eager.program.set_pass(pass));
        match action.kind {
            Kind::Embed => self.look_up(micro_batch),
            Kind::SumEmbed => self.sum_words(),
            Kind::WaitSumEmbed => self.wait_for_words(),
            Kind::ShareGradient => self.share_gradient(),
            Kind::EmbedBackward => self.look_up_backward(),
            Kind::ShareHidden => self.share_result(micro_batch),
            Kind::Output => self.head(micro_batch),
            Kind::SumOutput => self.reduce_head(micro_batch),
            Kind::Loss => self.loss(micro_batch),
            Kind::WaitSendForward => {
                if let Some(sent) = self.sent[0].take() {
                    self.eager.program.wait(COMPUTE, sent.event);
                    self.eager.release(sent.storage);
                }
            }
            _ => unreachable!("the others are blocks' or messages"),
        }
        self.eager.program.enter(before.0);
        self.eager.program.set_pass(before.1);
    }

    /// A collective of all pipeline ranks, behind what the computation has issued; when it will have ended.
    fn meet(
        &mut self,
        kind: Collective,
        (bytes, dtype): (u64, DType),
        (from, stream): (StreamId, StreamId),
    ) -> EventId {
        let group = self.groups.pipeline;
        self.eager.program.wait_stream(stream, from);
        self.eager.program.collective(stream, Comm { kind, group, bytes: Bytes(bytes), dtype });
        self.eager.program.record(stream)
    }

    /// One number, before the words' and their gradients' collectives (`comm_wait_tensor`).
    fn tick(&mut self) {
        if !self.shared().interlaced() {
            self.meet(Collective::AllReduce, (4, DType::Fp32), (COMPUTE, VOCABULARY));
        }
    }

    /// What the last rank's module hands on in fp32, and takes back (`Float16Module`): the words' rows, and their gradient.
    fn through_fp32(&mut self, storage: Storage) -> Storage {
        let part = self.shared().part;
        if !self.is_last() || part.dtype == DType::Fp32 {
            return storage;
        }
        let elements = part.tokens * part.width;
        let wide = self.eager.cast(storage, elements, (part.dtype, DType::Fp32));
        self.eager.cast(wide, elements, (DType::Fp32, part.dtype))
    }

    /// Reads a micro-batch, and looks its words up.
    fn look_up(&mut self, micro_batch: u32) {
        self.eager.program.host(Dispatch::StepOverhead, 1);
        let batch = self.chunks[0].batch(&mut self.eager);
        let part = self.shared().part;
        let (frame, found) = self.eager.part_of_words(part);
        let found = self.through_fp32(found);
        // Python takes another copy, and the first is deallocated.
        let copy = self.eager.clone_of(part.hidden());
        self.eager.release(found);
        let shared = self.shared();
        shared.batches.insert(micro_batch, batch);
        shared.words.push_back(frame);
        shared.looked_up = Some(copy);
    }

    fn sum_words(&mut self) {
        let part = self.shared().part;
        let words = self.shared().looked_up.take().expect("words are looked up before they are summed");
        self.tick();
        let end = self.meet(Collective::AllReduce, (part.hidden(), part.dtype), (COMPUTE, VOCABULARY));
        let first = self.rank == 0;
        if !first {
            self.eager.release(words);
        }
        self.shared().sums.push_back((end, first.then_some(words)));
    }

    /// On the first rank the sum is the next input of the blocks.
    fn wait_for_words(&mut self) {
        let (end, words) = self.shared().sums.pop_front().expect("a sum is started before it is waited for");
        self.eager.program.wait(COMPUTE, end);
        if let Some(words) = words {
            self.shared().sums_waited(words);
        }
    }

    fn share_gradient(&mut self) {
        let part = self.shared().part;
        let first = self.rank == 0;
        let gradient = match self.shared().gradients.pop_front() {
            Some(gradient) if first => gradient,
            _ => self.eager.storage_as(part.hidden(), Category::BackwardTemporary, "aten.empty"),
        };
        self.tick();
        let end = self.meet(Collective::Broadcast, (part.hidden(), part.dtype), (COMPUTE, VOCABULARY));
        self.shared().shared_gradient = Some((gradient, end));
    }

    fn look_up_backward(&mut self) {
        let (gradient, end) = self.shared().shared_gradient.take().expect("a gradient is shared before it is used");
        self.eager.program.wait(COMPUTE, end);
        let gradient = self.through_fp32(gradient);
        let shared = self.shared();
        let (part, table) = (shared.part, shared.tables[1]);
        let frame = shared.words.pop_front().expect("words go forward before they go back");
        self.eager.part_of_words_backward(part, frame, gradient, table);
    }

    /// Forward of the stage's blocks, with what stands before the first and behind the last but for the tables.
    pub(super) fn forward_without_tables(&mut self, key: Key) {
        let last = self.is_last();
        let input = if key.0 == 0 { self.shared().first_input() } else { self.received(key) };
        let before = self.eager.program.enter(self.scopes[0]);
        self.eager.program.set_pass(Pass::Forward);
        self.eager.category = Category::Activation;
        self.counts.forwards += 1;
        let held = self.eager.retain(input);
        if key.0 > 0 {
            self.give(0, key, input);
        }
        let batch = self.shared().batches[&key.1];
        for storage in batch.all() {
            self.eager.retain(storage);
        }
        let (frame, output) = self.chunks[0].forward_on(&mut self.eager, Some(input), batch);
        self.eager.program.enter(before);
        let mut open = Open { frame, input: Some(held), output: None };
        if last {
            let part = self.shared().part;
            let elements = part.tokens * part.width;
            let copy = self.eager.clone_of(elements * DType::Fp32.bytes());
            let result = self.eager.cast(copy, elements, (DType::Fp32, part.dtype));
            self.shared().results.push_back(result);
            open.output = Some(self.eager.storage_as(DType::Fp32.bytes(), Category::Activation, "output"));
            self.eager.release(output);
        } else {
            self.outputs.insert(key, output);
        }
        self.open.insert(key, open);
    }
}
