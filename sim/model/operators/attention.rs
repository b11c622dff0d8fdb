//! Attention in one kernel, and the rotary embedding of what it reads.

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
