//! `[attention]`.

use serde::Deserialize;
use toml::Spanned;

use super::framework::AttentionStyle;
use super::readers::{CUDA, INTERNEVO, MEGATRON, MODULES, NANOTRON, PYTORCH, TORCH_XLA, XLA, ZERO};
use super::row::Choice::Word;
use super::row::Kind::Choice;
use crate::cost::Backend;

keys! {
    /// Attention kernels.
    #[derive(Debug, Default, Deserialize)]
    ["attention"] Attention in Rest.instead(&[
        (MEGATRON, "write megatron.attention = \"flash\" or \"unfused\", or megatron.deterministic_mode"),
        (ZERO, "remove the key"),
        (INTERNEVO, "it is FlashAttention on packed sequences: remove the key"),
        (NANOTRON, "it is FlashAttention: remove the key"),
        (TORCH_XLA, "write torch_xla.attention = \"sdpa\", or another"),
        (XLA, "write xla.attention = \"flash\" or \"dot_product\""),
    ]);

    /// Whose kernels run attention.
    backend: Option<Spanned<Backend>> as Choice(&[Word("flash2"), Word("cudnn"), Word("flash3"), Word("flex"), Word("flash1"), Word("triton"), Word("splash"), Word("tokamax")]) => CUDA
        default &["ddp", "deepspeed-zero", "fsdp1", "single_device"] => "\"cudnn\"" of "PyTorch 2.15.0 (wheel: cuDNN 9.26); switch in 2.10, threshold crossed from 2.11" at "pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention and priority_order; torch 2.15.0 METADATA nvidia-cudnn-cu13==9.26.0.51; TORCH_CUDNN_SDPA_DEPRIORITIZED in libtorch_cuda.so; huggingface/transformers#48163 (2026-08-31)"
        default &["deepspeed"] => "\"flash2\"" of "Megatron-DeepSpeed 8387ae17" at "megatron/model/transformer.py, CoreAttention: matmuls around a softmax, so the key says nothing there"
        default &["fsdp2"] => "\"cudnn\" or \"flash2\"" of "PyTorch 2.15.0 (wheel: cuDNN 9.26); switch in 2.10, threshold crossed from 2.11" at "pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention and priority_order; torch 2.15.0 METADATA nvidia-cudnn-cu13==9.26.0.51; TORCH_CUDNN_SDPA_DEPRIORITIZED in libtorch_cuda.so; huggingface/transformers#48163 (2026-08-31)"
        default INTERNEVO => "\"flash1\"" of "InternEvo v0.1.0" at "doc/en/install.md:11,42,66; third_party/flash-attention@eff9fe6b"
        default &["megatron"] => "\"cudnn\"" of "Transformer Engine 2.9; NVIDIA/Megatron-LM core_v0.16.1" at "transformer_engine/pytorch/attention/dot_product_attention/utils.py:1118-1124; megatron/core/transformer/transformer_config.py:110 (AttnBackend.auto)"
        default NANOTRON => "\"flash2\"" of "nanotron c2528430" at "src/nanotron/models/llama.py (flash_attn_varlen_func)";
    /// Whether attention's backward sums in a fixed order (`torch.use_deterministic_algorithms`,
    /// `FLASH_ATTENTION_DETERMINISTIC`).
    deterministic: Option<Spanned<bool>> => MODULES
        default MODULES => "false" of "PyTorch 2.15.0" at "torch/__init__.py, use_deterministic_algorithms: off unless called; aten/src/ATen/Context.h, _deterministic_algorithms = false";
    /// Whether ALiBi's biases are a tensor given to `scaled_dot_product_attention`, or slopes inside the kernel.
    alibi_tensor: Option<bool> => MODULES;
    /// Whether tokens are packed without padding before attention and put back after it (`bert_padding`).
    unpad: Option<Spanned<bool>> => PYTORCH;
    /// Whether every call of attention first reads an answer back from the device.
    reads_back: Option<bool> => MODULES;
    /// How transformers' classes compute attention (`attn_implementation`).
    implementation: Option<Spanned<AttentionStyle>> => PYTORCH;
}
