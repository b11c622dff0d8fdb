//! What a chunk's forward of one micro-batch leaves for its backward.

use crate::runtime::eager::{Frame, HoldsStorages, Storage};

/// What forward leaves of some blocks in a row.
#[derive(Clone, Debug)]
pub(super) enum BlocksFrame {
    /// One block's frame.
    Saved(u64, Box<Frame>),
    /// Blocks that are run again.
    Recompute(Checkpoint),
}

/// Blocks that are run again in backward, and what the checkpoint around them keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checkpoint {
    pub(super) input: Storage,
    pub(super) mask: Storage,
    pub(super) first: u64,
    pub(super) layers: u64,
}

/// What forward leaves for backward.
#[derive(Clone, Debug, Default)]
pub struct ChunkFrame {
    pub(super) embedding: Option<Frame>,
    pub(super) blocks: Vec<BlocksFrame>,
    pub(super) head: Option<Frame>,
    pub(super) report: Option<LossReport>,
}

/// Numbers that outlive the micro-batch on the last stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossReport {
    /// How many tokens the loss is of; lives as long as the loss.
    pub tokens: Storage,
    /// Loss and tokens for the log, kept to the end of the step (`forward_data_store`).
    pub report: Storage,
}

impl HoldsStorages for ChunkFrame {
    fn storages(&mut self, show: &mut dyn FnMut(&mut Storage)) {
        self.embedding.storages(show);
        self.head.storages(show);
        for done in &mut self.blocks {
            match done {
                BlocksFrame::Saved(_, frame) => frame.storages(show),
                BlocksFrame::Recompute(Checkpoint { input, mask, .. }) => {
                    [input, mask].into_iter().for_each(&mut *show)
                }
            }
        }
        if let Some(LossReport { tokens, report }) = &mut self.report {
            [tokens, report].into_iter().for_each(show);
        }
    }
}

impl ChunkFrame {
    /// Takes the numbers that outlive the micro-batch; none but on the last stage.
    pub fn take_report(&mut self) -> Option<LossReport> {
        self.report.take()
    }
}
