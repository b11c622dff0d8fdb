//! Token dispatchers: ways of rows to the ranks of their experts and back (`core/transformer/moe/token_dispatcher.py`,
//! 0.16.1). Each is a function that writes operators down around the experts, and rules for those operators that only it
//! has.
//!
//! To add one: a file in `dispatch/` and a line in [`TABLE`].

mod allgather;
mod alltoall;
mod flex;
mod rows;
mod rules;

use rules::Rules;

use super::dispatcher::Dispatcher;
use crate::model::megatron::RoutedOp;

/// The dispatchers there are, each with the rules of its own operators.
const TABLE: [(Dispatcher, Rules); 3] =
    [(alltoall::ALLTOALL, Rules::NONE), (allgather::ALLGATHER, allgather::RULES), (flex::FLEX, flex::RULES)];

/// The dispatchers there are.
pub static DISPATCHERS: [Dispatcher; 3] = [TABLE[0].0, TABLE[1].0, TABLE[2].0];

impl Dispatcher {
    /// The dispatcher of a name, if there is one.
    pub fn find(name: &str) -> Option<&'static Dispatcher> {
        DISPATCHERS.iter().find(|one| one.name == name)
    }
}

/// The rules of a dispatcher's own operators.
pub(super) fn rules(dispatcher: &Dispatcher) -> Rules {
    let known = TABLE.iter().find(|(one, _)| one == dispatcher);
    known.expect("a dispatcher comes from the table").1
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
        | RoutedOp::Weigh
        | RoutedOp::Unpermute { .. }
        | RoutedOp::AddShared => false,
    }
}
