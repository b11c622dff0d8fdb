//! FlashAttention's own benchmark charts: versions 1, 2 and 3 and its Triton form, forward and backward.
//!
//! `flash_attention.csv` holds the labels on the bars of the charts in Dao-AILab/flash-attention `assets/` (file and
//! commit in each row; those of arXiv 2307.08691 and 2407.08608): 16,384 tokens in all, 2,048 wide. Charts of version 1
//! and 2 show forward and backward together, 3.5 times the FLOPs of a forward. What one pass takes follows where a chart
//! of the forward exists (version 2 on H100); on A100 version 2 is split as PyTorch's SDPA is in attention_simumax.csv;
//! where nobody split them, both passes get the rate of the two together.
//!
//! The bars called `tutorial` (the charts' "FlashAttention Triton") are Triton's own example, which nobody trains with.
//! `triton` is flash-attn's `flash_attn_triton`, made from that example: causal at head dimension 64 it has the example's
//! rates (triton-lang/triton#1917); elsewhere version 1's for both passes together, which it says it almost reaches,
//! split as those are.
//!
//! Nothing was charted on these, which are carried over: the Triton kernel on Hopper (likewise from version 1), version 3 backward (version 2's times 1.6; the paper states 1.5 to 1.75), H200 (H100's die and power limit),
//! B200 (1.2 times H100, assumed: processors times clock, without Blackwell's own instructions).

use std::collections::BTreeMap;

use super::ImportError;
use super::chips::ChipSpec;
use super::fit;
use super::tables::Tables;
use crate::fit::attention::{Point, flops};

const CHARTS: &str = include_str!("flash_attention.csv");
const TOKENS: f64 = 16384.0;
const WIDTH: f64 = 2048.0;

/// Points of one kernel, with what they rest on.
pub(super) struct Sweep {
    /// Name of the backend in a profile.
    pub kernel: &'static str,
    /// Backward or forward.
    pub backward: bool,
    /// Head dimension.
    pub head: u64,
    /// Causal mask.
    pub causal: bool,
    /// Over the sequence.
    pub points: Vec<Point>,
    /// How a point was come by.
    pub basis: &'static str,
    /// What that adds to the fit's own error, relative.
    pub doubt: f64,
    /// In words.
    pub source: String,
}

/// TFLOP/s over the sequence length.
type Bars = BTreeMap<u64, f64>;

/// Bars of one GPU, kernel, head dimension and mask; `pass` is `fwd` or `fwd+bwd`.
fn bars(gpu: &str, kernel: &str, head: u64, causal: bool, pass: &str) -> Bars {
    let wanted = format!("{gpu},{kernel},{head},{},{pass},", if causal { "causal" } else { "full" });
    let rest = CHARTS.lines().filter_map(|line| line.strip_prefix(wanted.as_str()));
    rest.filter_map(|rest| {
        let mut fields = rest.split(',');
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
    .collect()
}

/// Both charts' bars by `f`, where both have one.
fn both(a: &Bars, b: &Bars, f: impl Fn(f64, f64) -> f64) -> Bars {
    a.iter().filter_map(|(s, &x)| b.get(s).map(|&y| (*s, f(x, y)))).collect()
}

fn times(bars: &Bars, by: f64) -> Bars {
    bars.iter().map(|(&s, &rate)| (s, rate * by)).collect()
}

/// Backward over forward rate of PyTorch's flash attention on A100.
fn ratio_on_a100(tables: &Tables) -> Result<f64, ImportError> {
    let table = tables.get("attention_simumax.csv")?;
    let rate = |pass: &str| {
        let rows = table.rows().filter(|row| {
            row.text("gpu").starts_with("A100") && row.text("op") == pass && row.number("d_qk") == Some(128.0)
        });
        let rates: Vec<f64> = rows.filter_map(|row| row.number("eff_vs_peak_simumax_flops_convention")).collect();
        fit::median(&rates)
    };
    let (forward, backward) = (rate("sdp_fwd"), rate("sdp_bwd"));
    if forward > 0.0 && backward > 0.0 {
        Ok(backward / forward)
    } else {
        Err(table.error("no sdp_fwd and sdp_bwd rows on A100 at d_qk = 128"))
    }
}

/// The two passes of one kernel on one GPU: bars, basis, doubt, and how they were come by.
struct Passes {
    forward: Bars,
    backward: Bars,
    basis: [&'static str; 2],
    doubt: [f64; 2],
    how: String,
}

fn together(bars: Bars, how: &str) -> Passes {
    Passes { forward: bars.clone(), backward: bars, basis: ["published"; 2], doubt: [0.10, 0.05], how: how.to_owned() }
}

const TOGETHER: &str = "FlashAttention's charts, forward and backward together: both passes at that rate";

/// Forward of two passes together, if backward has `ratio` times its rate: 3.5/all = 1/f + 2.5/(ratio·f).
fn split(all: &Bars, ratio: f64) -> (Bars, Bars) {
    let forward = times(all, (1.0 + 2.5 / ratio) / 3.5);
    let backward = times(&forward, ratio);
    (forward, backward)
}

/// `flash_attn_triton`.
fn triton(gpu: &str, head: u64, causal: bool) -> Passes {
    let example = |pass: &str| bars("a100", "triton", 64, true, pass);
    let (forward, backward) = (example("fwd"), example("bwd"));
    if gpu == "a100" && head == 64 && causal {
        let how = "triton-lang/triton#1917, the example it was made from";
        return Passes { forward, backward, doubt: [0.08, 0.08], ..together(Bars::new(), how) };
    }
    let ratios: Vec<f64> = both(&backward, &forward, |b, f| b / f).into_values().collect();
    let ratio = fit::median(&ratios);
    let (forward, backward) = split(&bars(gpu, "flash1", head, causal, "fwd+bwd"), ratio);
    let how = format!("flash1's charts, both passes together, split by {ratio:.3} (triton-lang/triton#1917)");
    Passes { forward, backward, basis: ["extrapolated"; 2], doubt: [0.12, 0.10], how }
}

fn on_a100(kernel: &str, head: u64, causal: bool, ratio: f64) -> Passes {
    let all = bars("a100", kernel, head, causal, "fwd+bwd");
    match kernel {
        "triton" => return triton("a100", head, causal),
        "flash2" => {}
        _ => return together(all, TOGETHER),
    }
    let (forward, backward) = split(&all, ratio);
    let how =
        format!("FlashAttention's charts, forward and backward together, split by {ratio:.3} (attention_simumax.csv)");
    Passes { forward, backward, basis: ["published"; 2], doubt: [0.04, 0.02], how }
}

fn on_h100(kernel: &str, head: u64, causal: bool) -> Passes {
    let forward = |kernel: &str| bars("h100", kernel, head, causal, "fwd");
    let all = |kernel: &str| bars("h100", kernel, head, causal, "fwd+bwd");
    let flash2 = both(&all("flash2"), &forward("flash2"), |all, f| 2.5 / (3.5 / all - 1.0 / f));
    match kernel {
        "flash2" => Passes {
            forward: forward("flash2"),
            backward: flash2,
            basis: ["published"; 2],
            doubt: [0.0, 0.02],
            how: "FlashAttention's charts; backward: both passes' less the forward's".to_owned(),
        },
        "flash3" => Passes {
            forward: forward("flash3"),
            backward: times(&flash2, 1.6),
            basis: ["published", "extrapolated"],
            doubt: [0.0, 0.08],
            how: "FlashAttention's charts; backward: flash2 times 1.6 (arXiv 2407.08608 states 1.5 to 1.75)".to_owned(),
        },
        "triton" => triton("h100", head, causal),
        _ => together(all(kernel), TOGETHER),
    }
}

/// Every kernel of the family for a chip.
pub(super) fn sweeps(tables: &Tables, chip: &ChipSpec) -> Result<Vec<Sweep>, ImportError> {
    let ratio = ratio_on_a100(tables)?;
    let kernels: &[&'static str] = match chip.matmul {
        "a100" => &["flash1", "triton", "flash2"],
        "b200" | "b300" | "gb200" | "gb300" => &["flash2"],
        _ => &["flash1", "triton", "flash2", "flash3"],
    };
    let mut sweeps = vec![];
    for &kernel in kernels {
        for head in [64, 128, 256] {
            for causal in [true, false] {
                let mut passes = if chip.matmul == "a100" {
                    on_a100(kernel, head, causal, ratio)
                } else {
                    on_h100(kernel, head, causal)
                };
                let (mut by, mut doubt) = (1.0, 0.0);
                match chip.matmul {
                    "h200" => {
                        passes.how.push_str("; on H100, of the same die and power limit");
                        passes.basis = ["extrapolated"; 2];
                    }
                    "b200" | "b300" | "gb200" | "gb300" => {
                        passes.how.push_str("; on H100, times 1.2: assumed");
                        passes.basis = ["assumed"; 2];
                        (by, doubt) = (1.2, 0.4);
                    }
                    _ => {}
                }
                for (backward, bars) in [(false, &passes.forward), (true, &passes.backward)] {
                    if bars.len() < 3 {
                        continue;
                    }
                    let pass = usize::from(backward);
                    sweeps.push(Sweep {
                        kernel,
                        backward,
                        head,
                        causal,
                        points: points(bars, head, causal, backward, by),
                        basis: passes.basis[pass],
                        doubt: passes.doubt[pass] + doubt,
                        source: passes.how.clone(),
                    });
                }
            }
        }
    }
    Ok(sweeps)
}

fn points(bars: &Bars, head: u64, causal: bool, backward: bool, by: f64) -> Vec<Point> {
    let point = |(&s, &rate): (&u64, &f64)| {
        let (s, head) = (s as f64, head as f64);
        let (batch, heads) = (TOKENS / s, WIDTH / head);
        let flops = flops(batch, heads, s, head, causal, backward);
        Point { flops, sequence: s, tiles: batch * heads * (s / 128.0).ceil(), seconds: flops / (rate * by * 1e12) }
    };
    bars.iter().map(point).collect()
}
