//! ZeRO++'s keys for exchanges of fewer bits.

use super::super::error::ScenarioError;
use super::super::reader::Reader;
use super::super::written;
use crate::runtime::zero::{Nodes, Quantized, Stage, ZeroPlan};

/// `zero_quantized_weights`, `zero_quantized_gradients`, of so many ranks on nodes of so many chips.
pub(super) fn quantized(
    reader: &mut Reader<'_>,
    table: &written::Zero,
    stage: Stage,
    (ranks, chips): (u32, u32),
) -> Result<Quantized, ScenarioError> {
    let keys = [
        ("zero_quantized_weights", &table.zero_quantized_weights),
        ("zero_quantized_gradients", &table.zero_quantized_gradients),
    ];
    for (key, at) in keys {
        if let Some(at) = at.as_ref().filter(|at| *at.get_ref() && stage < Stage::Three) {
            let problem = format!("zero.{key} is read under stage = 3 alone");
            return Err(reader.plan(at, problem, "remove the key, or write stage = 3"));
        }
    }
    if table.zero_quantized_nontrainable_weights.is_some() {
        reader.idle("zero.zero_quantized_nontrainable_weights", "all weights are trained");
    }
    let [weights, gradients] = keys.map(|(_, at)| at.as_ref().is_some_and(|at| *at.get_ref()));
    let nodes = ranks / chips.max(1);
    if gradients && nodes <= 1 {
        reader.idle("zero.zero_quantized_gradients", "one node, and nothing crosses the network");
    }
    Ok(Quantized { weights, gradients: (gradients && nodes > 1).then_some(Nodes { count: nodes, ranks: chips }) })
}

/// Whether every part can be cut into groups.
pub(super) fn check(reader: &Reader<'_>, table: &written::Zero, job: &ZeroPlan) -> Result<(), ScenarioError> {
    let Some(at) = table.zero_quantized_weights.as_ref().filter(|_| job.zero.quantized.weights) else { return Ok(()) };
    let persists = job.zero.gathering.persist;
    let (_, parts) = job.groups();
    let gathered = job.elements().into_iter().zip(parts).filter(|&(elements, _)| elements > persists);
    match gathered.map(|(_, part)| part).find(|part| !part.is_multiple_of(8)) {
        None => Ok(()),
        Some(part) => {
            let problem =
                format!("a rank's part of {part} elements is no multiple of 8, which DeepSpeed's quantizer asks for");
            Err(reader.plan(at, problem, "remove the key, or take another number of ranks"))
        }
    }
}
