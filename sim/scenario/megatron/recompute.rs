//! What of a block runs again in backward (`--recompute-granularity`, `--recompute-modules`; `megatron/training/arguments.py`
//! and `core/transformer/transformer_config.py`, `__post_init__`, 0.16).

use toml::{Spanned, Value};

use crate::model::ModelConfig;
use crate::runtime::megatron::{Engine, Implementation, Pipeline, Recompute, RecomputeModules};
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::written::{self, Module};

/// Whole blocks or the attention core, and parts of a block beside it.
pub(super) fn asked(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    (model, implementation): (&ModelConfig, Implementation),
) -> Result<(Recompute, RecomputeModules), ScenarioError> {
    let whole = recompute(reader, table)?;
    let Some(at) = &table.recompute_modules else {
        if model.experts().is_some() {
            reader.assume("megatron.recompute_modules", (), Value::Array(vec![]));
        }
        return Ok((whole, RecomputeModules::default()));
    };
    if matches!(whole, Recompute::Uniform { .. } | Recompute::Block { .. }) {
        let problem = "recompute_modules runs parts of a block again, and megatron.recompute all of it";
        return Err(reader.plan(at, problem, "remove one of the two keys"));
    }
    let modules = at.get_ref();
    let has = |module| modules.contains(&module);
    check(reader, (table, at), model)?;
    let again = RecomputeModules {
        norms: has(Module::Layernorm),
        activation: has(Module::MoeAct),
        up_projection: has(Module::MlaUpProj),
        feed_forward: has(Module::Mlp),
        mixture: has(Module::Moe),
        shared: has(Module::SharedExperts),
    };
    let fused = implementation == Implementation::TransformerEngine && model.latent().is_none();
    if again.norms && fused && model.experts().is_none() {
        reader.note("layernorm in recompute_modules does nothing: Transformer Engine's norms are parts of its linears");
    }
    if again.activation && again.mixture {
        reader.note("moe_act inside moe: the activation's own second run, one kernel for each mixture, is left out");
    }
    Ok((if has(Module::CoreAttn) { Recompute::Core } else { whole }, again))
}

/// Whether the model has the modules, and none holds another.
fn check(
    reader: &Reader<'_>,
    (table, at): (&written::Megatron, &Spanned<Vec<Module>>),
    model: &ModelConfig,
) -> Result<(), ScenarioError> {
    let has = |module| at.get_ref().contains(&module);
    let experts = model.experts();
    for (module, name, missing) in [
        (Module::MoeAct, "moe_act", experts.is_none().then_some("experts")),
        (Module::Moe, "moe", experts.is_none().then_some("experts")),
        (
            Module::SharedExperts,
            "shared_experts",
            experts.is_none_or(|experts| experts.shared == 0).then_some("shared experts"),
        ),
        (Module::MlaUpProj, "mla_up_proj", model.latent().is_none().then_some("latent attention")),
    ] {
        if let (true, Some(missing)) = (has(module), missing) {
            let problem = format!("recompute_modules names {name}, and {} has no {missing}", model.name);
            return Err(reader.plan(at, problem, format!("remove \"{name}\" from the list")));
        }
    }
    if has(Module::Moe) && has(Module::SharedExperts) {
        let problem = "recompute_modules names shared_experts and moe, which recomputes all of a mixture";
        let remedy = "remove \"shared_experts\": one inside the other is not simulated";
        return Err(reader.plan(at, problem, remedy));
    }
    let together = table.overlap_moe_expert_parallel_comm.as_ref().is_some_and(|at| *at.get_ref());
    if together && has(Module::Moe) {
        let problem = "recompute_modules names moe, which overlap_moe_expert_parallel_comm cuts into parts";
        return Err(reader.plan(at, problem, "remove \"moe\" from the list, or overlap_moe_expert_parallel_comm"));
    }
    let delayed = table.fp8.as_ref().is_some_and(|at| *at.get_ref() == written::Fp8::Delayed);
    for (module, name) in [(Module::Layernorm, "layernorm"), (Module::MoeAct, "moe_act")] {
        if delayed && has(module) {
            let problem = format!("recompute_modules names {name}, which Megatron-Core refuses under delayed scaling");
            return Err(reader.plan(
                at,
                problem,
                format!("remove \"{name}\" from the list, or write another megatron.fp8"),
            ));
        }
    }
    if delayed && has(Module::MlaUpProj) {
        let problem = "recompute_modules names mla_up_proj, and linears in fp8 under delayed scaling run again there are not simulated";
        return Err(reader.plan(at, problem, "remove \"mla_up_proj\" from the list, or megatron.fp8"));
    }
    Ok(())
}

/// Whether stages have the blocks that are to run again. In `_checkpointed_forward` (`core/transformer/transformer_block.py`)
/// `uniform` takes so many at a time and looks for all of them in the last stretch too, `block` takes those that there are;
/// DeepSpeed ends its last stretch with the stage (`runtime/pipe/module.py`).
pub(super) fn fits(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    (recompute, engine): (Recompute, Engine),
    pipeline: &Pipeline,
) -> Result<(), ScenarioError> {
    let (key, layers) = match recompute {
        Recompute::Uniform { layers } => ("uniform", layers),
        Recompute::Block { layers } => ("block", layers),
        Recompute::None | Recompute::Core => return Ok(()),
    };
    let uneven = pipeline.layers.iter().find(|blocks| !blocks.is_multiple_of(layers));
    if let (Some(at), "uniform", Engine::Core, Some(blocks)) = (&table.recompute, key, engine, uneven) {
        let problem = format!(
            "megatron.recompute takes {layers} blocks at a time, and a stage has {blocks}: Megatron-Core then asks for blocks \
             that are not there"
        );
        let divides = |fewer: &u64| pipeline.layers.iter().all(|blocks| blocks.is_multiple_of(*fewer));
        let most = pipeline.layers.iter().copied().max().unwrap_or(0).min(layers);
        let fewer: Vec<String> = (1..=most).filter(divides).map(|fewer| format!("{{ uniform = {fewer} }}")).collect();
        return Err(reader.plan(at, problem, format!("write {}", fewer.join(" or "))));
    }
    let most = pipeline.layers.iter().copied().max().unwrap_or(0);
    if layers > most {
        reader.note(format!(
            "megatron.recompute.{key} = {layers} is more than the {most} blocks of any stage: all of them run again"
        ));
    }
    Ok(())
}

fn recompute(reader: &mut Reader<'_>, table: &written::Megatron) -> Result<Recompute, ScenarioError> {
    let core = |at: &&Spanned<Vec<Module>>| at.get_ref().contains(&Module::CoreAttn);
    let core = table.recompute_modules.as_ref().filter(core);
    let Some(at) = &table.recompute else {
        if core.is_some() {
            return Ok(reader.assume("megatron.recompute", Recompute::Core, "core_attn"));
        }
        return Ok(reader.assume("megatron.recompute", Recompute::None, "none"));
    };
    let count = |key: &str, layers: i64| {
        u64::try_from(layers).ok().filter(|layers| (1..=10_000).contains(layers)).ok_or_else(|| {
            let problem = format!("megatron.recompute.{key} = {layers} is out of range");
            reader.plan(at, problem, "write a number of blocks, 1 or more")
        })
    };
    if let (written::Recompute::None, Some(core)) = (at.get_ref(), core) {
        let problem = "recompute_modules names core_attn, and megatron.recompute is \"none\"";
        return Err(reader.plan(core, problem, "write megatron.recompute = \"core_attn\", or remove it from the list"));
    }
    Ok(match *at.get_ref() {
        written::Recompute::None => Recompute::None,
        written::Recompute::CoreAttn => Recompute::Core,
        written::Recompute::Uniform(layers) => Recompute::Uniform { layers: count("uniform", layers)? },
        written::Recompute::Block(layers) => Recompute::Block { layers: count("block", layers)? },
    })
}
