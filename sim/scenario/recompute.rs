//! The table `[activation_checkpointing]` as understood: which blocks run their forward again.

use toml::Spanned;

use super::entry::Runtime;
use super::error::ScenarioError;
use super::names::FSDP1;
use super::reader::{MOST_SMALL, Reader};
use super::written;
use crate::model::ModelConfig;
use crate::runtime::eager::Offload;
use crate::runtime::eager::{Saved, SavedOps};
use crate::runtime::fsdp::OFFLOAD;
use crate::runtime::train::Checkpoint;

/// The policy for a model of `layers` blocks.
pub(super) fn checkpoint(
    reader: &mut Reader<'_>,
    written: &written::Checkpointing,
    layers: u64,
) -> Result<Checkpoint, ScenarioError> {
    let Some(at) = &written.policy else {
        return Ok(reader.assume("activation_checkpointing.policy", Checkpoint::None, "none"));
    };
    Ok(match at.get_ref() {
        written::Policy::None => Checkpoint::None,
        written::Policy::Full => Checkpoint::Full,
        written::Policy::SelectiveOp => Checkpoint::SelectiveOp,
        &written::Policy::Every(every) => {
            if !(1..=MOST_SMALL).contains(&every) {
                let problem = format!("activation_checkpointing.policy.every = {every} is out of range");
                return Err(reader.plan(at, problem, "write 1 (every block) or more"));
            }
            Checkpoint::Blocks((1..=layers).map(|block| block.is_multiple_of(every as u64)).collect())
        }
        &written::Policy::Fraction(share) => {
            if !(share > 0.0 && share <= 1.0) {
                let problem = format!("activation_checkpointing.policy.fraction = {share} is out of range");
                return Err(reader.plan(at, problem, "write a share above 0, at most 1 (every block)"));
            }
            Checkpoint::Blocks(evenly(share, layers))
        }
        &written::Policy::First(first) => {
            if !(1..=layers as i64).contains(&first) {
                let problem =
                    format!("activation_checkpointing.policy.first = {first}, and the model has {layers} layers");
                return Err(reader.plan(at, problem, format!("write 1 to {layers}, or policy = \"none\"")));
            }
            Checkpoint::Blocks((0..layers).map(|layer| layer < first as u64).collect())
        }
        written::Policy::Layers(named) => Checkpoint::Blocks(chosen(reader, at, named, layers)?),
        written::Policy::Save(named) => Checkpoint::Saving(saved(reader, at, named)?),
    })
}

/// For each layer, whether a list names it.
fn chosen(
    reader: &Reader<'_>,
    at: &Spanned<written::Policy>,
    named: &[written::Layers],
    layers: u64,
) -> Result<Vec<bool>, ScenarioError> {
    if named.is_empty() {
        let problem = "activation_checkpointing.policy.layers names no layer";
        return Err(reader.plan(at, problem, "name some, or write policy = \"none\""));
    }
    let mut chosen = vec![false; layers as usize];
    for item in named {
        let (first, end) = match *item {
            written::Layers::One(layer) => (layer, layer.saturating_add(1)),
            written::Layers::Range(range) => range,
        };
        if first < 0 || first >= end || end > layers as i64 {
            let problem = match item {
                written::Layers::One(layer) => format!("there is no layer {layer} of the model's {layers}"),
                written::Layers::Range(_) => format!("[{first}, {end}] is no range of the model's {layers} layers"),
            };
            let remedy = format!("name layers 0 to {}, or ranges [first, one after the last]", layers - 1);
            return Err(reader.plan(at, problem, remedy));
        }
        chosen[first as usize..end as usize].fill(true);
    }
    Ok(chosen)
}

/// The operators whose results a policy of one's own keeps.
fn saved(
    reader: &Reader<'_>,
    at: &Spanned<written::Policy>,
    named: &[Spanned<String>],
) -> Result<SavedOps, ScenarioError> {
    let known = Saved::NAMED.map(|(name, _)| format!("{name:?}")).join(", ");
    if named.is_empty() {
        let problem = "a policy that keeps nothing is a full checkpoint";
        return Err(reader.plan(at, problem, format!("write policy = \"full\", or name some of {known}")));
    }
    let mut ops = SavedOps::default();
    for name in named {
        let Some((_, op)) = Saved::NAMED.iter().find(|(known, _)| known == name.get_ref()) else {
            let problem = format!("no operator here is called {:?}", name.get_ref());
            return Err(reader.plan(name, problem, format!("write some of {known}")));
        };
        ops = ops.with(*op);
    }
    if ops.has(Saved::Mm) && ops.has(Saved::EverySecondMm) {
        return Err(reader.plan(at, "\"mm\" keeps what \"every_second_mm\" runs again", "remove one of the two"));
    }
    Ok(ops)
}

/// Refuses a policy of one's own where it has no rules.
pub(super) fn fits(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    checkpoint: &Checkpoint,
) -> Result<(), ScenarioError> {
    let table = &scenario.activation_checkpointing;
    let (Some(at), Checkpoint::Saving(ops)) = (&table.policy, checkpoint) else { return Ok(()) };
    if scenario.compile.compiles_blocks() {
        let problem = "operators that a policy saves are not simulated in compiled layers";
        return Err(reader.plan(at, problem, "write policy = \"selective_op\" or \"full\", or compile.blocks = false"));
    }
    if ops.has(Saved::RmsNorm) && scenario.framework.fused_rms_norm == Some(false) {
        let problem = "\"rms_norm\" is one operator, and framework.fused_rms_norm = false runs several";
        return Err(reader.plan(at, problem, "remove \"rms_norm\", or write framework.fused_rms_norm = true"));
    }
    Ok(())
}

/// Whether checkpoints are reentrant.
pub(super) fn reentrant(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    (checkpoint, model, runtime): (&Checkpoint, &ModelConfig, Runtime),
) -> Result<bool, ScenarioError> {
    let table = &scenario.activation_checkpointing;
    let Some(at) = table.use_reentrant.as_ref().filter(|at| *at.get_ref()) else { return Ok(false) };
    let refuse = |problem: &str, remedy: &str| Err(reader.plan(at, problem, remedy));
    if *checkpoint == Checkpoint::None {
        return refuse(
            "no layer is checkpointed",
            "remove the key, or write activation_checkpointing.policy = \"full\"",
        );
    }
    if checkpoint.is_selective() {
        let problem = "PyTorch refuses a selective policy in a reentrant checkpoint";
        return refuse(problem, "write use_reentrant = false, or policy = \"full\"");
    }
    let around = table.around_hooks.as_ref().filter(|at| *at.get_ref());
    let shared = scenario.fsdp.wrap.as_ref().map(Spanned::get_ref);
    let shared =
        matches!(shared, Some(written::Wrap::Together(_) | written::Wrap::Lists(_) | written::Wrap::Modules(_)));
    if let Some(at) = around.filter(|_| shared || runtime == FSDP1 || scenario.pipeline.is_some()) {
        let problem = "reentrant checkpoints around hooks are simulated for layers that fully_shard wraps one by one, in one stage";
        return Err(reader.plan(
            at,
            problem,
            "write around_hooks = false, or wrap = \"block\" under runtime = \"fsdp2\"",
        ));
    }
    if let (true, Some(written::Wrap::Modules(_))) = (shared, scenario.fsdp.wrap.as_ref().map(Spanned::get_ref)) {
        return refuse(
            "reentrant checkpoints are not simulated around units inside layers",
            "write use_reentrant = false",
        );
    }
    if scenario.compile.compiles_blocks() || model.experts().is_some() {
        let problem = "reentrant checkpoints are simulated around eager, dense layers";
        return refuse(problem, "write use_reentrant = false");
    }
    Ok(true)
}

/// Where inputs of checkpointed blocks are kept.
pub(super) fn offload(
    reader: &Reader<'_>,
    written: &written::Scenario,
    runtime: Runtime,
) -> Result<Option<Offload>, ScenarioError> {
    let table = &written.activation_checkpointing;
    let Some(at) = &table.offload else { return Ok(None) };
    let blocks = table.policy.as_ref().map(Spanned::get_ref);
    use written::Policy::{None as Nothing, Save, SelectiveOp};
    if matches!(blocks, None | Some(Nothing | SelectiveOp | Save(_))) {
        let problem = "what goes to the host is the input of a block that is recomputed whole, and none is";
        return Err(reader.plan(at, problem, "write activation_checkpointing.policy = \"full\", or remove offload"));
    }
    if written.compile.compiles_blocks() && table.around_compiled != Some(true) {
        let problem = "a checkpoint that is compiled with its block keeps its input on the device";
        return Err(reader.plan(at, problem, "write activation_checkpointing.around_compiled = true"));
    }
    match *at.get_ref() {
        written::OffloadStream::DefaultStream => Ok(Some(Offload::DefaultStream)),
        written::OffloadStream::OwnStream if runtime == FSDP1 => {
            let problem = "fsdp1's activations have no stream of their own here";
            Err(reader.plan(at, problem, "write offload = \"default_stream\""))
        }
        written::OffloadStream::OwnStream => Ok(Some(Offload::OwnStream(OFFLOAD))),
    }
}

/// A share of the blocks, evenly spread: block n, counted from one, whenever n·p passes the next half
/// (fms-fsdp, `fms_fsdp/policies/ac_handler.py`).
fn evenly(share: f64, layers: u64) -> Vec<bool> {
    let mut next = 0.5;
    let pick = |block: u64| {
        let chosen = block as f64 * share >= next;
        next += f64::from(u8::from(chosen));
        chosen
    };
    (1..=layers).map(pick).collect()
}

#[cfg(test)]
mod tests {
    use super::evenly;

    #[test]
    fn a_share_of_the_blocks_is_spread_evenly() {
        let chosen = |share, layers| -> Vec<usize> {
            evenly(share, layers).iter().enumerate().filter_map(|(at, &again)| again.then_some(at)).collect()
        };
        assert_eq!(chosen(1.0, 4), [0, 1, 2, 3]);
        assert_eq!(chosen(0.5, 6), [0, 2, 4]);
        assert_eq!(chosen(1.0 / 3.0, 7), [1, 4]);
        assert_eq!(chosen(0.39, 40).len(), 16);
    }
}
