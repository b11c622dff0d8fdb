//! Sizes of latent attention.

/// Sizes of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct LatentAttention {
    /// G: length of the vector that queries are made from; none: from the hidden state.
    pub query_rank: Option<u64>,
    /// J: length of the vector that keys and values are made from.
    pub rank: u64,
    /// U: dimensions of a head's queries and keys that are not rotated.
    pub plain: u64,
    /// R: dimensions that are.
    pub rotated: u64,
    /// W: dimensions of a head's values.
    pub value: u64,
}

impl LatentAttention {
    /// Parameters of one block's attention, of a model so wide with so many heads: linears without biases and RMS norms on the
    /// short vectors.
    pub fn params(&self, (d, n): (u64, u64)) -> u64 {
        let query = match self.query_rank {
            Some(rank) => d * rank + rank + rank * n * (self.plain + self.rotated),
            None => d * n * (self.plain + self.rotated),
        };
        let latent = d * (self.rank + self.rotated) + self.rank;
        query + latent + self.rank * n * (self.plain + self.value) + n * self.value * d
    }
}
