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
//! To add one: a file in `context/` and a line in [`TABLE`].

mod all_gather;
mod heads;
mod kernel;
mod ring;
mod rules;
mod way;

pub use way::{Context, Heads, Parts, Ring, Way};

use rules::Rules;

/// The ways there are, each with its rules.
const TABLE: [(Way, Rules); 4] = [
    (ring::P2P, ring::RULES),
    (all_gather::ALL_GATHER, all_gather::RULES),
    (heads::A2A, heads::RULES),
    (ring::A2A_P2P, ring::RULES),
];

/// The ways there are.
pub static WAYS: [Way; 4] = [TABLE[0].0, TABLE[1].0, TABLE[2].0, TABLE[3].0];

impl Way {
    /// The way of a name, if there is one.
    pub fn find(name: &str) -> Option<&'static Way> {
        WAYS.iter().find(|one| one.name == name)
    }
}

/// The rules of a way.
pub(super) fn rules(way: &Way) -> Rules {
    let known = TABLE.iter().find(|(one, _)| one == way);
    known.expect("a way comes from the table").1
}
