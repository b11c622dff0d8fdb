//! The blocks of a chunk: a graph for each kind, and where each block's parameters are numbered.

use std::ops::Range;

use super::modules::Modules;
use crate::model::graph::{Graph, Param};
use crate::model::layer::KindId;
use crate::model::trained::{Trained, Which};
use crate::plan::megatron::Split;

/// Blocks in a row.
#[derive(Clone, Debug)]
pub(super) struct Layers {
    graphs: Vec<Graph>,
    /// By block: its graph, and the number of its first parameter.
    blocks: Vec<(usize, usize)>,
    /// How many of them attend.
    attending: u64,
}

impl Layers {
    /// The model's blocks `layers`, whose parameters are numbered from `first`.
    pub(super) fn new(modules: &Modules, job: &Split, layers: Range<u64>, mut first: usize) -> Layers {
        let (mut kinds, mut graphs, mut blocks): (Vec<(KindId, bool)>, Vec<Graph>, Vec<_>) = (vec![], vec![], vec![]);
        let of_all = job.model.layers.count();
        let mut attending = 0;
        for layer in layers {
            attending += u64::from(job.model.layers.at(layer).mixer.attends());
            // Of the first of all nothing before may be trained.
            let needs = |trained: &Trained| trained.input_needs(Which::Layer(layer));
            let kind = (job.model.layers.id(layer), job.trained.as_ref().is_none_or(needs));
            let at = kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                kinds.push(kind);
                let block = (modules.block)(job, job.model.layers.at(layer));
                graphs.push(match &job.trained {
                    Some(trained) => trained.mark(block, Which::Layer(layer), of_all),
                    None => block,
                });
                kinds.len() - 1
            });
            blocks.push((at, first));
            first += graphs[at].params.len();
        }
        Layers { graphs, blocks, attending }
    }

    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// How many of them have attention.
    pub(super) fn attending(&self) -> u64 {
        self.attending
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The graph of a block.
    pub(super) fn graph(&self, layer: u64) -> &Graph {
        &self.graphs[self.blocks[layer as usize].0]
    }

    /// The number of a block's first parameter.
    pub(super) fn first(&self, layer: u64) -> usize {
        self.blocks[layer as usize].1
    }

    /// One graph of each kind.
    pub(super) fn kinds(&self) -> &[Graph] {
        &self.graphs
    }

    /// Parameters of all blocks, each with its block.
    pub(super) fn params(&self) -> impl Iterator<Item = (u64, &Param)> {
        (0..self.len()).flat_map(|layer| self.graph(layer).params.iter().map(move |param| (layer, param)))
    }
}
