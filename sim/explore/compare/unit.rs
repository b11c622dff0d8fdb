//! Differences that are one decision, and so one row.
//!
//! Where the two split the model differently, the keys of mesh, pipeline and tensor parallelism say so together, and with them the
//! sequences of a step: micro-batches fill a pipeline, and replicas share them. Where they run under different frameworks, the name
//! of the framework goes with every key that only one of the two reads.

use toml::Value;

use super::difference::Difference;
use crate::scenario::keys;

/// Tables whose keys are one row where the model is split differently.
const LAYOUT: [&str; 4] = ["mesh", "pipeline", "tensor_parallel", "batch"];

/// A key of those tables that is a decision of its own.
const LENGTH: &str = "batch.sequence";

/// Axes that split a model.
const AXES: [&str; 7] =
    ["mesh.tp", "mesh.cp", "mesh.pp", "mesh.pipeline", "mesh.dcn_pipeline", "mesh.tensor", "mesh.context"];

/// The key that names the framework.
pub(super) const FRAMEWORK: &str = "runtime";

/// Differences that are applied together, in the order in which the first of each comes.
pub(super) fn units(differences: Vec<Difference>) -> Vec<Vec<Difference>> {
    let frameworks = frameworks(&differences);
    let split = differences.iter().any(splits);
    let mut units: Vec<(Kind, Vec<Difference>)> = vec![];
    for one in differences {
        let kind = match &frameworks {
            Some(both) if is_foreign(&one.key, both) => Kind::Framework,
            _ if split && is_layout(&one.key) => Kind::Layout,
            _ => Kind::Alone,
        };
        match units.iter_mut().find(|(known, _)| *known == kind && kind != Kind::Alone) {
            Some((_, unit)) => unit.push(one),
            None => units.push((kind, vec![one])),
        }
    }
    units.into_iter().map(|(_, unit)| unit).collect()
}

/// What a unit is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Framework,
    Layout,
    Alone,
}

/// Both frameworks, where they differ.
fn frameworks(differences: &[Difference]) -> Option<[String; 2]> {
    let one = differences.iter().find(|one| one.key == FRAMEWORK)?;
    let name = |value: &Option<Value>| value.as_ref().and_then(Value::as_str).map(str::to_owned);
    Some([name(&one.from)?, name(&one.to)?])
}

/// Whether only one of two frameworks reads a key, or it names them.
fn is_foreign(key: &str, frameworks: &[String; 2]) -> bool {
    key == FRAMEWORK || keys::row(key).is_some_and(|row| !frameworks.iter().all(|framework| row.is_read_by(framework)))
}

/// Whether an axis that splits the model has another size; an axis that is not written has one rank.
fn splits(one: &Difference) -> bool {
    let ranks = |value: &Option<Value>| value.as_ref().and_then(Value::as_integer).unwrap_or(1);
    AXES.contains(&one.key.as_str()) && ranks(&one.from) != ranks(&one.to)
}

fn is_layout(key: &str) -> bool {
    key != LENGTH && LAYOUT.contains(&key.split('.').next().unwrap_or_default())
}
