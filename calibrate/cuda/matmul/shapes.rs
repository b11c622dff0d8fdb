//! Which multiplications to measure: those that training issues, each worth its share of a step, and a set that fills the
//! space between them, for interpolation.

use crate::plan::Job;
use crate::points::{Machine, What};

/// A decoder's widths: hidden, feed-forward, queries, keys (and values), vocabulary.
struct Model {
    hidden: u64,
    ffn: u64,
    queries: u64,
    keys: u64,
    vocabulary: u64,
}

const fn model(hidden: u64, ffn: u64, queries: u64, keys: u64, vocabulary: u64) -> Model {
    Model { hidden, ffn, queries, keys, vocabulary }
}

/// Widths from the models' published configurations (`config.json` on Hugging Face).
const MODELS: [Model; 8] = [
    model(2048, 8192, 2048, 512, 128_256),        // Llama 3.2 1B
    model(4096, 11_008, 4096, 4096, 32_000),      // Llama 2 7B
    model(4096, 14_336, 4096, 1024, 128_256),     // Llama 3.1 8B
    model(5120, 13_824, 5120, 5120, 32_000),      // Llama 2 13B
    model(4096, 12_288, 4096, 1024, 151_936),     // Qwen3 8B
    model(5120, 25_600, 8192, 1024, 151_936),     // Qwen3 32B
    model(8192, 28_672, 8192, 1024, 128_256),     // Llama 3.1 70B
    model(16_384, 53_248, 16_384, 1024, 128_256), // Llama 3.1 405B
];

/// Ways that tensor parallelism cuts a model.
const CUTS: [u64; 4] = [1, 2, 4, 8];

/// Tokens that a rank multiplies at once.
const TOKENS: [u64; 3] = [4096, 8192, 16_384];

/// Number formats, and the share of training that runs in each: assumed, it only orders the measuring.
const FORMATS: [(&str, f64); 6] =
    [("bf16", 0.70), ("fp8_tensor", 0.10), ("fp8_row", 0.07), ("fp8_block", 0.06), ("tf32", 0.05), ("fp32", 0.02)];

/// Multiplications of more operations than this take so long that a smaller one of the same kind says the same \[FLOP\].
const LARGEST: f64 = 2e13;

/// Shares of a step, assumed; they order the measuring. What models issue,
const ISSUED: f64 = 0.45;
/// the set between,
const BETWEEN: f64 = 0.10;
/// and experts.
const EXPERTS: f64 = 0.05;

/// What is planned on a machine.
pub fn matmuls(machine: &Machine) -> Vec<Job> {
    let mut jobs = issued(machine);
    jobs.extend(between(machine));
    jobs
}

/// Tensor cores multiply 8-bit floats from capability 8.9 on.
fn has_eight_bits(machine: &Machine) -> bool {
    let mut parts = machine.capability.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (8, 9)
}

/// A linear layer's three multiplications for so many tokens.
fn linear(tokens: u64, out: u64, into: u64) -> [(&'static str, [u64; 3]); 3] {
    [("forward", [tokens, out, into]), ("data_gradient", [tokens, into, out]), ("weight_gradient", [out, into, tokens])]
}

/// Linear layers of a model under tensor parallelism: uncut, frameworks keep projections apart; cut, Megatron fuses them.
fn linears(model: &Model, cut: u64) -> Vec<(u64, u64)> {
    let Model { hidden, ffn, queries, keys, vocabulary } = *model;
    let mut linears = vec![(hidden, queries / cut), (hidden, ffn / cut), (vocabulary / cut, hidden)];
    if cut == 1 {
        linears.extend([(queries, hidden), (keys, hidden), (keys, hidden), (ffn, hidden), (ffn, hidden)]);
    } else {
        linears.extend([((queries + 2 * keys) / cut, hidden), (2 * ffn / cut, hidden)]);
    }
    linears
}

fn job(shape: [u64; 3], dtype: &str, layout: &str, value: f64) -> Job {
    let [m, n, k] = shape;
    Job { what: What::Matmul { m, n, k, dtype: dtype.to_owned(), layout: layout.to_owned() }, value }
}

fn flops([m, n, k]: [u64; 3]) -> f64 {
    2.0 * m as f64 * n as f64 * k as f64
}

/// Whether training runs so: 8-bit floats where models are cut little, wide floats hardly ever.
fn common(dtype: &str, cut: u64, tokens: u64, machine: &Machine) -> bool {
    match dtype {
        "bf16" => true,
        "tf32" | "fp32" => cut == 1 && tokens == 8192,
        _ => has_eight_bits(machine) && cut <= 2,
    }
}

/// What models issue.
fn issued(machine: &Machine) -> Vec<Job> {
    let mut jobs = vec![];
    let cases = (MODELS.len() * CUTS.len() * TOKENS.len()) as f64;
    for (model, cut, tokens) in MODELS
        .iter()
        .flat_map(|model| CUTS.iter().flat_map(move |cut| TOKENS.iter().map(move |tokens| (model, *cut, *tokens))))
    {
        let layers = linears(model, cut).into_iter();
        let shapes: Vec<_> = layers.flat_map(|(out, into)| linear(tokens, out, into)).collect();
        let all: f64 = shapes.iter().map(|(_, shape)| flops(*shape)).sum();
        for (layout, shape) in shapes.into_iter().filter(|(_, shape)| flops(*shape) <= LARGEST) {
            for (dtype, share) in FORMATS.iter().filter(|(dtype, _)| common(dtype, cut, tokens, machine)) {
                let value = ISSUED * share * flops(shape) / all / cases;
                if layout == "weight_gradient" && matches!(*dtype, "bf16" | "fp8_tensor") {
                    jobs.push(job(shape, dtype, "weight_gradient_fp32", 0.3 * value));
                    jobs.push(job(shape, dtype, layout, 0.7 * value));
                } else {
                    jobs.push(job(shape, dtype, layout, value));
                }
            }
        }
    }
    jobs
}

/// Points of the set between.
const FILLING: u32 = 512;

/// A sequence whose every beginning fills the space of sizes evenly, on a logarithmic scale from 128 to 65,536: Roberts' R3,
/// multiples of the powers of the root of `x⁴ = x + 1` ("The Unreasonable Effectiveness of Quasirandom Sequences", 2018).
/// What comes early is worth more, so that a short run has the whole space coarsely.
fn between(machine: &Machine) -> Vec<Job> {
    const ROOT: f64 = 1.220_744_084_605_759_5;
    const FORMS: [&str; 12] = [
        "bf16",
        "fp8_tensor",
        "bf16",
        "fp8_row",
        "bf16",
        "fp8_block",
        "bf16",
        "bf16",
        "fp8_tensor",
        "bf16",
        "tf32",
        "bf16",
    ];
    const LAYOUTS: [&str; 5] = ["forward", "data_gradient", "weight_gradient", "forward", "weight_gradient_fp32"];
    let size = |turn: u32, power: i32, grain: u64| {
        let share = (0.5 + f64::from(turn) / ROOT.powi(power)).fract();
        ((128.0 * (9.0 * share).exp2()) as u64 / grain).max(1) * grain
    };
    let worth: f64 = (0..FILLING).map(|turn| 1.0 / f64::from(turn + 8)).sum();
    let mut jobs = vec![];
    for turn in 0..FILLING {
        let dtype = FORMS[turn as usize % FORMS.len()];
        if dtype.starts_with("fp8") && !has_eight_bits(machine) {
            continue;
        }
        // Most sizes of models are multiples of 64; some are not, and tiles do not fit them.
        let grain = if dtype == "fp8_block" {
            128
        } else if turn % 8 == 5 {
            16
        } else {
            64
        };
        let shape = [size(turn, 1, grain), size(turn, 2, grain), size(turn, 3, grain)];
        if flops(shape) <= LARGEST / 4.0 {
            let value = BETWEEN / worth / f64::from(turn + 8);
            jobs.push(job(shape, dtype, LAYOUTS[turn as usize % LAYOUTS.len()], value));
        }
    }
    jobs
}

/// Experts on one rank, hidden width, an expert's width: Mixtral 8x7B, Qwen3 30B-A3B and 235B-A22B, DeepSeek-V3, spread over
/// 1 to 64 ranks.
const MOE: [(u64, u64, u64); 7] = [
    (8, 4096, 14_336),
    (2, 4096, 14_336),
    (64, 2048, 768),
    (16, 2048, 768),
    (16, 4096, 1536),
    (8, 7168, 2048),
    (4, 7168, 2048),
];

/// What experts multiply.
pub fn grouped(machine: &Machine) -> Vec<Job> {
    let formats: &[(&str, f64)] = if has_eight_bits(machine) {
        &[("bf16", 0.8), ("fp8_tensor", 0.1), ("fp8_block", 0.1)]
    } else {
        &[("bf16", 1.0)]
    };
    let mut jobs = vec![];
    for (groups, hidden, width) in MOE {
        for rows in [128, 512, 1024, 2048, 4096] {
            for (n, k) in [(2 * width, hidden), (hidden, width)] {
                if groups as f64 * flops([rows, n, k]) > LARGEST {
                    continue;
                }
                for (dtype, share) in formats {
                    let what = What::GroupedMatmul { groups, m: rows, n, k, dtype: (*dtype).to_owned() };
                    jobs.push(Job { what, value: EXPERTS * share / (MOE.len() * 10) as f64 });
                }
            }
        }
    }
    jobs
}

#[cfg(test)]
#[path = "shapes/tests.rs"]
mod tests;
