//! Which rows a lane is about.

use serde_json::Value;

use super::Reason;
use crate::receipt::row::Row;
use crate::receipt::table::word;
use crate::scenario::Runtime;

/// Lanes about parallelism beyond plain data parallelism, and about fp8: what a row of theirs needs and no runtime has
/// counts as not covered. In any other lane such a row is about something else.
const PARALLEL: [&str; 8] = ["blackwell", "tp+pp", "fsdp+tp", "context-parallel", "moe-ep", "fp8", "zero3", "ddp"];

/// A row that needs what is not there.
pub(super) fn without(row: &Row, what: impl Into<String>) -> Reason {
    if PARALLEL.contains(&row.lane.as_str()) { Reason::Uncovered(what.into()) } else { Reason::Outside(what.into()) }
}

/// What neither the row's lane nor the `runtime` it maps to has.
pub(super) fn beyond(row: &Row, value: &Value, runtime: &str) -> Result<(), Reason> {
    let vendor = row.hardware.vendor.as_deref().unwrap_or("nvidia");
    if vendor == "google" && row.lane.starts_with("tpu") {
        return Ok(());
    }
    if vendor != "nvidia" {
        return Err(Reason::Outside("not a CUDA machine".to_owned()));
    }
    let within = PARALLEL.contains(&row.lane.as_str());
    let megatron = within && Runtime::find(runtime).is_some_and(Runtime::splits_model);
    let p = &row.parallel;
    let degrees = [
        ("tensor", p.tp, within),
        ("pipeline", p.pp, megatron),
        ("context", p.cp, megatron || within && runtime == "fsdp2"),
        ("expert", p.ep, megatron || row.lane == "moe-ep" && runtime == "fsdp2"),
    ];
    for (name, degree, known) in degrees {
        if !known && degree.is_some_and(|degree| degree > 1) {
            return Err(without(row, format!("{name} parallelism")));
        }
    }
    let mixtures = megatron || row.lane == "moe-ep" && runtime == "fsdp2";
    if !mixtures && row.model.n_experts.is_some_and(|experts| experts > 1) {
        return Err(without(row, "a mixture of experts"));
    }
    if row.model.mamba_state_dim.is_some() || row.model.hybrid_pattern.is_some() {
        return Err(without(row, "a state-space or hybrid model"));
    }
    let has = |field: &str, what: &str| word(value, field).is_some_and(|word| word.to_lowercase().contains(what));
    // torchao's linears, under FSDP2.
    let float8 = within && runtime == "fsdp2" && has("precision.compute", "float8");
    // Transformer Engine's, under Composer.
    let engine = within && runtime == "fsdp1" && has("precision.compute", "amp_fp8");
    if !megatron && !float8 && !engine && (has("precision.compute", "fp8") || has("precision.recipe", "fp8")) {
        return Err(without(row, "fp8"));
    }
    if word(value, "switches.lora").is_some_and(|word| word == "true")
        || word(value, "switches.lora_rank").is_some()
        || has("switches.task", "lora")
        || has("switches.cumulative_techniques", "lora")
    {
        return Err(Reason::Outside("LoRA".to_owned()));
    }
    Ok(())
}
