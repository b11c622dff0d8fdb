//! Profiles of TPUs from published tables: no host that launches kernels, no clocks known, a torus for a fabric.
//!
//! Everything is of TPU v6e. Chips of which less is published carry its efficiencies over to their vendor's figures, and
//! say so (`derived`).

mod attention;
mod chips;
mod matmul;
mod memory;
mod torus;

use super::tables::Tables;
use super::{ImportError, Section, evidence};

pub use chips::{TPUS, Tpu};

/// The text of a profile, and its residuals.
pub fn profile(tables: &Tables, tpu: &Tpu) -> Result<Section, ImportError> {
    let sections = [
        matmul::section(tables, tpu)?,
        attention::section(tpu)?,
        memory::section(tables, tpu)?,
        memory::overlap(),
        torus::section(tables, tpu)?,
        host_sync(tables, tpu)?,
        lazy(),
    ];
    let text: Vec<&str> = sections.iter().map(|section| section.text.trim_end()).collect();
    let text = format!("{}\n{}\n", head(tpu), text.join("\n\n"));
    Ok(Section { text, residuals: sections.into_iter().flat_map(|section| section.residuals).collect() })
}

/// The section `host_sync`: what a matmul timed by the host takes longer than in the device's trace. On another host it
/// was 115 us ([`matmul`]).
fn host_sync(tables: &Tables, tpu: &Tpu) -> Result<Section, ImportError> {
    let table = tables.get("second_order_effects.csv")?;
    let found = table.rows().find(|row| row.text("effect") == "TPU dispatch").and_then(|row| row.number("value"));
    let Some(us) = found else { return Err(table.error("no TPU dispatch")) };
    let (basis, p90) = if tpu.derived { ("extrapolated", 0.5) } else { ("published", 0.25) };
    let source = "second_order_effects.csv: an 8192³ matmul on v6e, 1457.8 us by the host's clock and 1328.8 in the trace \
                  (AI-Hypercomputer/tpu-recipes, microbenchmarks/README.md); 115 us in gemm_tpu.csv's other host";
    let text = format!("[host_sync]\ntime = \"{us} us\"\nevidence = {}\n", evidence(basis, 2, 0.11, p90, source));
    Ok(Section { text, residuals: Vec::new() })
}

/// The section `lazy`: what PyTorch/XLA takes on a host to write a Llama block down (nine parameters, attention in matmuls, under
/// autocast). Slopes over 1 to 8 blocks of processor time, the least of 12 steps (`tests/oracles/torch-xla-host.json`). Hosts of TPUs
/// are newer than the one that it was measured on, and nobody measured one: hence the width.
fn lazy() -> Section {
    let source = "tests/oracles/torch-xla-host.json: torch_xla 2.9.0 on one AMD EPYC of 2017, processor time of one thread, by blocks; \
                  hosts of TPUs are newer";
    let evidence = evidence("extrapolated", 6, 0.3, 0.6, source);
    let classes = [("forward", 5.4), ("backward", 6.2), ("sync", 3.1), ("parameter", 1.85)];
    let sections: Vec<String> = classes
        .iter()
        .map(|(name, ms)| format!("[lazy.{name}]\ntime = \"{ms} ms\"\nevidence = {evidence}\n"))
        .collect();
    Section { text: sections.join("\n"), residuals: Vec::new() }
}

fn head(tpu: &Tpu) -> String {
    let Tpu { name, summary, chip, bandwidth, memory, software, source, .. } = tpu;
    format!(
        "# {summary}\n# Written by `windtunnel-calibrate import published`; do not edit, run it again.\n\
         # Nothing here was measured on this chip by this project: every section names its source and the error to expect.\n\
         # No [host]: a step is one compiled program. No [clock]: nobody published a TPU's clocks under load.\n\n\
         format = 2\nname = \"{name}\"\nsummary = \"{summary}\"\n\n\
         [machine]\nchip = \"{chip}\"\nprocessors = 1\nmemory_bandwidth = \"{bandwidth} GB/s\"\nmemory = \"{memory}\"\n\
         software = \"{software}\"\nsource = \"{source}\"\n"
    )
}
