//! Attention: rates and knees by library, pass, head dimension and mask.
//!
//! cuDNN is fitted to its own training sweeps on H200 and GB200 (attention_cudnn.csv); the FlashAttention family to its
//! authors' benchmark charts ([`super::charts`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::chips::ChipSpec;
use super::tables::{Row, Tables};
use super::{ImportError, Residual, Section, charts, evidence, fit};
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
            _ => return Ok(()),
        };
        let processors = f64::from(chip.processors);
        for ((head, backward, causal), points) in cudnn(tables, gpu)? {
            let r = fit_rate(&points, processors, 700.0);
            let errors = left_out(&points, processors, 700.0);
            let source = format!(
                "attention_cudnn.csv, cuDNN on {gpu}{}",
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
            attention::write(&mut self.text, &kernel, r.rate * scale, r.knee, &evidence);
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
        for sweep in charts::sweeps(tables, chip)? {
            let r = fit_rate(&sweep.points, processors, 200.0);
            let errors = left_out(&sweep.points, processors, 200.0);
            let (median, p90) = (fit::median(&errors), fit::quantile(&errors, 0.9));
            let e = evidence(sweep.basis, sweep.points.len(), median, p90.max(0.03) + sweep.doubt, &sweep.source);
            let (head, backward, causal) = (sweep.head, sweep.backward, sweep.causal);
            let kernel = Kernel { backend: sweep.kernel.to_owned(), backward, head, causal };
            attention::write(&mut self.text, &kernel, r.rate, r.knee, &e);
            if sweep.basis == "published" {
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
    let path = folder.join("attention_h200.csv");
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
    written.map_err(|why| ImportError::File { path: path.display().to_string(), why })
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
