//! Norms and softmax: each row of a value by numbers that are made of all of it.

use super::row::{Autocast, Of, Parameters, Row, Saved, Selective, Stop, Strides};

/// RMSNorm in one kernel. Beside its input it keeps a number for each row.
pub(super) const RMS_NORM: Row = Row {
    kernel: "aten._fused_rms_norm",
    saves: &[Of::Input(0)],
    stop: Stop::After,
    unpacks: true,
    policy: Some(Saved::RmsNorm),
    selective: Selective::Never,
    autocast: Ok(Autocast::FULL),
    strides: Strides::Together,
    parameters: Parameters::Partial,
    compiles: Ok(()),
};

/// LayerNorm. Beside its input it keeps two numbers for each row.
pub(super) const LAYER_NORM: Row = Row { kernel: "aten.native_layer_norm", policy: None, ..RMS_NORM };

/// Softmax over the last axis; keeps its result.
pub(super) const SOFTMAX: Row = Row {
    kernel: "aten._softmax",
    saves: &[Of::Output],
    policy: None,
    autocast: Err("attention in matmuls and a softmax under torch.autocast"),
    parameters: Parameters::Own,
    ..RMS_NORM
};
