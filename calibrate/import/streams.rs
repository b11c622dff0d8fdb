//! What matmuls of experts that are launched one by one on several streams gain by running side by side.
//!
//! `grouped_gemm_simumax.csv` has Transformer Engine's grouped matmuls on two machines. On A100 (PCIe) cuBLAS's kernels leave a part of their
//! last wave idle, and the next expert's kernel fills it: all together take what the wave model gives tiles of all experts. On
//! B200 kernels are persistent and each fills the chip: experts take what they take one after another. Hopper's, of the same
//! design since CUDA 12, are taken as Blackwell's. `tests/grouped.rs` holds both chips against the table's points, in the median and in nine of ten.

use super::chips::ChipSpec;
use super::{Section, evidence};

/// The section `streams`.
pub fn section(chip: &ChipSpec) -> Section {
    const TABLE: &str = "grouped_gemm_simumax.csv";
    let (together, basis, points, median, p90, how) = match chip.matmul {
        "a100" => (1.0, "published", 12, 0.06, 0.25, "A100 PCIe, Transformer Engine: as tiles of all experts together"),
        "b200" => (0.0, "published", 108, 0.10, 0.22, "B200, Transformer Engine: as experts one after another"),
        _ => (
            0.0,
            "extrapolated",
            108,
            0.10,
            0.30,
            "B200, Transformer Engine: as experts one after another; carried over",
        ),
    };
    let text = format!(
        "[streams]\ntogether = {together:.1}\nevidence = {}\n",
        evidence(basis, points, median, p90, &format!("{TABLE}: {how}"))
    );
    Section { text, residuals: Vec::new() }
}
