//! A program's collectives: kind, bytes, who takes part, how often.
//!
//! Bytes are those of the whole buffer, as nccl-tests counts them: of an all-gather the result, of a reduce-scatter, an
//! all-reduce, an all-to-all and a permutation what one device puts in. An asynchronous pair counts once, where it starts. A
//! fusion that the compiler made of an all-reduce and a slice is entered and shows its all-reduce. A collective that goes on
//! within the fusions beside it (`xla_tpu_enable_async_collective_fusion`) is written down in each of them, and counts where
//! it starts.

use serde::{Deserialize, Serialize};

use super::flow::{Entered, entered};
use super::{Computation, Instruction, Module};

pub mod groups;

/// Collectives that are alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collective {
    /// `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `collective-permute`, `collective-broadcast` or
    /// `ragged-all-to-all`.
    pub kind: String,
    /// Of the whole buffer \[B\].
    pub bytes: u64,
    /// Devices that take part together; of a permutation, pairs of a sender and a receiver. Empty if the compiler says it in
    /// a way that is not known here.
    pub groups: Vec<Vec<u64>>,
    /// Whether it starts and ends apart, so that something may run beside it.
    pub asynchronous: bool,
    /// How many the program's text has.
    pub written: u64,
    /// How often they run in a step: each as often as the loops around it turn.
    pub count: u64,
}

const KINDS: [&str; 7] = [
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
];

/// Those of one step, alike ones as one, in order of kind and bytes. `devices` is how many take part where a collective
/// does not say.
pub fn collectives(module: &Module, devices: u64) -> Vec<Collective> {
    let mut found: Vec<Collective> = vec![];
    for Entered { computation, times } in entered(module).0 {
        for instruction in &computation.instructions {
            let Some((kind, started)) = kind(&instruction.opcode) else { continue };
            let fused = fused(instruction);
            if fused == Some(Fused::GoesOn) {
                continue;
            }
            let wrapped = started || fused.is_some() || wraps(module, computation);
            let bytes = bytes(kind, computation, instruction);
            let groups = groups::of(instruction, devices);
            let same = |one: &&mut Collective| {
                (one.kind.as_str(), one.bytes, one.asynchronous) == (kind, bytes, wrapped) && one.groups == groups
            };
            match found.iter_mut().find(same) {
                Some(known) => {
                    known.written += 1;
                    known.count = known.count.saturating_add(times);
                }
                None => found.push(Collective {
                    kind: kind.to_owned(),
                    bytes,
                    groups,
                    asynchronous: wrapped,
                    written: 1,
                    count: times,
                }),
            }
        }
    }
    found.sort();
    found
}

/// The kind, and whether this only starts it; none for what ends one.
pub fn kind(opcode: &str) -> Option<(&'static str, bool)> {
    let (plain, started) = opcode.strip_suffix("-start").map_or((opcode, false), |plain| (plain, true));
    KINDS.iter().find(|kind| **kind == plain).map(|kind| (*kind, started))
}

/// A collective that runs within fusions of what is computed beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fused {
    /// It starts here.
    Starts,
    /// It started in another.
    GoesOn,
}

/// Whether a collective runs within fusions: the compiler notes which of their flags tell of it, −1 where it starts.
pub fn fused(instruction: &Instruction) -> Option<Fused> {
    let notes: serde_json::Value = serde_json::from_slice(&instruction.backend).ok()?;
    let flag = notes.pointer("/async_collective_fusion_config/flag_start")?.as_str()?;
    Some(if flag == "-1" { Fused::Starts } else { Fused::GoesOn })
}

/// Whether a function is the inside of an asynchronous instruction.
fn wraps(module: &Module, computation: &Computation) -> bool {
    let starts = |one: &Instruction| one.opcode == "async-start" && one.calls.contains(&computation.id);
    module.computations.iter().any(|outer| outer.instructions.iter().any(starts))
}

/// Bytes of the whole buffer of a collective.
pub fn bytes(kind: &str, within: &Computation, instruction: &Instruction) -> u64 {
    let operands = || -> u64 {
        let shapes = instruction.operands.iter().filter_map(|id| within.instruction(*id)?.shape.as_ref());
        shapes.map(super::Shape::bytes).sum()
    };
    if kind != "all-gather" {
        return operands();
    }
    let Some(shape) = &instruction.shape else { return 0 };
    // What starts a gather gives its operands beside its results.
    match instruction.opcode.ends_with("-start") {
        true => shape.bytes() - operands().min(shape.bytes()),
        false => shape.bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shape;
    use super::*;

    #[test]
    fn a_start_counts_and_a_done_does_not() {
        assert_eq!(kind("all-gather-start"), Some(("all-gather", true)));
        assert_eq!(kind("all-gather"), Some(("all-gather", false)));
        assert_eq!(kind("all-gather-done"), None);
        assert_eq!(kind("async-start"), None);
    }

    /// A function with one gather of 64 by 64 numbers in bf16, noted as the compiler notes it.
    fn gather(id: i64, start: &str) -> Computation {
        let notes = format!(r#"{{"async_collective_fusion_config":{{"flag_start":"{start}","flag_end":"8"}}}}"#);
        let shape = Some(Shape { element: 16, dimensions: vec![64, 64], ..Shape::default() });
        let gather =
            Instruction { opcode: "all-gather".to_owned(), shape, backend: notes.into(), ..Default::default() };
        Computation { id, instructions: vec![gather], ..Default::default() }
    }

    #[test]
    fn a_gather_within_the_fusions_beside_it_counts_where_it_starts() {
        // As libtpu 0.0.42.1 writes a weight that is gathered beside the matmul before: three fusions hold it.
        let fusion = |calls| Instruction { opcode: "fusion".to_owned(), calls: vec![calls], ..Default::default() };
        let main = Computation { id: 4, instructions: (1..4).map(fusion).collect(), ..Default::default() };
        let computations = vec![gather(1, "-1"), gather(2, "2"), gather(3, "2"), main];
        let found = collectives(&Module { computations, entry: 4, ..Module::default() }, 16);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].count, found[0].bytes, found[0].asynchronous), (1, 64 * 64 * 2, true));
    }
}
