//! The modules of a decoder as Hugging Face nests them, and where each begins and ends among its operators: ZeRO-3 has hooks on
//! all of them.
//!
//! The model holds a decoder and a head; the decoder embeds, runs its blocks and a norm; a block holds attention and a
//! feed-forward, each of which holds its linears, and the latter its activation.

use std::collections::BTreeMap;

use crate::model::graph::{Graph, Op, OpKind};
use crate::runtime::eager::ParamMap;
use crate::runtime::eager::around::Place;
use crate::runtime::train::plan::{Graphs, Layout};

/// Modules that begin before an operator, outermost first, and those that end after it, innermost first.
#[derive(Clone, Debug, Default)]
pub(super) struct Borders {
    pub begin: Vec<usize>,
    pub end: Vec<usize>,
}

/// All modules.
#[derive(Clone, Debug, Default)]
pub(super) struct Modules {
    /// The parameters of each itself.
    pub params: Vec<Vec<usize>>,
    /// Borders at operators, by their graph's first parameter and index.
    pub borders: BTreeMap<(usize, usize), Borders>,
    /// Those that are given tokens.
    pub takes_tokens: Vec<usize>,
}

impl Modules {
    pub(super) fn of(graphs: &Graphs, layout: &Layout) -> Modules {
        let mut modules = Modules::default();
        let (model, decoder) = (modules.add(vec![]), modules.add(vec![]));
        let first = ParamMap::from(0);
        modules.graph(&graphs.embedding, first);
        let tables = graphs.embedding.ops.iter().enumerate().filter(|(_, op)| op.kind == OpKind::Embedding);
        let tables = tables.flat_map(|(index, _)| modules.borders[&(0, index)].begin.clone());
        modules.takes_tokens = tables.chain([model, decoder]).collect();
        for (layer, &at) in graphs.of_block.iter().enumerate() {
            let (graph, map) = (&graphs.blocks[at], ParamMap::from(layout.blocks[layer]));
            let block = modules.add(vec![]);
            modules.graph(graph, map);
            modules.around(map.first, (0, graph.ops.len() - 1), block);
        }
        let head = &graphs.head;
        modules.graph(&head.graph, layout.head);
        let last_block = layout
            .blocks
            .last()
            .map(|&first| (first, graphs.blocks[graphs.of_block[graphs.of_block.len() - 1]].ops.len() - 1));
        let decoder_end = if head.norm > 0 { Some((layout.head.first, head.norm - 1)) } else { last_block };
        for module in [decoder, model] {
            modules.borders.entry((0, 0)).or_default().begin.insert(0, module);
        }
        if let Some(at) = decoder_end {
            modules.borders.entry(at).or_default().end.push(decoder);
        }
        modules.borders.entry((layout.head.first, head.graph.ops.len() - 1)).or_default().end.push(model);
        modules
    }

    /// Modules that begin at an operator: backward those that end after it, in the opposite order.
    pub(super) fn begin(&self, at: Place) -> Vec<usize> {
        let Some(borders) = self.borders.get(&(at.graph, at.op)) else { return vec![] };
        if at.backward { borders.end.iter().rev().copied().collect() } else { borders.begin.clone() }
    }

    /// Modules that end at an operator. Backward a module ends when its input has a gradient: tokens have none.
    pub(super) fn end(&self, at: Place) -> Vec<usize> {
        let Some(borders) = self.borders.get(&(at.graph, at.op)) else { return vec![] };
        let sees = |module: &usize| !self.takes_tokens.contains(module);
        if at.backward { borders.begin.iter().rev().copied().filter(sees).collect() } else { borders.end.clone() }
    }

    fn add(&mut self, params: Vec<usize>) -> usize {
        self.params.push(params);
        self.params.len() - 1
    }

    /// Puts a module around operators of a graph that may have others in it.
    fn around(&mut self, graph: usize, (first, last): (usize, usize), module: usize) {
        self.borders.entry((graph, first)).or_default().begin.insert(0, module);
        self.borders.entry((graph, last)).or_default().end.push(module);
    }

    /// The modules of one graph: operators with parameters, activations, and what holds several.
    fn graph(&mut self, graph: &Graph, map: ParamMap) {
        let mut known: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, op) in graph.ops.iter().enumerate() {
            if op.params.is_empty() && !op.kind.is_activation() {
                continue;
            }
            let params: Vec<usize> = op.params.iter().map(|&param| map.index(param)).collect();
            // A head that is applied to parts is one module.
            let module = match params.first() {
                Some(&param) => *known.entry(param).or_insert_with(|| {
                    self.params.push(params);
                    self.params.len() - 1
                }),
                None => self.add(params),
            };
            self.around(map.first, (index, index), module);
        }
        for name in ["attention", "feed_forward"] {
            let inside = |op: &Op| op.module.split('.').next() == Some(name);
            let first = graph.ops.iter().position(inside);
            let last = graph.ops.iter().rposition(inside);
            if let (Some(first), Some(last)) = (first, last) {
                let module = self.add(vec![]);
                self.around(map.first, (first, last), module);
            }
        }
    }
}
