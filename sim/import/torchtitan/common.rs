//! Keys that all releases of torchtitan have, under the names of 0.2.2.

use toml::Value;

use super::flavors;
use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::settings::Settings;
use crate::import::why::Why;

/// The first release that is known.
pub const OLD: &str = "0.1.0";

/// Writes `[mesh]`, and what goes with an axis.
pub fn mesh(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let axes = [
        ("mesh.dp_replicate", "parallelism.data_parallel_replicate_degree"),
        ("mesh.tp", "parallelism.tensor_parallel_degree"),
        ("mesh.cp", "parallelism.context_parallel_degree"),
        ("mesh.pp", "parallelism.pipeline_parallel_degree"),
        ("mesh.ep", "parallelism.expert_parallel_degree"),
    ];
    for (key, source) in axes {
        let found = settings.degree(source)?;
        if key == "mesh.ep" && found.value > 1 && !flavors::has_experts(out) {
            out.note(format!("{} has no effect: the model has no experts.", found.why));
            continue;
        }
        // A mesh names one axis at least.
        if found.value > 1 || key == "mesh.tp" {
            out.put(key, found.value, found.why);
        }
    }
    let sharded = "parallelism.data_parallel_shard_degree";
    match settings.integer(sharded)? {
        Some(found) if found.value > 0 => out.put("mesh.dp_shard", found.value, found.why),
        Some(found) if found.value == -1 => {
            out.note(format!("mesh.dp_shard is left out: the ranks that other axes leave ({})", found.why));
        }
        _ => {
            return Err(settings.wrong(
                sharded,
                "-1, or a whole number of 1 or more",
                "-1 for the ranks that are left",
            ));
        }
    }
    if out.get("mesh.dp_shard").and_then(Value::as_integer) == Some(1) && out.degree("mesh.dp_replicate") > 1 {
        let remedy = "set data_parallel_shard_degree = 2 or more, or -1";
        return Err(settings.unsupported(sharded, "replicas of unsharded parameters (DDP)", remedy));
    }
    let loss = settings.flag("parallelism.disable_loss_parallel")?;
    let asynchronous = settings.flag("parallelism.enable_async_tensor_parallel")?;
    if out.degree("mesh.tp") > 1 {
        let sequence = Why::code(format!(
            "{}: models/llama3/infra/parallelize.py, SequenceParallel between modules",
            settings.of()
        ));
        out.put("tensor_parallel.sequence", true, sequence);
        if let Some(found) = loss {
            out.put("tensor_parallel.loss", !found.value, found.why);
        }
        if let Some(found) = asynchronous.filter(|found| found.value) {
            out.put("tensor_parallel.asynchronous", true, found.why);
        }
    }
    let rotate = settings.word("parallelism.context_parallel_rotate_method")?;
    let balancer = settings.word("parallelism.context_parallel_load_balancer")?;
    if out.degree("mesh.cp") > 1 {
        out.put_found("framework.context_parallel_rotate_method", rotate);
        match balancer {
            Some(found) if found.value == "ptrr" => {
                let changes = "parts of a sequence are dealt out for FlexAttention's masks: how evenly ranks work";
                out.without("context_parallel_load_balancer", "ptrr", &found.why.to_string(), changes);
            }
            Some(found) => out.put("framework.context_parallel_load_balancer", found.value.to_lowercase(), found.why),
            None => {}
        }
    }
    Ok(())
}

/// Whether a schedule has several stages on each rank.
fn is_looped(schedule: &str) -> bool {
    let name = schedule.to_ascii_lowercase();
    ["interleaved", "looped", "zbv", "dualpipe", "zerobubble"].iter().any(|part| name.contains(part))
}

/// Writes `[pipeline]`.
pub fn pipeline(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let schedule = settings.word("parallelism.pipeline_parallel_schedule")?;
    let csv = settings.word("parallelism.pipeline_parallel_schedule_csv")?;
    let per_stage = settings.count("parallelism.pipeline_parallel_layers_per_stage")?;
    let first = settings.integer("parallelism.pipeline_parallel_first_stage_less_layers")?;
    let last = settings.integer("parallelism.pipeline_parallel_last_stage_less_layers")?;
    let points = settings.words("parallelism.pipeline_parallel_split_points")?;
    let modules = settings.value("parallelism.module_fqns_per_model_part");
    let pp = out.degree("mesh.pp");
    if pp < 2 {
        return Ok(());
    }
    let looped = schedule.as_ref().is_some_and(|found| is_looped(&found.value));
    match csv.filter(|found| !found.value.is_empty()) {
        Some(found) => out.put("pipeline.schedule", found.value, found.why),
        None => out.put_found("pipeline.schedule", schedule),
    }
    let key = "parallelism.module_fqns_per_model_part";
    let parts = match (modules, points.filter(|found| !found.value.is_empty())) {
        (Some(found), _) => Some((parts(&found.value).ok_or_else(|| wrong_parts(settings, key))?, found.why)),
        (None, Some(found)) => {
            let key = "parallelism.pipeline_parallel_split_points";
            let layers = out.get("model.layers").and_then(Value::as_integer).or_else(|| flavors::layers(out));
            let layers = layers.and_then(|layers| u64::try_from(layers).ok());
            let split = layers.and_then(|layers| between(&found.value, layers));
            Some((split.ok_or_else(|| wrong_parts(settings, key))?, found.why))
        }
        (None, None) => None,
    };
    if let Some((layers, why)) = parts {
        let stages = layers.len() as i64;
        if stages % pp != 0 {
            return Err(wrong_parts(settings, key));
        }
        out.put("pipeline.virtual_stages", stages / pp, why.clone());
        out.put("pipeline.layers", Value::Array(layers.into_iter().map(Value::Integer).collect()), why);
        return Ok(());
    }
    match per_stage {
        Some(found) => out.put("pipeline.layers_per_stage", found.value, found.why),
        None => {
            let stages = if looped { 2 } else { 1 };
            let of = settings.of();
            let why =
                format!("{of}: distributed/pipeline_parallel.py, two stages on each rank if the schedule is looped");
            out.put("pipeline.virtual_stages", stages, Why::code(why));
        }
    }
    out.put_found("pipeline.first_stage_less_layers", first);
    out.put_found("pipeline.last_stage_less_layers", last);
    Ok(())
}

fn wrong_parts(settings: &Settings<'_>, key: &str) -> ImportError {
    settings.wrong(key, "lists of modules such as layers.3, as many as stages", "as many parts as stages on all ranks")
}

/// Layers of each part, of lists of module names.
fn parts(value: &serde_json::Value) -> Option<Vec<i64>> {
    let part = |part: &serde_json::Value| {
        let names: Option<Vec<&str>> = part.as_array()?.iter().map(serde_json::Value::as_str).collect();
        Some(names?.iter().filter(|name| name.starts_with("layers.")).count() as i64)
    };
    value.as_array()?.iter().map(part).collect()
}

/// Layers of each part, of the layers at which parts begin.
fn between(points: &[String], layers: u64) -> Option<Vec<i64>> {
    let mut out = vec![];
    let mut before = 0;
    for point in points {
        let at: u64 = point.strip_prefix("layers.")?.parse().ok()?;
        out.push(i64::try_from(at.checked_sub(before)?).ok()?);
        before = at;
    }
    out.push(i64::try_from(layers.checked_sub(before)?).ok()?);
    Some(out)
}

/// Writes `[batch]`.
pub fn batch(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let local = settings.needed("training.local_batch_size", "set training.local_batch_size")?;
    let part_key = "parallelism.pipeline_parallel_microbatch_size";
    let part = settings.needed(part_key, "set it to 1")?;
    let global = settings.integer("training.global_batch_size")?;
    let sequence = settings.needed("training.seq_len", "set training.seq_len")?;
    out.put("batch.sequence", sequence.value, sequence.why);
    let mut parts = 1;
    if out.degree("mesh.pp") > 1 {
        if local.value % part.value != 0 {
            let expected = format!("a divisor of training.local_batch_size, which is {}", local.value);
            return Err(settings.wrong(part_key, &expected, "one that divides it"));
        }
        parts = local.value / part.value;
        out.put("batch.micro", part.value, part.why.clone());
    } else {
        out.put("batch.micro", local.value, local.why.clone());
    }
    match global.filter(|found| found.value > 0) {
        Some(found) => {
            if parts > 1 {
                let why = "batches of a step that are accumulated run through the pipeline as one";
                out.note(format!("training.global_batch_size: {why}, where torchtitan lets it run empty between them"));
            }
            out.put("batch.global", found.value, found.why);
        }
        None => {
            let how = if parts > 1 { "parts of local_batch_size in the pipeline" } else { "one micro-batch a step" };
            let why =
                if parts > 1 { local.why.and(&part.why) } else { Why::code("training.global_batch_size is not set") };
            out.put("batch.accumulation", parts, why.so(how));
        }
    }
    Ok(())
}

const TYPES: [(&str, &str); 2] = [("bfloat16", "bf16"), ("float32", "fp32")];

/// Writes `[precision]`.
pub fn precision(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let keys = [
        ("precision.storage", "training.dtype"),
        ("precision.param", "training.mixed_precision_param"),
        ("precision.reduce", "training.mixed_precision_reduce"),
    ];
    for (key, source) in keys {
        out.put_found(key, settings.choice(source, &TYPES)?);
    }
    if settings.version() == OLD && !settings.states("training.dtype") {
        out.remove("precision.storage");
        out.put("precision.storage", "fp32", Why::code("torchtitan 0.1.0 makes its parameters in fp32"));
    }
    Ok(())
}

/// Writes what is resharded, and what lives in the host's memory.
pub fn sharding(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let key = "parallelism.fsdp_reshard_after_forward";
    if let Some(found) = settings.choice(key, &[("default", 0), ("always", 1), ("never", 2)])? {
        let piped = out.degree("mesh.pp") > 1;
        let how = if piped { "layers stay gathered where there is a pipeline" } else { "layers are resharded" };
        let why = if found.value == 0 { found.why.clone().so(how) } else { found.why.clone() };
        out.put("fsdp.reshard_after_forward", found.value == 1 || found.value == 0 && !piped, why);
        if found.value == 1 && settings.version() != OLD {
            out.put("fsdp.head_reshard_after_forward", true, found.why);
        }
    }
    if let Some(found) = settings.flag("training.enable_cpu_offload")?.filter(|found| found.value) {
        out.put("fsdp.cpu_offload", true, found.why);
    }
    Ok(())
}

/// Writes what is compiled, and what is in float8.
pub fn compiled(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let enabled = settings.flag("compile.enable")?;
    let components = settings.words("compile.components")?;
    if let Some(found) = enabled {
        let has = |name: &str| {
            found.value && components.as_ref().is_none_or(|list| list.value.iter().any(|word| word == name))
        };
        let why = match (&components, found.value) {
            (Some(list), true) => found.why.clone().and(&list.why),
            _ => found.why.clone(),
        };
        out.put("compile.blocks", has("model"), why.clone());
        if has("loss") && out.degree("mesh.tp") > 1 {
            let changes = "a compiled loss over words that are split is not simulated, and the loss is predicted as it runs eagerly: \
                           a little more time and memory than it takes";
            out.without("compile.components", "loss", &why.to_string(), changes);
        } else {
            out.put("compile.loss", has("loss"), why);
        }
    }
    let converters = settings.words("model.converters")?;
    let float8 = ["all_gather", "precompute_scale"].into_iter().zip([
        settings.flag("quantize.linear.float8.enable_fsdp_float8_all_gather")?,
        settings.flag("quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp")?,
    ]);
    let recipe = settings.word("quantize.linear.float8.recipe_name")?;
    let skipped = settings.words("quantize.linear.float8.filter_fqns")?;
    let switched = settings.flag("quantize.linear.float8.enable_float8_linear")?.filter(|found| found.value);
    let converters = match switched {
        Some(found) => Some(found.with(vec!["float8".to_owned()])),
        None => converters,
    };
    let Some(converters) = converters else { return Ok(()) };
    for name in &converters.value {
        match name.as_str() {
            "float8" | "quantize.linear.float8" => {
                match &recipe {
                    Some(found) if found.value == "rowwise" || found.value == "tensorwise" => {
                        out.put("float8.recipe", found.value.as_str(), found.why.clone());
                    }
                    Some(found) => {
                        let changes =
                            "weight gradients are computed in bf16; taken as rowwise: less time than it takes";
                        out.put("float8.recipe", "rowwise", found.why.clone());
                        out.without("float8.recipe_name", &found.value, &found.why.to_string(), changes);
                    }
                    None => out.put("float8.recipe", "tensorwise", converters.why.clone().so("no recipe is named")),
                }
                for (key, found) in float8.clone() {
                    if let Some(found) = found.filter(|found| found.value) {
                        out.put(&format!("float8.{key}"), true, found.why);
                    }
                }
                let usual = |found: &Vec<String>| found.len() == 1 && found[0] == "output";
                if let Some(found) = skipped.as_ref().filter(|found| !usual(&found.value)) {
                    let changes = "windtunnel keeps the head alone in bf16: the time of other linears that are left out, or of the head";
                    let value = format!("[{}]", found.value.join(", "));
                    out.without("float8.filter_fqns", &value, &found.why.to_string(), changes);
                }
            }
            other => {
                let changes =
                    "linears or experts in another number format: their time, and the memory of what they keep";
                out.without("model.converters", other, &converters.why.to_string(), changes);
            }
        }
    }
    Ok(())
}

/// Writes `[optimizer]`.
pub fn optimizer(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let names = [("AdamW", "adamw"), ("Adam", "adam")];
    out.put_found("optimizer.name", settings.choice("optimizer.name", &names)?);
    let ways = [("fused", "fused"), ("foreach", "foreach"), ("for-loop", "for_loop")];
    out.put_found("optimizer.implementation", settings.choice("optimizer.implementation", &ways)?);
    out.put_found("optimizer.weight_decay", settings.number("optimizer.weight_decay")?);
    if let Some(found) = settings.flag("optimizer.early_step_in_backward")?.filter(|found| found.value) {
        let changes = "each parameter is stepped in backward, once its gradient is there: less memory of gradients";
        out.without("optimizer.early_step_in_backward", "true", &found.why.to_string(), changes);
    }
    let clips = "torchtitan: train.py, clip_grad_norm_ in every step";
    out.put("optimizer.clip_grad_norm", true, Why::code(clips));
    if let Some(found) = settings.flag("debug.deterministic")?.filter(|found| found.value) {
        out.put("attention.deterministic", true, found.why);
    }
    Ok(())
}
