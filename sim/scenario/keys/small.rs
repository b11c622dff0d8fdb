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
            "`parallel.zero1`: replicas over which optimizer states are sharded. 0 or less means all.",
        ),
        Key::new(
            "reduce_bucket_size",
            Count(Some((1, 1 << 40))),
            INTERNEVO,
            "`hybrid_zero_optimizer.reduce_bucket_size`: elements of a bucket of gradients.",
        ),
        Key::new("checkpoint", Flag, INTERNEVO, "`model.checkpoint`: whether layers are recomputed in backward."),
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
        Key::new("zero_stage", Count(None), NANOTRON, "`optimizer.zero_stage`: 0, or 1 to shard optimizer states."),
        Key::new(
            "tp_mode",
            Choice(&[Word("ALL_REDUCE"), Word("REDUCE_SCATTER")]),
            NANOTRON,
            "`parallelism.tp_mode`: whether tensor parallelism shards the sequence between modules (`REDUCE_SCATTER`).",
        ),
        Key::new(
            "pp_engine",
            Choice(&[Word("1f1b"), Word("afab")]),
            NANOTRON,
            "`parallelism.pp_engine`: the pipeline schedule.",
        ),
        Key::new(
            "recompute_layer",
            Flag,
            NANOTRON,
            "`parallelism.recompute_layer`: whether layers are recomputed in backward.",
        ),
        Key::new(
            "tp_recompute_allgather",
            Flag,
            NANOTRON,
            "`parallelism.tp_recompute_allgather`: whether backward gathers activations itself instead of keeping them.",
        ),
        Key::new(
            "ddp_bucket_cap_mb",
            Count(Some((1, 1 << 16))),
            NANOTRON,
            "`ddp_bucket_cap_mb`: size of a bucket of gradients, in MiB in the parameters' type.",
        ),
    ],
};
