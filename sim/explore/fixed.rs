//! What stays the same while a length or an axis of the mesh is varied: the sequences of a step of the whole job.
//!
//! Tokens cannot stay: few lengths divide them. Micro-batches cannot stay where the number of replicas changes. A number of
//! sequences stays at every length and on every mesh, and the tokens of a step grow with the length.

use serde_json::{Value, json};

use super::words::thousands;
use crate::scenario::{Draft, Scenario};

/// The batch of a step of the whole job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Sequences of a step.
    pub sequences: u64,
    /// Sequences of a micro-batch.
    pub micro: u64,
    /// Micro-batches of a step at the scenario's own mesh.
    pub micro_batches: u32,
    /// Tokens of a step at the scenario's own length.
    pub tokens: u64,
    /// The scenario's own length \[tokens\].
    pub own: u64,
    /// Chips of the job.
    pub chips: u32,
    /// Whether a step is compiled as one micro-batch: `batch.micro` then follows where the mesh changes.
    pub compiled: bool,
}

impl Fixed {
    /// What a scenario holds fixed.
    pub fn of(scenario: &Scenario) -> Fixed {
        let job = &scenario.job;
        Fixed {
            sequences: job.tokens() / job.seq().max(1),
            micro: job.batch(),
            micro_batches: job.micro_batches(),
            tokens: job.tokens(),
            own: job.seq(),
            chips: scenario.topology.chips(),
            compiled: scenario.runtime.is_compiled(),
        }
    }

    /// The draft with as many sequences a step at every length.
    pub(super) fn at_every_length(self, draft: &Draft) -> Draft {
        let mut draft = draft.clone();
        if draft.get("batch.global_tokens").is_some() {
            draft.remove("batch.global_tokens");
            self.write(&mut draft);
        }
        draft
    }

    /// The draft with as many sequences a step on a mesh of other axes: `batch.accumulation` follows, and under XLA `batch.micro`.
    pub(super) fn on_every_mesh(self, draft: &Draft) -> Draft {
        let mut draft = draft.clone();
        for key in ["batch.global", "batch.global_tokens", "batch.accumulation"] {
            draft.remove(key);
        }
        if self.compiled {
            let made = draft.scenario().map_or(0, |scenario| Fixed::of(&scenario).sequences);
            let micro = (self.sequences * self.micro).checked_div(made).unwrap_or(self.micro);
            // Where that is no whole number, the file keeps its own, and is refused with both numbers.
            if micro * made == self.sequences * self.micro {
                draft.set("batch.micro", i64::try_from(micro).unwrap_or(i64::MAX));
            }
        }
        self.write(&mut draft);
        draft
    }

    fn write(self, draft: &mut Draft) {
        draft.set("batch.global", i64::try_from(self.sequences).unwrap_or(i64::MAX));
    }

    /// As a sentence says it.
    pub(super) fn words(self) -> String {
        let plural = if self.sequences == 1 { "" } else { "s" };
        format!(
            "{} sequence{plural} a step of the whole job at every length: {} tokens at the file's own {}",
            thousands(self.sequences),
            thousands(self.tokens),
            thousands(self.own)
        )
    }

    /// As a program reads it.
    pub(super) fn json(self) -> Value {
        json!({
            "sequences_per_step": self.sequences,
            "tokens_per_step_at_own_length": self.tokens,
            "sequences_per_micro_batch": self.micro,
            "micro_batches_per_step": self.micro_batches,
            "chips": self.chips,
        })
    }
}
