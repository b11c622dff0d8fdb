//! The table of PyTorch/XLA.

use super::readers::TORCH_XLA;
use super::row::Choice::Word;
use super::row::Kind::{Choice, Flag};
use super::row::{Group, Key, Table};

/// `[torch_xla]`
pub(super) const TORCH_XLA_KEYS: Table = Table {
    name: "torch_xla",
    help: "What a script on PyTorch/XLA has.",
    group: Group::Rest,
    owner: Some("torch_xla"),
    instead: &[],
    keys: &[
        Key::new(
            "attention",
            Choice(&[Word("eager"), Word("einsum"), Word("sdpa"), Word("flash")]),
            TORCH_XLA,
            "How attention is written: `torch.matmul` around a softmax (Hugging Face's `eager`), the same by `torch.einsum`, `F.scaled_dot_product_attention`, or the Pallas kernel of `torch_xla.experimental.custom_kernel`.",
        ),
        Key::new(
            "gradient_checkpointing",
            Flag,
            TORCH_XLA,
            "Whether blocks are wrapped by `checkpoint_module` (Hugging Face's `xla_fsdp_grad_ckpt`).",
        ),
        Key::new(
            "precision",
            Choice(&[Word("autocast"), Word("bfloat16")]),
            TORCH_XLA,
            "Weights in fp32 and matmuls under `torch.autocast(\"xla\", torch.bfloat16)`, or all of the model and its optimizer states in bf16.",
        ),
        Key::new("clip_grad_norm", Flag, TORCH_XLA, "Whether `clip_grad_norm_` runs before the optimizer."),
        Key::new(
            "sync_every_micro_batch",
            Flag,
            TORCH_XLA,
            "Whether `torch_xla.sync()` (`mark_step`) ends a graph after every micro-batch, as `MpDeviceLoader` has it; otherwise one graph has all of them.",
        ),
        Key::new(
            "patched_linear",
            Flag,
            TORCH_XLA,
            "Whether linears are patched (`apply_xla_patch_to_nn_linear`), so that inputs keep their three dimensions.",
        ),
    ],
};
