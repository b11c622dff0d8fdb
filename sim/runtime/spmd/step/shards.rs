//! Who has the shards of a weight, and a weight on its way.

use crate::program::GroupId;
use crate::runtime::spmd::tape::Value;

/// A weight that is ready, or on its way beside the matmul that uses it.
pub(super) enum Gathered {
    /// Read this.
    Whole(Value),
    /// In windows: exchange so many numbers beside the matmul.
    Windowed(u64, Among),
    /// On the chip: nothing to gather.
    Own,
}

/// Who has the shards of a weight.
#[derive(Clone, Copy)]
pub(super) struct Among {
    pub(super) group: GroupId,
    /// How many.
    pub(super) shards: u32,
    /// Whether the program asks for all of it before the matmul: then there are no windows.
    pub(super) whole: bool,
    /// Who has its other experts, where it is gathered in two steps: an expert's weight first.
    pub(super) others: Option<(GroupId, u32)>,
}

impl Among {
    /// All chips that have a part of it.
    pub(super) fn chips(self) -> u32 {
        self.shards * self.others.map_or(1, |(_, others)| others)
    }

    /// Who gathers it, step by step, and the bytes that each has then, of all of its own.
    pub(super) fn steps(self, bytes: u64) -> Vec<(GroupId, u64)> {
        let steps = match self.others {
            None => vec![(self.group, self.shards, bytes)],
            Some((group, others)) => {
                vec![(self.group, self.shards, bytes.div_ceil(u64::from(others))), (group, others, bytes)]
            }
        };
        steps.into_iter().filter(|(_, chips, _)| *chips > 1).map(|(group, _, bytes)| (group, bytes)).collect()
    }
}
