//! Optimizers with their settings, as a plan names them. What each of them keeps and how it steps is the runtime's.

use crate::program::DType;

/// How an optimizer goes through its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum How {
    /// One kernel for everything.
    Fused,
    /// Multi-tensor operators, one pass each (PyTorch's default on a GPU).
    Foreach,
    /// One parameter after the other, a kernel for each elementary operation.
    ForLoop,
}

impl How {
    /// As scenarios write it.
    pub fn written(self) -> &'static str {
        match self {
            How::Fused => "fused",
            How::Foreach => "foreach",
            How::ForLoop => "for_loop",
        }
    }
}

/// An optimizer with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Optimizer {
    /// torch's `Adam` or `AdamW`.
    Adam(Adam),
    /// bitsandbytes' optimizers with states of 8 bits.
    Bitsandbytes(Bitsandbytes),
    /// Composer's `DecoupledAdamW`.
    Composer(Composer),
    /// Apex's or Transformer Engine's `FusedAdam`.
    FusedAdam(FusedAdam),
    /// torch's `Muon`, and its `AdamW` for what is no matrix of a layer.
    Muon(Muon),
    /// One of optax's.
    Optax(Optax),
    /// torch's `SGD`.
    Sgd(Sgd),
}

/// What weight decay does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Decay {
    /// There is none.
    None,
    /// It shrinks the weights in place (`AdamW`).
    OfWeights,
    /// It is added to a copy of the gradients (`Adam`).
    InGradients,
}

/// `Adam` or `AdamW` with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Adam {
    /// How it goes through its parameters.
    pub how: How,
    /// What weight decay does.
    pub decay: Decay,
    /// Whether the maximum of second moments is kept, as a third state.
    pub amsgrad: bool,
    /// Whether each parameter's number of steps is a tensor on the device.
    pub counts_on_device: bool,
}

/// An optimizer of bitsandbytes with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Bitsandbytes {
    /// States of each parameter: two of AdamW, one of Lion.
    pub states: u8,
}

/// `DecoupledAdamW` with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Composer {
    /// Whether there is weight decay.
    pub decays: bool,
    /// Whether the number of steps is a tensor on the device, which the host reads back for each parameter
    /// (`DecoupledAdamW` of Composer 0.16 and later).
    pub step_on_device: bool,
}

/// `FusedAdam` with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct FusedAdam {
    /// Types of the first and the second moments.
    pub moments: [DType; 2],
    /// What is kept of each master parameter \[B\].
    pub master: u64,
    /// Bytes of a parameter that is the rest of its master; none: masters are whole.
    pub rest: u64,
}

/// `Muon` with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Muon {
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
    /// Newton–Schulz iterations (`ns_steps`).
    pub iterations: u32,
    /// What steps all other parameters.
    pub rest: Adam,
}

/// One of optax's optimizers with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Optax {
    /// Which.
    pub which: OptaxOf,
    /// Types of `mu` and `nu`.
    pub moments: [DType; 2],
}

/// Optimizers of optax.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum OptaxOf {
    /// `adamw`.
    Adamw,
    /// `adafactor`, without momentum, as its defaults have it.
    Adafactor,
    /// `sgd` without momentum.
    Sgd,
}

/// `SGD` with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Sgd {
    /// How it goes through its parameters.
    pub how: How,
    /// Whether there is weight decay, which is added to a copy of the gradients.
    pub decays: bool,
    /// Whether there is momentum, which is a state.
    pub momentum: bool,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
}
