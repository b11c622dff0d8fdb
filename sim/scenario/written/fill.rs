//! Keys that a file leaves out, filled in from a table of defaults.

use std::ops::Range;

use super::{Attention, Checkpointing, Compile, Framework, Fsdp, Loop, Loss, Memory, Optimizer, Precision, Scenario};

/// Takes what is missing from `below`; `at` is where the file asks for it.
pub(super) trait Fill {
    fn fill(&mut self, below: Self, at: &Range<usize>);
}

/// Stands under a table's struct: every key of it, those with a place in the file first. A key that is missing does not compile.
macro_rules! fill {
    ($table:ident { $($placed:ident),* $(,)? } { $($plain:ident),* $(,)? } $({ $($own:ident),* })?) => {
        impl $crate::scenario::written::fill::Fill for $table {
            #[allow(unused_variables, reason = "a table may have no key with a place")]
            fn fill(&mut self, below: Self, at: &std::ops::Range<usize>) {
                let $table { $($placed,)* $($plain,)* $($($own: _,)*)? } = below;
                $(if self.$placed.is_none() {
                    self.$placed = $placed.map(|value| toml::Spanned::new(at.clone(), value.into_inner()));
                })*
                $(if self.$plain.is_none() { self.$plain = $plain; })*
            }
        }
    };
}

/// The tables that a release may have defaults for.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    fsdp: Fsdp,
    compile: Compile,
    loss: Loss,
    #[serde(rename = "loop")]
    training_loop: Loop,
    framework: Framework,
    activation_checkpointing: Checkpointing,
    optimizer: Optimizer,
    attention: Attention,
    memory: Memory,
    precision: Precision,
}

impl Scenario {
    /// Takes every key that the file leaves out from a release's defaults.
    pub fn fill(&mut self, below: Defaults, at: &Range<usize>) {
        self.fsdp.fill(below.fsdp, at);
        self.compile.fill(below.compile, at);
        self.loss.fill(below.loss, at);
        self.training_loop.fill(below.training_loop, at);
        self.framework.fill(below.framework, at);
        self.activation_checkpointing.fill(below.activation_checkpointing, at);
        self.optimizer.fill(below.optimizer, at);
        self.attention.fill(below.attention, at);
        self.memory.fill(below.memory, at);
        self.precision.fill(below.precision, at);
    }
}
