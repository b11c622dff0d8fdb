//! torch's `SGD` (`_multi_tensor_sgd`, `_single_tensor_sgd`, `_fused_sgd`).

use super::for_loop::kernel;
use super::{How, Sgd, let_go, made};
use crate::program::{BufferId, Builder, Category, StreamId};
use crate::units::Bytes;

/// One step.
pub(super) fn step(program: &mut Builder, sgd: Sgd, sizes: &[u64], element: u64) {
    match sgd.how {
        How::Foreach => foreach(program, sgd, sizes, element),
        How::ForLoop => for_loop(program, sgd, sizes, element),
        How::Fused => {
            let momentum = u64::from(sgd.momentum);
            super::foreach(program, "aten._fused_sgd_", sizes, element, (2 + momentum, 1 + momentum));
        }
    }
}

/// Multi-tensor operators. Nesterov's momentum is added to the gradients in place; without it, the decayed gradients go when the
/// momentum takes their name.
fn foreach(program: &mut Builder, sgd: Sgd, sizes: &[u64], element: u64) {
    let mut decayed = sgd.decays.then(|| made(program, "aten._foreach_add", sizes, element, (2, 1)));
    if sgd.momentum {
        super::foreach(program, "aten._foreach_mul_", sizes, element, (1, 1));
        super::foreach(program, "aten._foreach_add_", sizes, element, (2, 1));
        if sgd.nesterov {
            super::foreach(program, "aten._foreach_add_", sizes, element, (2, 1));
        } else if let Some(decayed) = decayed.take() {
            let_go(program, decayed);
        }
    }
    super::foreach(program, "aten._foreach_add_", sizes, element, (2, 1));
    if let Some(decayed) = decayed {
        let_go(program, decayed);
    }
}

/// One parameter after the other. What a parameter's gradient became goes when the next one's takes its name.
fn for_loop(program: &mut Builder, sgd: Sgd, sizes: &[u64], element: u64) {
    let mut named: Option<BufferId> = None;
    for &elements in sizes {
        let bytes = elements * element;
        let rename = |program: &mut Builder, named: &mut Option<BufferId>, to: Option<BufferId>| {
            if let Some(gone) = std::mem::replace(named, to) {
                program.free(gone);
            }
        };
        let sum = |program: &mut Builder| {
            let sum = program.alloc(Bytes(bytes), StreamId(0), Category::OptimizerTemporary, "aten.add");
            kernel(program, "aten.add", 2 * bytes, bytes);
            Some(sum)
        };
        rename(program, &mut named, None);
        if sgd.decays {
            named = sum(program);
        }
        if sgd.momentum {
            kernel(program, "aten.mul_", bytes, bytes);
            kernel(program, "aten.add_", 2 * bytes, bytes);
            let next = if sgd.nesterov { sum(program) } else { None };
            rename(program, &mut named, next);
        }
        kernel(program, "aten.add_", 2 * bytes, bytes);
    }
    if let Some(last) = named {
        program.free(last);
    }
}
