//! Attention: rates and knees by library, pass, head dimension and mask.
//!
//! cuDNN is fitted to its own training sweeps on H200 and GB200 (attention_cudnn.csv). FlashAttention-2 on A100 comes
//! from PyTorch's SDPA in attention_simumax.csv, whose convention does not halve causal FLOPs (halved here), on H100
//! and H200 from one published point forward and the A100's ratio backward; FlashAttention-3 is FlashAttention-2 times
//! the gain its paper states. Knees of the last two follow the sweep over sequence lengths in attention_fwd_aic.csv.gz.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::chips::ChipSpec;
use super::tables::{Row, Tables};
use super::{ImportError, Residual, Section, evidence, fit};

/// Launch and epilogue of an attention kernel \[s\] (floor of the shortest rows in attention_fwd_aic.csv.gz).
const LAUNCH: f64 = 5e-6;

/// One row of a sweep: work, shape, and time.
struct Point {
    flops: f64,
    sequence: f64,
    tiles: f64,
    seconds: f64,
}

/// Rate \[TFLOP/s\] and knee, with errors.
struct Rate {
    rate: f64,
    knee: f64,
    errors: Vec<f64>,
}

fn seconds(point: &Point, rate: f64, knee: f64, processors: f64) -> f64 {
    LAUNCH
        + point.flops / (rate * 1e12 * point.sequence / (point.sequence + knee))
            * (1.0 + 0.8 * processors / point.tiles)
}

fn best_rate(points: &[&Point], processors: f64, start: f64) -> (f64, f64) {
    let best = fit::positive(&[start, 700.0], 200, |p| {
        points.iter().map(|point| fit::error(seconds(point, p[0], p[1], processors), point.seconds)).sum::<f64>()
    });
    (fit::rounded(best[0]), fit::rounded(best[1].max(1.0)))
}

/// Fits a rate and a knee; errors are by leaving out one point at a time where there are few.
fn fit_rate(points: &[Point], processors: f64, start: f64) -> Rate {
    let all: Vec<&Point> = points.iter().collect();
    let (rate, knee) = best_rate(&all, processors, start);
    let few = points.len() <= 20;
    let error = |out: usize| {
        let (rate, knee) = if few {
            let rest: Vec<&Point> = points.iter().enumerate().filter(|(at, _)| *at != out).map(|(_, p)| p).collect();
            best_rate(&rest, processors, start)
        } else {
            (rate, knee)
        };
        fit::error(seconds(&points[out], rate, knee, processors), points[out].seconds)
    };
    Rate { rate, knee, errors: (0..points.len()).map(error).collect() }
}

/// FLOPs of a kernel, causal pairs halved.
fn flops(batch: f64, heads: f64, sequence: f64, head: f64, causal: bool, backward: bool) -> f64 {
    let pairs = if causal { 0.5 } else { 1.0 } * sequence * sequence;
    (if backward { 5.0 } else { 2.0 }) * 2.0 * batch * heads * pairs * head
}

/// Sweeps by head dimension, whether backward, whether causal.
type Sweeps = BTreeMap<(u64, bool, bool), Vec<Point>>;

/// cuDNN's sweeps of one GPU.
fn cudnn(tables: &Tables, gpu: &str) -> Result<Sweeps, ImportError> {
    let mut groups = Sweeps::new();
    let table = tables.get("attention_cudnn.csv")?;
    let wanted = |row: &Row<'_>| {
        row.text("gpu") == gpu
            && row.text("backend") == "cudnn"
            && row.text("dtype") == "bfloat16"
            && row.text("deterministic_bwd") == "False"
            && row.text("window").is_empty()
            && row.text("success") == "True"
            && matches!(row.text("mask"), "top_left" | "no_mask")
    };
    for row in table.rows().filter(wanted) {
        let numbers =
            ["batch", "q_len", "kv_len", "q_heads", "d_qk", "d_vo", "time_ms"].map(|column| row.number(column));
        let [Some(batch), Some(s), Some(keys), Some(heads), Some(qk), Some(vo), Some(ms)] = numbers else { continue };
        if s != keys || s < 512.0 {
            continue;
        }
        let (causal, backward) = (row.text("mask") == "top_left", row.text("pas") == "bwd");
        // Queries and values of different width: the mean carries the same arithmetic forward.
        let head = (qk + vo) / 2.0;
        groups.entry((head as u64, backward, causal)).or_default().push(Point {
            flops: flops(batch, heads, s, head, causal, backward),
            sequence: s,
            tiles: batch * heads * (s / 128.0).ceil(),
            seconds: ms * 1e-3,
        });
    }
    groups.retain(|_, points| points.len() >= 3);
    Ok(groups)
}

/// Forward sweep over sequence lengths of one chip and head dimension.
fn sweep(tables: &Tables, gpu: &str, head: f64, processors: f64) -> Result<Rate, ImportError> {
    let table = tables.get("attention_fwd_aic.csv.gz")?;
    let points: Vec<Point> = table
        .rows()
        .filter(|row| row.text("gpu") == gpu && row.number("head_dim") == Some(head))
        .filter_map(|row| {
            let (batch, s, heads) = (row.number("batch_size")?, row.number("isl")?, row.number("num_heads")?);
            let tiles = batch * heads * (s / 128.0).ceil();
            (s >= 1024.0 && tiles >= 4.0 * processors).then_some(Point {
                flops: flops(batch, heads, s, head, true, false),
                sequence: s,
                tiles,
                seconds: row.number("time_us")? * 1e-6,
            })
        })
        .collect();
    Ok(fit_rate(&points, processors, 400.0))
}

/// Rate of PyTorch's SDPA on the A100, given a knee.
fn simumax(tables: &Tables, pass: &str, knee: f64) -> Result<Rate, ImportError> {
    let table = tables.get("attention_simumax.csv")?;
    let processors = 108.0;
    let points: Vec<Point> = table
        .rows()
        .filter(|row| {
            row.text("gpu").starts_with("A100") && row.text("op") == pass && row.number("d_qk") == Some(128.0)
        })
        .filter_map(|row| {
            let (batch, s, heads) = (row.number("batch")?, row.number("seq")?, row.number("heads")?);
            let uncounted = row.number("eff_vs_peak_simumax_flops_convention")? * row.number("peak_tflops")? * 1e12;
            let flops = flops(batch, heads, s, 128.0, true, pass == "sdp_bwd");
            let tiles = batch * heads * (s / 128.0).ceil();
            Some(Point { flops, sequence: s, tiles, seconds: 2.0 * flops / uncounted })
        })
        .collect();
    let best = fit::positive(&[200.0], 100, |p| {
        points.iter().map(|point| fit::error(seconds(point, p[0], knee, processors), point.seconds)).sum::<f64>()
    });
    let rate = fit::rounded(best[0]);
    let errors = points.iter().map(|point| fit::error(seconds(point, rate, knee, processors), point.seconds)).collect();
    Ok(Rate { rate, knee, errors })
}

/// Writes the kernels of a chip.
struct Writer {
    text: String,
    residuals: Vec<Residual>,
}

impl Writer {
    #[allow(clippy::too_many_arguments, reason = "one column of the file each")]
    fn kernel(&mut self, backend: &str, backward: bool, head: u64, causal: bool, rate: f64, knee: f64, evidence: &str) {
        let _ = write!(
            self.text,
            "[[attention.kernels]]\nbackend = \"{backend}\"\nbackward = {backward}\nhead_dim = {head}\ncausal = {causal}\n\
             rate = \"{} TFLOP/s\"\nknee = {}\nevidence = {evidence}\n\n",
            fit::rounded(rate),
            fit::rounded(knee)
        );
    }

    fn cudnn(&mut self, tables: &Tables, chip: &ChipSpec) -> Result<(), ImportError> {
        let (gpu, scale, own) = match chip.matmul {
            "h200" => ("NVIDIA H200", 1.0, true),
            "h100" => ("NVIDIA H200", 1.0, false),
            "b200" => ("NVIDIA GB200", 0.9, false),
            _ => return Ok(()),
        };
        let processors = f64::from(chip.processors);
        for ((head, backward, causal), points) in cudnn(tables, gpu)? {
            let r = fit_rate(&points, processors, 700.0);
            let source = format!(
                "attention_cudnn.csv, cuDNN on {gpu}{}",
                match (own, scale) {
                    (true, _) => String::new(),
                    (_, 1.0) => ": the same die and power limit".to_owned(),
                    _ => format!(", times {scale}: bf16 peak 2250 over 2500 TFLOP/s"),
                }
            );
            let (basis, extra) = if own { ("published", 0.0) } else { ("extrapolated", 0.08) };
            let (median, p90) = (fit::median(&r.errors), fit::quantile(&r.errors, 0.9));
            let evidence = evidence(basis, points.len(), median, p90.max(0.02) + extra, &source);
            self.kernel("cudnn", backward, head, causal, r.rate * scale, r.knee, &evidence);
            self.residuals.push(Residual {
                section: format!(
                    "cudnn d{head} {} {}",
                    if backward { "bwd" } else { "fwd" },
                    if causal { "causal" } else { "full" }
                ),
                points: points.len(),
                median,
                p90,
            });
        }
        Ok(())
    }

    fn flash(&mut self, tables: &Tables, chip: &ChipSpec) -> Result<(), ImportError> {
        let a100 = sweep(tables, "a100", 128.0, 108.0)?;
        let forward = simumax(tables, "sdp_fwd", a100.knee)?;
        let backward = simumax(tables, "sdp_bwd", a100.knee)?;
        let ratio = backward.rate / forward.rate;
        let narrow = sweep(tables, "h100", 64.0, 132.0)?.rate / sweep(tables, "h100", 128.0, 132.0)?.rate;
        let points = tables.get("attention_published_points.csv")?;
        let azure = points
            .rows()
            .find(|row| row.text("gpu") == "H100 SXM" && row.text("kernel") == "FlashAttention-2")
            .and_then(|row| row.number("tflops"))
            .ok_or_else(|| points.error("no FlashAttention-2 point on H100 SXM"))?;
        // Its batch is 2; its heads, not stated, are taken as 32.
        let hopper = azure * (1.0 + a100.knee / 8192.0) * (1.0 + 0.8 * 132.0 / (2.0 * 32.0 * 64.0));
        let a100_source =
            "attention_simumax.csv (PyTorch SDPA on A100 PCIe, causal FLOPs halved); knee: attention_fwd_aic.csv.gz";
        let hopper_source = "attention_published_points.csv (one FlashAttention-2 point on H100, mask not stated)";
        let (rates, basis, p90, source) = match chip.matmul {
            "a100" => ([forward.rate, backward.rate], ["published"; 2], [0.12, 0.12], a100_source.to_owned()),
            "b200" => (
                [1.2 * hopper, 1.2 * hopper * ratio],
                ["assumed"; 2],
                [0.4, 0.4],
                format!(
                    "{hopper_source}, times 1.2: processors x clock over H100's, without Blackwell's own instructions"
                ),
            ),
            _ => (
                [hopper, hopper * ratio],
                ["published", "extrapolated"],
                [0.15, 0.2],
                format!("{hopper_source}; backward by the A100's ratio {ratio:.3}; d64 by the H100 sweep's ratio"),
            ),
        };
        for (pass, rate) in rates.iter().enumerate() {
            for (head, by) in [(64, narrow), (128, 1.0)] {
                for (causal, knee) in [(true, a100.knee), (false, 0.25 * a100.knee)] {
                    let basis = if head == 128 && causal { basis[pass] } else { "extrapolated" };
                    let basis = if chip.matmul == "b200" { "assumed" } else { basis };
                    let e = evidence(basis, 1, p90[pass] / 2.0, p90[pass], &source);
                    self.kernel("flash2", pass == 1, head, causal, rate * by, knee, &e);
                    if matches!(chip.matmul, "h100" | "h200") {
                        let gain = [1.75, 1.6][pass];
                        let source = format!(
                            "flash2 of this file times {gain}: FlashAttention-3 states 1.5-2.0x forward, 1.5-1.75x backward (arXiv 2407.08608)"
                        );
                        let e = evidence("extrapolated", 0, 0.08, 0.18, &source);
                        self.kernel("flash3", pass == 1, head, causal, rate * by * gain, knee, &e);
                    }
                }
            }
        }
        if chip.matmul == "a100" {
            for (name, rate) in [("fwd", &forward), ("bwd", &backward)] {
                self.residuals.push(Residual {
                    section: format!("flash2 d128 {name} causal"),
                    points: rate.errors.len(),
                    median: fit::median(&rate.errors),
                    p90: fit::quantile(&rate.errors, 0.9),
                });
            }
        }
        Ok(())
    }
}

/// The section `attention`.
pub fn section(tables: &Tables, chip: &ChipSpec) -> Result<Section, ImportError> {
    let mut writer = Writer {
        text: format!(
            "# FLOPs: 4 B N S^2 H forward, 10 B N S^2 H backward, halved under a causal mask.\n[attention]\nlaunch = \"{:.1} us\"\n\n",
            LAUNCH * 1e6
        ),
        residuals: Vec::new(),
    };
    writer.cudnn(tables, chip)?;
    writer.flash(tables, chip)?;
    Ok(Section { text: writer.text, residuals: writer.residuals })
}
