//! The hooks that `fully_shard` puts around a module's forward and backward (`_fsdp_state.py`), in order.
//!
//! A training step calls these; with FSDP1 each hands over to its like in [`super::flat`].

use super::flat;
use super::group::{Group, Place, ShardedParam, State, Training};
use crate::plan::torch::fsdp::{Fsdp, Version};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::Range;

use super::{ALL_GATHER, COPY_IN, Communicators, Context, OF_EACH_ROOT};
use crate::program::{DType, Dispatch, GroupId, Mark, StreamId};
use crate::runtime::eager::{COMPUTE, Eager};
use crate::runtime::optimizer::Owned;

/// Which parameter group each module belongs to, if it is wrapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Units {
    /// The root's own group: what no other group holds.
    pub root: Option<usize>,
    /// The embedding's, or its token table's.
    pub embedding: Option<usize>,
    /// The position table's, where it is one of its own.
    pub positions: Option<usize>,
    /// Each block's.
    pub blocks: Vec<Option<usize>>,
    /// Those of modules inside each block, in the order of their forwards, with the operators that each has.
    pub modules: Vec<Vec<(Range<usize>, usize)>>,
    /// The second one of each block, where its experts are sharded over other ranks than the rest.
    pub experts: Vec<Option<usize>>,
    /// The final norm's, where it is one of its own.
    pub norm: Option<usize>,
    /// That of final norm and head, or the head's; with a tied head that of the token table.
    pub head: Option<usize>,
    /// The first and the last block of each group that has some, found when they are first asked for.
    spans: OnceCell<BTreeMap<usize, (usize, usize)>>,
}

impl Units {
    /// None, of a model of so many blocks.
    pub fn none(blocks: usize) -> Units {
        Units {
            root: None,
            embedding: None,
            positions: None,
            blocks: vec![None; blocks],
            modules: vec![vec![]; blocks],
            experts: vec![None; blocks],
            norm: None,
            head: None,
            spans: OnceCell::new(),
        }
    }

    /// The first and the last block of a group that has some: of a list of blocks they differ.
    pub fn span(&self, group: usize) -> Option<(usize, usize)> {
        let spans = self.spans.get_or_init(|| {
            let mut spans = BTreeMap::new();
            for (block, groups) in self.blocks.iter().zip(&self.experts).enumerate() {
                for &group in [groups.0, groups.1].into_iter().flatten() {
                    spans.entry(group).or_insert((block, block)).1 = block;
                }
            }
            spans
        });
        spans.get(&group).copied()
    }
}

/// A sharded run: the groups and what they share, writing into one program.
#[derive(Debug)]
pub struct Run<'c> {
    /// Eager execution, which owns the program.
    pub eager: Eager,
    /// Settings.
    pub config: &'c Fsdp,
    /// Parameter groups.
    pub groups: Vec<Group>,
    /// Which module is in which group.
    pub units: Units,
    /// Communicators.
    pub communicators: Communicators,
    /// Whether gradients are reduced in this backward (`set_requires_gradient_sync`).
    pub reduce_gradients: bool,
    /// Whether parameters stay gathered after this backward (`set_reshard_after_backward(False)`).
    pub keeps_gathered: bool,
    /// Whether replicas all-reduce what is reduced in this backward (`set_requires_all_reduce`, HSDP).
    pub all_reduces: bool,
    /// All parameters, where nothing shards them.
    whole: Vec<ShardedParam>,
    pub(super) context: Context,
    pub(super) flat: flat::State,
    /// Roots whose turn it is not, where a rank has several; in the place of the one at work, nothing.
    resting: Vec<Option<(Units, Context)>>,
    /// Whether gathers that no module's forward or backward asks for run beside the default stream.
    pub(super) asynchronous: bool,
    /// The root at work.
    root: usize,
}

impl<'c> Run<'c> {
    /// A run at rest.
    pub fn new(eager: Eager, config: &'c Fsdp, groups: Vec<Group>, units: Units, communicators: Communicators) -> Self {
        let flat = flat::State::new(config, &groups);
        let context = Context::default();
        Run {
            eager,
            config,
            groups,
            units,
            communicators,
            reduce_gradients: true,
            keeps_gathered: false,
            all_reduces: true,
            whole: vec![],
            context,
            flat,
            resting: vec![None],
            asynchronous: false,
            root: 0,
        }
    }

    /// A run on one device, where no module is wrapped.
    pub fn unsharded(eager: Eager, config: &'c Fsdp, params: &[ShardedParam], communicators: Communicators) -> Self {
        let units = Units::none(config.wrap.blocks.len());
        Run { whole: params.to_vec(), ..Run::new(eager, config, vec![], units, communicators) }
    }

    /// A further model on one device.
    pub fn add_whole(&mut self, params: &[ShardedParam]) {
        self.whole.extend_from_slice(params);
    }

    /// One more root, with groups of its own among the run's.
    pub fn add_root(&mut self, units: Units) {
        self.resting.push(Some((units, Context::default())));
    }

    /// Another root goes to work.
    pub fn turn_to(&mut self, root: usize) {
        if let Some((units, context)) = self.resting[root].take() {
            let before = (std::mem::replace(&mut self.units, units), std::mem::replace(&mut self.context, context));
            self.resting[self.root] = Some(before);
            self.root = root;
        }
    }

    /// One of the streams that every root has for itself.
    pub(super) fn own(&self, stream: StreamId) -> StreamId {
        StreamId(stream.0 + (self.root * OF_EACH_ROOT) as u8)
    }

    /// Whether this is FSDP1.
    pub(super) fn is_flat(&self) -> bool {
        matches!(self.config.version, Version::One(_))
    }

    /// Size and communicator of a group's next all-gather.
    pub(super) fn gather_group(&self, at: usize) -> (u32, GroupId) {
        match (self.groups[at].state, self.groups[at].reshard, self.communicators.post_forward) {
            (State::ShardedPostForward, super::Reshard::To(ranks), Some(group)) => (ranks, group),
            _ => self.sharded_over(at),
        }
    }

    /// The ranks a group's parameters are sharded over, and their communicator.
    pub(super) fn sharded_over(&self, at: usize) -> (u32, GroupId) {
        self.groups[at].over.unwrap_or((self.config.shard, self.communicators.shard))
    }

    pub(super) fn hook(&mut self, name: &'static str, at: usize) {
        let scope = self.groups[at].scope;
        self.eager.program.mark(Mark::Hook(name, scope));
    }

    /// Before the model's forward: the all-gather streams wait for the optimizer.
    pub fn root_pre_forward(&mut self) {
        if self.is_flat() {
            return self.flat_root_pre_forward();
        }
        if self.config.version == Version::Unsharded {
            return;
        }
        for stream in [COPY_IN, ALL_GATHER] {
            let own = self.own(stream);
            self.eager.program.wait_stream(own, COMPUTE);
        }
        if let Some(root) = self.units.root {
            self.pre_forward(root, &[]);
        }
    }

    /// Before a wrapped module's forward. `prefetch` names groups to gather explicitly.
    pub fn pre_forward(&mut self, at: usize, prefetch: &[usize]) {
        if self.is_flat() {
            return self.flat_pre_forward(at);
        }
        let scope = self.groups[at].scope;
        let before = self.eager.program.enter(scope);
        self.hook("pre_forward.pre", at);
        self.eager.program.host(Dispatch::FsdpHook, 1);
        self.groups[at].training = Training::Forward;
        self.unshard(at);
        self.wait_for_unshard(at);
        self.hook("pre_forward.post", at);
        for &target in prefetch {
            self.prefetch(target, Training::Forward);
        }
        self.eager.program.enter(before);
    }

    /// Before a wrapped module's forward that a checkpoint runs again in backward. Nothing happens if the module's backward has
    /// begun. Else it is gathered, and takes itself for the root of a forward: the all-gather streams wait. Returns whether it is so.
    pub fn pre_forward_again(&mut self, at: usize) -> bool {
        if self.is_flat() || self.groups[at].training == Training::PreBackward {
            return false;
        }
        for stream in [COPY_IN, ALL_GATHER] {
            let own = self.own(stream);
            self.eager.program.wait_stream(own, COMPUTE);
        }
        self.pre_forward(at, &[]);
        true
    }

    /// After it: parameters stay, and its place in the order of forwards is the first run's.
    pub fn post_forward_again(&mut self, at: usize) {
        let scope = self.groups[at].scope;
        let before = self.eager.program.enter(scope);
        self.hook("post_forward.pre", at);
        self.eager.program.host(Dispatch::FsdpHook, 1);
        self.groups[at].training = Training::Idle;
        self.hook("post_forward.post", at);
        self.eager.program.enter(before);
        self.release_all_gather_state();
    }

    /// After a wrapped module's forward.
    pub fn post_forward(&mut self, at: usize) {
        if self.is_flat() {
            return self.flat_post_forward(at);
        }
        let scope = self.groups[at].scope;
        let before = self.eager.program.enter(scope);
        self.hook("post_forward.pre", at);
        self.eager.program.host(Dispatch::FsdpHook, 1);
        self.reshard(at);
        let index = self.context.post_forward_order.len();
        self.context.post_forward_order.push(at);
        self.groups[at].post_forward_indices.push(index);
        self.groups[at].training = Training::Idle;
        self.hook("post_forward.post", at);
        self.eager.program.enter(before);
    }

    /// After the model's forward.
    pub fn root_post_forward(&mut self) {
        if let Some(root) = self.units.root {
            self.post_forward(root);
        }
        if !self.is_flat() {
            self.release_all_gather_state();
        }
    }

    /// When the gradient of a wrapped module's output arrives. `prefetch` names groups to gather explicitly, instead
    /// of the group that ended its forward before this one.
    pub fn pre_backward(&mut self, at: usize, prefetch: &[usize]) {
        if self.is_flat() {
            return self.flat_pre_backward(at);
        }
        let scope = self.groups[at].scope;
        let before = self.eager.program.enter(scope);
        self.hook("pre_backward.pre", at);
        self.eager.program.host(Dispatch::FsdpHook, 1);
        self.groups[at].training = Training::PreBackward;
        self.unshard(at);
        self.wait_for_unshard(at);
        if prefetch.is_empty()
            && let Some(index) = self.groups[at].post_forward_indices.pop()
        {
            for target in self.before_in_backward(at, index) {
                self.prefetch(target, Training::PreBackward);
            }
        }
        self.hook("pre_backward.post", at);
        for &target in prefetch {
            self.prefetch(target, Training::PreBackward);
        }
        self.eager.program.enter(before);
    }

    /// What the group at `index` in the order of forwards prefetches by itself (`_backward_prefetch`): the group before it;
    /// of two groups the second, both of the module before.
    fn before_in_backward(&self, at: usize, index: usize) -> Vec<usize> {
        let before = |steps: usize| index.checked_sub(steps).map(|index| self.context.post_forward_order[index]);
        match self.groups[at].place {
            Place::Alone => before(1).into_iter().collect(),
            Place::First => vec![],
            Place::Second => match before(2) {
                Some(last) if self.groups[last].place == Place::Second => {
                    [Some(last), before(3)].into_iter().flatten().collect()
                }
                last => last.into_iter().collect(),
            },
        }
    }

    /// The parameters that the rank holds, in the order they are made, each with its index in the model unless it is a flat one.
    pub fn shards(&self) -> Vec<(Option<usize>, Owned)> {
        if self.is_flat() {
            return self.flat_shards().into_iter().map(|elements| (None, Owned::flat(elements))).collect();
        }
        self.shards_of(|_| true)
    }

    /// The same of some parameters alone.
    fn shards_of(&self, asked: impl Fn(&ShardedParam) -> bool) -> Vec<(Option<usize>, Owned)> {
        let of_groups = (0..self.groups.len()).flat_map(|at| {
            let over = self.sharded_over(at);
            self.groups[at].params.iter().map(move |param| (param, over))
        });
        let whole = self.whole.iter().map(|param| (param, (self.config.shard, self.communicators.shard)));
        let asked = of_groups.chain(whole).filter(|(param, _)| asked(param));
        let shards = asked.map(|(param, over)| (Some(param.index), param.stepped(over)));
        let mut shards: Vec<_> = shards.collect();
        shards.sort_unstable_by_key(|&(index, _)| index);
        shards
    }

    /// The tensors that the optimizer sees, in its order.
    pub fn owned(&self) -> Vec<Owned> {
        if self.is_flat() {
            return self.flat_owned();
        }
        self.shards_of(|param| param.trained).into_iter().map(|(_, owned)| owned).collect()
    }

    /// The type a parameter's gradient is stored in between passes that do not reduce; none: as it arrives.
    pub fn stored_gradient(&self) -> Option<DType> {
        (!self.reduce_gradients && self.config.version == Version::Two)
            .then(|| self.config.mixed_precision.reduce_dtype())
    }

    /// Lets go of the sharded gradients (`zero_grad`).
    pub fn zero_gradients(&mut self) {
        if self.is_flat() {
            return self.flat_zero_gradients();
        }
        for param in self.whole.iter().filter(|param| param.trained) {
            if let Some((gradient, _)) = self.eager.take_leaf(param.index) {
                self.eager.release(gradient);
            }
        }
        // Gradients that are reduced together share a buffer, which goes with the last of their parameters.
        let mut order: Vec<usize> = (0..self.groups.len()).collect();
        order.sort_by_key(|&at| self.groups[at].params.iter().map(|param| param.index).max());
        for at in order {
            let group = &mut self.groups[at];
            group.offloaded_gradient = false;
            for (_, gradient) in group.sharded_gradients.drain(..) {
                self.eager.program.free(gradient);
            }
        }
    }

    /// Starts another group's gather early (`_prefetch_unshard`).
    fn prefetch(&mut self, target: usize, training: Training) {
        let scope = self.groups[target].scope;
        let before = self.eager.program.enter(scope);
        let earlier = std::mem::replace(&mut self.groups[target].training, training);
        self.unshard(target);
        self.groups[target].training = earlier;
        self.eager.program.enter(before);
    }

    /// The order in which the final callback visits groups: modules in pre-order, of two groups the second first.
    pub(super) fn callback_order(&self) -> Vec<usize> {
        self.in_order(true)
    }

    /// Groups of modules in pre-order, of two the first first.
    pub(super) fn module_order(&self) -> Vec<usize> {
        self.in_order(false)
    }

    fn in_order(&self, second_first: bool) -> Vec<usize> {
        let units = &self.units;
        let mut order: Vec<usize> = vec![];
        order.extend(units.root);
        order.extend(units.embedding);
        order.extend(units.positions);
        for (at, (block, experts)) in units.blocks.iter().zip(&units.experts).enumerate() {
            let both = if second_first { [experts, block] } else { [block, experts] };
            // A list of blocks has one group, at the first of them.
            let own =
                both.into_iter().flatten().filter(|group| units.span(**group).is_some_and(|(first, _)| first == at));
            order.extend(own);
            order.extend(units.modules[at].iter().map(|(_, group)| group));
        }
        order.extend(units.norm);
        order.extend(units.head.filter(|_| units.head != units.embedding));
        order
    }
}
