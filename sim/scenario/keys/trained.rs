//! The tables of what is trained and of adapters.

use super::readers::{ADAPTERS, MEGATRON, OTHERS, PAIRS, PYTORCH};
use super::row::Choice::Word;
use super::row::Kind::{Choice, Count, Flag, List, Number};
use super::row::{Group, Instead, Key, Table};

const INSTEAD: &[Instead] = &[
    (
        MEGATRON,
        "frozen parameters are simulated under FSDP2 and on one device, not under Megatron-Core: remove the table",
    ),
    (OTHERS, "frozen parameters are simulated under FSDP2 and on one device: remove the table"),
];

const INSTEAD_OF_ADAPTERS: &[Instead] = &[
    (
        &["megatron"],
        "adapters under Megatron-Core are those of NeMo and Megatron-Bridge, in the activations' type: remove the key",
    ),
    (&["deepspeed"], "adapters are simulated under Megatron-Core, FSDP2 and on one device: remove the table"),
    (OTHERS, "adapters are simulated under Megatron-Core, FSDP2 and on one device: remove the table"),
];

/// `[trained]`
pub(super) const TRAINED_KEYS: Table = Table {
    name: "trained",
    help: "Which parts of the model are trained; all of it where this is left out.",
    group: Group::Model,
    owner: None,
    instead: INSTEAD,
    keys: &[
        Key::new("freeze", List(&["embedding", "layers", "norm", "head"]), PYTORCH, "Parts that are frozen."),
        Key::new(
            "last_layers",
            Count(Some((0, 1 << 20))),
            PYTORCH,
            "How many layers, counted from the last, are trained; the others are frozen.",
        ),
        Key::new(
            "input_gradients",
            Flag,
            PYTORCH,
            "`enable_input_require_grads`: whether the embedding's result gets a gradient though nothing below it is trained.",
        ),
    ],
};

/// `[lora]`
pub(super) const LORA_KEYS: Table = Table {
    name: "lora",
    help: "Low-rank adapters beside linears of all layers. Everything else is frozen.",
    group: Group::Model,
    owner: None,
    instead: INSTEAD_OF_ADAPTERS,
    keys: &[
        Key::new("rank", Count(Some((1, 1 << 16))), ADAPTERS, "`r`: rank of the adapters."),
        Key::new("alpha", Number, ADAPTERS, "`lora_alpha`: scales their result. It changes neither time nor memory."),
        Key::new("dropout", Number, ADAPTERS, "`lora_dropout`: the share of their input that dropout zeroes."),
        Key::new(
            "modules",
            List(&[]),
            ADAPTERS,
            "`target_modules`: linears that have adapters, such as `q_proj`, `linear_qkv`, or `all-linear`.",
        ),
        Key::new(
            "implementation",
            Choice(&[Word("torchtune"), Word("peft")]),
            PYTORCH,
            "Whose modules run: they differ in casts and in what is kept.",
        ),
        Key::new(
            "dtype",
            Choice(&[Word("bf16"), Word("fp16"), Word("fp32"), Word("fp8"), Word("int32"), Word("int64")]),
            PYTORCH,
            "The type adapters are stored and multiplied in.",
        ),
        Key::new(
            "base",
            Choice(&[Word("plain"), Word("nf4")]),
            PYTORCH,
            "How the layers' frozen linears are stored: as they are, or in NF4 with quantized scales (bitsandbytes).",
        ),
    ],
};

/// `[dpo]`
pub(super) const DPO_KEYS: Table = Table {
    name: "dpo",
    help: "Direct preference optimization (DPO): a loss over pairs of sequences, one chosen and one rejected, against a reference model. \
           `batch.micro` then counts pairs. `[loss]` is not read.",
    group: Group::Model,
    owner: None,
    instead: &[(OTHERS, "preference optimization is simulated under FSDP2 and on one device: remove the table")],
    keys: &[
        Key::new(
            "reference",
            Choice(&[Word("model"), Word("adapters_off"), Word("precomputed")]),
            PAIRS,
            "What the policy is compared with. model: a second model, which runs forward without gradients. adapters_off: the policy \
             without its adapters (`[lora]`). precomputed: log-probabilities that come with the data (`precompute_ref_log_probs`).",
        ),
        Key::new(
            "implementation",
            Choice(&[Word("trl"), Word("torchtune")]),
            PAIRS,
            "Whose trainer computes log-probabilities and loss, which decides how many copies of the logits are held. trl: `DPOTrainer` \
             of TRL 1.13. torchtune: the recipes of torchtune 0.6.1.",
        ),
    ],
};
