//! How linears multiply, and what runs beside them.

use crate::model::megatron::{Fp8, Fp8Recipe, Scatter};

/// How linears multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Matmuls {
    /// In the parameters' type.
    Plain,
    /// In fp8 by Transformer Engine (`--fp8-format`).
    Fp8 {
        /// The recipe.
        recipe: Fp8Recipe,
        /// Whether parameters are kept, and gathered, in fp8 (`--fp8-param-gather`).
        parameters: bool,
        /// Whether the chip multiplies fp8 whichever way operands lie, so that no tensor is transposed.
        any_layout: bool,
    },
}

impl Matmuls {
    /// What the linears of a block are told; none: no fp8.
    pub fn fp8(self) -> Option<Fp8> {
        match self {
            Matmuls::Plain => None,
            Matmuls::Fp8 { recipe, parameters, any_layout } => {
                Some(Fp8 { recipe, parameters, any_layout, original: false })
            }
        }
    }

    /// Whether maxima are reduced over ranks after each forward and each backward of a chunk.
    pub fn reduces_maxima(self) -> bool {
        matches!(self, Matmuls::Fp8 { recipe: Fp8Recipe::Delayed, .. })
    }
}

/// How tensor-parallel ranks' user buffers are configured (`--tp-comm-overlap-cfg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Overlap {
    /// Whether matmuls that run beside a whole exchange leave processors to its kernel (`set_sm_margin`).
    pub bulk_margin: bool,
    /// How the sum of attention's projection is scattered (`proj_fprop`).
    pub proj: Scatter,
    /// How that of the feed-forward's second linear is (`fc2_fprop`).
    pub fc2: Scatter,
}

impl Default for Overlap {
    /// As Transformer Engine has it from 2.0 on (`get_default_config`).
    fn default() -> Overlap {
        Overlap { bulk_margin: true, proj: Scatter::Pipeline(16), fc2: Scatter::Pipeline(16) }
    }
}
