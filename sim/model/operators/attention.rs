//! Attention in one kernel, the rotary embedding of what it reads, and what stands in its place.

use super::row::{Autocast, Of, Parameters, Row, Saved, Selective, Stop, Strides};

/// Fused attention over q, k, v. What it keeps depends on the kernel that runs (`runtime/eager/forward.rs`).
pub(super) const ATTENTION: Row = Row {
    kernel: "aten._scaled_dot_product_flash_attention",
    saves: &[],
    stop: Stop::After,
    unpacks: true,
    policy: Some(Saved::Attention),
    selective: Selective::Always,
    autocast: Ok(Autocast::LOW),
    strides: Strides::Together,
    parameters: Parameters::Own,
    compiles: Ok(()),
};

const ROTARY: Row =
    Row { kernel: "rope", policy: None, selective: Selective::Never, autocast: Ok(Autocast::FP32), ..ATTENTION };

/// Product with the complex rotary table, which is kept where it was gathered for this call.
pub(super) const fn rotate_complex(gathered: bool) -> Row {
    let saves: &[Of] = if gathered { &[Of::Input(1)] } else { &[] };
    Row { kernel: "aten.mul", saves, policy: Some(Saved::Mul), ..ROTARY }
}

/// Rows of a block's own rotary table. A compiled block has the whole table's kernel instead.
pub(super) const ROTARY_ROWS: Row =
    Row { kernel: "aten.index", compiles: Err("rows of rotary tables in compiled blocks"), ..ROTARY };

/// Rotary embedding written in real numbers.
pub(super) const ROTATE: Row =
    Row { autocast: Err("a rotary embedding in real numbers under torch.autocast"), ..ROTARY };

/// A Mamba-2's scan and what is around it. It is a function of its own, whose weights a compiler does not look into.
pub(super) const MAMBA2: Row = Row {
    kernel: "mamba_split_conv1d_scan_combined",
    saves: &[Of::Input(0)],
    policy: None,
    selective: Selective::Never,
    autocast: Err("Mamba-2 under torch.autocast"),
    compiles: Err("Mamba-2 in compiled blocks"),
    ..ATTENTION
};

/// A gated DeltaNet between its projections. What it keeps is its rule's (`runtime/eager/gated_delta.rs`).
pub(super) const GATED_DELTA: Row = Row {
    kernel: "chunk_gated_delta_rule",
    saves: &[],
    autocast: Err("gated DeltaNet under torch.autocast"),
    compiles: Err("gated DeltaNet in compiled blocks"),
    ..MAMBA2
};
