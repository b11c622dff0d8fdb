//! torch's `SGD` (`torch/optim/sgd.py`: `_multi_tensor_sgd`, `_single_tensor_sgd`, `_fused_sgd`).

use super::contract::{Asked, Caller, Facts, Pass, Refusal, Rules, Setting, State};
use super::kernels::Step;
use super::param::Owned;
use crate::plan::optimizer::{How, Sgd};
use crate::program::BufferId;

/// What is known of it.
pub const SGD: Facts = Facts {
    name: "sgd",
    callers: &[
        (Caller::Fsdp2, How::Foreach),
        (Caller::Fsdp1, How::Foreach),
        (Caller::SingleDevice, How::Foreach),
        (Caller::Zero, How::Foreach),
    ],
    on_host: &[Caller::Fsdp2, Caller::Fsdp1],
    implementations: &[How::Fused, How::Foreach, How::ForLoop],
    settings: &[Setting::Momentum],
    weight_decay: Some(0.0),
    refusals: &[Refusal {
        caller: Caller::Fsdp2,
        how: How::Fused,
        problem: "PyTorch refuses a fused SGD of fully_shard's parameters: \"Operator aten._fused_sgd_.default does not \
                  have a sharding strategy registered\"",
        remedy: "write implementation = \"foreach\", which is PyTorch's default",
    }],
};

impl Sgd {
    pub(super) fn new(asked: &Asked) -> Sgd {
        let Asked { how, decays, momentum, nesterov, .. } = *asked;
        Sgd { how, decays, momentum, nesterov }
    }

    /// Multi-tensor operators. Nesterov's momentum is added to the gradients in place; without it, the decayed gradients go when
    /// the momentum takes their name.
    fn foreach(self, step: &mut Step<'_>) {
        let mut decayed = self.decays.then(|| step.made("aten._foreach_add", (2, 1)));
        if self.momentum {
            step.foreach("aten._foreach_mul_", (1, 1));
            step.foreach("aten._foreach_add_", (2, 1));
            if self.nesterov {
                step.foreach("aten._foreach_add_", (2, 1));
            } else if let Some(decayed) = decayed.take() {
                step.let_go(decayed);
            }
        }
        step.foreach("aten._foreach_add_", (2, 1));
        if let Some(decayed) = decayed {
            step.let_go(decayed);
        }
    }

    /// One parameter after the other. What a parameter's gradient became goes when the next one's takes its name.
    fn for_loop(self, step: &mut Step<'_>) {
        let mut named: Option<BufferId> = None;
        for param in step.params {
            let bytes = param.elements() * step.element;
            let rename = |step: &mut Step<'_>, named: &mut Option<BufferId>, to: Option<BufferId>| {
                if let Some(gone) = std::mem::replace(named, to) {
                    step.program.free(gone);
                }
            };
            let sum = |step: &mut Step<'_>| {
                let sum = step.temporary(bytes, "aten.add");
                step.kernel("aten.add", 2 * bytes, bytes);
                Some(sum)
            };
            rename(step, &mut named, None);
            if self.decays {
                named = sum(step);
            }
            if self.momentum {
                step.kernel("aten.mul_", bytes, bytes);
                step.kernel("aten.add_", 2 * bytes, bytes);
                let next = if self.nesterov { sum(step) } else { None };
                rename(step, &mut named, next);
            }
            step.kernel("aten.add_", 2 * bytes, bytes);
        }
        if let Some(last) = named {
            step.program.free(last);
        }
    }
}

impl Rules for Sgd {
    fn states(&self, param: &Owned, element: u64) -> Vec<State> {
        self.momentum.then(|| State::like(param, "momentum_buffer", element)).into_iter().collect()
    }

    fn counts_on_device(&self) -> bool {
        false
    }

    fn step(&self, step: &mut Step<'_>) {
        match self.how {
            How::Foreach => self.foreach(step),
            How::ForLoop => self.for_loop(step),
            How::Fused => {
                let momentum = u64::from(self.momentum);
                step.fused("aten._fused_sgd_", (2 + momentum, 1 + momentum));
            }
        }
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
