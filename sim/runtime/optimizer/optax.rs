//! optax's optimizers as MaxText and T5X run them: fused loops of a compiled program. First moments of `adamw` have a type of their
//! own (`mu_dtype`).

use super::contract::{Asked, Caller, Facts, Pass, Rules, State};
use super::kernels::Step;
use super::param::{Owned, Shape, elements};
use crate::plan::optimizer::{How, Optax, OptaxOf};
use crate::program::DType;

/// The least size of a matrix's smaller side whose second moments are kept by row and column (`min_dim_size_to_factor` of
/// optax 0.2.8, `factorized.py`).
const FACTORED_FROM: u64 = 128;

/// What is known of `adamw`.
pub const ADAMW: Facts = Facts {
    name: "adamw",
    callers: &[(Caller::Xla, How::Fused)],
    on_host: &[],
    implementations: &[How::Fused],
    settings: &[],
    weight_decay: None,
    refusals: &[],
};

/// What is known of `adafactor`.
pub const ADAFACTOR: Facts = Facts { name: "adafactor", ..ADAMW };

/// What is known of `sgd`.
pub const SGD: Facts = Facts { name: "sgd", ..ADAMW };

impl Optax {
    pub(super) fn new(asked: &Asked, which: OptaxOf) -> Optax {
        Optax { which, moments: asked.moments }
    }

    fn pass(&self, params: &[Owned], element: u64) -> Pass {
        match self.which {
            OptaxOf::Adamw => Pass::over("adamw", self, params, element),
            OptaxOf::Sgd => Pass::over("sgd", self, params, element),
            OptaxOf::Adafactor => {
                // Gradients are read for the means of their squares, then for the size of the update, then for the update itself;
                // parameters for their own size, and then.
                let own = elements(params) * element;
                let states: u64 =
                    params.iter().flat_map(|param| self.states(param, element)).map(|state| state.bytes()).sum();
                Pass { kernel: "adafactor", read: 5 * own + states, written: own + states }
            }
        }
    }
}

/// Numbers that Adafactor keeps of an array: of its two longest sides the means over each, or, where the shorter of them is
/// short, the whole. Arrays of several blocks, or of several experts, are one of three or four sides. None of them is cut.
fn factors(shape: Shape) -> Option<u64> {
    let mut sides = [shape.matrices, shape.rows, shape.cols];
    sides.sort_unstable();
    let [_, second, first] = sides;
    let all = shape.elements();
    (second >= FACTORED_FROM).then(|| all / first + all / second)
}

impl Rules for Optax {
    /// Both moments lie side by side.
    fn states(&self, param: &Owned, _element: u64) -> Vec<State> {
        match self.which {
            OptaxOf::Adamw => {
                vec![State::like(param, "mu, nu", self.moments.into_iter().map(DType::bytes).sum())]
            }
            OptaxOf::Sgd => vec![],
            OptaxOf::Adafactor => {
                let whole = State::like(param, "v", DType::Fp32.bytes());
                vec![factors(param.shape).map_or(whole, |elements| State { name: "v_row, v_col", elements, ..whole })]
            }
        }
    }

    fn counts_on_device(&self) -> bool {
        false
    }

    fn step(&self, step: &mut Step<'_>) {
        let Pass { kernel, read, written } = self.pass(step.params, step.element);
        step.multi_tensor(kernel, (read, written));
    }

    fn on_host(&self, _caller: Caller, _params: &[Owned], _element: u64) -> Option<Pass> {
        None
    }

    fn compiled(&self, params: &[Owned], element: u64) -> Option<Pass> {
        Some(self.pass(params, element))
    }

    fn slimmer(&self) -> Option<How> {
        None
    }

    fn decays_for_free(&self) -> bool {
        true
    }
}
