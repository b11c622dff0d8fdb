//! What a compiler computes again for want of memory.
//!
//! XLA's pass (`xla/hlo/transforms/simplifiers/hlo_rematerialization.cc`, OpenXLA) clones an
//! instruction where its result is read again, and names the clone after it with `.remat`. What JAX's checkpoints run again is part
//! of the program and has no such name.

use serde::{Deserialize, Serialize};

use super::Module;
use super::flow::{Entered, entered};

/// Instructions that run again in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// How often such instructions run in a step.
    pub times: u64,
    /// Bytes of their results, each as often as it is made \[B\].
    pub bytes: u64,
    /// The largest of them, by what it came from in the program, where the compiler says.
    pub largest: Option<String>,
}

/// Those of one device in one step. What a fusion holds counts with the fusion.
pub fn again(module: &Module) -> Again {
    let (mut all, mut most) = (Again::default(), 0);
    let fused = fused(module);
    for Entered { computation, times } in entered(module).0 {
        if fused.contains(&computation.id) {
            continue;
        }
        for one in computation.instructions.iter().filter(|one| is_again(&one.name)) {
            let bytes = one.shape.as_ref().map_or(0, super::Shape::bytes);
            all.times = all.times.saturating_add(times);
            all.bytes = all.bytes.saturating_add(bytes.saturating_mul(times));
            if bytes > most {
                most = bytes;
                let source = one.metadata.as_ref().map(|from| from.name.clone()).filter(|name| !name.is_empty());
                all.largest = Some(source.unwrap_or_else(|| one.name.clone()));
            }
        }
    }
    all
}

/// `fusion.12.remat`, `dot.3.remat2`.
fn is_again(name: &str) -> bool {
    let numbered = |part: &str| part.strip_prefix("remat").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
    name.split('.').any(numbered)
}

/// Functions that fusions call.
fn fused(module: &Module) -> std::collections::BTreeSet<i64> {
    let all = module.computations.iter().flat_map(|computation| &computation.instructions);
    all.filter(|one| one.opcode == "fusion").flat_map(|one| one.calls.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Computation, Instruction, Shape};
    use super::*;

    #[test]
    fn clones_are_known_by_their_names() {
        for (name, clone) in [
            ("fusion.12.remat", true),
            ("dot.remat3", true),
            ("fusion.4.remat.clone.1", true),
            ("rematted_computation.2", false),
            ("fusion.12", false),
        ] {
            assert_eq!(is_again(name), clone, "{name}");
        }
    }

    #[test]
    fn a_clone_counts_as_often_as_it_runs_and_with_all_of_its_result() {
        let shape = Some(Shape { element: 16, dimensions: vec![64, 64], ..Shape::default() });
        let instruction =
            |name: &str| Instruction { name: name.to_owned(), shape: shape.clone(), ..Default::default() };
        let main = Computation {
            id: 1,
            instructions: vec![instruction("fusion.1"), instruction("fusion.1.remat")],
            ..Default::default()
        };
        let module = Module { computations: vec![main], entry: 1, ..Module::default() };
        let expected = Again { times: 1, bytes: 64 * 64 * 2, largest: Some("fusion.1.remat".to_owned()) };
        assert_eq!(again(&module), expected);
    }
}
