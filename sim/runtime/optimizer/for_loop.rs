//! Adam's kernels where one parameter is stepped after the other, a kernel for each elementary operation: torch's
//! `Adam(foreach=False)`, which moves 72 B for each fp32 element, and Composer's.
//!
//! The denominator of one parameter lives until the next one's has been made: Python names it in a loop. So does the
//! gradient to which `Adam` added weight decay, until the next parameter's takes its name.

use super::kernels::Step;
use crate::program::BufferId;

/// What becomes of a kernel's result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Result {
    /// It is written over an operand.
    InPlace,
    /// It takes the name of the parameter's gradient.
    Gradient,
    /// It goes when the parameter's kernels have run.
    Root,
    /// It goes when the next parameter's has been made.
    Denominator,
}

/// One kernel: its name, the numbers it reads and writes per element, and its result.
pub(super) type Kernel = (&'static str, (u64, u64), Result);

pub(super) const DECAY: Kernel = ("aten.mul_", (1, 1), Result::InPlace);
/// `exp_avg_sq.mul_(β₂).addcmul_(g, g)`.
pub(super) const SECOND_MOMENT: [Kernel; 2] =
    [("aten.mul_", (1, 1), Result::InPlace), ("aten.addcmul_", (2, 1), Result::InPlace)];
/// `(exp_avg_sq.sqrt() / c).add_(ε)`.
pub(super) const DENOMINATOR: [Kernel; 3] = [
    ("aten.sqrt", (1, 1), Result::Root),
    ("aten.div", (1, 1), Result::Denominator),
    ("aten.add_", (1, 1), Result::InPlace),
];
pub(super) const UPDATE: Kernel = ("aten.addcdiv_", (3, 1), Result::InPlace);

/// One step over all parameters.
pub(super) fn step(step: &mut Step<'_>, kernels: &[Kernel], step_on_device: bool) {
    let params = step.params;
    if step_on_device {
        params.iter().for_each(|_| step.kernel("aten.add_", 4, 4));
    }
    let (mut gradient, mut denominator): (Option<BufferId>, Option<BufferId>) = (None, None);
    for param in params {
        if let Some(before) = gradient.take() {
            step.program.free(before);
        }
        if step_on_device {
            step.read_back();
        }
        let bytes = param.elements() * step.element;
        let (mut root, mut next) = (None, None);
        for &(name, (reads, writes), result) in kernels {
            let slot = match result {
                Result::InPlace => None,
                Result::Gradient => Some(&mut gradient),
                Result::Root => Some(&mut root),
                Result::Denominator => Some(&mut next),
            };
            if let Some(slot) = slot {
                *slot = Some(step.temporary(bytes, name));
            }
            step.kernel(name, reads * bytes, writes * bytes);
        }
        // The root, then the denominator of the parameter before.
        for gone in [root, std::mem::replace(&mut denominator, next)].into_iter().flatten() {
            step.program.free(gone);
        }
    }
    for last in [gradient, denominator].into_iter().flatten() {
        step.program.free(last);
    }
}
