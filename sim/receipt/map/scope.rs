//! Which rows there is a runtime for: decided by what a row is, not by its lane.
//!
//! A row is about something else where what was trained is no decoder of attention, where adapters were trained that no table
//! describes, or where the machine has neither CUDA GPUs nor TPUs. What is left and no runtime has counts as not covered.

use serde_json::Value;

use super::Reason;
use crate::hardware::Vendor;
use crate::receipt::row::Row;
use crate::receipt::table::word;
use crate::scenario::Runtime;

/// What no `runtime` that the row maps to has.
pub(super) fn beyond(row: &Row, value: &Value, runtime: &str) -> Result<(), Reason> {
    let vendor = row.vendor();
    let has = |field: &str, what: &str| word(value, field).is_some_and(|word| word.to_lowercase().contains(what));
    let runs_on = |vendor| Runtime::find(runtime).is_none_or(|runtime| runtime.runs_on(vendor));
    match vendor {
        "google" if runs_on(Vendor::Google) => return Ok(()),
        "nvidia" if runs_on(Vendor::Nvidia) => {}
        _ => return Err(Reason::Outside("not a CUDA machine".to_owned())),
    }
    let megatron = Runtime::find(runtime).is_some_and(Runtime::splits_model);
    let (fsdp2, xla) = (runtime == "fsdp2", runtime == "xla");
    let p = &row.parallel;
    let degrees = [
        ("tensor", p.tp, megatron || fsdp2 || xla),
        ("pipeline", p.pp, megatron),
        ("context", p.cp, megatron || fsdp2),
        ("expert", p.ep, megatron || fsdp2),
    ];
    let uncovered = Reason::Uncovered;
    let whose = if runtime.is_empty() { String::new() } else { format!(" under {runtime}") };
    for (name, degree, known) in degrees {
        if !known && degree.is_some_and(|degree| degree > 1) {
            return Err(uncovered(format!("{name} parallelism{whose}")));
        }
    }
    if !(megatron || fsdp2) && row.model.n_experts.is_some_and(|experts| experts > 1) {
        return Err(uncovered(format!("a mixture of experts{whose}")));
    }
    let hybrid = row.model.mamba_state_dim.is_some()
        || row.model.hybrid_pattern.is_some()
        || row.model.arch.as_deref().is_some_and(|arch| arch.starts_with("hybrid"));
    if hybrid && !(megatron || fsdp2) {
        return Err(uncovered(format!("a hybrid stack{whose}")));
    }
    if row.model.arch.as_deref() == Some("encoder-decoder") {
        return Err(Reason::Outside("an encoder and a decoder: decoders alone are simulated".to_owned()));
    }
    // torchao's linears, under FSDP2; Transformer Engine's, under Composer.
    let float8 = fsdp2 && has("precision.compute", "float8");
    let engine = runtime == "fsdp1" && has("precision.compute", "amp_fp8");
    if !megatron && !float8 && !engine && (has("precision.compute", "fp8") || has("precision.recipe", "fp8")) {
        return Err(uncovered(format!("fp8{whose}")));
    }
    if has("precision.compute", "fp4") || has("precision.recipe", "fp4") {
        return Err(uncovered("NVFP4".to_owned()));
    }
    if !megatron && (has("precision.compute", "mxfp8") || has("precision.recipe", "mxfp8")) {
        return Err(uncovered(format!("MXFP8{whose}")));
    }
    Ok(())
}

/// Whether a row says that adapters were trained beside frozen weights.
pub(super) fn adapted(value: &Value) -> bool {
    let has = |field: &str| word(value, field).is_some_and(|word| word.to_lowercase().contains("lora"));
    word(value, "switches.lora").is_some_and(|word| word == "true")
        || word(value, "switches.lora_rank").is_some()
        || ["switches.task", "switches.cumulative_techniques", "switches.method"].into_iter().any(has)
}
