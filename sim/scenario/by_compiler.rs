//! How XLA's compiler is asked about a step that is not simulated: three lines of Python that write it, and the command that reads it.

use super::error::ScenarioError;
use crate::hardware::{Topology, Vendor};

/// The way, for steps on a TPU.
pub(super) fn way(topology: &Topology) -> Option<String> {
    let axes = topology.axes().filter(|_| topology.chip.vendor == Vendor::Google)?;
    let shape: Vec<String> = axes.iter().map(|axis| axis.size.to_string()).collect();
    let slice = format!("{}:{}", topology.name.trim_start_matches("tpu-"), shape.join("x"));
    let (slices, each) = match topology.slices() {
        1 => (String::new(), String::new()),
        many => (format!(" --slices {many}"), format!(", num_slices={many}")),
    };
    Some(format!(
        "or ask XLA's compiler about your own step, which needs no TPU:\n  \
         devices = jax.experimental.topologies.get_topology_desc(\"{slice}\", \"tpu\"{each}).devices\n  \
         lowered = jax.jit(step).lower(*shapes)  # ShapeDtypeStructs, with shardings on a mesh of those devices\n  \
         open(\"step.mlir\", \"w\").write(lowered.as_text())\n  \
         windtunnel compile-check --program step.mlir --topology {slice}{slices}"
    ))
}

/// A refusal that names the way besides what it proposes.
pub(super) fn named(error: ScenarioError, topology: &Topology) -> ScenarioError {
    match (error, way(topology)) {
        (ScenarioError::Plan { code, problem, place, remedy }, Some(way)) => {
            ScenarioError::Plan { code, problem, place, remedy: format!("{remedy}\n{way}") }
        }
        (other, _) => other,
    }
}
