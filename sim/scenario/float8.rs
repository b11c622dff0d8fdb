//! `[float8]` and `framework.linears` as understood.

use toml::Spanned;

use super::error::ScenarioError;
use super::understood::Reader;
use super::written;
use crate::cost::Profile;
use crate::model::ModelConfig;
use crate::model::fuse::Float8;
use crate::model::fuse::float8::Recipe;
use crate::model::style::Linears;

/// Linears in fp8, where the file asks for them.
pub(super) fn float8(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (profile, compiled, shard): (&Profile, bool, u32),
) -> Result<Option<Float8>, ScenarioError> {
    let Some(at) = &scenario.float8 else { return Ok(None) };
    let table = at.get_ref();
    if !compiled {
        let problem = "[float8] is modelled in compiled blocks alone: eager casts make it slower than bf16";
        return Err(reader.plan(at, problem, "write compile.blocks = true, or remove the table"));
    }
    if profile.fp8_peak().0 <= profile.bf16_peak().0 {
        let problem = format!("the chips of the profile {} do not multiply in fp8", profile.name);
        return Err(reader.plan(at, problem, "remove the table, or choose H100, H200 or B200"));
    }
    let recipe = match table.recipe {
        written::Float8Recipe::Tensorwise => Recipe::Tensorwise,
        written::Float8Recipe::Rowwise => Recipe::Rowwise,
    };
    let wanted = |at: &Option<Spanned<bool>>| at.as_ref().map(|at| *at.get_ref());
    let all_gather = match (recipe, &table.all_gather) {
        (Recipe::Rowwise, Some(at)) if *at.get_ref() => {
            let problem = "a gather in fp8 needs one scale a tensor, and this recipe has one a row";
            return Err(reader.plan(at, problem, "write float8.all_gather = false, or recipe = \"tensorwise\""));
        }
        (Recipe::Rowwise, _) => false,
        (_, Some(at)) if *at.get_ref() && shard == 1 => {
            let problem = "float8.all_gather casts what dp_shard gathers, and dp_shard is 1";
            return Err(reader.plan(at, problem, "remove the key, or write mesh.dp_shard = 2 or more"));
        }
        (Recipe::Tensorwise, written) => reader.flag("float8.all_gather", wanted(written), false),
    };
    let precompute_scale = match &table.precompute_scale {
        Some(at) if *at.get_ref() && !all_gather => {
            let problem = "float8.precompute_scale finds the scales of weights that are gathered in fp8, and none are";
            return Err(reader.plan(at, problem, "remove the key, or write float8.all_gather = true"));
        }
        written if all_gather => reader.flag("float8.precompute_scale", wanted(written), false),
        _ => false,
    };
    if recipe == Recipe::Rowwise {
        reader.assumptions.push(
            "note: matmuls with a scale a row are priced as those with one a tensor, of which they take 1.0 to 1.1 times \
             the time (pytorch/FBGEMM#2764, H100)"
                .to_owned(),
        );
    }
    Ok(Some(Float8 { recipe, all_gather, precompute_scale }))
}

/// What multiplies in linears.
pub(super) fn linears(
    reader: &Reader<'_>,
    framework: &written::Framework,
    (profile, compiled): (&Profile, bool),
    (model, tokens, tensor): (&ModelConfig, u64, u64),
) -> Result<Linears, ScenarioError> {
    let Some(at) = framework.linears.as_ref().filter(|at| *at.get_ref() != written::LinearStyle::Torch) else {
        return Ok(Linears::Torch);
    };
    let chips = format!("the chips of the profile {} do not multiply in fp8", profile.name);
    // `assert_dim_for_fp8_forward_exec`: tokens in 8s, widths in 16s.
    let widths = [model.width, model.heads * model.head_dim, model.kv_heads * model.head_dim, model.ffn];
    let odd = !tokens.is_multiple_of(8) || widths.iter().any(|width| !width.is_multiple_of(16));
    let cases = [
        (profile.fp8_peak().0 <= profile.bf16_peak().0, chips.as_str(), "H100, H200 or B200"),
        (
            compiled,
            "Transformer Engine's linears break a compiled graph, which has no rules here",
            "compile.blocks = false",
        ),
        (tensor > 1, "Transformer Engine's linears have no rules beside tensor parallelism here", "mesh.tp = 1"),
        (model.experts.is_some() || model.latent.is_some(), "its blocks are not dense", "a dense model"),
        (odd, "fp8 takes tokens in 8s and widths in 16s", "another sequence or model"),
    ];
    match cases.into_iter().find(|(applies, ..)| *applies) {
        Some((_, problem, instead)) => {
            let remedy = format!("write {instead}, or remove framework.linears");
            Err(reader.plan(at, problem.to_owned(), remedy))
        }
        None => Ok(Linears::EngineFp8),
    }
}
