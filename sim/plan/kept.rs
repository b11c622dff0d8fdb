//! What a job keeps of a model from one step to the next, which is what a checkpoint holds.

use super::Plan;
use super::optimizer::{OptaxOf, Optimizer};
use super::zero::Stage;
use crate::program::DType;

/// Bytes that are kept of each parameter, all ranks together and without replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The parameter itself \[B\].
    pub parameter: u64,
    /// What the optimizer steps in its place \[B\]; 0 where it steps the parameter itself.
    pub master: u64,
    /// The optimizer's states \[B\].
    pub moments: u64,
}

impl Kept {
    /// All of it \[B\].
    pub fn bytes(self) -> u64 {
        self.parameter + self.master + self.moments
    }
}

/// An optimizer's states of a parameter that it steps in so many bytes \[B\].
fn states(optimizer: &Optimizer, stepped: u64) -> u64 {
    match optimizer {
        Optimizer::Adam(adam) => stepped * if adam.amsgrad { 3 } else { 2 },
        // The maxima of blocks, 4 B for 256 elements, are left out.
        Optimizer::Bitsandbytes(own) => u64::from(own.states),
        Optimizer::Composer(_) => 2 * stepped,
        Optimizer::FusedAdam(adam) => adam.moments.iter().map(|dtype| dtype.bytes()).sum(),
        // Of tables and vectors, which AdamW steps, the second moments are left out.
        Optimizer::Muon(_) => stepped,
        Optimizer::Optax(adam) => adam.moments.iter().map(|dtype| dtype.bytes()).sum(),
        Optimizer::Sgd(sgd) => {
            if sgd.momentum {
                stepped
            } else {
                0
            }
        }
    }
}

/// Bytes of a number in fp32 \[B\].
const FP32: u64 = 4;

impl Plan {
    /// What is kept of each parameter.
    pub fn kept(&self) -> Kept {
        match self {
            Plan::Torch(plan) => {
                let parameter = plan.fsdp.mixed_precision.storage.bytes();
                let master = if plan.master_weights { FP32 } else { 0 };
                let stepped = if plan.master_weights { FP32 } else { parameter };
                Kept { parameter, master, moments: states(&plan.optimizer, stepped) }
            }
            Plan::Zero(plan) => {
                Kept { parameter: DType::Bf16.bytes(), master: FP32, moments: states(&plan.whole.optimizer, FP32) }
            }
            Plan::Megatron(plan) => {
                let optimizer = &plan.optimizer;
                let moments = optimizer.first_moment.bytes() + optimizer.second_moment.bytes();
                Kept { parameter: plan.split.dtype.bytes(), master: optimizer.master_bytes(), moments }
            }
            Plan::InternEvo(plan) => Kept { parameter: plan.split.dtype.bytes(), master: FP32, moments: 2 * FP32 },
            Plan::Nanotron(plan) => Kept { parameter: plan.split.dtype.bytes(), master: FP32, moments: 2 * FP32 },
            Plan::Xla(plan) => {
                let own = if plan.half_weights { DType::Bf16.bytes() } else { FP32 };
                let first = if plan.half_moment { DType::Bf16.bytes() } else { own };
                // Adafactor's rows and columns are thousandths of a byte for each.
                let moments = if plan.optax == OptaxOf::Adamw { first + own } else { 0 };
                Kept { parameter: own, master: 0, moments }
            }
        }
    }

    /// Whole copies of the model's parameters that the ranks have together.
    pub fn copies(&self) -> u32 {
        match self {
            Plan::Torch(plan) => plan.fsdp.replicate,
            Plan::Zero(plan) if plan.zero.stage == Stage::Three => 1,
            Plan::Zero(plan) => plan.zero.ranks,
            Plan::Megatron(plan) => plan.split.mesh.dp,
            Plan::InternEvo(plan) => plan.split.mesh.dp,
            Plan::Nanotron(plan) => plan.split.mesh.dp,
            Plan::Xla(plan) => plan.mesh.replicas(),
        }
    }

    /// Copies that a node of so many chips has a part of: they go with it.
    pub fn copies_on_node(&self, chips: u32) -> u64 {
        let chips_of_copy = (self.ranks() / u64::from(self.copies()).max(1)).max(1);
        (u64::from(chips) / chips_of_copy).max(1)
    }
}
