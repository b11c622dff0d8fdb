//! Optimizers that step one parameter after the other, a kernel for each elementary operation.
//!
//! torch's `AdamW(foreach=False)` (`_single_tensor_adam`) and Composer's `DecoupledAdamW` (`composer/optim/
//! decoupled_weight_decay.py`), the second without `lerp_`: 72 and 80 B for each fp32 element, and 8 B more with weight
//! decay. The denominator of one parameter lives until the next one's has been made: Python names it in a loop.

use super::PerParam;
use crate::program::{BufferId, Builder, Category, Dispatch, MemoryKind, StreamId, Work};
use crate::units::Bytes;

/// One kernel: its name, the numbers it reads and writes per element, and whether it makes its result anew.
type Step = (&'static str, (u64, u64), bool);

const DECAY: Step = ("aten.mul_", (1, 1), false);
/// `exp_avg_sq.mul_(β₂).addcmul_(g, g)`, then `(exp_avg_sq.sqrt() / c).add_(ε)`.
const SECOND_MOMENT: [Step; 5] = [
    ("aten.mul_", (1, 1), false),
    ("aten.addcmul_", (2, 1), false),
    ("aten.sqrt", (1, 1), true),
    ("aten.div", (1, 1), true),
    ("aten.add_", (1, 1), false),
];
const UPDATE: Step = ("aten.addcdiv_", (3, 1), false);

/// The kernels of one parameter, in order.
fn kernels(decoupled: bool, decays: bool) -> Vec<Step> {
    let decay = |here: bool| (decays && here).then_some(DECAY);
    let first: &[Step] = if decoupled {
        &[("aten.mul_", (1, 1), false), ("aten.add_", (2, 1), false)]
    } else {
        &[("aten.lerp_", (2, 1), false)]
    };
    let mut all: Vec<Step> = decay(!decoupled).into_iter().collect();
    all.extend(first.iter().chain(&SECOND_MOMENT));
    all.extend(decay(decoupled));
    all.push(UPDATE);
    all
}

/// One step over all shards.
pub(super) fn step(program: &mut Builder, settings: PerParam, sizes: &[u64], element: u64) {
    let stream = StreamId(0);
    let launch = |program: &mut Builder, name, read, written| {
        let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(read), written: Bytes(written) };
        program.launch(stream, name, work, Dispatch::EagerForward);
    };
    if settings.step_on_device {
        for _ in sizes {
            launch(program, "aten.add_", 4, 4);
        }
    }
    let kernels = kernels(settings.decoupled, settings.decays);
    let mut denominator: Option<BufferId> = None;
    for &elements in sizes {
        if settings.step_on_device {
            let copy = Work::HostCopy { bytes: Bytes(4), to_host: true };
            program.launch(stream, "aten._local_scalar_dense", copy, Dispatch::EagerForward);
            program.wait_for_host(stream);
        }
        let bytes = elements * element;
        let mut made = vec![];
        for &(name, (reads, writes), anew) in &kernels {
            if anew {
                made.push(program.alloc(Bytes(bytes), stream, Category::OptimizerTemporary, name));
            }
            launch(program, name, reads * bytes, writes * bytes);
        }
        // The root, then the denominator of the parameter before.
        for gone in [Some(made[0]), denominator.replace(made[1])].into_iter().flatten() {
            program.free(gone);
        }
    }
    if let Some(last) = denominator {
        program.free(last);
    }
}
