//! torch's `Adam` and `AdamW` (`torch/optim/adam.py`, `adamw.py`): by multi-tensor operators (`_multi_tensor_adam`), one parameter
//! after the other (`_single_tensor_adam`), or in one kernel (`_fused_adam`). On the host DeepSpeed runs `DeepSpeedCPUAdam` in their
//! place (`deepspeed/ops/adam/cpu_adam.py`).

use super::contract::{Asked, Caller, Facts, Pass, Rules, Setting, State};
use super::for_loop::{self, DECAY, DENOMINATOR, Kernel, Result, SECOND_MOMENT, UPDATE};
use super::kernels::Step;
use super::param::Owned;
use crate::plan::optimizer::{Adam, Decay, How};

/// What is known of `AdamW`.
pub const ADAMW: Facts = Facts {
    name: "adamw",
    callers: TORCH,
    on_host: &[Caller::Fsdp2, Caller::Fsdp1, Caller::Zero],
    implementations: &[How::Fused, How::Foreach, How::ForLoop],
    settings: &[Setting::Amsgrad],
    weight_decay: Some(0.01),
    refusals: &[],
};

/// What is known of `Adam`.
pub const ADAM: Facts =
    Facts { name: "adam", on_host: &[Caller::Fsdp2, Caller::Fsdp1], weight_decay: Some(0.0), ..ADAMW };

/// What is known of `AdamW` as nanotron runs it.
pub const NANOTRON: Facts = Facts {
    callers: &[(Caller::Nanotron, How::Fused)],
    on_host: &[],
    implementations: &[How::Fused],
    settings: &[],
    weight_decay: None,
    ..ADAMW
};

/// What is known of `AdamW` as Megatron-Core runs it where neither Apex nor Transformer Engine is there.
pub const MEGATRON: Facts =
    Facts { name: "adam", callers: &[(Caller::Megatron, How::Foreach)], implementations: &[How::Foreach], ..NANOTRON };

/// Who takes both by name. Under DeepSpeed it is its own `FusedAdam` (`deepspeed/runtime/engine.py`, `_configure_basic_optimizer`).
const TORCH: &[(Caller, How)] = &[
    (Caller::Fsdp2, How::Foreach),
    (Caller::Fsdp1, How::Foreach),
    (Caller::SingleDevice, How::Foreach),
    (Caller::Zero, How::Fused),
];

impl Adam {
    /// torch's own, which counts steps on the device if it is fused.
    pub fn new(how: How, decay: Decay, amsgrad: bool) -> Adam {
        Adam { how, decay, amsgrad, counts_on_device: how == How::Fused }
    }

    /// With decay of weights, if there is any.
    pub(super) fn adamw(asked: &Asked) -> Adam {
        let decay = if asked.decays { Decay::OfWeights } else { Decay::None };
        Adam::new(asked.how, decay, asked.amsgrad)
    }

    /// With decay in gradients, if there is any.
    pub(super) fn plain(asked: &Asked) -> Adam {
        let decay = if asked.decays { Decay::InGradients } else { Decay::None };
        Adam { decay, ..Adam::adamw(asked) }
    }

    /// As nanotron runs it: the number of steps is not among its states.
    pub(super) fn nanotron(asked: &Asked) -> Adam {
        Adam { counts_on_device: false, ..Adam::adamw(asked) }
    }

    /// Square roots are temporaries of the size of the parameters, and so are the gradients that `Adam` adds weight decay to: those
    /// have gone when the roots are made.
    fn foreach(self, step: &mut Step<'_>) {
        let decayed = match self.decay {
            Decay::None => None,
            Decay::OfWeights => {
                step.foreach("aten._foreach_mul_", (1, 1));
                None
            }
            Decay::InGradients => Some(step.made("aten._foreach_add", (2, 1))),
        };
        step.foreach("aten._foreach_lerp_", (2, 1));
        step.foreach("aten._foreach_mul_", (1, 1));
        step.foreach("aten._foreach_addcmul_", (2, 1));
        if let Some(decayed) = decayed {
            step.let_go(decayed);
        }
        if self.amsgrad {
            step.foreach("aten._foreach_maximum_", (2, 1));
        }
        let roots = step.made("aten._foreach_sqrt", (1, 1));
        step.foreach("aten._foreach_div_", (1, 1));
        step.foreach("aten._foreach_add_", (1, 1));
        step.foreach("aten._foreach_addcdiv_", (3, 1));
        step.let_go(roots);
    }

    fn for_loop(self, step: &mut Step<'_>) {
        /// `grad.add(param, alpha=weight_decay)`.
        const DECAY_IN_GRADIENT: Kernel = ("aten.add", (2, 1), Result::Gradient);
        /// `torch.maximum(max_exp_avg_sq, exp_avg_sq, out=max_exp_avg_sq)`.
        const MAXIMUM: Kernel = ("aten.maximum", (2, 1), Result::InPlace);
        let mut kernels = match self.decay {
            Decay::None => vec![],
            Decay::OfWeights => vec![DECAY],
            Decay::InGradients => vec![DECAY_IN_GRADIENT],
        };
        kernels.push(("aten.lerp_", (2, 1), Result::InPlace));
        kernels.extend(SECOND_MOMENT);
        kernels.extend(self.amsgrad.then_some(MAXIMUM));
        kernels.extend(DENOMINATOR);
        kernels.push(UPDATE);
        for_loop::step(step, &kernels, false);
    }
}

impl Rules for Adam {
    fn states(&self, param: &Owned, element: u64) -> Vec<State> {
        let maximum = self.amsgrad.then_some("max_exp_avg_sq");
        let names = ["exp_avg", "exp_avg_sq"].into_iter().chain(maximum);
        names.map(|name| State::like(param, name, element)).collect()
    }

    fn counts_on_device(&self) -> bool {
        self.counts_on_device
    }

    fn step(&self, step: &mut Step<'_>) {
        match self.how {
            How::Foreach => self.foreach(step),
            How::ForLoop => self.for_loop(step),
            How::Fused => {
                let maximum = u64::from(self.amsgrad);
                step.fused("aten._fused_adamw_", (4 + maximum, 3 + maximum));
            }
        }
    }

    fn on_host(&self, caller: Caller, params: &[Owned], element: u64) -> Option<Pass> {
        let kernel = if caller == Caller::Zero { "DeepSpeedCPUAdam" } else { Pass::ON_HOST };
        Some(Pass::over(kernel, self, params, element))
    }

    fn compiled(&self, _params: &[Owned], _element: u64) -> Option<Pass> {
        None
    }

    fn slimmer(&self) -> Option<How> {
        (self.how == How::Foreach).then_some(How::Fused)
    }

    fn decays_for_free(&self) -> bool {
        self.how == How::Fused
    }
}
