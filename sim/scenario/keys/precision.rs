//! `[precision]`.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{
    CUDA_BUT_DDP, DDP, FSDP, INTERNEVO, MEGATRON, NANOTRON, PYTORCH, PYTORCH_BUT_DDP, TORCH_XLA, XLA, ZERO,
};
use crate::program::DType;

keys! {
    /// Types of parameters, gradients and logits.
    #[derive(Debug, Default, Deserialize)]
    ["precision"] Precision in Precision.instead(&[
        (DDP, "parameters are used, and gradients reduced, in the type they are stored in: write precision.storage, or precision.autocast"),
        (ZERO, "parameters are bf16, what is stepped fp32: remove the key"),
        (INTERNEVO, "parameters that are stepped are kept in fp32: remove the key"),
        (NANOTRON, "gradients and what is stepped are in fp32: remove the key"),
        (TORCH_XLA, "write torch_xla.precision = \"autocast\" or \"bfloat16\""),
        (XLA, "parameters are in fp32 and computed with in bf16, as MaxText's defaults are: remove the table"),
    ]);

    /// Type of the stored parameters.
    storage: Option<Spanned<DType>> => PYTORCH.instead(&[
            (MEGATRON, "write megatron.main_params_dtype for the parameters that are stepped"),
        ])
        default PYTORCH => "\"fp32\"" of "PyTorch 2.15.0; torchtitan 0.2.2, torchtitan 0.3.0" at "torchtitan/config/job_config.py:275 (0.2.2); config/configs.py:78 (0.3.0)";
    /// Type that layers compute in: `MixedPrecisionPolicy.param_dtype`.
    param: Option<Spanned<DType>> => CUDA_BUT_DDP
        default MEGATRON => "\"bf16\"" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:701 (params_dtype torch.float)"
        default ZERO => "\"bf16\"" of "DeepSpeed 0.19.8 (0.19.6 cited)" at "deepspeed/runtime/precision_config.py"
        default FSDP => "\"bf16\"" of "PyTorch 2.15.0; torchtitan 0.2.2, torchtitan 0.3.0" at "torch/distributed/fsdp/_fully_shard/_fsdp_api.py:78; torchtitan/config/job_config.py:282"
        default INTERNEVO => "\"bf16\"" of "InternEvo v0.1.0" at "internlm/initialize/launch.py:143-145"
        default NANOTRON => "\"bf16\"" of "none" at "of the job: what these trainers run in";
    /// Type in which gradients are reduced: `MixedPrecisionPolicy.reduce_dtype`.
    reduce: Option<Spanned<DType>> => PYTORCH_BUT_DDP.instead(&[(MEGATRON, "write megatron.grad_reduce_in_fp32 = true or false")])
        default FSDP => "\"fp32\"" of "PyTorch 2.15.0; torchtitan 0.2.2, torchtitan 0.3.0" at "_fsdp_api.py:79; job_config.py:290";
    /// `MixedPrecisionPolicy.output_dtype` of the root: the type logits are handed to the loss in.
    output: Option<Spanned<DType>> => PYTORCH.instead(&[(MEGATRON, "remove it: the loss is computed in fp32")]);
    /// Whether fp32 matmuls run in tf32.
    tf32: Option<bool> => PYTORCH.instead(&[(MEGATRON, "remove it: matmuls are in precision.param, or in megatron.fp8")])
        default &["ddp", "single_device"] => "false" of "PyTorch 2.15.0" at "torch.backends.cuda.matmul.allow_tf32";
    /// The type of `torch.autocast` around forward and loss; absent: it is off.
    autocast: Option<Spanned<DType>> => PYTORCH.instead(&[
            (MEGATRON, "remove it: parameters are in precision.param, beside fp32 ones that are stepped"),
        ]);
    /// `cache_enabled` of `torch.autocast`.
    autocast_cache: Option<Spanned<bool>> => PYTORCH.instead(&[(MEGATRON, "remove it: there is no autocast")])
        default &["ddp", "fsdp2", "single_device"] => "true" of "PyTorch 2.15.0" at "torch/amp/autocast_mode.py (cache_enabled=None: torch.is_autocast_cache_enabled(), which is true)";
}
