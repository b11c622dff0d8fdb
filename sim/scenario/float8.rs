//! `[float8]` as understood.

use toml::Spanned;

use super::error::ScenarioError;
use super::understood::Reader;
use super::written;
use crate::cost::Profile;
use crate::model::fuse::Float8;
use crate::model::fuse::float8::Recipe;

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
