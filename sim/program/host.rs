//! What a rank takes of its host's memory.
//!
//! PyTorch pins a block of the next power of two for each tensor, and keeps what is freed for the next one of that size
//! (`aten/src/ATen/core/CachingHostAllocator.h`: `PowerOf2Ceil`, `pinned_max_round_threshold` is unset by default).

use std::collections::BTreeMap;

use crate::units::Bytes;

/// What of a host's memory one rank takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// What tensors hold \[B\].
    pub held: Bytes,
    /// What is taken for those that are pinned \[B\].
    pub pinned: Bytes,
    /// What is taken for all of them \[B\].
    pub all: Bytes,
    /// What is in files on its disks \[B\].
    pub files: Bytes,
}

/// What the caching host allocator pins for a tensor \[B\].
pub fn pinned_block(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { bytes.checked_next_power_of_two().unwrap_or(u64::MAX) }
}

/// The account of a host's memory while a program is written.
#[derive(Clone, Debug, Default)]
pub(super) struct HostAccount {
    /// Live pinned blocks of each size, and the most there were.
    blocks: BTreeMap<u64, (u64, u64)>,
    /// Bytes in live tensors, and the most there were.
    held: (u64, u64),
    pageable: u64,
}

impl HostAccount {
    fn hold(&mut self, bytes: u64) {
        self.held.0 = self.held.0.saturating_add(bytes);
        self.held.1 = self.held.1.max(self.held.0);
    }

    /// A pinned tensor.
    pub(super) fn pin(&mut self, bytes: u64) {
        self.hold(bytes);
        let (live, most) = self.blocks.entry(pinned_block(bytes)).or_default();
        *live += 1;
        *most = (*most).max(*live);
    }

    /// Its block goes back to the allocator, which keeps it.
    pub(super) fn unpin(&mut self, bytes: u64) {
        self.held.0 = self.held.0.saturating_sub(bytes);
        if let Some((live, _)) = self.blocks.get_mut(&pinned_block(bytes)) {
            *live = live.saturating_sub(1);
        }
    }

    /// A tensor in memory that is not pinned, which stays.
    pub(super) fn keep(&mut self, bytes: u64) {
        self.hold(bytes);
        self.pageable = self.pageable.saturating_add(bytes);
    }

    /// The most of it.
    pub(super) fn most(&self) -> HostMemory {
        let pinned =
            self.blocks.iter().fold(0_u64, |sum, (size, (_, most))| sum.saturating_add(size.saturating_mul(*most)));
        let all = pinned.saturating_add(self.pageable);
        HostMemory { held: Bytes(self.held.1), pinned: Bytes(pinned), all: Bytes(all), files: Bytes(0) }
    }
}
