//! DeepSpeed's ZeRO.

use super::axis::{Axis, ON, counts, micro, some};

pub(super) const AXES: &[Axis] = &[
    Axis { key: "zero.stage", values: |_| counts([1, 2, 3]) },
    Axis { key: "batch.micro", values: |at| micro(at, &[]) },
    Axis { key: "activation_checkpointing.policy", values: |_| vec![some("none"), some("full")] },
    Axis { key: "zero.overlap_comm", values: ON },
];
