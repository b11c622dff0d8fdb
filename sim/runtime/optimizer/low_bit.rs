//! `AdamW` whose states have 8 or 4 bits: torchao's `AdamW8bit`, `AdamW4bit` and `AdamWFp8` (`torchao/optim/adam.py`, 0.18), and
//! bitsandbytes' `AdamW8bit` (`bitsandbytes/optim/optimizer.py`, 0.50). Each block of a state has a scale in fp32. One kernel a
//! parameter reads the states, steps, and writes them back, so there are no temporaries: inductor's for torchao, written by hand for
//! bitsandbytes.

use super::contract::{Asked, Caller, Facts, Pass, Rules, Setting, State};
use super::kernels::Step;
use super::param::Owned;
use crate::plan::optimizer::{How, LowBit, Narrow};
use crate::program::DType;

/// What is known of torchao's with 8 bits. `fully_shard`'s parameters are stepped as the rank's own part.
pub const TORCHAO_8BIT: Facts = Facts {
    name: "torchao_adamw8bit",
    callers: &[(Caller::Fsdp2, How::ForLoop), (Caller::SingleDevice, How::ForLoop)],
    on_host: &[],
    implementations: &[How::ForLoop],
    settings: &[Setting::Amsgrad],
    weight_decay: Some(0.01),
    refusals: &[],
};

/// What is known of torchao's with 4 bits.
pub const TORCHAO_4BIT: Facts = Facts { name: "torchao_adamw4bit", ..TORCHAO_8BIT };

/// What is known of torchao's in fp8.
pub const TORCHAO_FP8: Facts = Facts { name: "torchao_adamwfp8", ..TORCHAO_8BIT };

/// What is known of bitsandbytes'.
pub const BITSANDBYTES_8BIT: Facts = Facts {
    name: "bitsandbytes_adamw8bit",
    callers: &[(Caller::SingleDevice, How::ForLoop)],
    settings: &[],
    ..TORCHAO_8BIT
};

/// Elements of the smallest state that is narrow (`local_p.numel() >= 4096`, `min_8bit_size`).
const SMALLEST: u64 = 4096;

impl LowBit {
    pub(super) fn new(narrow: Narrow, asked: &Asked) -> LowBit {
        LowBit { narrow, amsgrad: asked.amsgrad }
    }

    /// Elements of a block, bits of each, and elements of the table that says what the bits mean, of which every state has one.
    fn format(self) -> (u64, u64, u64) {
        match self.narrow {
            Narrow::TorchaoInt8 => (256, 8, 256),
            Narrow::TorchaoInt4 => (128, 4, 16),
            Narrow::TorchaoFp8 => (256, 8, 0),
            // Its two tables are those of all parameters: 2 KB, left out.
            Narrow::BitsandbytesInt8 => (256, 8, 0),
        }
    }

    /// Whether a parameter's states are narrow.
    fn narrows(self, param: &Owned) -> bool {
        let (block, ..) = self.format();
        let whole_blocks = self.narrow == Narrow::BitsandbytesInt8 || param.elements().is_multiple_of(block);
        param.elements() >= SMALLEST && whole_blocks
    }
}

impl Rules for LowBit {
    fn states(&self, param: &Owned, element: u64) -> Vec<State> {
        let maximum = self.amsgrad.then_some("max_exp_avg_sq");
        let names: Vec<_> = ["exp_avg", "exp_avg_sq"].into_iter().chain(maximum).collect();
        if !self.narrows(param) {
            let wide = if self.narrow == Narrow::BitsandbytesInt8 { DType::Fp32.bytes() } else { element };
            return names.into_iter().map(|name| State::like(param, name, wide)).collect();
        }
        let (block, bits, table) = self.format();
        let codes = |name| State { name, elements: param.elements() * bits / 8, element: 1 };
        let fp32 = |name, elements| State { name, elements, element: DType::Fp32.bytes() };
        let scale = || fp32("scale", param.elements().div_ceil(block));
        if self.narrow == Narrow::BitsandbytesInt8 {
            return names.iter().map(|&name| codes(name)).chain(names.iter().map(|_| scale())).collect();
        }
        let table = (table > 0).then(|| fp32("qmap", table));
        names.into_iter().flat_map(|name| [codes(name), scale()].into_iter().chain(table)).collect()
    }

    fn counts_on_device(&self) -> bool {
        false
    }

    fn step(&self, step: &mut Step<'_>) {
        for param in step.params {
            let numbers = param.elements() * step.element;
            let states: u64 = self.states(param, step.element).iter().map(State::bytes).sum();
            let name = if self.narrow == Narrow::BitsandbytesInt8 {
                "bitsandbytes.optimizer_update_8bit_blockwise"
            } else {
                "torchao.single_param_adam"
            };
            step.kernel(name, 2 * numbers + states, numbers + states);
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
