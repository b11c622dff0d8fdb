//! What is otherwise where PyTorch/XLA writes the step, in place of JAX. Read off 24 steps that torch_xla 2.9 traced and libtpu compiled
//! (`tests/oracles/torch-xla.json`).

/// How a PyTorch module writes attention down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Written {
    /// `torch.matmul` around a softmax, as Hugging Face's `eager`. It flattens sequences and heads into one dimension, so that a spec of
    /// heads is lost.
    Matmul,
    /// `torch.einsum`, which keeps the dimension of heads.
    Einsum,
    /// `F.scaled_dot_product_attention`, whose softmax autograd keeps in fp32 besides.
    Sdpa,
    /// `torch_xla.experimental.custom_kernel.flash_attention`, the Pallas kernel.
    Flash,
}

/// PyTorch/XLA's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct TorchXla {
    /// How attention is written.
    pub attention: Written,
    /// Whether weights are in fp32 and matmuls under `torch.autocast("xla", torch.bfloat16)`, so that what goes from block to block is
    /// in fp32.
    pub autocast: bool,
    /// Whether `torch_xla.sync()` ends a graph after each micro-batch, as `MpDeviceLoader` has it. Gradients are arguments and results
    /// of those graphs, and nothing in them says that they are cut.
    pub syncs: bool,
}

impl TorchXla {
    /// Whether chips of the tensor axis multiply all heads: matmuls of flattened sequences and heads keep no spec of heads.
    pub fn whole_heads(self) -> bool {
        matches!(self.attention, Written::Matmul | Written::Sdpa)
    }
}
