//! Values kept in the host's memory until backward needs them, and where their copies run (`sending.rs`).

use super::storage::Storage;
use crate::program::EventId;

/// A value sent to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) struct Sent {
    pub(super) number: u32,
    pub(super) bytes: u64,
}

/// Values sent whose storage is still there.
#[derive(Debug, Default)]
pub(super) struct Stash {
    pub(super) list: Vec<(u32, Storage, EventId)>,
    pub(super) next: u32,
}
