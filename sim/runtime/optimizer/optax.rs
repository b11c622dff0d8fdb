//! optax's `adamw` as MaxText runs it: one fused loop of a compiled program, with first moments in a type of their own
//! (`mu_dtype`).

use super::contract::{Asked, Caller, Facts, Pass, Rules, State};
use super::kernels::Step;
use super::param::Owned;
use crate::plan::optimizer::{How, Optax};
use crate::program::DType;

/// What is known of it.
pub const ADAMW: Facts = Facts {
    name: "adamw",
    callers: &[(Caller::Xla, How::Fused)],
    on_host: &[],
    implementations: &[How::Fused],
    settings: &[],
    weight_decay: None,
    refusals: &[],
};

impl Optax {
    pub(super) fn new(asked: &Asked) -> Optax {
        Optax { moments: asked.moments }
    }

    fn pass(&self, params: &[Owned], element: u64) -> Pass {
        Pass::over("adamw", self, params, element)
    }
}

impl Rules for Optax {
    /// Both lie side by side.
    fn states(&self, param: &Owned, _element: u64) -> Vec<State> {
        vec![State::like(param, "mu, nu", self.moments.into_iter().map(DType::bytes).sum())]
    }

    fn counts_on_device(&self) -> bool {
        false
    }

    fn step(&self, step: &mut Step<'_>) {
        let Pass { kernel, read, written } = self.pass(step.params, step.element);
        step.multi_tensor(kernel, (read, written));
    }

    fn on_host(&self, _caller: Caller, _params: &[Owned], _element: u64) -> Option<Pass> {
        None
    }

    fn compiled(&self, params: &[Owned], element: u64) -> Option<Pass> {
        Some(self.pass(params, element))
    }

    fn slimmer(&self) -> Option<How> {
        None
    }

    fn decays_for_free(&self) -> bool {
        true
    }
}
