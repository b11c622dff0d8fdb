//! Axes of the mesh, and stages of the pipeline.

use toml::Value;

use super::pattern;
use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::settings::Settings;
use crate::import::why::{Found, Why};

/// Writes `[mesh]`, and what goes with an axis.
pub fn mesh(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let mixed = settings.count("num_experts")?.is_some_and(|found| found.value > 1);
    for (key, source) in [
        ("mesh.tp", "tensor_model_parallel_size"),
        ("mesh.pp", "pipeline_model_parallel_size"),
        ("mesh.cp", "context_parallel_size"),
        ("mesh.ep", "expert_model_parallel_size"),
        ("mesh.etp", "expert_tensor_parallel_size"),
    ] {
        let found = settings.degree(source)?;
        let spreads = matches!(key, "mesh.ep" | "mesh.etp");
        if spreads && !mixed {
            if key == "mesh.ep" && found.value > 1 {
                out.note(format!("{} has no effect: the model has no experts.", found.why));
            }
            continue;
        }
        // A mesh names one axis at least.
        if found.value > 1 || key == "mesh.tp" || key == "mesh.etp" && found.stated {
            out.put(key, found.value, found.why);
        }
    }
    let sequence = settings.flag("sequence_parallel")?;
    let overlap = settings.flag("tp_comm_overlap")?.filter(|found| found.value);
    if out.degree("mesh.tp") > 1 {
        out.put_found("tensor_parallel.sequence", sequence);
        out.put_found("megatron.tp_comm_overlap", overlap);
    }
    let exchanged = settings.words("cp_comm_type")?.filter(|found| found.stated);
    let sizes = settings.value("hierarchical_context_parallel_sizes");
    if out.degree("mesh.cp") > 1 {
        if let Some(found) = exchanged {
            let first = found.value.first().cloned().unwrap_or_default();
            out.put("megatron.cp_comm_type", first, found.why);
        }
        if let Some(found) = sizes {
            let read: Option<Vec<Value>> = found
                .value
                .as_array()
                .and_then(|list| list.iter().map(|size| size.as_i64().map(Value::Integer)).collect());
            let key = "hierarchical_context_parallel_sizes";
            let list = read.ok_or_else(|| settings.wrong(key, "two whole numbers", "such as 8 2"))?;
            out.put("megatron.hierarchical_context_parallel_sizes", Value::Array(list), found.why);
        }
    }
    Ok(())
}

/// Stages whose layers are listed one by one: more than any model has layers.
const MOST_STAGES: i64 = 65_536;

/// Writes `[pipeline]`.
pub fn pipeline(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let each = settings.count("num_layers_per_virtual_pipeline_stage")?;
    let chunks = settings.count("num_virtual_stages_per_pipeline_rank")?;
    let first = settings.count("decoder_first_pipeline_num_layers")?;
    let last = settings.count("decoder_last_pipeline_num_layers")?;
    let embedding = settings.flag("account_for_embedding_in_pipeline_split")?.filter(|found| found.value);
    let loss = settings.flag("account_for_loss_in_pipeline_split")?.filter(|found| found.value);
    let overlap = settings.flag("overlap_p2p_comm")?.filter(|found| found.stated);
    let _ = settings.flag("scatter_gather_tensors_in_pipeline")?;
    let laid_out = laid_out(settings)?;
    let pp = out.degree("mesh.pp");
    if pp < 2 {
        return Ok(());
    }
    if let Some(found) = laid_out {
        return layout(out, settings, found);
    }
    if let Some(found) = settings.word("hybrid_layer_pattern")?.filter(|found| found.value.contains('|')) {
        let stack = found.value.split('/').next().unwrap_or("");
        let stages = stack.split('|').map(|stage| stage.chars().count() as i64).collect();
        return staged(out, settings, stages, found);
    }
    let layers = layers(out);
    let counted = layers + i64::from(embedding.is_some()) + i64::from(loss.is_some());
    // Layers of the ends are set apart, and the others are cut evenly.
    let ends = [&first, &last].into_iter().flatten();
    let (cut, between) = (ends.clone().map(|found| found.value).sum::<i64>(), pp - ends.count() as i64);
    let virtual_stages = match (&chunks, &each) {
        (Some(found), _) => Some((found.value, found.why.clone())),
        (None, Some(found)) => {
            let per_rank = if between > 0 && cut > 0 { (counted - cut) / between } else { counted / pp };
            if per_rank % found.value != 0 {
                let expected = format!("a divisor of the layers of a rank, {per_rank}");
                return Err(settings.wrong(
                    "num_layers_per_virtual_pipeline_stage",
                    &expected,
                    "one that divides them",
                ));
            }
            Some((per_rank / found.value, found.why.clone().so(&format!("{per_rank} layers on each rank"))))
        }
        (None, None) => None,
    };
    let stages = virtual_stages.as_ref().map_or(1, |(stages, _)| *stages).max(1);
    if let Some((stages, why)) = virtual_stages.filter(|(stages, _)| *stages > 1) {
        out.put("pipeline.virtual_stages", stages, why);
        out.put_found("pipeline.overlap_p2p", overlap);
    }
    let listed = first.is_some() || last.is_some() || embedding.is_some() || loss.is_some();
    if listed && pp.checked_mul(stages).is_none_or(|all| all > MOST_STAGES) {
        let key =
            if stages > MOST_STAGES { "num_virtual_stages_per_pipeline_rank" } else { "pipeline_model_parallel_size" };
        return Err(settings.wrong(key, &format!("at most {MOST_STAGES} stages in all"), "no more stages than layers"));
    }
    let uneven = match (&first, &last) {
        (None, None) => None,
        (first, last) => {
            let rest = (counted - cut).checked_div(between).unwrap_or(0) / stages;
            let part = |found: &Option<Found<i64>>| found.as_ref().map_or(rest, |found| found.value / stages);
            let why = [first, last].into_iter().flatten().map(|found| found.why.clone()).reduce(|a, b| a.and(&b));
            let all = (0..stages).flat_map(|_| {
                (0..pp).map(|rank| {
                    if rank == 0 {
                        part(first)
                    } else if rank == pp - 1 {
                        part(last)
                    } else {
                        rest
                    }
                })
            });
            Some((all.collect::<Vec<i64>>(), why))
        }
    };
    let accounted = embedding.is_some() || loss.is_some();
    let (mut list, why) = match uneven {
        Some((list, why)) => (list, why),
        None if accounted => (vec![counted / (pp * stages); usize::try_from(pp * stages).unwrap_or(0)], None),
        None => return Ok(()),
    };
    if let (Some(_), Some(first)) = (&embedding, list.first_mut()) {
        *first -= 1;
    }
    if let (Some(_), Some(last)) = (&loss, list.last_mut()) {
        *last -= 1;
    }
    let parts = [embedding, loss].into_iter().flatten().map(|found| found.why);
    let why = why.into_iter().chain(parts).reduce(|a, b| a.and(&b)).unwrap_or(Why::code("the layers of each stage"));
    out.put("pipeline.layers", Value::Array(list.into_iter().map(Value::Integer).collect()), why);
    Ok(())
}

/// `pipeline_model_parallel_layout` as a word; lists of a stage's parts are written as letters.
fn laid_out(settings: &Settings<'_>) -> Result<Option<Found<String>>, ImportError> {
    let key = "pipeline_model_parallel_layout";
    let Some(found) = settings.value(key) else { return Ok(None) };
    let Some(stages) = found.value.as_array() else { return settings.word(key) };
    let letter = |part: &serde_json::Value| match part.as_str()? {
        "embedding" => Some('E'),
        "decoder" => Some('t'),
        "mtp" => Some('m'),
        "loss" => Some('L'),
        _ => None,
    };
    let letters = |stage: &serde_json::Value| stage.as_array()?.iter().map(letter).collect::<Option<String>>();
    let expected = "lists of embedding, decoder, mtp and loss, one for each stage";
    let all = stages.iter().map(letters).collect::<Option<Vec<String>>>();
    let all = all.ok_or_else(|| {
        settings.wrong(key, expected, "such as [[\"embedding\", \"decoder\"], [\"decoder\", \"loss\"]]")
    })?;
    Ok(Some(found.with(all.join("|"))))
}

/// Writes the stages of `pipeline_model_parallel_layout`.
fn layout(out: &mut Imported, settings: &Settings<'_>, found: Found<String>) -> Result<(), ImportError> {
    let key = "pipeline_model_parallel_layout";
    let pp = out.degree("mesh.pp");
    let expected = format!("a layout such as Et*2|(tt|)*5t|tmL, whose stages are a multiple of {pp} ranks");
    let stages = pattern::layout(&found.value).filter(|stages| stages.len() as i64 % pp == 0);
    let stages =
        stages.ok_or_else(|| settings.wrong(key, &expected, "one stage after the other, with | between them"))?;
    let sum: i64 = stages.iter().sum();
    if sum != layers(out) {
        let expected = format!("a layout of {} layers, and this one has {sum}", layers(out));
        return Err(settings.wrong(key, &expected, "a t for each layer"));
    }
    staged(out, settings, stages, found)
}

/// Writes stages that the arguments name one by one.
fn staged(
    out: &mut Imported,
    settings: &Settings<'_>,
    stages: Vec<i64>,
    found: Found<String>,
) -> Result<(), ImportError> {
    let (pp, all) = (out.degree("mesh.pp"), stages.len() as i64);
    if all % pp != 0 {
        let expected = format!("stages for each of {pp} ranks, not {all} in all");
        return Err(settings.wrong("hybrid_layer_pattern", &expected, "as many | as leave each rank as many stages"));
    }
    if all > pp {
        out.put("pipeline.virtual_stages", all / pp, found.why.clone());
    }
    out.put("pipeline.layers", Value::Array(stages.into_iter().map(Value::Integer).collect()), found.why);
    Ok(())
}

/// Layers of the model that was put.
fn layers(out: &Imported) -> i64 {
    let stated = ["model.layers", "model.config.num_hidden_layers", "model.config.num_layers"]
        .iter()
        .find_map(|key| out.get(key)?.as_integer());
    stated.unwrap_or(1)
}
