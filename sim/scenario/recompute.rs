//! The table `[activation_checkpointing]` as understood: which blocks run their forward again.

use super::error::ScenarioError;
use super::registry::Runtime;
use super::train::FSDP1;
use super::understood::{MOST_SMALL, Reader};
use super::written;
use crate::runtime::eager::offload::Offload;
use crate::runtime::fsdp::OFFLOAD;
use crate::runtime::train::Checkpoint;

/// The policy for a model of `layers` blocks.
pub(super) fn checkpoint(
    reader: &mut Reader<'_>,
    written: &written::Checkpointing,
    layers: u64,
) -> Result<Checkpoint, ScenarioError> {
    let Some(at) = &written.policy else {
        return Ok(reader.assume("activation_checkpointing.policy", Checkpoint::None, "\"none\""));
    };
    Ok(match *at.get_ref() {
        written::Policy::None => Checkpoint::None,
        written::Policy::Full => Checkpoint::Full,
        written::Policy::SelectiveOp => Checkpoint::SelectiveOp,
        written::Policy::Every(every) => {
            if !(1..=MOST_SMALL).contains(&every) {
                let problem = format!("activation_checkpointing.policy.every = {every} is out of range");
                return Err(reader.plan(at, problem, "write 1 (every block) or more"));
            }
            Checkpoint::Blocks((1..=layers).map(|block| block.is_multiple_of(every as u64)).collect())
        }
        written::Policy::Fraction(share) => {
            if !(share > 0.0 && share <= 1.0) {
                let problem = format!("activation_checkpointing.policy.fraction = {share} is out of range");
                return Err(reader.plan(at, problem, "write a share above 0, at most 1 (every block)"));
            }
            Checkpoint::Blocks(spread(share, layers))
        }
    })
}

/// Where inputs of checkpointed blocks are kept.
pub(super) fn offload(
    reader: &Reader<'_>,
    written: &written::Scenario,
    runtime: Runtime,
) -> Result<Option<Offload>, ScenarioError> {
    let table = &written.activation_checkpointing;
    let Some(at) = &table.offload else { return Ok(None) };
    let blocks = table.policy.as_ref().map(|at| *at.get_ref());
    if matches!(blocks, None | Some(written::Policy::None | written::Policy::SelectiveOp)) {
        let problem = "what goes to the host is the input of a block that is recomputed whole, and none is";
        return Err(reader.plan(at, problem, "write activation_checkpointing.policy = \"full\", or remove offload"));
    }
    if written.compile.blocks == Some(true) && table.around_compiled != Some(true) {
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
fn spread(share: f64, layers: u64) -> Vec<bool> {
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
    use super::spread;

    #[test]
    fn a_share_of_the_blocks_is_spread_evenly() {
        let chosen = |share, layers| -> Vec<usize> {
            spread(share, layers).iter().enumerate().filter_map(|(at, &again)| again.then_some(at)).collect()
        };
        assert_eq!(chosen(1.0, 4), [0, 1, 2, 3]);
        assert_eq!(chosen(0.5, 6), [0, 2, 4]);
        assert_eq!(chosen(1.0 / 3.0, 7), [1, 4]);
        assert_eq!(chosen(0.39, 40).len(), 16);
    }
}
