//! Where FlashAttention 2's backward adds up the gradient of queries, in fp32 (`flash_attn/flash_api.cpp`, `mha_bwd`,
//! `dq_accum`).

use super::{Eager, Storage};
use crate::cost::attention::copies;
use crate::model::graph::{Dims, Graph};
use crate::program::MemoryKind;

/// Rows of a head in what backward keeps for queries: those of a sequence rounded up to 128, or 128 more for each packed document
/// (`mha_varlen_bwd`, `total_q + 128 * batch_size`).
pub(super) fn rows(d: Dims) -> u64 {
    let rows = match d.documents {
        Some(documents) => d.s + 128 * documents.count,
        None => d.s.next_multiple_of(128),
    };
    d.b * rows
}

impl Eager {
    /// One sum: rows rounded up to 128, a head to 32, one wider than 128 to 64. Where thread blocks add up in one order, each
    /// thread block of a head has a copy of its own, zeroed.
    pub(in crate::runtime) fn query_accumulator(&mut self, graph: &Graph, name: &'static str) -> Storage {
        let d = graph.dims;
        let head = d.h.next_multiple_of(if d.h <= 128 { 32 } else { 64 });
        let bytes = rows(d) * d.n * head * 4;
        if !self.settings.copies_gradients {
            return self.temporary(bytes, name);
        }
        let copies = copies(u64::from(self.settings.sms), d.b, d.n);
        let all = self.temporary(copies * bytes, name);
        // All are written with zeros, and all but the first are read once more when they are summed.
        self.pointwise("aten.zeros", MemoryKind::Copy, (copies - 1) * bytes, copies * bytes, self.settings.backward);
        all
    }
}
