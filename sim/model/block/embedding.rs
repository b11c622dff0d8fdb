//! The forward of the embedding: words, learned positions, scaling and a norm where the model has them.

use super::parts::{BLD, BS, BSD, S, SD, norm, norm_params};
use crate::model::graph::{Dims, Graph, GraphBuilder, OpKind};
use crate::model::style::Style;
use crate::model::{ModelConfig, Position, tensor, transformers};
use crate::program::{DType, Owner};

/// Token embedding, with learned positions, scaling and its norm where the model has them.
pub fn embedding(m: &ModelConfig, dims: Dims, compute: DType, style: Style) -> Graph {
    if transformers::class_of(m, style).is_some() {
        return transformers::embedding(m, dims, compute);
    }
    let (mut graph, tokens) = GraphBuilder::new("tok_embeddings", dims, compute, ("tokens_BS", BS, DType::Int64));
    let g = &mut graph;
    g.belong(Owner::Embedding);
    let table = g.table("tok_embeddings.weight", dims.v, m.width);
    let rows = g.op("tok_embeddings", OpKind::Embedding, &[tokens], &[table], ("h_BSD", BSD));
    let mut h = tensor::leave(g, rows, "tok_embeddings", "h_BLD", &[]);
    if let Position::Learned { positions } = m.position {
        let table = g.table("pos_embeddings.weight", positions, m.width);
        let rows = g.op_in("pos_embeddings", OpKind::POSITIONS, &[], &[], ("pos_S", S), DType::Int64);
        let pos = g.op("pos_embeddings", OpKind::Embedding, &[rows], &[table], ("pos_SD", SD));
        g.drop_values(&[rows]);
        let sum = g.op("pos_embeddings", OpKind::ADD, &[h, pos], &[], ("h_BSD", BLD));
        g.drop_values(&[pos, h]);
        h = sum;
    }
    if m.scaled_embedding {
        let scaled = g.op("tok_embeddings", OpKind::SCALE, &[h], &[], ("h_BSD", BLD));
        g.drop_values(&[h]);
        h = scaled;
    }
    if let Some(kind) = m.embedding_norm {
        let params = norm_params(g, kind, m.width, "embedding_norm.weight", "embedding_norm.bias");
        let normed = norm(g, kind, dims.local_tokens(), h, &params, "embedding_norm", ("h_BSD", BLD));
        g.drop_values(&[h]);
        h = normed;
    }
    graph.finish(h)
}
