//! torch's `Adam` and `AdamW` by multi-tensor operators, or in one kernel (`_multi_tensor_adam`, `_fused_adam`).

use super::{Adam, Decay, let_go, made};
use crate::program::Builder;

/// One step by multi-tensor operators. Square roots are temporaries of the size of the parameters, and so are the gradients that
/// `Adam` adds weight decay to: those have gone when the roots are made.
pub(super) fn foreach(program: &mut Builder, adam: Adam, sizes: &[u64], element: u64) {
    let decayed = match adam.decay {
        Decay::None => None,
        Decay::OfWeights => {
            super::foreach(program, "aten._foreach_mul_", sizes, element, (1, 1));
            None
        }
        Decay::InGradients => Some(made(program, "aten._foreach_add", sizes, element, (2, 1))),
    };
    super::foreach(program, "aten._foreach_lerp_", sizes, element, (2, 1));
    super::foreach(program, "aten._foreach_mul_", sizes, element, (1, 1));
    super::foreach(program, "aten._foreach_addcmul_", sizes, element, (2, 1));
    if let Some(decayed) = decayed {
        let_go(program, decayed);
    }
    if adam.amsgrad {
        super::foreach(program, "aten._foreach_maximum_", sizes, element, (2, 1));
    }
    let roots = made(program, "aten._foreach_sqrt", sizes, element, (1, 1));
    super::foreach(program, "aten._foreach_div_", sizes, element, (1, 1));
    super::foreach(program, "aten._foreach_add_", sizes, element, (1, 1));
    super::foreach(program, "aten._foreach_addcdiv_", sizes, element, (3, 1));
    let_go(program, roots);
}

/// One step in one kernel.
pub(super) fn fused(program: &mut Builder, adam: Adam, sizes: &[u64], element: u64) {
    let maximum = u64::from(adam.amsgrad);
    super::foreach(program, "aten._fused_adamw_", sizes, element, (4 + maximum, 3 + maximum));
}
