//! The shape of an attention kernel, and how its tensors lie in memory.
//!
//! B sequences, N query heads, K key-value heads, S queries, T keys, H the width of a query's and a key's head, V of a
//! value's. Tensors are `[batch, token, head, width]` in memory, as a projection leaves them and frameworks pass them on,
//! and `[batch, head, token, width]` to cuDNN.

use crate::points::What;

/// A shape of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// B.
    pub batch: u64,
    /// N.
    pub heads: u64,
    /// K.
    pub kv_heads: u64,
    /// S.
    pub queries: u64,
    /// T.
    pub keys: u64,
    /// H.
    pub head_dim: u64,
    /// V.
    pub value_dim: u64,
    /// A query sees no later key.
    pub causal: bool,
    /// A query sees so many keys at most, itself the last.
    pub window: Option<u64>,
}

/// Longest sequence and widest product that fit cuDNN's and our arithmetic with room to spare.
const LARGEST: u64 = 1 << 40;

impl Shape {
    /// The shape and whether backward, or why cuDNN is not asked for it.
    pub fn of(what: &What) -> Result<(Self, bool), String> {
        let What::Attention {
            ref backend,
            backward,
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            head_dim,
            value_dim,
            causal,
            window,
            ref dtype,
        } = *what
        else {
            return Err("not attention".to_owned());
        };
        if backend != "cudnn" {
            return Err(format!("attention of {backend:?} is not measured: only \"cudnn\" is"));
        }
        if dtype != "bf16" {
            return Err(format!("attention in {dtype:?} is not measured: only \"bf16\" is"));
        }
        let sizes = [batch, heads, kv_heads, queries, keys, head_dim, value_dim];
        if sizes.contains(&0) || sizes.iter().try_fold(1u64, |all, size| all.checked_mul(*size)).is_none() {
            return Err(format!("sizes {sizes:?}: each must be above zero, and their product below 2^64"));
        }
        if heads % kv_heads != 0 {
            return Err(format!("{heads} query heads do not share {kv_heads} key-value heads evenly"));
        }
        if head_dim % 8 != 0 || value_dim % 8 != 0 {
            return Err(format!("heads of width {head_dim} and {value_dim}: cuDNN wants multiples of 8"));
        }
        if window.is_some() && (!causal || queries > keys || window == Some(0)) {
            return Err("a window needs a causal mask, a width above zero, and no more queries than keys".to_owned());
        }
        let shape = Self { batch, heads, kv_heads, queries, keys, head_dim, value_dim, causal, window };
        if shape.bytes() > LARGEST {
            return Err(format!("{:.0} GB of tensors", shape.bytes() as f64 / 1e9));
        }
        Ok((shape, backward))
    }

    /// Whether query `q` sees key `t`.
    pub fn sees(&self, q: u64, t: u64) -> bool {
        (!self.causal || t <= q) && self.window.is_none_or(|window| t + window > q)
    }

    /// What scores are multiplied by.
    pub fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Elements of the queries.
    pub fn q(&self) -> u64 {
        self.batch * self.queries * self.heads * self.head_dim
    }

    /// Elements of the keys.
    pub fn k(&self) -> u64 {
        self.batch * self.keys * self.kv_heads * self.head_dim
    }

    /// Elements of the values.
    pub fn v(&self) -> u64 {
        self.batch * self.keys * self.kv_heads * self.value_dim
    }

    /// Elements of the output.
    pub fn o(&self) -> u64 {
        self.batch * self.queries * self.heads * self.value_dim
    }

    /// Elements of the softmax' statistics: one for each query and head.
    pub fn rows(&self) -> u64 {
        self.batch * self.queries * self.heads
    }

    /// What one forward pass reads and writes in bf16, statistics in fp32 \[B\].
    pub fn bytes(&self) -> u64 {
        2 * (self.q() + self.k() + self.v() + self.o()) + 4 * self.rows()
    }
}

/// A tensor `[batch, token, head, width]` in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Sequences.
    pub batch: u64,
    /// Heads.
    pub heads: u64,
    /// Tokens of a sequence.
    pub tokens: u64,
    /// Width of a head.
    pub width: u64,
}

impl Layout {
    /// Dimensions as cuDNN orders them: `[batch, head, token, width]`.
    pub fn dims(&self) -> [i64; 4] {
        [self.batch, self.heads, self.tokens, self.width].map(|size| size as i64)
    }

    /// Strides in that order.
    pub fn strides(&self) -> [i64; 4] {
        [self.tokens * self.heads * self.width, self.width, self.heads * self.width, 1].map(|size| size as i64)
    }

    /// Where the vector of a token and head begins.
    pub fn at(&self, batch: u64, head: u64, token: u64) -> usize {
        (((batch * self.tokens + token) * self.heads + head) * self.width) as usize
    }
}

impl Shape {
    /// Queries and their gradient.
    pub fn queries_lie(&self) -> Layout {
        Layout { batch: self.batch, heads: self.heads, tokens: self.queries, width: self.head_dim }
    }

    /// Keys and their gradient.
    pub fn keys_lie(&self) -> Layout {
        Layout { batch: self.batch, heads: self.kv_heads, tokens: self.keys, width: self.head_dim }
    }

    /// Values and their gradient.
    pub fn values_lie(&self) -> Layout {
        Layout { batch: self.batch, heads: self.kv_heads, tokens: self.keys, width: self.value_dim }
    }

    /// The output and its gradient.
    pub fn output_lies(&self) -> Layout {
        Layout { batch: self.batch, heads: self.heads, tokens: self.queries, width: self.value_dim }
    }
}
