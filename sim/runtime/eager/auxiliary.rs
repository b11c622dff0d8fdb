//! What operators make besides their named outputs.

use crate::model::graph::{Dims, Graph};

/// What attention makes besides its output \[B\]: log-sum-exp of every query and head, and random state.
pub(super) fn attention_state(graph: &Graph, efficient: bool) -> [u64; 3] {
    let d = graph.dims;
    if efficient {
        // The memory-efficient kernel, which serves fp32, makes seed and offset (8 B each) first.
        [8, 8, d.b * d.n * d.s.next_multiple_of(32) * 4]
    } else {
        // Flash attention: log-sum-exp per query head in fp32, philox seed (16 B) and offset (8 B).
        [d.tokens() * d.n * 4, 16, 8]
    }
}

/// Partial results of flash attention \[B\] where so few blocks of queries are at work that keys are split among
/// SMs: log-sum-exps and outputs per split (`flash_api.cpp`, `set_params_splitkv`, `num_splits_heuristic`).
pub(super) fn split_attention(d: Dims, sms: u32) -> [u64; 2] {
    // The kernel for packed documents splits none (`mha_varlen_fwd`).
    if d.documents.is_some() {
        return [0; 2];
    }
    let slots = 2 * u64::from(sms);
    let blocks = d.b * d.n * d.s.div_ceil(64);
    let key_block = if d.h <= 64 {
        256
    } else if d.h <= 128 {
        128
    } else {
        64
    };
    let key_blocks = d.s.div_ceil(key_block);
    // The kernel compares with 0.8 of the slots.
    if 5 * blocks >= 4 * slots {
        return [0; 2];
    }
    let eligible = |splits: u64| splits == 1 || key_blocks.div_ceil(splits) != key_blocks.div_ceil(splits - 1);
    let efficiency = |splits: u64| {
        let waves = (blocks * splits) as f64 / slots as f64;
        waves / waves.ceil()
    };
    let candidates = (1..=128.min(slots).min(key_blocks)).filter(|&splits| eligible(splits));
    let best = candidates.clone().map(efficiency).fold(0.0, f64::max);
    let splits = candidates.clone().find(|&splits| efficiency(splits) >= 0.85 * best).unwrap_or(1);
    if splits == 1 {
        return [0; 2];
    }
    let rows = splits * d.b * d.n * d.s;
    [rows * 4, rows * d.h.next_multiple_of(32) * 4]
}
