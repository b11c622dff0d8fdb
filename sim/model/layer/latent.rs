//! Sizes of latent attention.

/// Latent attention: keys and values of all heads from one short vector per token. Queries and keys have H = U + R
/// dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct LatentAttention {
    /// N: heads.
    pub heads: u64,
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
    /// H: dimensions of a head's queries and keys.
    pub fn head_dim(&self) -> u64 {
        self.plain + self.rotated
    }

    /// Parameters of one layer's attention in a model so wide: linears without biases and RMS norms on the short vectors.
    pub(super) fn params(&self, d: u64) -> u64 {
        let n = self.heads;
        let query = match self.query_rank {
            Some(rank) => d * rank + rank + rank * n * self.head_dim(),
            None => d * n * self.head_dim(),
        };
        let latent = d * (self.rank + self.rotated) + self.rank;
        query + latent + self.rank * n * (self.plain + self.value) + n * self.value * d
    }
}
