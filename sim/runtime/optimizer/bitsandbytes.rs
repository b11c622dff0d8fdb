//! bitsandbytes' AdamW and Lion with states of 8 bits in blocks of 256 elements (arXiv 2110.02861; bitsandbytes 0.50.2, `optim/optimizer.py`,
//! `optim/adamw.py`, `optim/lion.py`).
//!
//! A state is a byte for each element and an fp32 maximum for each block. Of parameters with fewer than 4,096 elements states are fp32. Each
//! parameter is stepped by one kernel, which takes no memory, and the host waits for it.

use super::contract::{Asked, Caller, Facts, Pass, Rules, State};
use super::kernels::Step;
use super::param::Owned;
use crate::plan::optimizer::{Bitsandbytes, How};
use crate::program::StreamId;

/// Elements of a block.
const BLOCK: u64 = 256;
/// Parameters smaller than this have fp32 states (`min_8bit_size`).
const SMALLEST: u64 = 4096;

/// What is known of `AdamW8bit`.
pub const ADAMW: Facts = Facts {
    name: "adamw_8bit",
    callers: &[(Caller::SingleDevice, How::ForLoop)],
    on_host: &[],
    implementations: &[How::ForLoop],
    settings: &[],
    weight_decay: Some(1e-2),
    refusals: &[],
};

/// What is known of `Lion8bit`.
pub const LION: Facts = Facts { name: "lion_8bit", weight_decay: Some(0.0), ..ADAMW };

impl Bitsandbytes {
    pub(super) fn new(_asked: &Asked, states: u8) -> Bitsandbytes {
        Bitsandbytes { states }
    }
}

impl Rules for Bitsandbytes {
    fn states(&self, param: &Owned, _element: u64) -> Vec<State> {
        let elements = param.elements();
        let names = [["state1", "absmax1"], ["state2", "absmax2"]];
        let names = || names.iter().take(usize::from(self.states));
        if elements < SMALLEST {
            return names().map(|[state, _]| State { name: state, elements, element: 4 }).collect();
        }
        let states = names().map(|[state, _]| State { name: state, elements, element: 1 });
        let maxima = names().map(|[_, maxima]| State { name: maxima, elements: elements.div_ceil(BLOCK), element: 4 });
        states.chain(maxima).collect()
    }

    fn counts_on_device(&self) -> bool {
        false
    }

    fn step(&self, step: &mut Step<'_>) {
        for param in step.params {
            let bytes = param.elements() * step.element;
            let states: u64 = self.states(param, step.element).iter().map(State::bytes).sum();
            step.kernel("optimizer_update_8bit_blockwise", 2 * bytes + states, bytes + states);
            step.program.wait_for_host(StreamId(0));
        }
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
