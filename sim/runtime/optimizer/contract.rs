//! What a framework asks of an optimizer, and what it is told.

use strum::VariantArray;

use super::kernels::{Launches, Step};
use super::param::Owned;
use crate::plan::optimizer::How;
use crate::program::DType;

/// Whose training step it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, VariantArray, serde::Serialize)]
pub enum Caller {
    /// PyTorch's `fully_shard`.
    Fsdp2,
    /// `FullyShardedDataParallel`.
    Fsdp1,
    /// PyTorch on one device.
    SingleDevice,
    /// DeepSpeed's ZeRO.
    Zero,
    /// Megatron-Core, by itself or under DeepSpeed's pipelines.
    Megatron,
    /// InternEvo.
    InternEvo,
    /// nanotron.
    Nanotron,
    /// A step that XLA has compiled.
    Xla,
}

impl Caller {
    /// All of them.
    pub const ALL: &[Caller] = Caller::VARIANTS;

    /// How many launches its multi-tensor operators take.
    pub(super) fn launches(self) -> Launches {
        match self {
            Caller::Megatron => Launches::OfAll,
            // Its step is counted as one launch.
            Caller::Nanotron => Launches::One,
            _ => Launches::OfEach,
        }
    }

    /// Whether it makes one state of all parameters after the other, in place of all states of one parameter.
    pub(super) fn makes_state_by_state(self) -> bool {
        self == Caller::Megatron
    }
}

/// A setting that some optimizers have and others have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `momentum`, and `nesterov` beside it.
    Momentum,
    /// `nesterov`, which is on unless a scenario says otherwise.
    Nesterov,
    /// `amsgrad`.
    Amsgrad,
    /// `step_on_device`.
    StepOnDevice,
}

/// What a framework, or a scenario, says of an optimizer besides its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// How it goes through its parameters.
    pub how: How,
    /// Whether there is weight decay.
    pub decays: bool,
    /// Whether there is momentum.
    pub momentum: bool,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
    /// Whether the maximum of second moments is kept.
    pub amsgrad: bool,
    /// Whether the number of steps is a tensor on the device.
    pub step_on_device: bool,
    /// Types of the first and the second moments, where the optimizer has types of its own for them.
    pub moments: [DType; 2],
    /// Bytes of each master parameter, where the optimizer steps such.
    pub master: u64,
    /// Bytes of the parameter itself, where that is the rest of its master and the step reads and writes it.
    pub rest: u64,
}

impl Asked {
    /// Weight decay, and nothing else that need not be.
    pub fn plain(how: How) -> Asked {
        Asked {
            how,
            decays: true,
            momentum: false,
            nesterov: false,
            amsgrad: false,
            step_on_device: false,
            moments: [DType::Fp32; 2],
            master: DType::Fp32.bytes(),
            rest: 0,
        }
    }
}

/// A tensor that an optimizer keeps of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Its name.
    pub name: &'static str,
    /// Elements.
    pub elements: u64,
    /// Bytes of each.
    pub element: u64,
}

impl State {
    /// A state of a parameter's size, with elements of so many bytes.
    pub fn like(param: &Owned, name: &'static str, element: u64) -> State {
        State { name, elements: param.elements(), element }
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.elements * self.element
    }
}

/// What a step takes of memory: one kernel of the host's processors, or of a compiled program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The kernel's name.
    pub kernel: &'static str,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl Pass {
    /// The name of what the host's processors do where PyTorch's optimizers step what is there.
    pub(super) const ON_HOST: &str = "optimizer on the host";

    /// A pass that reads parameters, gradients of the same type, and states, and writes all but the gradients.
    pub fn over(kernel: &'static str, rules: &dyn Rules, params: &[Owned], element: u64) -> Pass {
        let numbers = super::param::elements(params) * element;
        let states: u64 = params.iter().flat_map(|param| rules.states(param, element)).map(|state| state.bytes()).sum();
        Pass { kernel, read: 2 * numbers + states, written: numbers + states }
    }
}

/// What an optimizer, with its settings, answers to a framework.
pub trait Rules {
    /// What it keeps of a parameter whose elements have so many bytes, in the order in which it is made.
    fn states(&self, param: &Owned, element: u64) -> Vec<State>;

    /// Whether each parameter's number of steps is a tensor on the device.
    fn counts_on_device(&self) -> bool;

    /// Writes one step.
    fn step(&self, step: &mut Step<'_>);

    /// One step of the host's processors over parameters that live there; none: the framework has none.
    fn on_host(&self, caller: Caller, params: &[Owned], element: u64) -> Option<Pass>;

    /// One step inside a program that XLA has compiled; none: it is not known.
    fn compiled(&self, params: &[Owned], element: u64) -> Option<Pass>;

    /// The implementation that takes less memory than the one at hand, if there is one.
    fn slimmer(&self) -> Option<How>;

    /// Whether its kernel applies weight decay along the way, whether or not there is any.
    fn decays_for_free(&self) -> bool;
}

/// What a framework refuses of an optimizer, in the framework's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Who refuses.
    pub caller: Caller,
    /// Which implementation.
    pub how: How,
    /// Why.
    pub problem: &'static str,
    /// What to write instead.
    pub remedy: &'static str,
}

/// What is known of an optimizer by its name alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// As scenarios write it.
    pub name: &'static str,
    /// Who takes it, each with the implementation that runs where a scenario names none.
    pub callers: &'static [(Caller, How)],
    /// Who steps it on the host, too.
    pub on_host: &'static [Caller],
    /// Its implementations.
    pub implementations: &'static [How],
    /// Settings that it has.
    pub settings: &'static [Setting],
    /// Weight decay where a scenario leaves it out; none: no scenario says it.
    pub weight_decay: Option<f64>,
    /// What of it is refused.
    pub refusals: &'static [Refusal],
}

impl Facts {
    /// The implementation that runs under a framework where a scenario names none; none: the framework does not take it.
    pub fn default(&self, caller: Caller) -> Option<How> {
        self.callers.iter().find(|(known, _)| *known == caller).map(|&(_, how)| how)
    }
}
