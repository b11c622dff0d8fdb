//! Matmuls of experts in one kernel, from whole layers of experts (`moe_aic.csv.gz`, made by `aiconfigurator.py`).
//!
//! TensorRT-LLM runs a layer's experts as two grouped CUTLASS kernels, with kernels that permute tokens, multiply by the activation and
//! add up what a token's experts return. A layer's time is the wave model of both matmuls ([`Waves::of_groups`]), plus a time that no
//! size moves, plus the bytes of the other kernels over a share of HBM's bandwidth; all are fitted together. Errors are by leaving
//! models out: layers of a hidden size and a number of experts are predicted from those of all others. One model in
//! five is kept for the tests, and predicted by all others. Layers that a larger one undercuts are left out of both.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use windtunnel::cost::waves::{Chip, Waves};
use windtunnel::units::Time;

use super::chips::{self, ChipSpec};
use super::tables::{Row, Tables};
use super::{ImportError, Residual, Section, evidence, fit, matmul};
use crate::fit::matmul::{Spec, write_waves};

/// Rows an expert from which on layers are counted: below, kernels are of another kind, and no training has them.
const FEWEST: f64 = 16.0;

/// Tokens from which on they are: below, launches are most of the time.
const TOKENS: f64 = 512.0;

/// Inner size from which on they are: on H100 a layer of 256 takes twice what one of 512 does, and no training has so few.
const INNER: f64 = 512.0;

/// A layer of experts on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Layer {
    tokens: f64,
    hidden: f64,
    /// Inner size, of the rank's part of it.
    inner: f64,
    top_k: f64,
    experts: f64,
    seconds: f64,
}

/// What is fitted.
#[derive(Clone, Copy, Debug)]
struct Model {
    waves: Waves,
    /// What no size moves \[s\].
    fixed: f64,
    /// Share of HBM's bandwidth that the kernels beside the matmuls reach.
    stream: f64,
}

impl Layer {
    fn read(row: &Row<'_>) -> Option<Layer> {
        let number = |name: &str| row.number(name);
        let layer = Layer {
            tokens: number("tokens")?,
            hidden: number("hidden")?,
            inner: number("inter")? / number("tp")?,
            top_k: number("topk")?,
            experts: number("experts")?,
            seconds: number("time_us")? * 1e-6,
        };
        let counts = layer.rows() >= FEWEST && layer.tokens >= TOKENS && layer.inner >= INNER;
        (counts && layer.seconds > 0.0).then_some(layer)
    }

    /// Rows of each expert.
    fn rows(&self) -> f64 {
        self.tokens * self.top_k / self.experts
    }

    /// Of which model it is, but for its parts of the inner size.
    fn model(&self) -> [u64; 2] {
        [self.hidden, self.experts].map(|size| size as u64)
    }

    /// What the kernels beside the matmuls read and write \[B\]: rows permuted and, in fp8, quantised; the activation; rows added up.
    fn others(&self, size: f64) -> f64 {
        let rows = self.tokens * self.top_k;
        rows * self.hidden * (2.0 + size) + rows * self.inner * (4.0 + size) + (rows + self.tokens) * self.hidden * 2.0
    }

    /// Seconds that the kernels beside the matmuls take.
    fn beside(&self, model: &Model, chip: &Chip, size: f64) -> f64 {
        model.fixed + self.others(size) / (chip.bandwidth.0 * model.stream)
    }

    fn predicted(&self, model: &Model, chip: &Chip, size: f64) -> f64 {
        let of = |n, k| model.waves.of_groups(chip, self.experts, (self.rows(), n, k), size);
        self.beside(model, chip, size) + of(2.0 * self.inner, self.hidden) + of(self.hidden, self.inner)
    }
}

/// Layers that take no longer than those of the same model with more tokens or a larger inner size, to which they could be padded:
/// a kernel chosen badly takes up to six times as long.
fn not_slower_than_more(layers: &[Layer]) -> Vec<Layer> {
    let more = |a: &Layer, b: &Layer| {
        let same = [a.hidden, a.top_k, a.experts] == [b.hidden, b.top_k, b.experts];
        same && a.tokens <= b.tokens && a.inner <= b.inner
    };
    let least = |layer: &Layer| {
        let more = layers.iter().filter(|other| more(layer, other)).map(|other| other.seconds);
        more.fold(f64::INFINITY, f64::min)
    };
    layers.iter().filter(|layer| layer.seconds <= 1.05 * least(layer)).copied().collect()
}

fn model(p: &[f64]) -> Model {
    let share = |value: f64| fit::rounded(value).min(1.0);
    Model {
        waves: Waves {
            launch: Time::from_seconds(2.3e-6),
            mma: share(p[0]),
            k_overhead: fit::rounded(p[1]),
            memory: share(p[2]),
            small_tile: share(p[3]),
            tail: share(p[4]),
            split_k: Time::from_seconds(2.3e-6),
        },
        fixed: fit::rounded(p[5]),
        stream: fit::rounded(p[6]),
    }
}

fn fitted<'l>(layers: impl Iterator<Item = &'l Layer>, chip: &Chip, size: f64) -> Model {
    let sample: Vec<&Layer> = layers.step_by(2).collect();
    let best = fit::positive(&[0.6, 150.0, 0.8, 0.9, 0.6, 25e-6, 0.8], 260, |p| {
        if p[..5].iter().enumerate().any(|(at, share)| at != 1 && *share > 1.0) || p[6] > 1.0 {
            return f64::MAX;
        }
        let model = model(p);
        sample
            .iter()
            .map(|layer| libm::fabs(libm::log(layer.predicted(&model, chip, size) / layer.seconds)))
            .sum::<f64>()
    });
    model(&best)
}

/// Models that are kept for the tests: the second in every five, by their sizes.
fn held(all: &[Layer]) -> BTreeSet<[u64; 2]> {
    let models: BTreeSet<[u64; 2]> = all.iter().map(Layer::model).collect();
    models.into_iter().skip(1).step_by(5).collect()
}

/// The sections `grouped.bf16` and `grouped.fp8`; none for chips whose layers nobody measured.
pub fn section(tables: &Tables, chip: &ChipSpec, held_out: Option<&Path>) -> Result<Option<Section>, ImportError> {
    if chip.matmul == "a100" {
        return Ok(None);
    }
    let table = tables.get("moe_aic.csv.gz")?;
    let measured = chips::CHIPS.iter().find(|spec| spec.matmul == chip.matmul && !spec.derived).unwrap_or(chip);
    let (mut text, mut residuals, mut kept) = (String::new(), Vec::new(), String::new());
    for (dtype, name, peak, size) in [("bfloat16", "bf16", chip.peaks[0], 2.0), ("fp8", "fp8", chip.peaks[1], 1.0)] {
        let spec = Spec {
            processors: chip.processors,
            peak,
            size,
            measured_bandwidth: chip.measured_bandwidth,
            own_bandwidth: chip.bandwidth,
        };
        let board = spec.measured();
        let all: Vec<Layer> = table
            .rows()
            .filter(|row| row.text("system") == measured.system && row.text("dtype") == dtype)
            .filter_map(|row| Layer::read(&row))
            .collect();
        let all = not_slower_than_more(&all);
        if all.is_empty() {
            return Err(table.error(&format!("no {dtype} layers of {}", measured.system)));
        }
        let aside = held(&all);
        let (out, used): (Vec<Layer>, Vec<Layer>) = all.iter().partition(|layer| aside.contains(&layer.model()));
        let own = fitted(used.iter(), &board, size);
        let models: BTreeSet<[u64; 2]> = used.iter().map(Layer::model).collect();
        let mut errors = Vec::new();
        for model in models {
            let (left, rest): (Vec<Layer>, Vec<Layer>) = used.iter().partition(|layer| layer.model() == model);
            let without = fitted(rest.iter(), &board, size);
            errors.extend(left.iter().map(|layer| fit::error(layer.predicted(&without, &board, size), layer.seconds)));
        }
        // What is kept for the tests is predicted by all others.
        errors.extend(out.iter().map(|layer| fit::error(layer.predicted(&own, &board, size), layer.seconds)));
        let stream = own.stream;
        let residual = Residual::of(format!("grouped {name}, rows moved at {stream} of HBM"), used.len(), &errors);
        let (basis, more) = if chip.derived { ("extrapolated", 0.05) } else { ("published", 0.0) };
        let source = format!(
            "moe_aic.csv.gz: layers of experts on {} (aiconfigurator-core 0.12.0, TensorRT-LLM 1.3.0rc20's CUTLASS), errors by leaving \
             out models",
            measured.chip
        );
        let e = evidence(basis, used.len(), residual.median, residual.p90 + more, &source);
        let mut section = String::new();
        write_waves(&mut section, name, peak, &own.waves, &e);
        text.push_str(&section.replace("[matmul.", "[grouped."));
        residuals.push(residual);
        for layer in &out {
            let Layer { tokens, hidden, inner, top_k, experts, seconds } = *layer;
            let beside = 1e6 * layer.beside(&own, &board, size);
            let us = 1e6 * seconds;
            let _ =
                writeln!(kept, "{},{name},{tokens},{hidden},{inner},{top_k},{experts},{beside:.1},{us:.1}", chip.name);
        }
    }
    if let Some(folder) = held_out.filter(|_| !chip.derived && chip.name != "b200-sxm-throttled") {
        let head = format!(
            "# Layers of experts kept from the profile {}: moe_aic.csv.gz (aiconfigurator-core 0.12.0, TensorRT-LLM 1.3.0rc20); what the\n\
             # kernels beside the two matmuls take is the fit's\n\
             profile,dtype,tokens,hidden,inner,top_k,experts,beside_us,time_us\n",
            chip.name
        );
        matmul::write(folder, &format!("experts_{}.csv", chip.matmul), &(head + &thinned(&kept)))?;
    }
    Ok(Some(Section { text, residuals }))
}

/// Every third line of what is kept: as many as tests need.
fn thinned(lines: &str) -> String {
    lines.lines().step_by(3).flat_map(|line| [line, "\n"]).collect()
}
