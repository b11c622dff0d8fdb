//! A rank that trains: what it knows from its first instruction to its last.

use std::cell::RefCell;
use std::rc::Rc;

use super::communicators::{communicators, context_ring, expert_groups, streams, tensor_axis};
use super::models::{Body, Reference};
use super::part::Part;
use super::plan::{Graphs, Layout, Scopes, graphs, layout};
use super::reducer;
use super::units::Maker;
use crate::plan::torch::TorchPlan;
use crate::program::{Budget, BufferId, Builder, GroupId, ScopeId, StreamId};
use crate::runtime::ddp::{Hooks, Reducer};
use crate::runtime::eager::Torch;
use crate::runtime::eager::around::Around;
use crate::runtime::eager::framework::{ExpertAxis, StepAtOnce};
use crate::runtime::eager::{Eager, FrameworkState, Shared, Storage};
use crate::runtime::fsdp::Version;
use crate::runtime::fsdp::hooks::Run;

/// What is known of a run's graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct Captured {
    /// The stream of the first run.
    pub(super) warm_up: StreamId,
    /// Where in the first step the graph is captured.
    pub(super) captured_at: usize,
}

impl Captured {
    fn new(program: &mut Builder) -> Captured {
        Captured { warm_up: program.add_graph_pools(), captured_at: 0 }
    }
}

/// A rank that trains, writing its program.
pub(super) struct Training<'j> {
    pub(super) job: &'j TorchPlan,
    pub(super) graphs: Graphs,
    pub(super) layout: Layout,
    pub(super) scopes: Scopes,
    pub(super) run: Run<'j>,
    /// What each of the rank's roots has of the model, and which of them is at work.
    pub(super) parts: Vec<Part>,
    pub(super) at: usize,
    /// What transformers' `forward` makes for all blocks.
    pub(super) body: Body,
    /// The embedding's result, where that is a leaf which asks for a gradient.
    pub(super) leaf: Option<Storage>,
    /// Logits that the loop's variable holds, of the micro-batch before.
    pub(super) kept: Vec<Storage>,
    /// What they are known as from one step to the next.
    pub(super) kept_across: Vec<BufferId>,
    /// What the loop's name for a step's loss holds, in a pipeline: it outlives the optimizer's step.
    pub(super) of_loss: Vec<Storage>,
    /// The pipeline's communicator, where there is one.
    pub(super) pipeline_group: Option<GroupId>,
    /// `DistributedDataParallel`'s reducer, where the job has one.
    pub(super) reducer: Option<Rc<RefCell<Reducer>>>,
    /// The reference model of a loss over pairs, where it runs in a step.
    pub(super) reference: Option<Box<Reference<'j>>>,
    /// CUDA graphs of forward and backward, where the job has them.
    pub(super) graphs_of_passes: Option<Captured>,
}

impl<'j> Training<'j> {
    /// A rank that has these parts of the model, each a root of its own.
    pub(super) fn new((job, budget): (&'j TorchPlan, &Budget), parts: Vec<Part>) -> Self {
        let streams = streams(job);
        let mut program = Builder::within(budget, job.ranks(), &streams);
        let mut scopes = Scopes {
            root: ScopeId::default(),
            embedding: program.add_scope("tok_embeddings".to_owned()),
            blocks: (0..job.model.layers.count()).map(|layer| program.add_scope(format!("layers.{layer}"))).collect(),
            head: program.add_scope("norm, output".to_owned()),
            optimizer: program.add_scope("optimizer".to_owned()),
            metrics: ScopeId::default(),
        };
        if job.training_loop.train_metrics > 0 {
            scopes.metrics = program.add_scope("metrics".to_owned());
        }
        let graphs_of_passes = job.cuda_graphs.then(|| Captured::new(&mut program));
        let communicators = communicators(&mut program, job);
        let tensor = tensor_axis(&mut program, job, streams.len());
        let ring = context_ring(&mut program, job, streams.len());
        let graphs = graphs(job);
        let layout = layout(job, &graphs, &parts);
        let experts = expert_groups(&mut program, job, streams.len());
        let unsharded = job.fsdp.version == Version::Unsharded;
        let step_at_once = (unsharded && job.step_in_backward).then(|| {
            let over = (job.fsdp.shard, communicators.shard);
            let params = layout.params.iter().map(|param| param.stepped(over)).collect();
            StepAtOnce::new(job.optimizer, scopes.optimizer, params)
        });
        let reducer = reducer::reducer(job, &layout, &communicators);
        let hooks = reducer.as_ref().map(|reducer| Box::new(Hooks(Rc::clone(reducer))) as Box<dyn Around>);
        let torch = Torch {
            tensor,
            context: ring,
            experts: experts.map(|experts| ExpertAxis::new(experts.neighbours, experts.stream)),
            step_at_once,
            hooks,
            inputs_only: false,
        };
        let mut eager = Eager::new(program, job.eager, layout.params.len(), FrameworkState::Torch(torch));
        let head = &graphs.head.graph;
        let weight = head.params.len() - 1;
        let uses = head.ops.iter().filter(|op| op.params.contains(&weight)).count() + usize::from(job.model.tied_head);
        let shared = Shared { param: layout.head.index(weight), uses: uses as u32, zeroed: true };
        eager.leaves.shared = (uses > 1).then_some(shared).into_iter().collect();
        let run = if unsharded {
            Run::unsharded(eager, &job.fsdp, &layout.params, communicators)
        } else {
            let own = experts.map(|experts| experts.sharing);
            let mut all = vec![];
            let (graphs, layout, scopes) = (&graphs, &layout, &scopes);
            let units = |part| Maker { job, graphs, layout, part, scopes, own }.groups(&mut all);
            let mut roots = parts.iter().map(units).collect::<Vec<_>>().into_iter();
            let first = roots.next().expect("a rank has a part of the model");
            let mut run = Run::new(eager, &job.fsdp, all, first, communicators);
            roots.for_each(|units| run.add_root(units));
            run
        };
        let (kept, kept_across, of_loss) = (vec![], vec![], vec![]);
        let (body, pipeline_group, at) = (Body::default(), None, 0);
        Training {
            job,
            graphs,
            layout,
            scopes,
            run,
            parts,
            at,
            body,
            leaf: None,
            kept,
            kept_across,
            of_loss,
            pipeline_group,
            reducer,
            reference: None,
            graphs_of_passes,
        }
    }
}
