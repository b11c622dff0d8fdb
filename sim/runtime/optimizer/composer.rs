//! Composer's `DecoupledAdamW` (`composer/optim/decoupled_weight_decay.py`): one parameter after the other, without `lerp_`. It
//! moves 80 B for each fp32 element, and 8 B more with weight decay. torch's `AdamW` of PyTorch 1.13, which InternEvo steps,
//! takes the same kernels.

use super::contract::{Asked, Caller, Facts, Pass, Rules, Setting, State};
use super::for_loop::{self, DECAY, DENOMINATOR, Result, SECOND_MOMENT, UPDATE};
use super::kernels::Step;
use super::param::Owned;
use crate::plan::optimizer::{Composer, How};

/// What is known of Composer's.
pub const DECOUPLED_ADAMW: Facts = Facts {
    name: "decoupled_adamw",
    callers: &[
        (Caller::Fsdp2, How::ForLoop),
        (Caller::Fsdp1, How::ForLoop),
        (Caller::SingleDevice, How::ForLoop),
        (Caller::Zero, How::ForLoop),
    ],
    on_host: &[Caller::Fsdp2, Caller::Fsdp1],
    implementations: &[How::ForLoop],
    settings: &[Setting::StepOnDevice],
    weight_decay: Some(1e-5),
    refusals: &[],
};

/// What is known of torch's `AdamW` as InternEvo runs it.
pub const INTERNEVO: Facts = Facts {
    name: "adamw",
    callers: &[(Caller::InternEvo, How::ForLoop)],
    on_host: &[],
    settings: &[],
    weight_decay: None,
    ..DECOUPLED_ADAMW
};

impl Composer {
    pub(super) fn new(asked: &Asked) -> Composer {
        Composer { decays: asked.decays, step_on_device: asked.step_on_device }
    }
}

impl Rules for Composer {
    fn states(&self, param: &Owned, element: u64) -> Vec<State> {
        ["exp_avg", "exp_avg_sq"].map(|name| State::like(param, name, element)).to_vec()
    }

    fn counts_on_device(&self) -> bool {
        self.step_on_device
    }

    fn step(&self, step: &mut Step<'_>) {
        let mut kernels = vec![("aten.mul_", (1, 1), Result::InPlace), ("aten.add_", (2, 1), Result::InPlace)];
        kernels.extend(SECOND_MOMENT);
        kernels.extend(DENOMINATOR);
        kernels.extend(self.decays.then_some(DECAY));
        kernels.push(UPDATE);
        for_loop::step(step, &kernels, self.step_on_device);
    }

    fn on_host(&self, _caller: Caller, params: &[Owned], element: u64) -> Option<Pass> {
        Some(Pass::over(Pass::ON_HOST, self, params, element))
    }

    fn compiled(&self, _params: &[Owned], _element: u64) -> Option<Pass> {
        None
    }

    fn slimmer(&self) -> Option<How> {
        None
    }

    fn decays_for_free(&self) -> bool {
        false
    }
}
