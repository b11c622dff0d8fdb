//! How long a dense matmul should take, from what the hardware does: output tiles, waves over the processors, a K loop.
//!
//! `C[m,n] = A[m,k]·B[k,n]` is cut into tiles `tm × tn`; the tiles run in waves over the processors (SMs):
//!
//! ```text
//! tile    = 2·tm·tn·(k + k_overhead) / (peak/processors · mma · small_tile^log2(32768/(tm·tn)))
//! compute = waves(tiles·split) · tile/split          waves(x) = x/P + tail·(⌈x/P⌉ − x/P), at least 1
//! memory  = bytes(m·k + k·n + m·n) / (bandwidth · memory)            both times the groups, of several matmuls in one kernel
//! time    = launch + min over tiles and split-K of (compute³ + memory³)^⅓ + (split > 1: split_k + partial sums)
//! ```
//!
//! A minimum of functions that each grow with m, n and k grows with them too. After the tile- and wave-quantisation
//! analysis in NVIDIA's matrix multiplication guide (docs.nvidia.com, deep learning performance).

use serde::Deserialize;

use crate::units::{Bandwidth, FlopRate, Time};

/// Tile shapes that cuBLAS chooses among, widest first, with how often the widest is halved to make them.
const TILES: [(f64, f64, usize); 7] = [
    (256.0, 128.0, 0),
    (128.0, 256.0, 0),
    (128.0, 128.0, 1),
    (256.0, 64.0, 1),
    (64.0, 256.0, 1),
    (128.0, 64.0, 2),
    (64.0, 64.0, 3),
];

/// How often the K loop may be cut, if at all.
const SPLITS: [f64; 3] = [2.0, 4.0, 8.0];

/// More than what rounding can move a sum or a power by.
const HAIR: f64 = 1.0 + 1e-9;

/// The chip a matmul runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    /// Processors (SMs) that share the tiles.
    pub processors: f64,
    /// Peak rate of the element type.
    pub peak: FlopRate,
    /// Peak memory bandwidth.
    pub bandwidth: Bandwidth,
}

/// The free parameters, fitted per chip and element type.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Waves {
    /// Launch, prologue and epilogue of an empty kernel.
    pub launch: Time,
    /// Share of the peak rate that a full tile reaches.
    pub mma: f64,
    /// Steps along K that a tile pays before and after its loop.
    pub k_overhead: f64,
    /// Share of the peak memory bandwidth reached.
    pub memory: f64,
    /// Loss of rate for each halving of the tile.
    pub small_tile: f64,
    /// How much of the last, partly filled wave is paid.
    pub tail: f64,
    /// What cutting the K loop costs beside the traffic.
    pub split_k: Time,
}

impl Waves {
    /// Time of one matmul with operands of `size` bytes an element and a two-byte result \[s\].
    pub fn seconds(&self, chip: &Chip, shape: (f64, f64, f64), size: f64) -> f64 {
        self.of_groups(chip, 1.0, shape, size)
    }

    /// Time of as many matmuls of one shape, with operands of their own, as fill the chip together \[s\].
    pub fn of_groups(&self, chip: &Chip, groups: f64, (m, n, k): (f64, f64, f64), size: f64) -> f64 {
        let bandwidth = chip.bandwidth.0 * self.memory;
        let memory = groups * (size * (m * k + k * n) + 2.0 * m * n) / bandwidth;
        let rate = chip.peak.0 / chip.processors * self.mma;
        let s = self.small_tile;
        let loss = [1.0, s, s * s, s * s * s];
        // The cube of both, for a tile and a cut of the K loop.
        let cubes = |(tm, tn, halved): (f64, f64, usize), tiles: f64, split: f64| {
            let tile = 2.0 * tm * tn * (k / split + self.k_overhead) / (rate * loss[halved]);
            let waves = tiles * split / chip.processors;
            let paid = (waves + self.tail * (waves.ceil() - waves)).max(1.0);
            let busy = paid * tile;
            busy * busy * busy + memory * memory * memory
        };
        let tiles = TILES.map(|(tm, tn, _)| groups * (m / tm).ceil() * (n / tn).ceil());
        let whole = TILES.iter().zip(tiles).map(|(&tile, tiles)| cubes(tile, tiles, 1.0)).fold(f64::INFINITY, f64::min);
        let mut best = libm::cbrt(whole);
        for (&tile, tiles) in TILES.iter().zip(tiles).filter(|&(_, tiles)| tiles < chip.processors) {
            for split in SPLITS {
                let partial = self.split_k.seconds() + 8.0 * split * groups * m * n / bandwidth;
                // The root is dear. It is drawn only where it may be less than the least so far, by a hair or more.
                let left = best * HAIR - partial;
                let cubes = if left > 0.0 { cubes(tile, tiles, split) } else { f64::INFINITY };
                if cubes < left * left * left * HAIR {
                    best = best.min(libm::cbrt(cubes) + partial);
                }
            }
        }
        self.launch.seconds() + best
    }
}
