//! Token dispatchers: ways of rows to the ranks of their experts and back (`core/transformer/moe/token_dispatcher.py`,
//! 0.16.1). Each is a function that writes operators down around the experts, and rules for those operators that only it
//! has.
//!
//! To add one: a file in `dispatch/` and a line in [`DISPATCHERS`].

mod allgather;
mod alltoall;
mod flex;

use super::super::forward::Results;
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Axis, Graph, GraphBuilder, Op, OpKind, ValueId};
use crate::model::megatron::{MegatronOp, Routed, RoutedOp};
use crate::program::DType;
use crate::runtime::Refusal;
use crate::runtime::megatron::Job;

/// The dispatchers there are.
pub static DISPATCHERS: [Dispatcher; 3] = [alltoall::ALLTOALL, allgather::ALLGATHER, flex::FLEX];

const LBD: &[Axis] = &[Axis::L, Axis::B, Axis::D];
const C: &[Axis] = &[Axis::C];
const CD: &[Axis] = &[Axis::C, Axis::D];
const MODULE: &str = "mlp";

/// What the router leaves, and sizes.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// How many rows are where.
    pub routed: Routed,
    /// Whether rows are put in order by Transformer Engine's kernels (`--moe-permute-fusion`).
    pub fused: bool,
    /// The hidden state behind its norm.
    pub tokens: ValueId,
    /// Weights of the chosen experts, `[T, E]`.
    pub weights: ValueId,
    /// The map of the chosen, `[T, E]`.
    pub map: ValueId,
    /// The type of the weights.
    pub weighs: DType,
}

/// A stage of the experts that every token passes, where they run beside a dispatcher's exchanges (`SharedExpertMLP`,
/// `core/transformer/moe/shared_experts.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The parts of the sequence are gathered.
    Gather,
    /// The first linear and the activation.
    First,
    /// The second linear, and the sum over ranks.
    Second,
}

/// Writes a stage down, on what the stage before has made: at first, the tokens.
pub type Beside<'b> = &'b mut dyn FnMut(&mut GraphBuilder, Stage, ValueId) -> ValueId;

/// Writes the experts of a rank down: from rows in the order of experts and their weights to what they make of them.
pub type Experts<'e> = &'e mut dyn FnMut(&mut GraphBuilder, [ValueId; 2]) -> ValueId;

/// Forward of an operator by its step's name.
type Forward = fn(&mut Eager, &Graph, &Op, (&'static str, Routed), &mut Frame, Results);
/// Its backward; its index stands first.
type Backward = fn(&mut Eager, &Graph, &Op, (usize, &'static str, Routed), &mut Frame, Storage);

/// A dispatcher of the table.
#[derive(Clone, Copy)]
pub struct Dispatcher {
    /// `--moe-token-dispatcher-type`.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Whether its exchanges run beside another micro-batch (`--overlap-moe-expert-parallel-comm`; `transformer_config.py`).
    pub combines: bool,
    /// Whether shared experts can run beside its exchanges (`--moe-shared-expert-overlap`; `transformer_config.py`).
    pub beside: bool,
    /// What of a job it has no rules for, if anything.
    pub refuses: fn(&Job) -> Option<Refusal>,
    /// Writes down its way to the experts and back, with shared experts beside it if it can and is given some.
    pub write: fn(&mut GraphBuilder, &Routing, Experts<'_>, Option<Beside<'_>>) -> ValueId,
    /// Bytes that it gathers into the buffer that all gathers share (`GlobalMemoryBuffer`), of a row's bytes.
    pub shared_buffer: fn(&Routed, u64) -> u64,
    /// Forward of its own operators ([`RoutedOp::Own`]).
    pub(super) forward: Forward,
    /// Their backward.
    pub(super) backward: Backward,
}

impl PartialEq for Dispatcher {
    fn eq(&self, other: &Dispatcher) -> bool {
        self.name == other.name
    }
}

impl Eq for Dispatcher {}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Dispatcher {
    /// The dispatcher of a name, if there is one.
    pub fn find(name: &str) -> Option<&'static Dispatcher> {
        DISPATCHERS.iter().find(|one| one.name == name)
    }
}

/// Whether an operator takes rows, or their weights, from rank to rank.
pub fn crosses(kind: RoutedOp) -> bool {
    match kind {
        RoutedOp::Exchange => true,
        RoutedOp::Own { step, .. } => flex::crosses(step),
        _ => false,
    }
}

/// An operator on rows, with so many elements as a result.
fn rows(
    g: &mut GraphBuilder,
    kind: RoutedOp,
    inputs: &[ValueId],
    (name, shape, elements): (&'static str, &'static [Axis], u64),
    dtype: DType,
) -> ValueId {
    let value = g.op_in(MODULE, OpKind::Megatron(MegatronOp::Routed(kind)), inputs, &[], (name, shape), dtype);
    g.resize(value, elements);
    value
}

/// Rows added to the tokens they are of: what leaves the mixture.
fn unpermute(g: &mut GraphBuilder, fused: bool, [rows, of]: [ValueId; 2]) -> ValueId {
    let elements = g.dims().elements(LBD);
    unpermute_to(g, fused, [rows, of], ("ffn_LBD", LBD, elements))
}

/// The same, to tokens that may be other ranks', too.
fn unpermute_to(
    g: &mut GraphBuilder,
    fused: bool,
    [of_experts, of]: [ValueId; 2],
    result: (&'static str, &'static [Axis], u64),
) -> ValueId {
    let compute = g.compute();
    rows(g, RoutedOp::Unpermute { fused }, &[of_experts, of], result, compute)
}

/// For a dispatcher all of whose operators others have, too.
fn no_forward(_: &mut Eager, _: &Graph, _: &Op, (step, _): (&'static str, Routed), _: &mut Frame, _: Results) {
    unreachable!("a dispatcher without operators of its own writes none down: {step}")
}

fn no_backward(
    _: &mut Eager,
    _: &Graph,
    _: &Op,
    (_, step, _): (usize, &'static str, Routed),
    _: &mut Frame,
    _: Storage,
) {
    unreachable!("a dispatcher without operators of its own writes none down: {step}")
}
