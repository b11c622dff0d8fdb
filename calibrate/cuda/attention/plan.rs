//! Which attention is measured, and what each measurement is worth.
//!
//! Widths and head counts are those of open models' configurations, whole and split by tensor parallelism; lengths are
//! powers of two with about as many tokens in flight as a training step has, and a few with the device half empty, which
//! the tail of the model is fitted to.

use super::shape::Shape;
use super::tensors::Tensors;
use crate::plan::Job;
use crate::points::{Machine, What};

/// Share of a step's time in attention, forward and backward: FLOPs of Llama 3 8B at 8,192 tokens, at two thirds of the
/// rate of a matmul.
const SHARE: f64 = 0.18;

/// Share of backward in it: five of seven matmuls.
const BACKWARD: f64 = 5.0 / 7.0;

/// Tokens of one measurement, where the sequence is not longer.
const TOKENS: u64 = 16_384;

/// Share of the device's memory that one measurement may fill.
const MEMORY: f64 = 0.5;

/// Heads, key-value heads, widths, window, lengths and weight of what models ask for.
struct Family {
    heads: u64,
    kv_heads: u64,
    widths: (u64, u64),
    causal: bool,
    window: Option<u64>,
    lengths: &'static [u64],
    weight: f64,
}

const USUAL: &[u64] = &[2048, 4096, 8192, 16_384, 32_768];
const ALL: &[u64] = &[512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];
const SHORT: &[u64] = &[1024, 2048, 4096, 8192, 16_384];
const LONG: &[u64] = &[4096, 8192, 32_768];

const fn family(heads: u64, kv_heads: u64, width: u64, lengths: &'static [u64], weight: f64) -> Family {
    Family { heads, kv_heads, widths: (width, width), causal: true, window: None, lengths, weight }
}

/// What models ask for.
const FAMILIES: [Family; 15] = [
    family(32, 8, 128, ALL, 8.0),                                       // Llama 3 8B, Qwen3 8B
    family(64, 8, 128, USUAL, 3.0),                                     // Llama 3 70B, Qwen3 32B
    family(8, 1, 128, USUAL, 3.0),                                      // Llama 3 70B, tensor parallel over 8
    family(16, 4, 128, USUAL, 2.0),                                     // Llama 3 8B, tensor parallel over 2
    family(32, 32, 128, USUAL, 1.0),                                    // Llama 2 7B
    family(32, 8, 64, USUAL, 2.0),                                      // Llama 3.2 1B
    family(12, 12, 64, SHORT, 1.0),                                     // GPT-2
    family(32, 32, 96, SHORT, 0.5),                                     // Phi-3 mini
    family(16, 8, 256, SHORT, 1.0),                                     // Gemma 2 9B, its global layers
    Family { widths: (192, 128), ..family(128, 128, 192, SHORT, 1.0) }, // DeepSeek-V3, latent attention as trained
    Family { widths: (192, 128), ..family(16, 16, 192, SHORT, 1.0) },   // DeepSeek-V2-Lite
    Family { window: Some(4096), ..family(32, 8, 128, LONG, 0.5) },     // Mistral 7B v0.1
    Family { window: Some(1024), ..family(16, 8, 256, LONG, 0.5) },     // Gemma 3 12B, its local layers
    Family { window: Some(128), ..family(64, 8, 64, LONG, 0.5) },       // gpt-oss
    Family { causal: false, ..family(32, 8, 128, SHORT, 1.0) }, // encoders, diffusion, ring attention's off-diagonal
];

/// Shapes with few tiles or with more keys than queries: (heads, key-value heads, queries, keys, causal).
const ODD: [(u64, u64, u64, u64, bool); 5] = [
    (8, 1, 1024, 1024, true),
    (8, 1, 2048, 2048, true),
    (16, 4, 1024, 1024, true),
    (32, 8, 4096, 16_384, false), // a quarter of a sequence, context parallel
    (32, 8, 2048, 16_384, false), // an eighth
];

/// Weight of an odd shape.
const ODD_WEIGHT: f64 = 0.2;

/// The jobs on a machine, the same every time.
pub fn plan(machine: &Machine) -> Vec<Job> {
    let mut shapes: Vec<(Shape, f64)> = vec![];
    for family in &FAMILIES {
        let (head_dim, value_dim) = family.widths;
        for &length in family.lengths {
            let shape = Shape {
                batch: (TOKENS / length).max(1),
                heads: family.heads,
                kv_heads: family.kv_heads,
                queries: length,
                keys: length,
                head_dim,
                value_dim,
                causal: family.causal,
                window: family.window,
            };
            shapes.push((shape, family.weight * usual(length)));
        }
    }
    for (heads, kv_heads, queries, keys, causal) in ODD {
        let shape =
            Shape { batch: 1, heads, kv_heads, queries, keys, head_dim: 128, value_dim: 128, causal, window: None };
        shapes.push((shape, ODD_WEIGHT));
    }
    let room = MEMORY * machine.memory as f64;
    shapes.retain(|(shape, _)| Tensors::bytes(shape, true) as f64 * 2.0 <= room);
    let all: f64 = shapes.iter().map(|(_, weight)| weight).sum();
    let job = |backward: bool| {
        move |(shape, weight): &(Shape, f64)| Job {
            what: shape.what(backward),
            value: SHARE * if backward { BACKWARD } else { 1.0 - BACKWARD } * weight / all,
        }
    };
    shapes.iter().flat_map(|shape| [job(false)(shape), job(true)(shape)]).collect()
}

/// Small shapes of every kind, for a look at results alone. Lengths are no multiples of a kernel's tile.
pub fn small() -> [(&'static str, Shape); 8] {
    let usual = Shape {
        batch: 2,
        heads: 6,
        kv_heads: 2,
        queries: 328,
        keys: 328,
        head_dim: 128,
        value_dim: 128,
        causal: true,
        window: None,
    };
    [
        ("causal", usual),
        ("full", Shape { causal: false, ..usual }),
        ("as many key-value heads", Shape { kv_heads: 6, ..usual }),
        ("sliding window", Shape { window: Some(40), ..usual }),
        ("narrow heads", Shape { head_dim: 64, value_dim: 64, ..usual }),
        ("wide heads", Shape { head_dim: 256, value_dim: 256, ..usual }),
        ("latent attention", Shape { kv_heads: 6, head_dim: 192, ..usual }),
        ("more keys than queries", Shape { queries: 136, causal: false, ..usual }),
    ]
}

/// How often a length is trained at, against 8,192.
fn usual(length: u64) -> f64 {
    match length {
        4096 | 8192 => 1.0,
        2048 | 16_384 | 32_768 => 0.5,
        _ => 0.2,
    }
}

impl Shape {
    /// As a point names it.
    pub fn what(&self, backward: bool) -> What {
        What::Attention {
            backend: "cudnn".to_owned(),
            backward,
            batch: self.batch,
            heads: self.heads,
            kv_heads: self.kv_heads,
            queries: self.queries,
            keys: self.keys,
            head_dim: self.head_dim,
            value_dim: self.value_dim,
            causal: self.causal,
            window: self.window,
            dtype: "bf16".to_owned(),
        }
    }
}
