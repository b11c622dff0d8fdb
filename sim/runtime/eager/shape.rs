//! The sizes of a matmul, and of what ranks exchange.

use crate::program::DType;

/// `m` rows and `n` columns, summed over `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) struct MatmulShape {
    pub(in crate::runtime) m: u64,
    pub(in crate::runtime) n: u64,
    pub(in crate::runtime) k: u64,
}

/// What ranks exchange: so many bytes of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exchanged {
    pub(super) bytes: u64,
    pub(super) dtype: DType,
}
