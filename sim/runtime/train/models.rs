//! What a rank knows of each model that it runs: what its body has made, and the reference model beside the policy.

use super::plan::{Graphs, Layout, Scopes};
use crate::plan::torch::TorchPlan;
use crate::runtime::eager::Storage;

/// What the body of a model has made.
#[derive(Debug, Default)]
pub(super) struct Body {
    /// What `forward` names until it returns.
    pub(super) named: Vec<Storage>,
    /// What it names of the latest block's results.
    pub(super) results: Vec<Storage>,
    /// What blocks share until the first one's backward is over.
    pub(super) shared: Vec<Storage>,
    /// Sizes of what is cast for each block, and by block what is there.
    pub(super) casts: Vec<u64>,
    pub(super) cast: Vec<(usize, Storage)>,
}

/// A reference model; while it runs, the policy's things, which it has taken the place of.
pub(super) struct Reference<'j> {
    pub(super) job: &'j TorchPlan,
    pub(super) graphs: Graphs,
    pub(super) layout: Layout,
    pub(super) scopes: Scopes,
    pub(super) body: Body,
    /// Its root among the run's.
    pub(super) root: usize,
    /// The number of its first parameter, where it has parameters of its own.
    pub(super) first: Option<usize>,
    /// Whether it runs now.
    pub(super) running: bool,
}
