//! Streams and communicators of a rank (`core/parallel_state.py`, 0.16.1).

use crate::plan::megatron::{CudaGraphs, MegatronPlan, Mesh, Scatter, Sharing};
use crate::program::{Builder, DType, GroupId, StreamId};
use crate::runtime::eager::{BUFFER_STREAMS, Context, ExpertRanks, Heads, Ring, UserBuffers};
use crate::units::Bytes;

/// Streams: compute, tensor-parallel collectives, two of the pipeline's, data-parallel collectives; under delayed scaling,
/// the maxima of fp8 numbers; where ranks share a sequence, messages with the next and the previous of them,
/// attention's second stream, and exchanges of heads; where a model has experts, exchanges between their ranks, their data-parallel collectives,
/// and numbers on their way to the host; where forwards and backwards run together, what belongs to exchanges, or where shared
/// experts run beside exchanges, these.
const STREAMS: [&str; 13] = [
    "compute",
    "tensor-parallel",
    "pipeline",
    "pipeline (2)",
    "data-parallel",
    "fp8 maxima",
    "context-parallel",
    "context-parallel (2)",
    "attention (2)",
    "context-parallel heads",
    "expert-parallel",
    "expert data-parallel",
    "row counts",
];
const WITH_EXCHANGES: [&str; 1] = ["experts' exchanges"];
const WITH_SHARED: [&str; 1] = ["shared experts"];
/// The stream of tensor-parallel collectives.
pub(super) const TENSOR: StreamId = StreamId(1);
pub(super) const PIPELINE: [StreamId; 2] = [StreamId(2), StreamId(3)];
pub(super) const DATA: StreamId = StreamId(4);
pub(super) const MAXIMA: StreamId = StreamId(5);
const CONTEXT: [StreamId; 2] = [StreamId(6), StreamId(7)];
const ATTENTION: StreamId = StreamId(8);
const HEADS: StreamId = StreamId(9);
const EXPERTS: StreamId = StreamId(10);
pub(super) const EXPERT_DATA: StreamId = StreamId(11);
const COUNTS: StreamId = StreamId(12);
pub(super) const EXCHANGES: StreamId = StreamId(13);
/// The stream of shared experts that run beside exchanges.
pub(super) const SHARED: StreamId = StreamId(13);

/// Streams where pipeline ranks share the vocabulary: those of every job, the collectives of the words and of the last
/// result, and the reductions of the head, with what they need of arithmetic or as collectives of their own.
const WITH_VOCABULARY: [&str; 7] =
    ["compute", "tensor-parallel", "pipeline", "pipeline (2)", "data-parallel", "vocabulary", "head's reductions"];
pub(super) const VOCABULARY: StreamId = StreamId(5);
pub(super) const REDUCTIONS: StreamId = StreamId(6);

/// Where parts of matmuls run under `--tp-comm-overlap`, and where they are exchanged.
const USER_BUFFERS: [&str; BUFFER_STREAMS + 1] =
    ["user buffers", "user buffers (2)", "user buffers (3)", "user buffers' exchanges"];

const STATIC_COPIES: [&str; 1] = ["copies into static buffers"];

/// Those of Megatron-FSDP.
const SHARDED: [&str; 3] = ["parameter gathers", "gradient reductions", "gathers' communicator"];

/// Buffers that `initialize_ub` (`transformer_engine/pytorch/module/base.py`, 2.9) takes of all linears: those that are
/// gathered into, in fp8 where linears are, and those that bulk exchanges scatter from.
const GATHERED: u64 = 8;
const SCATTERED: u64 = 2;

/// The streams of a job.
pub(super) fn streams(job: &MegatronPlan) -> Vec<&'static str> {
    let buffers: &[&str] = if job.split.overlap_tensor.is_some() { &USER_BUFFERS } else { &[] };
    let sharded: &[&str] = if job.fsdp.is_some() { &SHARDED } else { &[] };
    let copies: &[&str] = if job.graphs == CudaGraphs::Iteration { &STATIC_COPIES } else { &[] };
    [of_modules(job), of_experts(job), buffers, copies, sharded].concat()
}

/// The stream of copies into static buffers, where one graph is the whole step.
pub(super) fn static_copies(job: &MegatronPlan) -> Option<StreamId> {
    let at = streams(job).iter().position(|&name| name == STATIC_COPIES[0]);
    at.map(|at| StreamId(at as u8))
}

/// The streams of Megatron-FSDP: of gathers of parameters, of reductions of gradients, and of a communicator of the gathers' own.
pub(super) fn sharded(job: &MegatronPlan) -> [StreamId; 3] {
    let first = streams(job).len() - SHARDED.len();
    [0, 1, 2].map(|at| StreamId((first + at) as u8))
}

/// The stream that some of a mixture's work has of its own.
fn of_experts(job: &MegatronPlan) -> &'static [&'static str] {
    if job.split.combines() {
        &WITH_EXCHANGES
    } else if job.split.runs_shared_beside() {
        &WITH_SHARED
    } else {
        &[]
    }
}

/// The tensor-parallel ranks' user buffers, where they have some: each has all tokens of a micro-batch, of the model's width.
pub(super) fn user_buffers(program: &mut Builder, job: &MegatronPlan) -> Option<UserBuffers> {
    let tokens = job.split.batch * job.split.seq / u64::from(job.split.mesh.cp);
    let gathered = job.split.matmuls.fp8().map_or(job.split.dtype, |_| DType::Fp8).bytes();
    let overlap = job.split.overlap_tensor?;
    let ranks = u64::from(job.split.mesh.tp);
    // A ring has what the others send beside what it makes, all but its own part.
    let parts = |scatter| if scatter == Scatter::Ring { 2 * ranks - 1 } else { ranks };
    let scattered = SCATTERED * ranks + parts(overlap.proj) + parts(overlap.fc2);
    let numbers = tokens * job.split.model.width;
    let bytes = numbers * GATHERED * gathered + numbers / ranks * scattered * job.split.dtype.bytes();
    let first = of_modules(job).len() + of_experts(job).len();
    let stream = |at: usize| StreamId((first + at) as u8);
    let group = program.add_group(job.split.mesh.user_buffers(Bytes(bytes), false));
    let unsparing = |scatter| scatter == Scatter::Pipeline(0);
    let slows = !overlap.bulk_margin || unsparing(overlap.proj) || unsparing(overlap.fc2);
    // They are the same buffers.
    let slowing = slows.then(|| program.add_group(job.split.mesh.user_buffers(Bytes(0), true)));
    Some(UserBuffers {
        group,
        slowing: slowing.unwrap_or(group),
        bulk_margin: overlap.bulk_margin,
        ranks: job.split.mesh.tp,
        compute: std::array::from_fn(stream),
        exchange: stream(BUFFER_STREAMS),
    })
}

fn of_modules(job: &MegatronPlan) -> &'static [&'static str] {
    if job.split.vocabulary_split().is_some() {
        &WITH_VOCABULARY
    } else if job.split.mixture.is_some() {
        &STREAMS
    } else if job.split.mesh.cp > 1 {
        &STREAMS[..10]
    } else if job.split.matmuls.reduces_maxima() {
        &STREAMS[..6]
    } else {
        &STREAMS[..5]
    }
}

/// The ranks that share a sequence, and how, where some do.
pub(super) fn sequence(job: &MegatronPlan, groups: Groups) -> Option<Context> {
    let shared = groups.shared?;
    let (cp, Sharing { comm_type, heads }) = (job.split.mesh.cp, job.split.mesh.sharing);
    let ring = Ring { group: shared.tokens, ranks: cp / heads, messages: CONTEXT, second: ATTENTION };
    let heads = shared.heads.map(|group| Heads { group, ranks: heads, stream: HEADS, second: ATTENTION });
    Some(Context { way: comm_type, ring, heads })
}

/// Who exchanges rows of experts, where the model has some.
pub(super) fn expert_ranks(job: &MegatronPlan, groups: Groups) -> Option<ExpertRanks> {
    let dispatcher = job.split.mixture?.dispatcher;
    let mesh = job.split.mesh;
    let some = |several: bool, group: GroupId, stream| several.then_some((group, stream));
    let balance = if mesh.cp > 1 { groups.sequence } else { Some(groups.tensor) };
    let balance = balance.filter(|_| mesh.tp * mesh.cp > 1).map(|group| (group, TENSOR));
    let experts = groups.experts;
    Some(ExpertRanks {
        dispatcher,
        exchange: experts.and_then(|of| some(mesh.ep > 1, of.exchange, EXPERTS)),
        tensor: experts.and_then(|of| some(mesh.etp > 1, of.tensor, EXPERTS)),
        counts: experts.and_then(|of| some(mesh.ep * mesh.etp > 1, of.all, EXPERTS)),
        balance,
        copies: COUNTS,
    })
}

/// Whether the choice of experts is corrected by how many copies each got.
pub(super) fn corrects(job: &MegatronPlan) -> bool {
    job.split.model.experts().is_some_and(|experts| experts.router.correction)
}

/// Communicators of ranks whose experts are spread or split.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertGroups {
    exchange: GroupId,
    tensor: GroupId,
    all: GroupId,
}

/// Communicators of ranks that share a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedGroups {
    /// Those with other tokens; where all have other heads, all of them.
    tokens: GroupId,
    /// Those with other heads, if any.
    heads: Option<GroupId>,
}

impl SharedGroups {
    fn new(program: &mut Builder, mesh: Mesh) -> Option<SharedGroups> {
        (mesh.cp > 1).then(|| {
            let heads = (mesh.sharing.heads > 1).then(|| program.add_group(mesh.context_heads()));
            let tokens = heads.filter(|_| mesh.sharing.heads == mesh.cp);
            SharedGroups { tokens: tokens.unwrap_or_else(|| program.add_group(mesh.context_tokens())), heads }
        })
    }
}

/// Communicators of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    pub(super) tensor: GroupId,
    pub(super) shared: Option<SharedGroups>,
    pub(super) data: GroupId,
    pub(super) pipeline: GroupId,
    pub(super) embedding: GroupId,
    pub(super) world: GroupId,
    /// Whose maxima of fp8 numbers, and counts of experts' copies, are reduced, if several ranks'.
    pub(super) maxima: Option<GroupId>,
    /// Of experts that are spread over ranks, or split.
    pub(super) experts: Option<ExpertGroups>,
    /// Ranks with the same experts, where others have others.
    pub(super) expert_data: Option<GroupId>,
    /// Ranks that share a sequence in either way, where experts are balanced over them.
    pub(super) sequence: Option<GroupId>,
}

impl Groups {
    pub(super) fn new(program: &mut Builder, job: &MegatronPlan) -> Groups {
        let mesh = job.split.mesh;
        Groups {
            tensor: program.add_group(mesh.tensor()),
            shared: SharedGroups::new(program, mesh),
            data: program.add_group(mesh.data()),
            pipeline: program.add_group(mesh.pipeline()),
            embedding: program.add_group(mesh.embedding()),
            world: program.add_group(mesh.world()),
            maxima: ((job.split.matmuls.reduces_maxima() || corrects(job)) && mesh.ranks_of_stage() > 1)
                .then(|| program.add_group(mesh.stage())),
            experts: (job.split.mixture.is_some() && mesh.ep * mesh.etp > 1).then(|| ExpertGroups {
                exchange: program.add_group(mesh.experts()),
                tensor: program.add_group(mesh.expert_tensor()),
                all: program.add_group(mesh.all_experts()),
            }),
            expert_data: mesh.shards_experts().then(|| program.add_group(mesh.expert_data())),
            sequence: (job.split.mixture.is_some() && mesh.cp > 1).then(|| program.add_group(mesh.sequence())),
        }
    }
}
