//! The kernels: what each reads and writes for one unit (an element, eight of them, a row), and how it is launched.

use crate::cuda::device::Fill;
use crate::points::{Machine, What};

/// All kernels' source.
pub const SOURCE: &str = include_str!("kernels.cu");

/// A kernel.
pub struct Spec {
    /// The simulator's family.
    pub family: &'static str,
    /// Its name in points.
    pub kernel: &'static str,
    /// Its name in the source.
    pub function: &'static str,
    /// Settings of the source.
    pub defines: &'static [&'static str],
    /// Operands whose size goes with the units.
    pub operands: &'static [Operand],
    /// Operands whose size does not.
    pub fixed: &'static [Operand],
    /// Bytes read for one unit.
    pub read: u64,
    /// Bytes written for one unit.
    pub written: u64,
    /// Blocks.
    pub grid: Grid,
    /// Threads of a block.
    pub block: u32,
    /// The curve: every so many powers of two.
    pub step: usize,
}

/// A buffer: bytes for one unit (or in all), and what it holds.
pub struct Operand {
    /// Bytes.
    pub bytes: u64,
    /// Contents.
    pub fill: Fill,
}

/// How many blocks.
pub enum Grid {
    /// One for so many units.
    PerBlock(u64),
    /// So many for each processor, at most one for each unit.
    PerProcessor(u64),
}

const fn of(bytes: u64, fill: Fill) -> Operand {
    Operand { bytes, fill }
}

const BF16: Operand = of(16, Fill::Bf16);
const FP32: Operand = of(32, Fill::Fp32);

/// Rows that norms, embeddings and losses are measured with.
const WIDTH: u64 = 4096;
const WIDE: u64 = 8192;
const VOCABULARY: u64 = 128_256;

/// A pointwise kernel: a unit is eight elements, a thread takes one, a block 128 (inductor's and PyTorch's grain of 1024).
const fn pointwise(
    family: &'static str,
    kernel: &'static str,
    function: &'static str,
    operands: &'static [Operand],
    (read, written): (u64, u64),
    step: usize,
) -> Spec {
    let (grid, defines, fixed) = (Grid::PerBlock(128), &[] as &[&str], &[] as &[Operand]);
    Spec { family, kernel, function, defines, operands, fixed, read, written, grid, block: 128, step }
}

/// A kernel whose unit is a row.
const fn rows(
    family: &'static str,
    kernel: &'static str,
    function: &'static str,
    defines: &'static [&'static str],
    operands: &'static [Operand],
    fixed: &'static [Operand],
    (read, written): (u64, u64),
) -> Spec {
    let (grid, block) = (Grid::PerBlock(1), if read > 4 * WIDE { 1024 } else { 256 });
    Spec { family, kernel, function, defines, operands, fixed, read, written, grid, block, step: 2 }
}

/// Everything that is measured.
pub static KERNELS: [Spec; 20] = [
    pointwise("elementwise", "scale_1r1w", "scale", &[BF16, BF16], (16, 16), 1),
    pointwise("elementwise", "add_2r1w", "add", &[BF16, BF16, BF16], (32, 16), 1),
    pointwise("elementwise", "swiglu_2r1w", "swiglu", &[BF16, BF16, BF16], (32, 16), 2),
    pointwise("elementwise", "swiglu_backward_3r2w", "swiglu_backward", &[BF16, BF16, BF16, BF16, BF16], (48, 32), 2),
    pointwise("elementwise", "cast_up_1r1w", "cast_up", &[BF16, FP32], (16, 32), 2),
    pointwise("elementwise", "cast_down_1r1w", "cast_down", &[FP32, BF16], (32, 16), 2),
    pointwise("elementwise", "fill_0r1w", "fill", &[BF16], (0, 16), 2),
    pointwise("copy", "copy_1r1w", "copy", &[BF16, BF16], (16, 16), 1),
    pointwise("complex", "rotary_1r1w", "rotary", &[of(32, Fill::Fp32), of(32, Fill::Fp32)], (32, 32), 2),
    rows(
        "norm",
        "rms_norm_4096",
        "rms_norm",
        &["WIDTH=4096"],
        &[of(2 * WIDTH, Fill::Bf16), of(2 * WIDTH, Fill::Bf16), of(4, Fill::Fp32)],
        &[of(2 * WIDTH, Fill::Bf16)],
        (2 * WIDTH, 2 * WIDTH + 4),
    ),
    rows(
        "norm",
        "rms_norm_8192",
        "rms_norm",
        &["WIDTH=8192"],
        &[of(2 * WIDE, Fill::Bf16), of(2 * WIDE, Fill::Bf16), of(4, Fill::Fp32)],
        &[of(2 * WIDE, Fill::Bf16)],
        (2 * WIDE, 2 * WIDE + 4),
    ),
    backward("rms_norm_backward_4096", &["WIDTH=4096"], &NORM_4096, &NORM_4096_FIXED, WIDTH),
    backward("rms_norm_backward_8192", &["WIDTH=8192"], &NORM_8192, &NORM_8192_FIXED, WIDE),
    rows(
        "softmax",
        "log_softmax_128256",
        "log_softmax",
        &["VOCABULARY=128256"],
        &[of(4 * VOCABULARY, Fill::Fp32), of(4 * VOCABULARY, Fill::Fp32)],
        &[],
        (4 * VOCABULARY, 4 * VOCABULARY),
    ),
    rows(
        "softmax",
        "log_softmax_backward_128256",
        "log_softmax_backward",
        &["VOCABULARY=128256"],
        &[of(4 * VOCABULARY, Fill::Fp32), of(4 * VOCABULARY, Fill::Fp32), of(4 * VOCABULARY, Fill::Fp32)],
        &[],
        (8 * VOCABULARY, 4 * VOCABULARY),
    ),
    rows(
        "softmax",
        "cross_entropy_128256",
        "cross_entropy",
        &["VOCABULARY=128256"],
        &[of(2 * VOCABULARY, Fill::Bf16), of(4, Fill::Index(VOCABULARY as u32)), of(4, Fill::Fp32)],
        &[],
        (2 * VOCABULARY + 4, 2 * VOCABULARY + 4),
    ),
    rows(
        "gather",
        "embedding_4096",
        "embedding",
        &["WIDTH=4096"],
        &[of(4, Fill::Index(VOCABULARY as u32)), of(2 * WIDTH, Fill::Bf16)],
        &[of(2 * WIDTH * VOCABULARY, Fill::Bf16)],
        (2 * WIDTH + 4, 2 * WIDTH),
    ),
    rows(
        "scatter",
        "embedding_backward_4096",
        "embedding_backward",
        &["WIDTH=4096"],
        &[of(4, Fill::Index(VOCABULARY as u32)), of(2 * WIDTH, Fill::Bf16)],
        &[of(4 * WIDTH * VOCABULARY, Fill::Fp32)],
        (6 * WIDTH + 4, 4 * WIDTH),
    ),
    foreach("adamw", "adamw", &[ADAM, ADAM, ADAM, of(4 * CHUNK, Fill::One)], (4 * CHUNK * 4, 3 * CHUNK * 4)),
    foreach("scale_foreach", "scale_foreach", &[ADAM], (CHUNK * 4, CHUNK * 4)),
];

/// Elements of a chunk of PyTorch's multi-tensor kernels (`MultiTensorApply.cuh`: `kChunkSize`, `kBlockSize` 512).
const CHUNK: u64 = 65_536;
const ADAM: Operand = of(4 * CHUNK, Fill::Fp32);

const fn foreach(
    kernel: &'static str,
    function: &'static str,
    operands: &'static [Operand],
    (read, written): (u64, u64),
) -> Spec {
    let (family, grid, defines, fixed) = ("foreach", Grid::PerBlock(1), &[] as &[&str], &[] as &[Operand]);
    Spec { family, kernel, function, defines, operands, fixed, read, written, grid, block: 512, step: 2 }
}

/// Blocks of a norm's backward for each processor; each keeps a partial sum of the weight's gradient.
const SUMS: u64 = 4;

const fn norm_operands(width: u64) -> [Operand; 4] {
    [of(2 * width, Fill::Bf16), of(2 * width, Fill::Bf16), of(4, Fill::One), of(2 * width, Fill::Bf16)]
}

/// The weight, and partial sums for as many blocks as any device has (up to 256 processors).
const fn norm_fixed(width: u64) -> [Operand; 2] {
    [of(2 * width, Fill::Bf16), of(4 * width * SUMS * 256, Fill::Zero)]
}

const NORM_4096: [Operand; 4] = norm_operands(WIDTH);
const NORM_8192: [Operand; 4] = norm_operands(WIDE);
const NORM_4096_FIXED: [Operand; 2] = norm_fixed(WIDTH);
const NORM_8192_FIXED: [Operand; 2] = norm_fixed(WIDE);

const fn backward(
    kernel: &'static str,
    defines: &'static [&'static str],
    operands: &'static [Operand],
    fixed: &'static [Operand],
    width: u64,
) -> Spec {
    Spec {
        family: "norm_backward",
        kernel,
        function: "rms_norm_backward",
        defines,
        operands,
        fixed,
        read: 4 * width + 4,
        written: 2 * width,
        grid: Grid::PerProcessor(SUMS),
        block: 256,
        step: 2,
    }
}

/// A kernel by its name in points.
pub fn memory_kernel(name: &str) -> Option<&'static Spec> {
    KERNELS.iter().find(|spec| spec.kernel == name)
}

impl Spec {
    /// What so many units are as a point.
    pub fn what(&self, units: u64) -> What {
        What::Memory {
            family: self.family.to_owned(),
            kernel: self.kernel.to_owned(),
            read: units * self.read,
            written: units * self.written,
        }
    }

    /// How many units read and write so many bytes.
    pub fn units(&self, read: u64, written: u64) -> u64 {
        read.checked_div(self.read).unwrap_or(written / self.written)
    }

    /// The curve: from 4 KiB to 2 GiB read and written in all, or a 32nd of the memory.
    pub fn sizes(&self, machine: &Machine) -> Vec<What> {
        let unit = self.read + self.written;
        let largest = (2 << 30).min(machine.memory / 32);
        let powers = (12..=31).step_by(self.step).map(|power| 1u64 << power).filter(|bytes| *bytes <= largest);
        let mut units: Vec<u64> = powers.map(|bytes| (bytes / unit).max(1)).collect();
        units.dedup();
        units.into_iter().map(|units| self.what(units)).collect()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
