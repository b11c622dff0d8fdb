//! The tables of InternEvo and nanotron.

use super::readers::{INTERNEVO, NANOTRON};
use super::row::Choice::Word;
use super::row::Kind::{Choice, Count, Flag};
use super::row::{Group, Key, Table};

/// `[internevo]`
pub(super) const INTERNEVO_KEYS: Table = Table {
    name: "internevo",
    help: "InternEvo's configuration.",
    group: Group::Rest,
    owner: Some("internevo"),
    instead: &[],
    keys: &[
        Key::new(
            "zero1",
            Count(None),
            INTERNEVO,
            "`parallel.zero1`: replicas over which optimizer states are spread; 0 or less: all.",
        ),
        Key::new(
            "reduce_bucket_size",
            Count(Some((1, 1 << 40))),
            INTERNEVO,
            "`hybrid_zero_optimizer.reduce_bucket_size`, in elements.",
        ),
        Key::new("checkpoint", Flag, INTERNEVO, "`model.checkpoint`: whether blocks run again in backward."),
    ],
};

/// `[nanotron]`
pub(super) const NANOTRON_KEYS: Table = Table {
    name: "nanotron",
    help: "nanotron's configuration.",
    group: Group::Rest,
    owner: Some("nanotron"),
    instead: &[],
    keys: &[
        Key::new("zero_stage", Count(None), NANOTRON, "`optimizer.zero_stage`: 0 or 1."),
        Key::new("tp_mode", Choice(&[Word("ALL_REDUCE"), Word("REDUCE_SCATTER")]), NANOTRON, "`parallelism.tp_mode`."),
        Key::new("pp_engine", Choice(&[Word("1f1b"), Word("afab")]), NANOTRON, "`parallelism.pp_engine`."),
        Key::new("recompute_layer", Flag, NANOTRON, "`parallelism.recompute_layer`."),
        Key::new("tp_recompute_allgather", Flag, NANOTRON, "`parallelism.tp_recompute_allgather`."),
        Key::new(
            "ddp_bucket_cap_mb",
            Count(Some((1, 1 << 16))),
            NANOTRON,
            "`ddp_bucket_cap_mb`, in MiB of gradients in the parameters' type.",
        ),
    ],
};
