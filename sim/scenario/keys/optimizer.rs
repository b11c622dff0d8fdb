//! `[optimizer]` and `[loop]`.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{
    CLIPS, COMPILED, DDP, INTERNEVO, MEGATRON, MODULES, NANOTRON, PYTORCH, PYTORCH_BUT_DDP, STEPS, TORCH_XLA, XLA, ZERO,
};
use super::row::between;

keys! {
    /// The optimizer.
    #[derive(Debug, Default, Deserialize)]
    ["optimizer"] Optimizer in Rest.instead(&[
        (DDP, "gradients are reduced before any is stepped: remove the key"),
        (MEGATRON, "it is Adam in one kernel: remove the key, or see megatron.exp_avg_dtype"),
        (ZERO, "the optimizer steps one flat tensor when all gradients are there: remove the key"),
        (INTERNEVO, "it is torch's AdamW under HybridZeroOptimizer, which clips: remove the table"),
        (NANOTRON, "it is AdamW in one kernel on parameters in fp32, and clips: remove the table"),
        (TORCH_XLA, "it is torch.optim.AdamW; write torch_xla.clip_grad_norm"),
        (XLA, "of optax's optimizers only the name is stated here; write xla.gradient_clipping and xla.mu_dtype"),
    ]);

    /// `adamw`, `adam`, `sgd`, `decoupled_adamw`, `muon` (for the layers' matrices, with `adamw` for the rest), or on
    /// one device bitsandbytes' `adamw_8bit` or `lion_8bit`. On XLA optax's `adamw`, `adafactor` or `sgd`.
    name: Option<Spanned<String>> => STEPS.such_as("\"sgd\"")
        default MODULES => "\"adamw\"" of "torchtitan 0.2.2, torchtitan 0.3.0" at "torchtitan/config/job_config.py:135"
        default XLA => "\"adamw\"" of "MaxText 0.2.5" at "maxtext/configs/base.yml:1100";
    /// `fused`, `foreach` or `for_loop`.
    implementation: Option<Spanned<String>> => MODULES.such_as("\"foreach\"")
        default PYTORCH => "\"foreach\"" of "PyTorch 2.15.0" at "torch/optim/adam.py:935, _default_to_fused_or_foreach(use_fused=False)"
        default ZERO => "\"fused\"" of "DeepSpeed 0.19.8" at "deepspeed/runtime/engine.py, _configure_basic_optimizer";
    /// Weight decay. Zero saves a kernel where it is a kernel of its own.
    weight_decay: Option<Spanned<f64>> => MODULES.such_as("0.1")
        default &["ddp", "fsdp1", "single_device"] => "0.01" of "PyTorch 2.15.0; torchtitan 0.2.2" at "torch/optim/adamw.py; job_config.py:148"
        default &["fsdp2"] => "0.0 or 0.01" of "PyTorch 2.15.0; torchtitan 0.2.2" at "torch/optim/adamw.py; job_config.py:148";
    /// SGD's momentum, which is a state of the parameters' size unless it is zero.
    momentum: Option<Spanned<f64>> => PYTORCH.such_as("0.9")
        default &["fsdp2"] => "0.0" of "PyTorch 2.15.0" at "torch/optim/sgd.py, SGD.__init__";
    /// Whether SGD's or Muon's momentum is Nesterov's.
    nesterov: Option<Spanned<bool>> => PYTORCH;
    /// Whether Adam keeps the maximum of its second moments, as a third state.
    amsgrad: Option<Spanned<bool>> => PYTORCH;
    /// Whether the optimizer steps copies in fp32 of parameters in a narrower type, and writes them back.
    master_weights: Option<Spanned<bool>> => PYTORCH;
    /// Whether Adam's number of steps is on the device, for a CUDA graph.
    capturable: Option<Spanned<bool>> => PYTORCH;
    /// Whether the optimizer maximizes the objective.
    maximize: Option<Spanned<bool>> => PYTORCH;
    /// Whether the number of steps is a tensor on the device that the host reads for each parameter.
    step_on_device: Option<Spanned<bool>> => PYTORCH;
    /// Whether gradients are clipped to a norm.
    clip_grad_norm: Option<bool> => CLIPS
        default PYTORCH => "true" of "torchtitan 0.2.2, torchtitan 0.3.0" at "job_config.py:264; config/configs.py:55"
        default &["deepspeed"] => "true" of "DeepSpeed 0.19.8 under Megatron-DeepSpeed" at "deepspeed/runtime/constants.py:203"
        default ZERO => "true" of "DeepSpeed 0.19.8 (0.19.6 cited)" at "deepspeed/runtime/constants.py:203"
        default &["megatron"] => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:1825";
    /// Whether each gradient is multiplied by a number before the step, one parameter after the other.
    scale_gradients: Option<bool> => PYTORCH;
    /// Whether each parameter is stepped in backward, as soon as its gradient is ready.
    in_backward: Option<Spanned<bool>> => PYTORCH_BUT_DDP;
}

keys! {
    /// What the training loop does besides forward, backward and optimizer.
    #[derive(Debug, Default, Deserialize)]
    ["loop"] Loop in Rest.instead(&[
        (MEGATRON, "write megatron.check_for_nan for the numbers that its loop reads back"),
        (ZERO, "its engine reads numbers back itself: remove the table"),
        (INTERNEVO, "its loop drains the device where its timers start and stop: remove the table"),
        (NANOTRON, "its loop takes the time after a barrier: remove the table"),
        (COMPILED, "write xla.host_syncs_per_step"),
    ]);

    /// Cross-entropy metrics computed on the logits of each micro-batch.
    train_metrics: Option<Spanned<i64>> as between(0, 1000) => PYTORCH.such_as("1");
    /// Numbers read back from the device at the end of a step.
    host_syncs_per_step: Option<Spanned<i64>> as between(0, 1000) => PYTORCH.such_as("1");
}
