//! The table of ranks that differ.

use super::readers::ALL;
use super::row::Kind::{Count, Number, Other, Text};
use super::row::{Group, Key, Table};

/// `[ranks]`
pub(super) const RANKS_KEYS: Table = Table {
    name: "ranks",
    help: "How ranks differ from one another. Without the table all are alike.",
    group: Group::Hardware,
    owner: None,
    instead: &[],
    keys: &[
        Key::new(
            "speed",
            Text,
            ALL,
            "A published distribution of the pace of chips, from which every rank is drawn: `gemm` or `training`.",
        ),
        Key::new(
            "spread",
            Number,
            ALL,
            "In place of `speed`: the standard deviation of a chip's time for the same kernel, as a share.",
        ),
        Key::new(
            "kernel_jitter",
            Number,
            ALL,
            "The standard deviation of a kernel's time from launch to launch on one chip, as a share.",
        ),
        Key::new(
            "host_jitter",
            Number,
            ALL,
            "The standard deviation of a host call's time from call to call, as a share.",
        ),
        Key::new(
            "slow",
            Other("a rank with its pace, or a list of ranks with their paces"),
            ALL,
            "Ranks whose chip has a known pace, such as `{ rank = 3, pace = 0.9 }`: it does nine tenths of the work in the same time.",
        ),
        Key::new(
            "slow_links",
            Other("a rank with its pace, or a list of ranks with their paces"),
            ALL,
            "Ranks whose links have a known pace, such as `{ rank = 3, pace = 0.5 }`. A collective takes as long as its slowest link needs.",
        ),
        Key::new(
            "seed",
            Count(Some((0, i64::MAX))),
            ALL,
            "What the draws begin with. The same seed gives the same chips.",
        ),
        Key::new(
            "draws",
            Count(Some((1, 1 << 16))),
            ALL,
            "How many clusters are drawn. The report gives the distribution.",
        ),
    ],
};
