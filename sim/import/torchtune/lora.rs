//! Adapters of torchtune's builders whose names begin with `lora_` (`torchtune/models/llama3/_component_builders.py`, `lora_llama3`, 0.6.1).

use toml::Value;

use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::settings::Settings;
use crate::import::why::Why;

/// Writes `[lora]`.
pub(super) fn put(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    for (key, what) in [
        ("model.quantize_base", "frozen weights in NF4 (torchao)"),
        ("model.use_dora", "adapters whose weights are normed (DoRA)"),
        ("model.apply_lora_to_output", "adapters beside the head"),
    ] {
        if settings.flag(key)?.is_some_and(|found| found.value) {
            return Err(settings.unsupported(key, what, "set it to false"));
        }
    }
    let missing = || settings.missing("model.lora_attn_modules", "names of linears", "set it to [q_proj, v_proj]");
    let attention = settings.words("model.lora_attn_modules")?.ok_or_else(missing)?;
    let mut modules = attention.value;
    let mut why = attention.why;
    if settings.flag("model.apply_lora_to_mlp")?.is_some_and(|found| found.value) {
        modules.extend(["gate_proj", "up_proj", "down_proj"].map(str::to_owned));
        why = why.so("and model.apply_lora_to_mlp");
    }
    let rank = settings.needed("model.lora_rank", "set model.lora_rank")?;
    out.put("lora.rank", rank.value, rank.why);
    out.put("lora.modules", Value::Array(modules.into_iter().map(Value::from).collect()), why);
    match settings.number("model.lora_dropout")? {
        Some(found) => out.put("lora.dropout", found.value, found.why),
        None => out.put("lora.dropout", 0.0, Why::code("no model.lora_dropout")),
    }
    let at = format!("{}: torchtune/modules/peft/lora.py", settings.of());
    out.put("lora.implementation", "torchtune", Why::code(at));
    Ok(())
}
