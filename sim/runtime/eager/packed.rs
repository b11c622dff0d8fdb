//! Frozen weights that are stored in 4 bits and unpacked for each matmul (QLoRA, arXiv 2305.14314).
//!
//! bitsandbytes (`bitsandbytes/functional.py`, `dequantize_4bit`; `autograd/_functions.py`, `MatMul4Bit`, 0.50): the scales of blocks of 64
//! numbers are unpacked to fp32, an offset is added, then the weight is written in the type that it is multiplied in. Backward
//! unpacks it once more.

use super::{Eager, Storage};
use crate::model::graph::{Graph, Op, Stored};
use crate::model::packed::BLOCK;
use crate::program::{DType, Dispatch, MemoryKind};

impl Eager {
    /// A linear's weight as it is multiplied, where it is stored packed.
    pub(super) fn unpack_weight(
        &mut self,
        graph: &Graph,
        op: &Op,
        dtype: DType,
        dispatch: Dispatch,
    ) -> Option<Storage> {
        let param = &graph.params[*op.params.first()?];
        let Stored::Packed(_) = param.stored else { return None };
        let elements = param.elements();
        let (scales, bytes) = (4 * elements.div_ceil(BLOCK), elements * dtype.bytes());
        let of_blocks = self.storage(scales, "bitsandbytes.dequantize_blockwise");
        self.pointwise("bitsandbytes.dequantize_blockwise", MemoryKind::Elementwise, scales / 4, scales, dispatch);
        self.pointwise("aten.add_", MemoryKind::Elementwise, scales, scales, dispatch);
        let whole = self.storage(bytes, "bitsandbytes.dequantize_4bit");
        self.pointwise("bitsandbytes.dequantize_4bit", MemoryKind::Elementwise, elements / 2 + scales, bytes, dispatch);
        self.release(of_blocks);
        Some(whole)
    }
}
