//! Apex's and Transformer Engine's `FusedAdam` as Megatron-Core runs it: one multi-tensor kernel that steps masters and moments of
//! types of their own (`--use-precision-aware-optimizer`). Where masters are kept as the lower half of what parameters are the upper
//! half of (`store_param_remainders`), the kernel reads and writes both.

use super::contract::{Asked, Caller, Facts, Pass, Rules, State};
use super::kernels::Step;
use super::param::{self, Owned};
use crate::plan::optimizer::{FusedAdam, How};
use crate::program::{DType, MemoryKind};

/// What is known of it.
pub const MEGATRON: Facts = Facts {
    name: "adam",
    callers: &[(Caller::Megatron, How::Fused)],
    on_host: &[],
    implementations: &[How::Fused],
    settings: &[],
    weight_decay: None,
    refusals: &[],
};

impl FusedAdam {
    pub(super) fn new(asked: &Asked) -> FusedAdam {
        FusedAdam { moments: asked.moments, master: asked.master, rest: asked.rest }
    }
}

impl Rules for FusedAdam {
    fn states(&self, param: &Owned, _element: u64) -> Vec<State> {
        let [first, second] = self.moments.map(DType::bytes);
        vec![State::like(param, "exp_avg", first), State::like(param, "exp_avg_sq", second)]
    }

    fn counts_on_device(&self) -> bool {
        false
    }

    fn step(&self, step: &mut Step<'_>) {
        let elements = param::elements(step.params);
        let state = self.master + self.rest + self.moments.into_iter().map(DType::bytes).sum::<u64>();
        let name = if self.rest > 0 { "multi_tensor_adam_param_remainder" } else { "fused_adam" };
        let moved = ((state + DType::Fp32.bytes()) * elements, state * elements);
        step.multi_tensor_of(MemoryKind::FusedOptimizer, name, moved);
    }

    fn on_host(&self, _caller: Caller, _params: &[Owned], _element: u64) -> Option<Pass> {
        None
    }

    fn compiled(&self, _params: &[Owned], _element: u64) -> Option<Pass> {
        None
    }

    fn slimmer(&self) -> Option<How> {
        None
    }

    fn decays_for_free(&self) -> bool {
        true
    }
}
