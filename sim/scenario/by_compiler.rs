//! How XLA's compiler is asked about a step that is not simulated: three lines of Python that write it, and the command that reads it.

use super::error::ScenarioError;
use crate::hardware::{Topology, Vendor};

/// The way, for steps on a TPU.
pub(super) fn way(topology: &Topology) -> Option<String> {
    let axes = topology.axes().filter(|_| topology.chip.vendor == Vendor::Google)?;
    let shape: Vec<String> = axes.iter().map(|axis| axis.size.to_string()).collect();
    // libtpu's own names (0.0.51). Of a v4 it takes each core for a device unless it is told otherwise.
    let (generation, cores) = match topology.name.trim_start_matches("tpu-") {
        "v7x" => ("tpu7x", ""),
        "v4" => ("v4", ", chip_config_name=\"megacore\""),
        other => (other, ""),
    };
    let slice = format!("{generation}:{}", shape.join("x"));
    let (slices, each) = match topology.slices() {
        1 => (String::new(), String::new()),
        many => (format!(" --slices {many}"), format!(", num_slices={many}")),
    };
    Some(format!(
        "or ask XLA's compiler about your own step, which needs no TPU:\n  \
         devices = jax.experimental.topologies.get_topology_desc(\"{slice}\", \"tpu\"{cores}{each}).devices\n  \
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

#[cfg(test)]
mod tests {
    use super::way;
    use crate::hardware::{Size, Topology};

    #[test]
    fn a_slice_is_named_as_libtpu_and_jax_take_it() {
        let said = |name: &str, slice: &str, slices: u32| {
            way(&Topology::load(name, &Size::Slice(slice.to_owned())).expect("shipped").times(slices)).expect("a torus")
        };
        let two = said("tpu-v6e", "2x4", 2);
        assert!(two.contains("\"v6e:2x4\", \"tpu\", num_slices=2") && two.ends_with("v6e:2x4 --slices 2"), "{two}");
        assert!(said("tpu-v7x", "2x2x1", 1).contains("\"tpu7x:2x2x1\", \"tpu\")"));
        assert!(said("tpu-v4", "2x2x1", 1).contains("\"v4:2x2x1\", \"tpu\", chip_config_name=\"megacore\")"));
    }

    #[test]
    fn no_gpu_is_asked_about() {
        assert!(way(&Topology::shipped("h100-sxm-80gb").expect("shipped")).is_none());
    }
}
