//! What each framework answers about its plan: what has no rules, whose modules run, and the programs of its ranks.

use std::fmt;

use super::{Flight, Refusal};
use crate::plan::Plan;
use crate::program::{Budget, TooLong};

/// What a framework answers about one of its plans.
pub trait Framework: fmt::Debug {
    /// What of the plan has no rules here, if anything.
    fn refuses(&self) -> Option<Refusal>;
    /// Whose modules run.
    fn modules(&self) -> Modules;
    /// Which part of each of the model's states a rank holds, where no parameter groups say so.
    fn sharded_states(&self) -> Vec<(&'static str, String)> {
        vec![]
    }
    /// Whether it is run with one queue to the device (`CUDA_DEVICE_MAX_CONNECTIONS=1`) unless somebody says otherwise, on
    /// chips before Blackwell.
    fn asks_for_one_queue(&self) -> bool {
        false
    }
    /// The framework's own key that lets blocks run again in backward, where it is a flag.
    fn recompute_flag(&self) -> Option<&'static str> {
        None
    }
    /// What its ranks run, written with instructions of a budget.
    fn compile(&self, budget: &Budget) -> Flight;
}

/// Whose modules a plan runs, in words for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modules {
    /// Whose blocks.
    pub blocks: &'static str,
    /// How attention is computed, where it is not by fused kernels.
    pub attention: Option<&'static str>,
    /// The linears' type, where it is not the head's.
    pub linears: Option<&'static str>,
    /// What may part the run from what is simulated.
    pub doubts: Vec<&'static str>,
}

impl Modules {
    /// Blocks with fused attention, and nothing to add.
    pub fn of(blocks: &'static str) -> Modules {
        Modules { blocks, attention: None, linears: None, doubts: vec![] }
    }
}

/// The framework of a plan, which answers for it.
impl Plan {
    fn framework(&self) -> &dyn Framework {
        match self {
            Plan::Torch(plan) => plan,
            Plan::Zero(plan) => plan,
            Plan::Megatron(plan) => plan,
            Plan::InternEvo(plan) => plan,
            Plan::Nanotron(plan) => plan,
            Plan::Xla(plan) => plan,
        }
    }

    /// What of it has no rules here, if anything.
    pub fn refuses(&self) -> Option<Refusal> {
        if !self.model().is_transformer() && !matches!(self, Plan::Torch(_) | Plan::Megatron(_)) {
            let what = "layers that are not attention and then a feed-forward";
            return Some(Refusal::new("mixers", what).on("runtime").instead("write runtime = \"fsdp2\""));
        }
        if self.model().has_gates() && !matches!(self, Plan::Torch(_)) {
            let what = "gated attention, or shared experts with a gate";
            return Some(Refusal::new("gates", what).on("runtime").instead("write runtime = \"fsdp2\""));
        }
        self.framework().refuses()
    }

    /// Whether it is run with one queue to the device unless somebody says otherwise, on chips before Blackwell.
    pub fn asks_for_one_queue(&self) -> bool {
        self.framework().asks_for_one_queue()
    }

    /// Whose modules run.
    pub fn modules(&self) -> Modules {
        self.framework().modules()
    }

    /// Which part of each of the model's states a rank holds, where no parameter groups say so.
    pub fn sharded_states(&self) -> Vec<(&'static str, String)> {
        self.framework().sharded_states()
    }

    /// The framework's own key that lets blocks run again in backward, where it is a flag.
    pub fn recompute_flag(&self) -> Option<&'static str> {
        self.framework().recompute_flag()
    }

    /// What its ranks run, however long that is.
    pub fn compile(&self) -> Flight {
        self.framework().compile(&Budget::unlimited())
    }

    /// What its ranks run, if their programs have no more than `most` instructions together.
    pub fn compile_within(&self, most: u64) -> Result<Flight, TooLong> {
        Budget::write(most, |budget| self.framework().compile(budget))
    }
}
