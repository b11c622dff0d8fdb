//! What a row measured.

use serde_json::Value;
use toml::Value as Key;

use super::Reason;
use super::keys::Gathered;
use crate::model::ModelConfig;
use crate::model::huggingface::shipped;
use crate::receipt::flops::{self, Sizes};
use crate::receipt::row::Row;

/// The quality of a row that is a test's, too small for its time to say anything.
const TINY: &str = "ci-tiny";

/// Writes `[measured]`.
pub(super) fn measured(row: &Row, keys: &mut Gathered) -> Result<(), Reason> {
    let m = &row.measured;
    let number = |value: f64| Key::Float(value);
    let formula = keys.take("measured.flops");
    if row.quality.get("scale").and_then(Value::as_str) != Some(TINY) {
        time(row, formula.as_ref().and_then(Key::as_str), keys)?;
    }
    let kind = m.peak_mem_kind.as_deref().unwrap_or("").to_lowercase();
    let peak = m.peak_mem_gib.map(|peak| quantity(peak, "GiB"));
    // Printed as "GB" without saying of which size: taken as read, 1e9 bytes.
    let peak = peak.or(m.peak_mem_gb_as_printed.map(|peak| quantity(peak, "GB")));
    if let Some(peak) = peak {
        let key = if kind.contains("reserved") {
            "measured.reserved"
        } else if kind.contains("allocated") || kind.contains("active") {
            "measured.allocated"
        } else {
            "measured.peak_memory"
        };
        keys.stated(key, peak);
    }
    if let Some(reserved) = m.peak_mem_reserved_gib {
        keys.stated("measured.reserved", quantity(reserved, "GiB"));
    }
    if let Some(died) = m.oom {
        keys.stated("measured.out_of_memory", died);
    }
    // A rule names the convention; a figure without one says nothing.
    match (m.mfu_pct, keys.get("measured.mfu_convention").is_some()) {
        (Some(mfu), true) => keys.stated("measured.mfu", number((mfu * 100.0).round() / 10_000.0)),
        (None, true) => drop(keys.take("measured.mfu_convention")),
        _ => {}
    }
    if !keys.names().any(|key| key.starts_with("measured.") && key != "measured.counted_tokens_per_step") {
        return Err(Reason::Uncovered("measured nothing that is predicted".to_owned()));
    }
    keys.stated("measured.source", source(row));
    keys.stated("measured.lane", row.lane.clone());
    keys.stated("measured.hardware", row.family().to_owned());
    keys.stated("measured.grade", row.grade().to_owned());
    keys.stated("measured.family", row.measured_with());
    Ok(())
}

fn quantity(value: f64, unit: &str) -> Key {
    Key::String(format!("{value} {unit}"))
}

/// The step time: printed, or a rate, or what a throughput in FLOP/s comes from.
fn time(row: &Row, formula: Option<&str>, keys: &mut Gathered) -> Result<(), Reason> {
    let m = &row.measured;
    let chips = row.hardware.count.unwrap_or(1) as f64;
    let samples = m.seq_s.map(|rate| rate / chips).or(m.samples_s_gpu);
    let by_sequence = samples.zip(row.sequence()).map(|(rate, sequence)| rate * sequence as f64);
    match (m.step_time_s, m.tok_s_gpu, m.tok_s_total.map(|rate| rate / chips).or(by_sequence)) {
        (Some(step), _, _) => keys.stated("measured.step_time", quantity(step, "s")),
        (None, Some(rate), _) | (None, None, Some(rate)) => {
            keys.stated("measured.tokens_per_second_per_chip", Key::Float(rate));
        }
        (None, None, None) => {
            let printed =
                m.tflops_gpu.or(m.mfu_pct.zip(row.hardware.peak_bf16_tflops).map(|(s, peak)| s / 100.0 * peak));
            if let (Some(name), Some(rate)) = (formula, printed.filter(|rate| *rate > 0.0)) {
                let sizes = sizes(row, keys).ok_or_else(|| Reason::Uncovered(format!("lacks sizes for {name}")))?;
                let each =
                    flops::per_token(name, sizes).ok_or_else(|| Reason::Uncovered(format!("no formula {name:?}")))?;
                let rate = (rate * 1e12 / each as f64 * 1e3).round() / 1e3;
                let source = format!("the printed share of FLOPs by their formula, {name} a token");
                keys.put("measured.tokens_per_second_per_chip", Key::Float(rate), Some(source));
            }
        }
    }
    Ok(())
}

/// The model's sizes as the rules have them, or else as the row states them, or else those of the model that is named.
fn sizes(row: &Row, keys: &Gathered) -> Option<Sizes> {
    let at = |key: &str, stated: Option<u64>| {
        keys.get(key).and_then(Key::as_integer).and_then(|value| u64::try_from(value).ok()).or(stated)
    };
    let m = &row.model;
    let named = keys.get("model.name").and_then(Key::as_str).and_then(|name| shipped::named(name).ok());
    let (width, heads) = (at("model.hidden", m.hidden), at("model.heads", m.n_heads).filter(|heads| *heads > 0));
    // Other sizes may be those of a model of its family.
    let alike = |named: &ModelConfig| {
        width.is_none_or(|width| width == named.width) && heads.is_none_or(|heads| heads == named.heads())
    };
    let named = named.filter(alike);
    let or_named = |stated: Option<u64>, own: fn(&ModelConfig) -> u64| stated.or(named.as_ref().map(own));
    let (width, heads) = (or_named(width, |named| named.width)?, or_named(heads, |named| named.heads()));
    let groups = at("model.kv_heads", or_named(m.n_kv_heads, |named| named.kv_heads())).zip(heads);
    let head = or_named(m.head_dim, |named| named.head_dim()).or(heads.map(|heads| width / heads));
    Some(Sizes {
        layers: at("model.layers", or_named(m.n_layers, |named| named.layers.count()))?,
        width,
        heads_width: head.zip(heads).map_or(width, |(head, heads)| head.saturating_mul(heads)),
        kv_width: groups.zip(head).map_or(width, |((groups, _), head)| head.saturating_mul(groups)),
        ffn: at("model.ffn", or_named(m.ffn, |named| named.feed_forward_width()))?,
        vocab: at("model.vocab", or_named(m.vocab, |named| named.vocab))?,
        sequence: at("batch.sequence", row.sequence())?,
    })
}

/// Who printed the row.
pub(super) fn source(row: &Row) -> String {
    let text = |key: &str| row.source.get(key).and_then(Value::as_str);
    let place = match (text("repo"), text("commit"), text("path")) {
        (Some(repo), Some(commit), Some(path)) => {
            format!("{repo}@{}:{path}", commit.chars().take(9).collect::<String>())
        }
        (Some(repo), None, Some(path)) => format!("{repo}:{path}"),
        _ => text("paper").or(text("repo")).unwrap_or("source not stated").to_owned(),
    };
    match text("table") {
        Some(table) => format!("{place}, {table}"),
        None => place,
    }
}
