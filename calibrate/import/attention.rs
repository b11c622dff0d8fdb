//! Attention: rates and knees by library, pass, head dimension and mask.
//!
//! cuDNN is fitted to its own training sweeps on H200 and GB200 (attention_cudnn.csv), on SimuMax's B200 machine to that machine's own
//! kernels (attention_simumax.csv); the FlashAttention family to its authors' benchmark charts ([`super::charts`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::chips::{ChipSpec, Sustained};
use super::tables::{Row, Tables};
use super::{ImportError, Residual, Section, charts, clock, evidence, fit, kernels};
use crate::fit::attention::{self, Kernel, Point, fit_rate, flops, left_out};

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

/// How often the shortest time of a pass a point lasts at least: shorter ones wait for the host, as they take the same time
/// for four times the heads.
const HOST_BOUND: f64 = 1.5;

/// Sweeps of Transformer Engine's attention on one of SimuMax's machines, all causal.
///
/// Efficiencies count pairs in full: 2 and 5 times `B S² N (d_qk + d_v)` (SimuMax's `efficency_test/test_fa_efficiency.py`).
fn simumax(tables: &Tables, machine: &str) -> Result<Sweeps, ImportError> {
    let table = tables.get("attention_simumax.csv")?;
    let mut points = Vec::new();
    for row in table.rows().filter(|row| row.text("gpu") == machine && row.text("contiguous") == "True") {
        let columns = ["batch", "seq", "heads", "d_qk", "d_v", "eff_vs_peak_simumax_flops_convention", "peak_tflops"];
        let [Some(batch), Some(s), Some(heads), Some(qk), Some(v), Some(share), Some(peak)] =
            columns.map(|column| row.number(column))
        else {
            return Err(table.error("a row has no shape or efficiency"));
        };
        let backward = row.text("op") == "sdp_bwd";
        let full = if backward { 5.0 } else { 2.0 } * batch * s * s * heads * (qk + v);
        let head = (qk + v) / 2.0;
        let point = Point {
            flops: flops(batch, heads, s, head, true, backward),
            sequence: s,
            tiles: batch * heads * (s / 128.0).ceil(),
            seconds: full / (share * peak * 1e12),
        };
        points.push(((head as u64, backward, true), point));
    }
    let shortest = |pass: bool| {
        points.iter().filter(|(kernel, _)| kernel.1 == pass).map(|(_, p)| p.seconds).fold(f64::INFINITY, f64::min)
    };
    let floors = [false, true].map(|pass| HOST_BOUND * shortest(pass));
    let mut sweeps = Sweeps::new();
    for (kernel, point) in points.into_iter().filter(|(kernel, p)| p.seconds >= floors[usize::from(kernel.1)]) {
        sweeps.entry(kernel).or_default().push(point);
    }
    Ok(sweeps)
}

/// cuDNN's backward that adds up in one order over its other, by head dimension and whether causal: medians over shapes.
fn in_order(tables: &Tables, gpu: &str) -> Result<BTreeMap<(u64, bool), f64>, ImportError> {
    const SHAPE: [&str; 12] = [
        "gpu", "backend", "dtype", "mask", "batch", "q_len", "kv_len", "q_heads", "kv_heads", "d_qk", "d_vo", "window",
    ];
    let table = tables.get("attention_cudnn.csv")?;
    let mut times: BTreeMap<(Vec<String>, bool), Vec<f64>> = BTreeMap::new();
    for row in table.rows() {
        let shape: Vec<String> = SHAPE.iter().map(|column| row.text(column).to_owned()).collect();
        let wanted = row.text("gpu") == gpu && row.text("backend") == "cudnn" && row.text("dtype") == "bfloat16";
        if let (true, "bwd", "", Some(ms)) = (wanted, row.text("pas"), row.text("window"), row.number("time_ms")) {
            times.entry((shape, row.text("deterministic_bwd") == "True")).or_default().push(ms);
        }
    }
    let mut ratios: BTreeMap<(u64, bool), Vec<f64>> = BTreeMap::new();
    for ((shape, _), ms) in times.iter().filter(|((_, ordered), _)| *ordered) {
        let Some(other) = times.get(&(shape.clone(), false)) else { continue };
        let width = |at: usize| shape[at].parse::<f64>().unwrap_or(0.0);
        let head = ((width(9) + width(10)) / 2.0) as u64;
        ratios.entry((head, shape[3] == "top_left")).or_default().push(fit::median(ms) / fit::median(other));
    }
    Ok(ratios.into_iter().map(|(kernel, ratios)| (kernel, fit::median(&ratios))).collect())
}

/// Writes the kernels of a chip.
struct Writer {
    text: String,
    residuals: Vec<Residual>,
}

impl Writer {
    fn cudnn(&mut self, tables: &Tables, chip: &ChipSpec) -> Result<(), ImportError> {
        let (gpu, scale, own) = match chip.matmul {
            "h200" => ("NVIDIA H200", 1.0, true),
            "h100" => ("NVIDIA H200", 1.0, false),
            "b200" => ("NVIDIA GB200", 0.9, false),
            "gb200" => ("NVIDIA GB200", 1.0, true),
            "b300" => ("NVIDIA GB300", 0.9, false),
            "gb300" => ("NVIDIA GB300", 1.0, true),
            _ => return Ok(()),
        };
        let mut of_machine = match chip.sustained {
            Sustained::Loops(machine) => simumax(tables, machine)?,
            _ => Sweeps::new(),
        };
        let processors = f64::from(chip.processors);
        let ordered = in_order(tables, gpu)?;
        for (key @ (head, backward, causal), points) in cudnn(tables, gpu)? {
            let measured = of_machine.remove(&key);
            let (points, scale, own) = match &measured {
                Some(points) => (points, 1.0, true),
                None => (&points, scale, own),
            };
            let r = fit_rate(points, processors, 700.0);
            let errors = left_out(points, processors, 700.0);
            let source = format!(
                "{}{}",
                match measured {
                    Some(_) =>
                        "attention_simumax.csv, Transformer Engine on this machine, without what waits for the host"
                            .to_owned(),
                    None => format!("attention_cudnn.csv, cuDNN on {gpu}"),
                },
                match (own, scale) {
                    (true, _) => String::new(),
                    (_, 1.0) => ": the same die and power limit".to_owned(),
                    _ => format!(", times {scale}: bf16 peak 2250 over 2500 TFLOP/s"),
                }
            );
            let (basis, extra) = if own { ("published", 0.0) } else { ("extrapolated", 0.08) };
            let (median, p90) = (fit::median(&errors), fit::quantile(&errors, 0.9));
            let evidence = evidence(basis, points.len(), median, p90.max(0.02) + extra, &source);
            let kernel = Kernel { backend: "cudnn".to_owned(), backward, head, causal };
            let factor = ordered.get(&(head, causal)).filter(|_| backward);
            let line = factor.map_or(String::new(), |factor| format!("in_order = {factor:.3}"));
            attention::write_cut(&mut self.text, &kernel, (r.rate * scale, r.knee), &line, &evidence);
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
        let processors = f64::from(chip.processors);
        let mut trained = match clock::attention(chip)? {
            Some(factor) => kernels::attention("flash2", factor)?,
            None => BTreeMap::new(),
        };
        for mut sweep in charts::sweeps(tables, chip)? {
            let key = (sweep.head, sweep.backward);
            let own = if sweep.kernel == "flash2" && sweep.causal { trained.remove(&key) } else { None };
            if let Some(points) = own {
                // On another board 0.05 more: assumed.
                sweep = charts::Sweep {
                    points,
                    basis: if chip.matmul == "h200" { "measured" } else { "extrapolated" },
                    doubt: if chip.matmul == "h200" { 0.0 } else { 0.05 },
                    source: "calibrate/import/kernels.csv: PyTorch 2.11 in training steps on one NVIDIA H200, over the clock's \
                             factor of attention"
                        .to_owned(),
                    ..sweep
                };
            }
            let r = fit_rate(&sweep.points, processors, 200.0);
            let errors = left_out(&sweep.points, processors, 200.0);
            let (median, p90) = (fit::median(&errors), fit::quantile(&errors, 0.9));
            let e = evidence(sweep.basis, sweep.points.len(), median, p90.max(0.03) + sweep.doubt, &sweep.source);
            let (head, backward, causal) = (sweep.head, sweep.backward, sweep.causal);
            let kernel = Kernel { backend: sweep.kernel.to_owned(), backward, head, causal };
            attention::write(&mut self.text, &kernel, r.rate, r.knee, &e);
            if matches!(sweep.basis, "published" | "measured") {
                self.residuals.push(Residual {
                    section: format!(
                        "{} d{} {} {}",
                        sweep.kernel,
                        sweep.head,
                        if sweep.backward { "bwd" } else { "fwd" },
                        if sweep.causal { "causal" } else { "full" }
                    ),
                    points: sweep.points.len(),
                    median,
                    p90,
                });
            }
        }
        Ok(())
    }
}

/// The points that cuDNN's rates are fitted to, for the tests.
fn write_points(folder: &Path, tables: &Tables) -> Result<(), ImportError> {
    let mut text =
        "# cuDNN attention in bf16 on NVIDIA H200: the points of attention_cudnn.csv that profiles are fitted to\n\
                    head_dim,backward,causal,flops,sequence,tiles,time_us\n"
            .to_owned();
    for ((head, backward, causal), points) in cudnn(tables, "NVIDIA H200")? {
        for p in points {
            let us = p.seconds * 1e6;
            let _ = writeln!(text, "{head},{backward},{causal},{},{},{},{us:.3}", p.flops, p.sequence, p.tiles);
        }
    }
    super::matmul::write(folder, "attention_h200.csv", &text)
}

/// The section `attention`.
pub fn section(tables: &Tables, chip: &ChipSpec, held_out: Option<&Path>) -> Result<Section, ImportError> {
    if let Some(folder) = held_out.filter(|_| chip.matmul == "h200") {
        write_points(folder, tables)?;
    }
    let mut writer = Writer { text: attention::head(), residuals: Vec::new() };
    writer.cudnn(tables, chip)?;
    writer.flash(tables, chip)?;
    Ok(Section { text: writer.text, residuals: writer.residuals })
}
