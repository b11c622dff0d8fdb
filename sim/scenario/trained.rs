//! `[trained]` and `[lora]` as understood.

use toml::Spanned;

use super::dpo::Preference;
use super::entry::Runtime;
use super::error::ScenarioError;
use super::names::{FSDP1, FSDP2};
use super::reader::Reader;
use super::written::{self, BaseWeights, LoraCode, Part};
use crate::model::ModelConfig;
use crate::model::trained::{Code, Lora, MODULES, Packed, Trained, module_of};
use crate::near::did_you_mean;
use crate::plan::megatron::Recompute;
use crate::program::DType;
use crate::runtime::fsdp::MixedPrecision;

/// The key of `enable_input_require_grads`.
const INPUTS: &str = "trained.input_gradients";
/// All linears of a layer (`target_modules`, peft).
const EVERY_LINEAR: [&str; 2] = ["all-linear", "all_linear"];
/// Linears of Megatron-Core's layers.
const OF_MEGATRON: [&str; 4] = ["attention.wqkv", "attention.wo", "feed_forward.w13", "feed_forward.w2"];

/// What is trained, where the file says that not everything is. `asks`: whether the embedding's result gets a gradient where the file
/// leaves that open, since transformers calls `enable_input_require_grads` with its checkpoints (`set_gradient_checkpointing`, 5.24).
pub(super) fn trained(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (runtime, model, precision): (Runtime, &ModelConfig, MixedPrecision),
    (asks, preference): (bool, Option<Preference>),
) -> Result<Option<Trained>, ScenarioError> {
    let lora = match &scenario.lora {
        Some(at) => Some(lora(reader, at, (runtime, precision), preference)?),
        None => None,
    };
    let layers = model.layers.count();
    let whole = lora.is_none();
    let mut base = Trained { embedding: whole, layers_from: 0, norm: whole, head: whole, inputs: false, lora };
    let Some(table) = &scenario.trained else {
        if whole {
            return Ok(None);
        }
        base.inputs = reader.flag_or(INPUTS, None, asks);
        return Ok(Some(base));
    };
    let (at, table) = (table, table.get_ref());
    let mut trained = base;
    if let Some(parts) = &table.freeze {
        if trained.lora.is_some() {
            let problem = "[lora] freezes everything but its adapters, and trained.freeze names parts to freeze";
            return Err(reader.plan(parts, problem, "remove one of the two"));
        }
        for part in parts.get_ref() {
            match part {
                Part::Embedding => trained.embedding = false,
                Part::Layers => trained.layers_from = layers,
                Part::Norm => trained.norm = false,
                Part::Head => trained.head = false,
            }
        }
        if parts.get_ref().contains(&Part::Layers) && table.last_layers.is_some() {
            let problem = "trained.freeze names all layers, and trained.last_layers trains some";
            return Err(reader.plan(parts, problem, "remove \"layers\" from trained.freeze, or trained.last_layers"));
        }
    }
    if let Some(last) = &table.last_layers {
        let count = reader.count(&written::Trained::last_layers, last)?;
        if count >= layers {
            reader.idle("trained.last_layers", "the model has no more layers than that, so all of them are trained");
        }
        trained.layers_from = layers.saturating_sub(count);
    }
    let inputs = table.input_gradients.as_ref().map(|at| *at.get_ref());
    if !trained.embedding {
        trained.inputs = reader.flag_or(INPUTS, inputs, asks);
    } else if inputs.is_some() {
        reader.idle(INPUTS, "the embedding is trained, so its result has a gradient");
    }
    let nothing = !trained.embedding && trained.layers_from == layers && !trained.norm && !trained.head;
    if nothing || (trained.lora.is_some() && trained.layers_from == layers) {
        let problem = "nothing of the model is trained";
        return Err(reader.plan(at, problem, "remove a part from trained.freeze, or write trained.last_layers = 1"));
    }
    if model.tied_head && (trained.embedding || trained.head) && trained.embedding != trained.head {
        let problem = "head and embedding are one table, and only one of the two is frozen";
        return Err(reader.plan(at, problem, "write both into trained.freeze, or neither, or model.tied_head = false"));
    }
    let changes =
        trained.lora.is_some() || !trained.embedding || trained.layers_from > 0 || !trained.norm || !trained.head;
    if !changes {
        return Ok(None);
    }
    if runtime.written() == FSDP1 {
        let problem = "frozen parameters under FSDP1 are not simulated";
        return Err(reader.plan(at, problem, "write runtime = \"fsdp2\", or remove the table"));
    }
    Ok(Some(trained))
}

/// Adapters under Megatron-Core, where the file has some: those of NeMo 2 and of Megatron-Bridge, in the activations' type.
pub(super) fn adapters(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    recompute: Recompute,
    dtype: DType,
) -> Result<Option<Trained>, ScenarioError> {
    let Some(at) = &scenario.lora else { return Ok(None) };
    let table = at.get_ref();
    let rank = reader.count(&written::Lora::rank, &table.rank)?;
    let dropout = share_dropped(reader, table, "LoRA's default")?;
    let modules = modules(reader, &table.modules)?;
    for (name, module) in table.modules.get_ref().iter().filter_map(|name| Some((name, module_of(name.get_ref())?))) {
        if !OF_MEGATRON.contains(&module) {
            let problem =
                format!("lora.modules names {:?}, and Megatron-Core's layers have no such linear", name.get_ref());
            let remedy = "write names such as \"linear_qkv\", \"linear_proj\", \"linear_fc1\", \"linear_fc2\"";
            return Err(reader.plan(name, problem, remedy));
        }
    }
    let modules = modules.into_iter().filter(|module| OF_MEGATRON.contains(module)).collect();
    // Megatron-Bridge lets the first block's input ask for a gradient where whole blocks run again (`peft/recompute.py`, 0.4.0).
    let inputs = matches!(recompute, Recompute::Uniform { .. } | Recompute::Block { .. });
    if inputs {
        reader.note("what blocks that run again are given asks for a gradient, as Megatron-Bridge has it");
    }
    let dropout = dropout > 0.0;
    let lora = Lora { rank, modules, dropout, dtype, own_type: false, code: Code::Megatron, packed: None };
    Ok(Some(Trained { embedding: false, layers_from: 0, norm: false, head: false, inputs, lora: Some(lora) }))
}

/// The share of their input that adapters drop.
fn share_dropped(reader: &mut Reader<'_>, table: &written::Lora, default: &str) -> Result<f64, ScenarioError> {
    if table.alpha.is_some() {
        reader.idle("lora.alpha", "whatever the number, adapters are multiplied by it");
    }
    match &table.dropout {
        None => Ok(reader.assume_for("lora.dropout", 0.0, 0.0, default)),
        Some(share) if (0.0..1.0).contains(share.get_ref()) => Ok(*share.get_ref()),
        Some(share) => {
            let problem = format!("lora.dropout is a share of at least 0 and below 1, not {}", share.get_ref());
            Err(reader.plan(share, problem, "write a number such as 0.05"))
        }
    }
}

fn lora(
    reader: &mut Reader<'_>,
    at: &Spanned<written::Lora>,
    (runtime, precision): (Runtime, MixedPrecision),
    preference: Option<Preference>,
) -> Result<Lora, ScenarioError> {
    let table = at.get_ref();
    if runtime.written() == FSDP1 {
        let problem = "[lora] is simulated under fully_shard and on one device, not under FSDP1";
        return Err(reader.plan(at, problem, "write runtime = \"fsdp2\", or remove the table"));
    }
    let rank = reader.count(&written::Lora::rank, &table.rank)?;
    let dropout = share_dropped(reader, table, "LoraConfig's default")?;
    let code = match table.implementation {
        Some(LoraCode::Torchtune) => Code::Torchtune,
        Some(LoraCode::Peft) => Code::Peft,
        None if preference.is_some_and(|preference| preference.adapters() == Code::Peft) => {
            reader.assume_for("lora.implementation", Code::Peft, "peft", "TRL's")
        }
        None if runtime.keeps_whole() && preference.is_none() => {
            reader.assume("lora.implementation", Code::Peft, "peft")
        }
        None => reader.assume("lora.implementation", Code::Torchtune, "torchtune"),
    };
    let dtype = match &table.dtype {
        Some(dtype) => *dtype.get_ref(),
        None if code == Code::Peft && runtime.keeps_whole() => {
            reader.assume_for("lora.dtype", DType::Fp32, "fp32", "autocast_adapter_dtype=True")
        }
        None if runtime.written() == FSDP2 => precision.storage,
        None => reader.assume_for("lora.dtype", precision.storage, precision.storage.name(), "as the model is stored"),
    };
    if let Some(at) = table.dtype.as_ref().filter(|_| !matches!(dtype, DType::Bf16 | DType::Fp16 | DType::Fp32)) {
        let problem = format!("lora.dtype cannot be {}", dtype.name());
        return Err(reader.plan(at, problem, "write \"bf16\", \"fp16\" or \"fp32\""));
    }
    if let Some(at) = table.dtype.as_ref().filter(|_| runtime.written() == FSDP2 && dtype != precision.storage) {
        let problem = format!(
            "adapters of another type than the weights that fully_shard shards with them ({}) are not simulated",
            precision.storage.name()
        );
        return Err(reader.plan(at, problem, "remove lora.dtype, or write precision.storage to match"));
    }
    let packed = match &table.base {
        None => None,
        Some(base) if *base.get_ref() == BaseWeights::Plain => None,
        Some(base) if !runtime.keeps_whole() || code != Code::Peft => {
            let problem = "NF4 weights are simulated as bitsandbytes and peft have them on one device";
            return Err(reader.plan(
                base,
                problem,
                "write runtime = \"single_device\" and lora.implementation = \"peft\", or remove lora.base",
            ));
        }
        Some(_) => Some(Packed::Bitsandbytes),
    };
    let own_type = runtime.keeps_whole();
    let dtype = if own_type { dtype } else { precision.compute() };
    let modules = modules(reader, &table.modules)?;
    let dropout = dropout > 0.0 && preference.is_none();
    Ok(Lora { rank, modules, dropout, dtype, own_type, code, packed })
}

/// Linears that have adapters, in the order of a layer's.
fn modules(reader: &Reader<'_>, at: &Spanned<Vec<Spanned<String>>>) -> Result<Vec<&'static str>, ScenarioError> {
    let mut asked = vec![];
    for name in at.get_ref() {
        match module_of(name.get_ref()) {
            Some(module) => asked.push(module),
            None if EVERY_LINEAR.contains(&name.get_ref().as_str()) => {
                asked.extend(MODULES.iter().map(|&(_, module, _)| module))
            }
            None => {
                let known: Vec<&str> = MODULES.iter().flat_map(|(names, ..)| names.iter().copied()).collect();
                let near = did_you_mean(name.get_ref(), known.iter().copied());
                let problem = format!(
                    "lora.modules names {:?}, which is no linear that adapters are simulated for{near}",
                    name.get_ref()
                );
                return Err(reader.plan(
                    name,
                    problem,
                    "write names such as \"q_proj\", \"down_proj\", or \"all-linear\"",
                ));
            }
        }
    }
    if asked.is_empty() {
        return Err(reader.plan(at, "lora.modules is empty, so nothing is trained", "write names such as \"q_proj\""));
    }
    asked.sort_unstable();
    asked.dedup();
    Ok(asked)
}
