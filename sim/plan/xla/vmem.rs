//! VMEM that the splash attention kernel takes, and what the compiler lets one kernel have.
//!
//! A kernel that takes more is refused (`CompileTimeScopedVmemOom`). It holds windows of its operands and results, each twice, since
//! one is filled while the other is used; sums that it keeps between windows; and what it computes in between, which is a few
//! numbers for each pair of a query and a key of a block. Windows are arithmetic (jax@0.10.2,
//! `pallas/ops/tpu/splash_attention/splash_attention_kernel.py`, its `BlockSpec`s and `scratch_shapes`). What lies in between is the
//! compiler's choice, and was read off kernels that it refused: those in
//! `tests/oracles/xla-vmem.json`.

use crate::units::Bytes;

/// Bytes of a number of the operands, and of a sum.
const HALF: u64 = 2;
const FULL: u64 = 4;
/// Lanes of a vector register: a row's maximum and sum lie on all of them.
const LANES: u64 = 128;
/// Each window is there twice.
const TWICE: u64 = 2;

/// Blocks from which what lies in between grows with their area alone: of smaller ones part stays in registers.
const LARGE: u64 = 1024;
/// What lies in between in smaller ones, at least, for each pair of a query and a key \[tenths of a byte\].
const SMALL: u64 = 40;

/// What the compiler does on a chip.
#[derive(Debug)]
struct Chip {
    /// The name of its topology.
    name: &'static str,
    /// What it lets a kernel have where no flag says otherwise \[KiB\], as libtpu 0.0.42.1 and 0.0.51 say when they refuse one.
    limit: u64,
    /// What lies in between in large blocks for each pair of a query and a key, from and to \[tenths of a byte\]: forward, backward, and
    /// backward in one kernel.
    between: [(u64, u64); 3],
}

/// Chips that are known.
const CHIPS: [Chip; 2] = [
    Chip { name: "tpu-v5e", limit: 16 << 10, between: [(40, 45), (37, 60), (51, 66)] },
    Chip { name: "tpu-v6e", limit: 32 << 10, between: [(40, 45), (51, 60), (59, 66)] },
];

/// Kernels of attention, of which the largest must fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Forward.
    Forward,
    /// Gradients of keys and values.
    Backward,
    /// Gradients of queries, keys and values (`sa_use_fused_bwd_kernel`).
    FusedBackward,
}

/// What a kernel takes, from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// At least.
    pub least: Bytes,
    /// At most.
    pub most: Bytes,
}

/// What the compiler does with kernels of a chip; none where that is not known.
#[derive(Clone, Copy, Debug)]
pub struct Vmem(&'static Chip);

impl Vmem {
    /// That of a topology, by its name.
    pub fn of(topology: &str) -> Option<Vmem> {
        CHIPS.iter().find(|chip| chip.name == topology).map(Vmem)
    }

    /// What one kernel may have where no flag says otherwise.
    pub fn limit(self) -> Bytes {
        Bytes(self.0.limit << 10)
    }

    /// What a kernel takes, with blocks of as many queries as keys, computed whole.
    pub fn splash(self, kernel: Kernel, block: u64, head_dim: u64) -> Taken {
        let rows = block * head_dim;
        let (windows, sums) = match kernel {
            // Queries, keys, values and the result; a maximum and a sum of each row, and the sum of values.
            Kernel::Forward => (4 * HALF * rows, TWICE * FULL * (2 * LANES * block + rows)),
            // Queries, keys, values, the gradient of the result and those of keys and values; sums of the latter.
            Kernel::Backward => (6 * HALF * rows, 2 * FULL * rows),
            // And the gradient of queries.
            Kernel::FusedBackward => (7 * HALF * rows, 2 * FULL * rows),
        };
        let (least, most) = self.0.between[kernel as usize];
        let least = if block < LARGE { SMALL.min(least) } else { least };
        let with = |tenths: u64| Bytes(TWICE * windows + sums + block * block * tenths / 10);
        Taken { least: with(least), most: with(most) }
    }
}
