//! Attention on tokens packed without padding: flash-attn's `bert_padding` around the variable-length kernel.
//!
//! ```text
//! o = pad(attention(unpad(q), unpad(k), unpad(v)))
//! ```
//!
//! `unpad_input` gathers the rows that a mask names, `pad_input` puts them back among zeros
//! (`flash_attn/bert_padding.py`). Without padding it moves everything for nothing, as llm-foundry did for
//! `attn_impl: flash` until version 0.5 (`llmfoundry/models/layers/attention.py`, `flash_attn_fn`).

use super::graph::{Graph, Op, OpKind, ValueId};
use crate::program::Owner;

/// The graph with each attention between packing and unpacking.
pub fn unpad(mut graph: Graph) -> Graph {
    for mut op in std::mem::take(&mut graph.ops) {
        if !matches!(op.kind, OpKind::Attention { .. }) {
            graph.ops.push(op);
            continue;
        }
        let at = (op.module, op.owner);
        for (place, input) in op.inputs.iter_mut().enumerate() {
            let packed = like(&mut graph, *input);
            graph.ops.push(moves(OpKind::Unpad { first: place == 0 }, at, *input, packed));
            *input = packed;
        }
        let packed = like(&mut graph, op.outputs[0]);
        let padded = std::mem::replace(&mut op.outputs[0], packed);
        let mut last = moves(OpKind::Pad, at, packed, padded);
        last.drops = op.inputs.iter().copied().chain([packed]).chain(std::mem::take(&mut op.drops)).collect();
        graph.ops.extend([op, last]);
    }
    graph
}

/// Another value of the same shape.
fn like(graph: &mut Graph, value: ValueId) -> ValueId {
    graph.values.push(graph.values[value].clone());
    graph.values.len() - 1
}

fn moves(kind: OpKind, (module, owner): (&'static str, Owner), from: ValueId, to: ValueId) -> Op {
    let (inputs, outputs) = (vec![from], vec![to]);
    Op { kind, module, inputs, outputs, params: vec![], drops: vec![], side_stream: false, owner }
}
