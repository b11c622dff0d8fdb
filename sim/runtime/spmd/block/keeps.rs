//! What the derivative of an operator keeps where nothing is computed again.

use super::{Block, Kind};
use crate::model::{Activation, Gating, Norm};
use crate::plan::xla::{Attention, Written, XlaPlan};

impl Block {
    /// Bytes that an operator's derivative keeps besides what it [`needs`](Op::needs), where nothing is computed again.
    ///
    /// JAX keeps what each elementary step of an operator asks for, and a loop over blocks stores all of it: the arrays that
    /// a loop without checkpointing carries (jax 0.10.2, `tests/oracles/xla_step.py` with `remat="none"`, and
    /// `tests/oracles/xla-plain.json`). A norm keeps arrays in fp32 of its input's size: RMSNorm one, and one more where it squares by
    /// `lax.square`, whose derivative keeps twice its operand; LayerNorm the deviation from the mean, twice that, and what it
    /// multiplies with its weight; and sums of each row. Splash attention keeps its result once more, and a sum a row and head;
    /// `silu(g)` two arrays more than its factors, the approximate GELU four, and a gate its activation's result. Attention in matmuls
    /// keeps exponentials in fp32 and probabilities in bf16; where blocks are written out and scores are in bf16, scores are enough to
    /// make both again. PyTorch/XLA's `scaled_dot_product_attention` keeps its softmax in fp32, and in bf16 for the matmul behind it.
    pub fn also_keeps(&self, op: usize, job: &XlaPlan) -> u64 {
        let (op, scan) = (&self.ops[op], job.scan);
        let (input, output) = (self.tensors[op.inputs[0]], self.tensors[op.output]);
        match (op.kind, job.attention) {
            (Kind::Attention(shape), Attention::DotProduct) => {
                let sdpa = job.torch.is_some_and(|torch| torch.attention == Written::Sdpa);
                let element = if job.float32_scores || scan || sdpa { 4 + 2 } else { 2 };
                element * shape.batch * shape.heads * shape.queries * shape.keys
            }
            _ if !scan => 0,
            (Kind::Norm, _) => {
                let arrays = match job.model.norms().kind {
                    Norm::Rms if job.norm_by_product => 1,
                    Norm::Rms => 2,
                    Norm::Layer { .. } => 3,
                };
                arrays * 4 * input.numbers() + 2 * 4 * input.rows
            }
            (Kind::Attention(shape), Attention::Cudnn { .. }) => 4 * output.rows * shape.heads,
            (Kind::Attention(shape), _) => 2 * output.numbers() + 4 * output.rows * shape.heads,
            (Kind::Gate, _) => {
                let (Gating::Gated(activation) | Gating::Plain(activation)) = job.model.gating();
                // `jax.nn.gelu` approximates by tanh unless it is told not to.
                let tanh = matches!(activation, Activation::Gelu | Activation::GeluNew | Activation::GeluTanh);
                let inner = if tanh { 4 } else { 2 };
                let result = if op.inputs.len() > 1 || !tanh { 1 } else { 0 };
                (inner + result) * 2 * output.numbers()
            }
            _ => 0,
        }
    }
}
