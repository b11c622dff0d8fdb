//! Token dispatchers: ways of rows to the ranks of their experts and back (`core/transformer/moe/token_dispatcher.py`,
//! 0.16.1). Each is a function that writes operators down around the experts, and rules for those operators that only it
//! has.
//!
//! To add one: a variant of [`TokenDispatcher`], a file in `dispatch/` and an arm in its row and in [`rules`].

mod allgather;
mod alltoall;
mod flex;
mod hybrid;
mod rows;
mod rules;

use rules::Rules;

use super::dispatcher::Dispatcher;
use crate::model::megatron::RoutedOp;
use crate::plan::megatron::TokenDispatcher;

impl TokenDispatcher {
    /// What it can do, and how it is written down.
    pub fn row(self) -> &'static Dispatcher {
        match self {
            TokenDispatcher::AllToAll => &alltoall::ALLTOALL,
            TokenDispatcher::AllGather => &allgather::ALLGATHER,
            TokenDispatcher::Flex => &flex::FLEX,
            TokenDispatcher::Hybrid => &hybrid::HYBRID,
        }
    }
}

/// The rules of a dispatcher's own operators.
pub(super) fn rules(dispatcher: TokenDispatcher) -> Rules {
    match dispatcher {
        TokenDispatcher::AllToAll => Rules::NONE,
        TokenDispatcher::AllGather => allgather::RULES,
        TokenDispatcher::Flex => flex::RULES,
        TokenDispatcher::Hybrid => hybrid::RULES,
    }
}

/// Whether an operator takes rows, or their weights, from rank to rank.
pub fn exchanges_rows(kind: RoutedOp) -> bool {
    match kind {
        RoutedOp::Exchange => true,
        RoutedOp::Own { step, .. } => flex::exchanges_rows(step),
        RoutedOp::Route { .. }
        | RoutedOp::Count { .. }
        | RoutedOp::Select { .. }
        | RoutedOp::Permute { .. }
        | RoutedOp::Collect
        | RoutedOp::Scatter
        | RoutedOp::Sort { .. }
        | RoutedOp::Grouped { .. }
        | RoutedOp::Fill
        | RoutedOp::AddBiases
        | RoutedOp::Weigh { .. }
        | RoutedOp::Unpermute { .. }
        | RoutedOp::AddShared => false,
    }
}
