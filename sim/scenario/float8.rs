//! `[float8]` and `framework.linears` as understood, and which chips multiply in fp8.

use toml::Spanned;

use super::change::Change;
use super::error::ScenarioError;
use super::reader::Reader;
use super::written;
use crate::cost::Profile;
use crate::hardware::Topology;
use crate::model::ModelConfig;
use crate::model::fuse::Float8;
use crate::model::fuse::float8::Recipe;
use crate::model::style::Linears;

/// The first compute capabilities of chips that multiply in fp8, that take a scale for each block, and that only emulate it.
const ADA: f64 = 8.9;
const HOPPER: f64 = 9.0;
const BLACKWELL: f64 = 10.0;
/// The first of Blackwell's chips for workstations, and of what comes after them.
const WORKSTATIONS: f64 = 12.0;
const LATER: f64 = 13.0;

/// What has a scale of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scaled {
    /// A tensor, or a row of it.
    Wide,
    /// A block of it.
    Blocks,
    /// Each 32 numbers of it (MXFP8).
    Microscaled,
}

/// Whether a chip multiplies fp8 whichever way operands lie (`common/transformer_engine.cpp`, `nvte_is_non_tn_fp8_gemm_supported`, 2.9).
pub(super) fn any_layout(topology: &Topology) -> bool {
    let known = |found| (BLACKWELL..WORKSTATIONS).contains(&found) || found >= LATER;
    topology.chip.compute_capability.is_some_and(known)
}

/// Why chips do not multiply in fp8 so, and which do; none if they do. One list for every runtime on GPUs: Transformer
/// Engine's `check_fp8_support` and `check_fp8_block_scaling_support` (`pytorch/quantization.py`, 2.9).
pub(super) fn lacks((topology, profile): (&Topology, &Profile), scaled: Scaled) -> Option<(String, &'static str)> {
    let capability = topology.chip.compute_capability;
    let below = |first: f64| capability.is_some_and(|found| found < first);
    let found = capability.map_or_else(String::new, |found| format!(" of compute capability {found:.1}"));
    let name = &profile.name;
    let blocks = scaled == Scaled::Blocks;
    let cases = [
        (
            profile.fp8_peak().0 <= profile.bf16_peak().0 || below(ADA),
            format!("the chips of the profile {name} do not multiply in fp8"),
            "choose H100, H200 or B200",
        ),
        (
            blocks && below(HOPPER),
            format!(
                "a scale for each block takes compute capability {HOPPER:.1}, and the chips of the profile {name} are{found}"
            ),
            "choose H100 or H200",
        ),
        (
            scaled == Scaled::Microscaled && below(BLACKWELL),
            format!("MXFP8 takes compute capability {BLACKWELL:.1}, and the chips of the profile {name} are{found}"),
            "choose B200 or newer, or another recipe",
        ),
        (
            blocks && !below(BLACKWELL) && capability.is_some(),
            format!("on chips{found} Transformer Engine emulates a scale for each block, which is not simulated"),
            "choose H100 or H200, or a scale for each tensor",
        ),
    ];
    cases.into_iter().find(|(applies, ..)| *applies).map(|(_, problem, instead)| (problem, instead))
}

/// Linears in fp8, where the file asks for them.
pub(super) fn float8(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (machine, compiled, shard): ((&Topology, &Profile), bool, u32),
) -> Result<Option<Float8>, ScenarioError> {
    let Some(at) = &scenario.float8 else { return Ok(None) };
    let table = at.get_ref();
    if !compiled {
        let problem = "[float8] is modelled in compiled blocks alone: eager casts make it slower than bf16";
        return Err(reader.plan(at, problem, "write compile.blocks = true, or remove the table"));
    }
    if let Some((problem, instead)) = lacks(machine, Scaled::Wide) {
        return Err(reader.plan(at, problem, format!("remove the table, or {instead}")));
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
        (Recipe::Tensorwise, written) => reader.flag_or("float8.all_gather", wanted(written), false),
    };
    let precompute_scale = match &table.precompute_scale {
        Some(at) if *at.get_ref() && !all_gather => {
            let problem = "float8.precompute_scale finds the scales of weights that are gathered in fp8, and none are";
            let gathers = match recipe {
                Recipe::Tensorwise => "write float8.all_gather = true",
                Recipe::Rowwise => "write float8.recipe = \"tensorwise\" and float8.all_gather = true",
            };
            let change = Change::set("float8.recipe", "tensorwise").and(Change::set("float8.all_gather", true));
            let without = Change::remove("float8.precompute_scale");
            let remedy = reader.remedy(&[(without, "remove the key"), (change, gathers)]);
            return Err(reader.plan(at, problem, remedy));
        }
        written if all_gather => reader.flag_or("float8.precompute_scale", wanted(written), false),
        _ => false,
    };
    if recipe == Recipe::Rowwise {
        reader.note(
            "matmuls with a scale a row are priced as those with one a tensor, of which they take 1.0 to 1.1 times \
             the time (pytorch/FBGEMM#2764, H100)",
        );
    }
    Ok(Some(Float8 { recipe, all_gather, precompute_scale }))
}

/// What multiplies in linears.
pub(super) fn linears(
    reader: &Reader<'_>,
    framework: &written::Framework,
    (machine, compiled): ((&Topology, &Profile), bool),
    (model, tokens, tensor): (&ModelConfig, u64, u64),
) -> Result<Linears, ScenarioError> {
    let Some(at) = framework.linears.as_ref().filter(|at| *at.get_ref() != written::LinearStyle::Torch) else {
        return Ok(Linears::Torch);
    };
    if let Some((problem, instead)) = lacks(machine, Scaled::Wide) {
        return Err(reader.plan(at, problem, format!("{instead}, or remove framework.linears")));
    }
    // `assert_dim_for_fp8_forward_exec`: tokens in 8s, widths in 16s.
    let widths = [
        model.width,
        model.heads() * model.head_dim(),
        model.kv_heads() * model.head_dim(),
        model.feed_forward_width(),
    ];
    let odd = !tokens.is_multiple_of(8) || widths.iter().any(|width| !width.is_multiple_of(16));
    let cases = [
        (
            compiled,
            "Transformer Engine's linears break a compiled graph, which has no rules here",
            "compile.blocks = false",
        ),
        (tensor > 1, "Transformer Engine's linears with tensor parallelism are not simulated here", "mesh.tp = 1"),
        (model.experts().is_some() || model.latent().is_some(), "its blocks are not dense", "a dense model"),
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
