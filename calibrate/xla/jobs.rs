//! What `calibrate xla` measures: shapes of training for a chip, small ones for a CPU, which only shows that all works.

use crate::points::What;

use super::attention::BACKEND;
use super::programs::{COLLECTIVES, KERNELS};

/// How large things may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Of a chip that trains.
    Chip,
    /// Of a CPU.
    Small,
}

/// Kinds of things, by the name that `--kernels` takes.
pub const KINDS: [&str; 4] = ["matmul", "attention", "memory", "collectives"];

/// Everything of a kind, on so many devices.
pub fn jobs(kind: &str, scale: Scale, devices: u64) -> Vec<What> {
    match kind {
        "matmul" => matmuls(scale),
        "attention" => attentions(scale),
        "memory" => memory(scale),
        _ => collectives(scale, devices),
    }
}

/// Squares, a feed-forward layer's shapes, and few rows; in all layouts of training.
fn matmuls(scale: Scale) -> Vec<What> {
    let shapes: &[[u64; 3]] = match scale {
        Scale::Chip => &[
            [4096, 4096, 4096],
            [8192, 8192, 8192],
            [4096, 4096, 14_336],
            [8192, 4096, 14_336],
            [8192, 14_336, 4096],
            [128, 8192, 8192],
            [16_384, 16_384, 16_384],
        ],
        Scale::Small => &[[256, 256, 256], [128, 512, 256]],
    };
    let of = |[m, n, k]: [u64; 3], dtype: &str, layout: &str| What::Matmul {
        m,
        n,
        k,
        dtype: dtype.to_owned(),
        layout: layout.to_owned(),
    };
    let trained = ["forward", "data_gradient", "weight_gradient"];
    let mut all: Vec<What> = shapes.iter().flat_map(|shape| trained.map(|layout| of(*shape, "bf16", layout))).collect();
    all.extend(shapes.iter().flat_map(|shape| ["int8", "fp8_tensor"].map(|dtype| of(*shape, dtype, "forward"))));
    all
}

fn attentions(scale: Scale) -> Vec<What> {
    let lengths: &[u64] = if scale == Scale::Chip { &[2048, 4096, 8192] } else { &[128] };
    let (heads, kv_heads, head_dim) = if scale == Scale::Chip { (32, 8, 128) } else { (4, 2, 32) };
    let of = |length: &u64, backward: bool| What::Attention {
        backend: BACKEND.to_owned(),
        backward,
        batch: 1,
        heads,
        kv_heads,
        queries: *length,
        keys: *length,
        head_dim,
        value_dim: head_dim,
        causal: true,
        window: None,
        dtype: "bf16".to_owned(),
    };
    lengths.iter().flat_map(|length| [of(length, false), of(length, true)]).collect()
}

fn memory(scale: Scale) -> Vec<What> {
    let sizes: &[u32] = if scale == Scale::Chip { &[22, 25, 28] } else { &[20] };
    let of = |(family, kernel, reads, writes): (&str, &str, u64, u64), bytes: u64| What::Memory {
        family: family.to_owned(),
        kernel: kernel.to_owned(),
        read: reads * bytes,
        written: writes * bytes,
    };
    KERNELS.iter().flat_map(|kernel| sizes.iter().map(move |shift| of(*kernel, 1 << shift))).collect()
}

fn collectives(scale: Scale, devices: u64) -> Vec<What> {
    if devices < 2 {
        return vec![];
    }
    let sizes: &[u32] = if scale == Scale::Chip { &[20, 24, 28] } else { &[20] };
    let of = |kind: &str, bytes: u64| What::Collective {
        kind: kind.to_owned(),
        ranks: devices,
        nodes: 1,
        bytes,
        in_place: false,
        dtype: "bfloat16".to_owned(),
    };
    COLLECTIVES.iter().flat_map(|(kind, _)| sizes.iter().map(move |shift| of(kind, 1 << shift))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::programs::program;
    use super::*;

    #[test]
    fn everything_that_is_planned_has_a_program() {
        for scale in [Scale::Chip, Scale::Small] {
            for kind in KINDS {
                for what in jobs(kind, scale, 16) {
                    assert!(program(&what).is_ok(), "{what:?}: {:?}", program(&what));
                    assert_eq!(crate::points::sizes::check(&what), Ok(()));
                }
            }
        }
    }
}
