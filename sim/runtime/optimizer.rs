//! Optimizers: one table of all that frameworks step. A framework asks the table what an optimizer keeps and has it write its step.
//! Order and sizes are those of PyTorch 2.15 (`tests/oracles/fsdp2-switches.json`), and of each framework's own kernels.
//!
//! To add one: its settings and a variant in `plan/optimizer.rs`; a file in which they answer as [`Rules`], and its [`Facts`]; here its
//! line in [`Optimizer::rules`], and a row of [`TABLE`].
//!
//! ```text
//! param ─► kernels ─► contract ─► adam, bitsandbytes, composer, fused_adam, muon, optax, sgd ─► optimizer
//!                              └► clip, turn ─────────────────────────────────────────────┘
//! ```

mod adam;
mod bitsandbytes;
mod clip;
mod composer;
mod contract;
mod for_loop;
mod fused_adam;
mod kernels;
mod muon;
mod optax;
pub mod param;
mod placed;
mod sgd;
mod turn;

pub use clip::{clip, scale};
pub use contract::{Asked, Caller, Facts, Pass, Refusal, Rules, Setting, State};
pub use kernels::{Launches, Step};
pub use param::{Owned, Role, Shape};

pub use crate::plan::optimizer::{
    Adam, Bitsandbytes, Composer, Decay, FusedAdam, How, Muon, Optax, OptaxOf, Optimizer, Sgd,
};
use crate::program::Builder;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What is known by its name alone.
    pub facts: Facts,
    /// The optimizer with settings.
    pub make: fn(&Asked) -> Optimizer,
}

/// All optimizers. Of those that a framework takes the first is its default.
pub const TABLE: [Row; 14] = [
    Row { facts: adam::ADAMW, make: |asked| Optimizer::Adam(Adam::adamw(asked)) },
    Row { facts: adam::ADAM, make: |asked| Optimizer::Adam(Adam::plain(asked)) },
    Row { facts: sgd::SGD, make: |asked| Optimizer::Sgd(Sgd::new(asked)) },
    Row { facts: composer::DECOUPLED_ADAMW, make: |asked| Optimizer::Composer(Composer::new(asked)) },
    Row { facts: muon::MUON, make: |asked| Optimizer::Muon(Muon::new(asked)) },
    Row { facts: bitsandbytes::ADAMW, make: |asked| Optimizer::Bitsandbytes(Bitsandbytes::new(asked, 2)) },
    Row { facts: bitsandbytes::LION, make: |asked| Optimizer::Bitsandbytes(Bitsandbytes::new(asked, 1)) },
    Row { facts: fused_adam::MEGATRON, make: |asked| Optimizer::FusedAdam(FusedAdam::new(asked)) },
    Row { facts: adam::MEGATRON, make: |asked| Optimizer::Adam(Adam::adamw(asked)) },
    Row { facts: composer::INTERNEVO, make: |asked| Optimizer::Composer(Composer::new(asked)) },
    Row { facts: adam::NANOTRON, make: |asked| Optimizer::Adam(Adam::nanotron(asked)) },
    Row { facts: optax::ADAMW, make: |asked| Optimizer::Optax(Optax::new(asked, OptaxOf::Adamw)) },
    Row { facts: optax::ADAFACTOR, make: |asked| Optimizer::Optax(Optax::new(asked, OptaxOf::Adafactor)) },
    Row { facts: optax::SGD, make: |asked| Optimizer::Optax(Optax::new(asked, OptaxOf::Sgd)) },
];

/// Rows that a framework takes.
pub fn rows(caller: Caller) -> impl Iterator<Item = &'static Row> {
    const { &TABLE }.iter().filter(move |row| row.facts.default(caller).is_some())
}

impl Optimizer {
    /// What a framework steps that gives its users no choice.
    pub fn of(caller: Caller, asked: &Asked) -> Optimizer {
        let row = rows(caller).find(|row| row.facts.implementations.contains(&asked.how));
        (row.expect("every framework has a row for what it asks: a test says so").make)(asked)
    }

    fn rules(&self) -> &dyn Rules {
        match self {
            Optimizer::Adam(own) => own,
            Optimizer::Bitsandbytes(own) => own,
            Optimizer::Composer(own) => own,
            Optimizer::FusedAdam(own) => own,
            Optimizer::Muon(own) => own,
            Optimizer::Optax(own) => own,
            Optimizer::Sgd(own) => own,
        }
    }

    /// What it keeps of a parameter whose elements have so many bytes.
    pub fn states(&self, param: &Owned, element: u64) -> Vec<State> {
        self.rules().states(param, element)
    }

    /// One step of the host's processors over parameters that live there; none: the framework has none.
    pub fn on_host(&self, caller: Caller, params: &[Owned], element: u64) -> Option<Pass> {
        self.rules().on_host(caller, params, element)
    }

    /// One step inside a program that XLA has compiled; none: it is not known.
    pub fn compiled(&self, params: &[Owned], element: u64) -> Option<Pass> {
        self.rules().compiled(params, element)
    }

    /// The implementation that takes less memory than the one at hand, if there is one.
    pub fn slimmer(&self) -> Option<How> {
        self.rules().slimmer()
    }

    /// Whether its kernel applies weight decay along the way, whether or not there is any.
    pub fn decays_for_free(&self) -> bool {
        self.rules().decays_for_free()
    }

    /// Takes its states, as its first step does.
    pub fn make_state(&self, program: &mut Builder, caller: Caller, params: &[Owned], element: u64) {
        turn::make_state(program, self.rules(), (caller, params, element));
    }

    /// One step over all parameters.
    pub fn step(&self, program: &mut Builder, caller: Caller, params: &[Owned], element: u64) {
        turn::step(program, self.rules(), (caller, params, element));
    }

    /// The kernels of one step, without what Python takes to come to them.
    pub fn kernels(&self, program: &mut Builder, caller: Caller, params: &[Owned], element: u64) {
        turn::kernels(program, self.rules(), (caller, params, element));
    }

    /// One step over fp32 copies of parameters in a narrower type (`element` bytes), which are written back. `make` makes the
    /// optimizer's states where they are yet to be made.
    pub fn step_master(
        &self,
        program: &mut Builder,
        (caller, params, element): (Caller, &[Owned], u64),
        make: impl FnOnce(&mut Builder),
    ) {
        turn::step_master(program, self.rules(), (caller, params, element), make);
    }

    /// A parameter that lives on the host with its gradient and states (CPU offload).
    pub fn keep_on_host(&self, program: &mut Builder, param: &Owned, element: u64) {
        turn::keep_on_host(program, self.rules(), param, element);
    }

    /// One step, and clipping if asked for, of parameters, gradients and states that live on the host (CPU offload).
    pub fn step_on_host(&self, program: &mut Builder, (caller, params, element): (Caller, &[Owned], u64), clip: bool) {
        let moved = self.on_host(caller, params, element).expect("scenarios that step it there are refused");
        turn::step_on_host(program, moved, (params, element, clip));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_framework_has_an_optimizer_and_every_name_is_one_of_its_own() {
        for &caller in Caller::ALL {
            let names: Vec<_> = rows(caller).map(|row| (row.facts.name, row.facts.implementations)).collect();
            assert!(!names.is_empty(), "{caller:?}");
            for (at, name) in names.iter().enumerate() {
                assert!(!names[..at].contains(name), "{caller:?}: {name:?}");
            }
        }
    }

    #[test]
    fn a_default_is_an_implementation_and_who_steps_on_the_host_takes_it() {
        for Row { facts, make } in TABLE {
            for &(caller, how) in facts.callers {
                assert!(facts.implementations.contains(&how), "{} under {caller:?}", facts.name);
                let host = make(&Asked::plain(how)).on_host(caller, &[Owned::flat(8)], 4);
                assert!(host.is_some() || !facts.on_host.contains(&caller), "{} under {caller:?}", facts.name);
            }
            assert!(facts.on_host.iter().all(|&caller| facts.default(caller).is_some()), "{}", facts.name);
        }
    }

    #[test]
    fn adam_on_the_host_moves_seven_numbers_for_each_element_and_in_xla_with_half_a_moment_24_bytes() {
        let params = [Owned::flat(100)];
        let adam = Optimizer::of(Caller::Zero, &Asked::plain(How::Foreach));
        let moved = adam.on_host(Caller::Zero, &params, 4).expect("it has a step on the host");
        assert_eq!((moved.kernel, moved.read, moved.written), ("DeepSpeedCPUAdam", 1600, 1200));
        use crate::program::DType::{Bf16, Fp32};
        let optax = Optimizer::of(Caller::Xla, &Asked { moments: [Bf16, Fp32], ..Asked::plain(How::Fused) });
        let moved = optax.compiled(&params, 4).expect("it is compiled");
        assert_eq!((moved.read, moved.written), (1400, 1000));
    }
}
