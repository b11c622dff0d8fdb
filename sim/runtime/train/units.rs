//! Parameter groups as `fully_shard` makes them: each call takes the parameters of its modules that no earlier call has taken, and
//! the root takes the rest.

use std::ops::Range;

use super::part::Part;
use super::plan::{Graphs, Layout, Scopes};
use crate::model::experts::titan;
use crate::model::graph::{Graph, OpKind};
use crate::model::head::Loss;
use crate::plan::torch::TorchPlan;
use crate::program::GroupId;
use crate::runtime::fsdp::group::{Place, ShardedParam};
use crate::runtime::fsdp::hooks::Units;
use crate::runtime::fsdp::{Group, Inner, Reshard, Wrap};

/// What groups of a part are made of.
pub(super) struct Maker<'a> {
    pub job: &'a TorchPlan,
    pub graphs: &'a Graphs,
    pub layout: &'a Layout,
    pub part: &'a Part,
    pub scopes: &'a Scopes,
    /// Ranks that share experts which are spread, and their communicator: such experts are a group of their own.
    pub own: Option<(u32, GroupId)>,
}

impl Maker<'_> {
    /// Adds the groups of a part to `all`.
    pub fn groups(&self, all: &mut Vec<Group>) -> Units {
        let mut units = Units::none(self.job.fsdp.wrap.blocks.len());
        let mut rest = vec![];
        self.embedding(all, &mut units, &mut rest);
        for at in self.part.blocks.clone() {
            self.block(at, all, &mut units, &mut rest);
        }
        self.ends(all, &mut units, &mut rest);
        if !rest.is_empty() {
            units.root = Some(all.len());
            all.push(Group::new(self.scopes.root, rest, self.wrap().root));
        }
        units
    }

    fn wrap(&self) -> &Wrap {
        &self.job.fsdp.wrap
    }

    /// Whether the head is the embedding's table: tied weights must share a group, so the root keeps both ends of the model.
    fn tied(&self) -> bool {
        self.layout.head.tied[0].is_some()
    }

    fn embedding(&self, all: &mut Vec<Group>, units: &mut Units, rest: &mut Vec<ShardedParam>) {
        if !self.part.embedding {
            return;
        }
        let graph = &self.graphs.embedding;
        let table = &self.layout.params[self.layout.embedding..][..graph.params.len()];
        match self.wrap().embedding {
            Some(reshard) if self.wrap().apart => {
                let tables = graph.ops.iter().filter(|op| op.kind == OpKind::Embedding).count();
                for (at, unit) in [&mut units.embedding, &mut units.positions].into_iter().enumerate().take(tables) {
                    *unit = Some(all.len());
                    all.push(Group::new(self.scopes.embedding, vec![table[at]], reshard));
                }
                rest.extend_from_slice(&table[tables..]);
            }
            Some(reshard) if !self.tied() => {
                units.embedding = Some(all.len());
                all.push(Group::new(self.scopes.embedding, table.to_vec(), reshard));
            }
            _ => rest.extend_from_slice(table),
        }
    }

    /// One block's parameters: modules of it first, then the block, alone or in a list.
    fn block(&self, at: usize, all: &mut Vec<Group>, units: &mut Units, rest: &mut Vec<ShardedParam>) {
        let (wrap, scope) = (self.wrap(), self.scopes.blocks[at]);
        let graph = &self.graphs.blocks[self.graphs.of_block[at]];
        let mut left = self.layout.params[self.layout.blocks[at]..][..graph.params.len()].to_vec();
        for module in wrap.modules.iter().filter(|module| module.block == at) {
            let params = left.extract_if(.., |param| module.has(self.layout.names[param.index])).collect();
            if let Some(operators) = operators(graph, module) {
                units.modules[at].push((operators, all.len()));
                all.push(Group::new(scope, params, module.reshard));
            }
        }
        units.modules[at].sort_by_key(|(operators, _)| operators.start);
        let Some(reshard) = wrap.blocks[at] else {
            rest.extend(left);
            return;
        };
        let list = wrap.lists.iter().find(|list| list.contains(&at));
        if let Some(group) = list.and_then(|list| list.iter().find_map(|&block| units.blocks[block])) {
            units.blocks[at] = Some(group);
            all[group].params.extend(left);
            return;
        }
        let apart = |param: &ShardedParam| self.own.is_some() && titan::is_routed(self.layout.names[param.index]);
        let (experts, dense): (Vec<_>, Vec<_>) = left.into_iter().partition(apart);
        units.blocks[at] = Some(all.len());
        let place = if experts.is_empty() { Place::Alone } else { Place::First };
        all.push(Group::new(scope, dense, reshard).of_two(place, None));
        if !experts.is_empty() {
            units.experts[at] = Some(all.len());
            all.push(Group::new(scope, experts, reshard).of_two(Place::Second, self.own));
        }
    }

    /// Final norm and head.
    fn ends(&self, all: &mut Vec<Group>, units: &mut Units, rest: &mut Vec<ShardedParam>) {
        if !self.part.head {
            return;
        }
        let (wrap, tied) = (self.wrap(), self.tied());
        let weights = self.graphs.head.graph.params.len() - usize::from(tied);
        let end = &self.layout.params[self.layout.head.first..][..weights];
        let (norm, weight) = end.split_at(end.len() - usize::from(!tied));
        let mut add = |params: &[ShardedParam], reshard: Reshard| {
            (!params.is_empty()).then(|| {
                all.push(Group::new(self.scopes.head, params.to_vec(), reshard));
                all.len() - 1
            })
        };
        match wrap.head {
            Some(reshard) if wrap.apart => {
                units.norm = add(norm, reshard);
                units.head = add(weight, reshard).or(units.embedding);
            }
            Some(reshard) if wrap.head_has_norm && !tied => {
                // A loss that runs the head by itself leaves it to be gathered again.
                let again = matches!(self.job.loss, Loss::ChunkedGradients { .. }) && !self.job.first_step_keeps_head();
                units.head = add(end, if again { Reshard::Always } else { reshard });
            }
            head => {
                match wrap.norm {
                    Some(reshard) => units.norm = add(norm, reshard),
                    None => rest.extend_from_slice(norm),
                }
                match head {
                    Some(reshard) => units.head = add(weight, reshard),
                    None => rest.extend_from_slice(weight),
                }
            }
        }
    }
}

/// The operators of a module inside a block.
fn operators(graph: &Graph, module: &Inner) -> Option<Range<usize>> {
    let has = |op: &crate::model::graph::Op| module.has(op.module);
    let first = graph.ops.iter().position(has)?;
    let last = graph.ops.iter().rposition(has)?;
    Some(first..last + 1)
}
