//! nanotron's own operators (huggingface/nanotron@c2528430: `parallel/tensor_parallel/functional.py`, `models/llama.py`).
//!
//! Tensors are laid out with the sequence first, of which tensor-parallel ranks hold parts between linears, as Megatron's
//! are ([`super::megatron`]). Their rules, forward and backward, are in `runtime/eager/nanotron.rs`.

/// One operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NanotronOp {
    /// `_ColumnLinearAsyncCommunication` in reduce-scatter mode: the input's parts are gathered beside the product of the
    /// rank's own part; those of the others follow, before and after it. Parameter: weight.
    Column {
        /// Columns of the weight.
        inputs: u64,
        /// Rows of the rank's part of it.
        outputs: u64,
        /// Whether parts are gathered again in backward (`tp_recompute_allgather`), or the gathered input is kept.
        regather: bool,
    },
    /// `_RowLinearAsyncCommunication`: a product, then the sum over ranks, scattered; the gradient's parts are gathered
    /// beside the product of the rank's own. Parameter: weight.
    Row {
        /// Columns of the rank's part of the weight.
        inputs: u64,
        /// Its rows.
        outputs: u64,
    },
    /// Queries, keys and values out of the mixed product, batch first, queries and keys turned by flash-attn's kernel.
    Heads,
    /// The context, sequence first again.
    Transpose,
    /// `_ShardedCrossEntropy` of logits in fp32, each token's.
    Loss,
}
