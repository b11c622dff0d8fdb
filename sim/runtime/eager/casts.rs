//! The casts of weights that autocast's cache holds (`cached_cast`, `aten/src/ATen/autocast_mode.cpp`).

use super::storage::Storage;

/// Autocast's cache.
#[derive(Debug)]
pub(super) enum Autocast {
    /// There is none: autocast is not used, or `cache_enabled` is unset.
    Uncached,
    /// There is one whenever autocast is on, which it is not now.
    Off,
    /// Autocast is on: the weights it has cast.
    On(Vec<Storage>),
}
