//! Optimizers that step one parameter after the other, a kernel for each elementary operation.
//!
//! torch's `Adam(foreach=False)` (`_single_tensor_adam`) and Composer's `DecoupledAdamW` (`composer/optim/
//! decoupled_weight_decay.py`), the second without `lerp_`: 72 and 80 B for each fp32 element, and 8 B more with weight
//! decay. The denominator of one parameter lives until the next one's has been made: Python names it in a loop. So does the
//! gradient to which `Adam` added weight decay, until the next parameter's takes its name.

use super::{Adam, Composer, Decay};
use crate::program::{BufferId, Builder, Category, Dispatch, MemoryKind, StreamId, Work};
use crate::units::Bytes;

/// What becomes of a kernel's result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Result {
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
type Step = (&'static str, (u64, u64), Result);

const DECAY: Step = ("aten.mul_", (1, 1), Result::InPlace);
const DECAY_IN_GRADIENT: Step = ("aten.add", (2, 1), Result::Gradient);
/// `exp_avg_sq.mul_(β₂).addcmul_(g, g)`.
const SECOND_MOMENT: [Step; 2] = [("aten.mul_", (1, 1), Result::InPlace), ("aten.addcmul_", (2, 1), Result::InPlace)];
/// `torch.maximum(max_exp_avg_sq, exp_avg_sq, out=max_exp_avg_sq)`.
const MAXIMUM: Step = ("aten.maximum", (2, 1), Result::InPlace);
/// `(exp_avg_sq.sqrt() / c).add_(ε)`.
const DENOMINATOR: [Step; 3] = [
    ("aten.sqrt", (1, 1), Result::Root),
    ("aten.div", (1, 1), Result::Denominator),
    ("aten.add_", (1, 1), Result::InPlace),
];
const UPDATE: Step = ("aten.addcdiv_", (3, 1), Result::InPlace);

/// Launches a kernel of the optimizer.
pub(super) fn kernel(program: &mut Builder, name: &'static str, read: u64, written: u64) {
    let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(read), written: Bytes(written) };
    program.launch(StreamId(0), name, work, Dispatch::EagerForward);
}

/// One step of torch's `Adam` or `AdamW` over all shards.
pub(super) fn adam(program: &mut Builder, adam: Adam, sizes: &[u64], element: u64) {
    let mut kernels = match adam.decay {
        Decay::None => vec![],
        Decay::OfWeights => vec![DECAY],
        Decay::InGradients => vec![DECAY_IN_GRADIENT],
    };
    kernels.push(("aten.lerp_", (2, 1), Result::InPlace));
    kernels.extend(SECOND_MOMENT);
    kernels.extend(adam.amsgrad.then_some(MAXIMUM));
    kernels.extend(DENOMINATOR);
    kernels.push(UPDATE);
    step(program, &kernels, false, sizes, element);
}

/// One step of Composer's `DecoupledAdamW` over all shards.
pub(super) fn composer(program: &mut Builder, settings: Composer, sizes: &[u64], element: u64) {
    let mut kernels = vec![("aten.mul_", (1, 1), Result::InPlace), ("aten.add_", (2, 1), Result::InPlace)];
    kernels.extend(SECOND_MOMENT);
    kernels.extend(DENOMINATOR);
    kernels.extend(settings.decays.then_some(DECAY));
    kernels.push(UPDATE);
    step(program, &kernels, settings.step_on_device, sizes, element);
}

fn step(program: &mut Builder, kernels: &[Step], step_on_device: bool, sizes: &[u64], element: u64) {
    let stream = StreamId(0);
    if step_on_device {
        for _ in sizes {
            kernel(program, "aten.add_", 4, 4);
        }
    }
    let (mut gradient, mut denominator): (Option<BufferId>, Option<BufferId>) = (None, None);
    for &elements in sizes {
        if let Some(before) = gradient.take() {
            program.free(before);
        }
        if step_on_device {
            let copy = Work::HostCopy { bytes: Bytes(4), to_host: true };
            program.launch(stream, "aten._local_scalar_dense", copy, Dispatch::EagerForward);
            program.wait_for_host(stream);
        }
        let bytes = elements * element;
        let (mut root, mut next) = (None, None);
        for &(name, (reads, writes), result) in kernels {
            let slot = match result {
                Result::InPlace => None,
                Result::Gradient => Some(&mut gradient),
                Result::Root => Some(&mut root),
                Result::Denominator => Some(&mut next),
            };
            if let Some(slot) = slot {
                *slot = Some(program.alloc(Bytes(bytes), stream, Category::OptimizerTemporary, name));
            }
            kernel(program, name, reads * bytes, writes * bytes);
        }
        // The root, then the denominator of the parameter before.
        for gone in [root, std::mem::replace(&mut denominator, next)].into_iter().flatten() {
            program.free(gone);
        }
    }
    for last in [gradient, denominator].into_iter().flatten() {
        program.free(last);
    }
}
