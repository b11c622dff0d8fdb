//! The schedule's actions where pipeline ranks share the vocabulary.

use crate::program::{Category, DType, Owner, Pass};
use crate::runtime::eager::COMPUTE;
use crate::runtime::eager::vocabulary_parallel::Cast;
use crate::runtime::megatron::state::{Key, Open, Rank};
use crate::schedule::{Action, Kind};

impl Rank<'_> {
    /// An action beside the blocks'.
    pub(in crate::runtime::megatron) fn of_vocabulary(&mut self, action: Action) {
        let micro_batch = action.microbatch;
        let (scope, owner, pass) = match action.kind {
            Kind::Embed | Kind::SumEmbed | Kind::WaitSumEmbed => (2, Owner::Embedding, Pass::Forward),
            Kind::ShareGradient | Kind::EmbedBackward => (2, Owner::Embedding, Pass::Backward),
            _ => (1, Owner::Head, Pass::Forward),
        };
        let before = (self.eager.program.enter(self.scopes[scope].of(owner)), self.eager.program.set_pass(pass));
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

    /// Forward of the stage's blocks, with what stands before the first and behind the last but for the tables.
    pub(in crate::runtime::megatron) fn forward_without_tables(&mut self, key: Key) {
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
            let result = self.eager.cast(copy, elements, Cast { from: DType::Fp32, to: part.dtype });
            self.shared().results.push_back(result);
            open.output = Some(self.eager.storage_as(DType::Fp32.bytes(), Category::Activation, "output"));
            self.eager.release(output);
        } else {
            self.outputs.insert(key, output);
        }
        self.open.insert(key, open);
    }
}
