//! Frozen weights that are stored in 4 bits: what tensors they are.

/// How frozen weights are stored where they are no tensors of the model's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Packed {
    /// NF4 of bitsandbytes, whose scales are quantized, too (`Linear4bit`, `compress_statistics=True`, 0.50).
    Bitsandbytes,
}

/// Numbers of a packed weight that share a scale.
pub const BLOCK: u64 = 64;
/// Scales that share a scale of their own.
const SCALES: u64 = 256;

impl Packed {
    /// The tensors that a weight of so many elements is stored as \[B\]: two numbers a byte; a byte for each block's scale, fp32 for each
    /// 256 of them, the two tables of what codes stand for, and an offset (`QuantState`, `bitsandbytes/functional.py`, 0.50).
    pub fn tensors(self, elements: u64) -> Vec<u64> {
        let Packed::Bitsandbytes = self;
        let blocks = elements.div_ceil(BLOCK);
        vec![elements.div_ceil(2), blocks, 4 * blocks.div_ceil(SCALES), 4 * 16, 4 * 256, 4]
    }
}
