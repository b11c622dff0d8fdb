//! Words by which kernels are told apart: lower case, the first that stands in a name says what it is.

use super::kind::Class::{self, Attention, Convolution, Copy, Matmul, Optimizer, Pointwise};

/// A word, and what has it in its name.
pub(super) type Word = (&'static str, Class);

/// Ranges around operators that say more than the operator: a matmul of Muon belongs to the optimizer.
pub(super) const RANGES: &[Word] = &[("optimizer.step", Optimizer), ("optimizer_step", Optimizer)];

/// Operators, PyTorch's and others'.
pub(super) const OPERATORS: &[Word] = &[
    // Compiled kernels carry the operators that were fused into them in their names, so they come first.
    ("triton_tem_fused_flex_attention", Attention),
    ("triton_tem_", Matmul),
    ("triton_poi_", Pointwise),
    ("triton_red_", Pointwise),
    ("triton_per_", Pointwise),
    ("triton__", Pointwise),
    // Attention.
    ("flash_attn", Attention),
    ("flash_attention", Attention),
    ("flashattn", Attention),
    ("efficient_attention", Attention),
    ("scaled_dot_product", Attention),
    ("scaleddotproduct", Attention),
    ("flex_attention", Attention),
    ("fused_attn", Attention),
    ("fusedattn", Attention),
    ("paged_attention", Attention),
    ("unified_attention", Attention),
    // Matmuls.
    ("aten::mm", Matmul),
    ("aten::addmm", Matmul),
    ("aten::bmm", Matmul),
    ("aten::baddbmm", Matmul),
    ("aten::_scaled_mm", Matmul),
    ("aten::_grouped_mm", Matmul),
    ("aten::_scaled_grouped_mm", Matmul),
    ("aten::_int_mm", Matmul),
    ("aten::matmul", Matmul),
    ("aten::linear", Matmul),
    ("grouped_gemm", Matmul),
    ("general_gemm", Matmul),
    ("wgrad_gemm", Matmul),
    // Convolutions.
    ("convolution", Convolution),
    ("conv2d", Convolution),
    ("conv3d", Convolution),
    // The optimizer.
    ("aten::_fused_adam", Optimizer),
    ("aten::_fused_sgd", Optimizer),
    ("aten::_foreach_", Optimizer),
    ("fused_adam", Optimizer),
    ("multi_tensor_", Optimizer),
    // Packing of buffers.
    ("fsdp::", Copy),
    // What moves memory and computes little.
    ("norm", Pointwise),
    ("softmax", Pointwise),
    ("aten::copy_", Pointwise),
    ("aten::add", Pointwise),
    ("aten::mul", Pointwise),
    ("aten::cat", Pointwise),
    ("aten::sum", Pointwise),
    ("aten::fill_", Pointwise),
    ("embedding", Pointwise),
];

/// Kernels, where no operator tells.
pub(super) const KERNELS: &[Word] = &[
    ("flash_fwd", Attention),
    ("flash_bwd", Attention),
    ("flashattn", Attention),
    ("flash_attn", Attention),
    ("fmha", Attention),
    ("attention", Attention),
    ("triton_tem_fused_flex", Attention),
    ("implicit_convolve", Convolution),
    ("winograd", Convolution),
    ("convolve", Convolution),
    ("cudnn::cnn", Convolution),
    ("dgrad", Convolution),
    ("wgrad", Convolution),
    ("im2col", Convolution),
    ("im3d2col", Convolution),
    ("conv2d", Convolution),
    ("multi_tensor_apply", Optimizer),
    ("adam", Optimizer),
    ("gemm", Matmul),
    ("nvjet", Matmul),
    ("cijk_", Matmul),
    ("splitk", Matmul),
    ("gemv", Matmul),
    ("cublas", Matmul),
    ("cutlass", Matmul),
    ("triton_tem_", Matmul),
    ("matmul", Matmul),
    ("triton", Pointwise),
    ("elementwise", Pointwise),
    ("reduce", Pointwise),
    ("norm", Pointwise),
    ("softmax", Pointwise),
    ("at::native::", Pointwise),
    ("fusion", Pointwise),
    ("transpose", Pointwise),
    ("dropout", Pointwise),
];

/// Instructions of XLA: their names, its classes of them, the paths of their source. On TPUs its convolutions are matmuls, too.
pub(super) const INSTRUCTIONS: &[Word] = &[
    ("fused_attn", Attention),
    ("fmha", Attention),
    ("flash_attention", Attention),
    ("splash", Attention),
    ("cudnn-conv", Convolution),
    ("conv_general_dilated", Convolution),
    ("gemm", Matmul),
    ("cublas", Matmul),
    ("dot_general", Matmul),
    ("convolution", Matmul),
    ("custom fusion", Matmul),
];
