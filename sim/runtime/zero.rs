//! DeepSpeed's ZeRO around a PyTorch module (`deepspeed.initialize`, 0.19.6: `deepspeed/runtime/engine.py`,
//! `deepspeed/runtime/zero/`).
//!
//! ```text
//! gradient ready ─► bucket ─► all-reduces of its owners' pieces (1, 2), a reduce-scatter (3)      reduce.rs
//! module begins ─► gathers now, and ahead; module ends ─► parameters let go (3)                   gather.rs
//! micro-batches ─► optimizer on the rank's part ─► parameters gathered again                      step.rs
//! ```
//!
//! The model is the user's own, op by op, and computes its loss itself; the engine's hooks stand around it
//! ([`crate::runtime::eager::around`]). What a step allocates and issues is [`flat`]'s under ZeRO-1 and 2, [`parts`]' under ZeRO-3.
//! Order and sizes equal DeepSpeed's own in every case of `tests/oracles/deepspeed-zero.json`, all blocks of a step those of
//! `tests/oracles/deepspeed-memory.json`.

mod away;
mod disk;
mod elements;
mod files;
mod flat;
mod gather;
mod host;
mod kernels;
mod modules;
mod parts;
mod quantized;
mod reduce;
mod shelf;
mod states;
mod step;
mod streams;
mod sub_groups;
mod update;
mod visits;

pub use crate::plan::zero::{
    Aio, Gathering, Nodes, Offload, ParameterFiles, Quantized, Stage, StateFiles, Zero, ZeroPlan,
};
pub use files::swappable;
pub use gather::{Bring, Coordinator, Fetch, gathered_elements};
pub use reduce::{AllReduce, Buckets, Partition, Reduction, Scatters};
pub use shelf::{Shelf, Trouble};
pub use streams::STREAMS;

use super::{Flight, Framework, Modules, Refusal};
use crate::program::{Budget, Program};

impl ZeroPlan {
    /// What of files would end the run with so many buffers.
    pub fn trouble(&self) -> impl Fn(u64) -> Option<Trouble> {
        step::trouble(self)
    }

    /// Elements of groups that are stepped one after the other, and of parts of parameters \[elements\].
    pub fn groups(&self) -> (Vec<u64>, Vec<u64>) {
        let parts = elements::parts(&self.zero, &self.elements());
        (elements::groups(&parts, self.zero.sub_group), parts)
    }

    /// Elements of each parameter.
    pub fn elements(&self) -> Vec<u64> {
        elements::of(&self.whole)
    }
}

impl Framework for ZeroPlan {
    fn refuses(&self) -> Option<Refusal> {
        let whole = &self.whole;
        let of_three = [
            (
                whole.checkpoint.is_selective(),
                Refusal::new("zero3-selective-checkpointing", "selective checkpointing under ZeRO-3")
                    .on("activation_checkpointing.policy"),
            ),
            (
                !whole.loss.sees_whole_logits(),
                Refusal::new("zero3-loss-by-parts", "a loss that takes the head in parts under ZeRO-3").on("loss.kind"),
            ),
        ];
        if let Some(refusal) = Refusal::first(of_three).filter(|_| self.zero.stage == Stage::Three) {
            return Some(refusal);
        }
        if self.whole.model.experts().is_some() {
            return Some(Refusal::new("zero-experts", "experts under ZeRO"));
        }
        self.whole.refuses()
    }

    fn modules(&self) -> Modules {
        let hooks = "what DeepSpeed's hooks in Python take of the host's time is not priced";
        let Offload { optimizer, parameters, .. } = self.zero.offload;
        let host =
            "the optimizer runs on the host, at an assumed memory bandwidth (what each of eight ranks of a node has)";
        let back = "stepped parameters come back from memory that is not pinned, at the rate of memory that is";
        let Quantized { weights, gradients } = self.zero.quantized;
        let bits = "kernels that quantise cost what elementwise kernels of their bytes do: nobody measured them";
        let cast =
            "DeepSpeed's kernel reads gradients as fp16 whatever they are: in bf16 what it sends is not their values";
        let disks = self.zero.offload.states.is_some() || self.zero.offload.files.is_some();
        let at_once = "files are read and written at the rates of the topology, each as if the other did not run";
        let locked =
            "buffers for files are locked, not registered with CUDA: copies to them at the rate of memory that is";
        let list = [
            (weights || gradients.is_some(), bits),
            (gradients.is_some(), cast),
            (disks, at_once),
            (disks, locked),
            (optimizer && self.zero.offload.ratio.get() > 0.0, host),
            (optimizer && !parameters && self.zero.stage == Stage::Three, back),
            (true, hooks),
        ];
        let doubts = list.into_iter().filter(|&(applies, _)| applies).map(|(_, doubt)| doubt).collect();
        Modules { doubts, ..self.whole.modules() }
    }

    fn sharded_states(&self) -> Vec<(&'static str, String)> {
        let Zero { stage, ranks, offload, hpz, .. } = self.zero;
        let one =
            if stage == Stage::Three { format!("1/{ranks} of each") } else { format!("1/{ranks} of all in a row") };
        let from = |least: Stage| if stage >= least { one.clone() } else { "whole".to_owned() };
        let share = if offload.ratio.get() < 1.0 {
            format!("{:.0} % of it ", 100.0 * offload.ratio.get())
        } else {
            String::new()
        };
        let place = |away: bool, on_disks: bool, part: String| match (away, on_disks) {
            (false, _) => part,
            (true, false) => format!("{part}, {share}in the host's memory"),
            (true, true) => format!("{part}, on the host's disks"),
        };
        let states = offload.states.is_some();
        let second = if hpz > 1 { format!(", and 1/{hpz} once it has gone in a step") } else { String::new() };
        vec![
            ("parameters", place(offload.parameters, offload.files.is_some(), from(Stage::Three)) + &second),
            match offload.optimizer && stage == Stage::One {
                true => ("gradients", format!("whole, and {one} in the host's memory")),
                false => ("gradients", place(offload.optimizer, states, from(Stage::Two))),
            },
            ("optimizer", place(offload.optimizer, states, from(Stage::One))),
        ]
    }

    /// The program of the rank whose kept gradients are most; the others differ in nothing else.
    fn compile(&self, budget: &Budget) -> Flight {
        Flight::alike(Program { host: away::host_memory(self), ..step::program(self, budget) })
    }
}
