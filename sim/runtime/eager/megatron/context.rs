//! Ways in which ranks share a sequence (`--cp-comm-type`; Transformer Engine 2.9,
//! `pytorch/attention/dot_product_attention/context_parallel.py`; causal, layout `sbhd`). Each is two rules for the core of
//! attention.
//!
//! With c ranks a sequence is cut into 2c parts, and rank r has parts r and 2c − 1 − r, so that under a causal mask all have
//! as much to do. All ranks of a stage run one program, that of the last.
//!
//! Two kernels of attention share the chip here at no gain. Where Transformer Engine runs them on two streams, to fill the
//! chip at their ends, all run on the default stream; what they take is its or the second's, as theirs is. Assumed, then:
//! every kernel has a tail of its own.
//!
//! To add one: a variant of [`CpCommType`], a file in `context/` and an arm in [`rules`].

mod all_gather;
mod heads;
mod kernel;
mod ring;
mod rules;
mod way;

pub use way::{Context, Heads, Ring};

use rules::Rules;

use crate::plan::megatron::CpCommType;

/// The rules of a way.
pub(super) fn rules(way: CpCommType) -> Rules {
    match way {
        CpCommType::P2p | CpCommType::A2aP2p => ring::RULES,
        CpCommType::AllGather => all_gather::RULES,
        CpCommType::A2a => heads::RULES,
    }
}
