//! Keys of a `config.json` that no reader asks for: those that cost a training step nothing, those that cost something else
//! than is described, and those that nobody knows.
//!
//! A key that is passed over in silence may be the one that changes the answer. So a key must be read, or stand in [`HARMLESS`]
//! with a reason; to add one, add it there.

use serde_json::Value;

use super::ModelError;
use super::keys::Keys;

/// Keys without an effect on what a training step costs, by the reason.
const HARMLESS: &[(&str, &[&str])] = &[
    (
        "names and versions",
        &[
            "_name_or_path",
            "architectures",
            "auto_map",
            "custom_pipelines",
            "dtype",
            "finetuning_task",
            "id2label",
            "label2id",
            "license",
            "license_name",
            "model_name",
            "name_or_path",
            "num_labels",
            "problem_type",
            "summary",
            "task_specific_params",
            "tokenizer_class",
            "tokenizer_name",
            "torch_dtype",
            "transformers_version",
            "_source",
        ],
    ),
    (
        "numbers of tokens",
        &[
            "bad_words_ids",
            "begin_suppress_tokens",
            "bos_token_id",
            "decoder_start_token_id",
            "eos_token_id",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "mask_token_id",
            "n_special",
            "pad_token_id",
            "padding_idx",
            "predict_special_tokens",
            "prefix",
            "sep_token_id",
            "suppress_tokens",
            "unk_token_id",
            "word_embed_padding_idx",
        ],
    ),
    (
        "of generation, not of training",
        &[
            "cache_implementation",
            "diversity_penalty",
            "do_sample",
            "early_stopping",
            "encoder_no_repeat_ngram_size",
            "exponential_decay_length_penalty",
            "length_penalty",
            "max_length",
            "max_new_tokens",
            "min_length",
            "no_repeat_ngram_size",
            "num_beam_groups",
            "num_beams",
            "num_return_sequences",
            "output_scores",
            "remove_invalid_values",
            "repetition_penalty",
            "return_dict",
            "return_dict_in_generate",
            "temperature",
            "top_k",
            "top_p",
            "typical_p",
            "use_cache",
        ],
    ),
    (
        "of initial weights",
        &[
            "embedding_initializer_range",
            "init_config",
            "init_device",
            "init_method",
            "init_std",
            "initializer_cutoff_factor",
            "initializer_factor",
            "initializer_range",
            "initializer_range_embedding",
        ],
    ),
    (
        "numbers that are computed with, not sizes",
        &[
            "attention_multiplier",
            "embedding_multiplier",
            "layer_norm_eps",
            "layer_norm_epsilon",
            "layernorm_epsilon",
            "logits_scaling",
            "norm_eps",
            "norm_epsilon",
            "query_pre_attn_scalar",
            "residual_multiplier",
            "rms_norm_eps",
            "rms_norm_epsilon",
            "rope_interleave",
            "rope_local_base_freq",
            "rope_parameters",
            "rope_scaling",
            "rope_theta",
            "rotary_base",
            "rotary_emb_base",
            "router_aux_loss_coef",
            "router_jitter_noise",
            "scale_attn_by_inverse_layer_idx",
            "scale_attn_weights",
            "seq_aux",
            "softmax_scale",
            "swiglu_limit",
            "initial_context_length",
            "rope_ntk_factor",
        ],
    ),
    (
        "lengths that make no tensor",
        &[
            "max_position_embeddings",
            "max_seq_len",
            "max_sequence_length",
            "max_window_layers",
            "model_max_length",
            "n_ctx",
            "n_positions",
            "original_max_position_embeddings",
            "seq_len",
            "seq_length",
        ],
    ),
    (
        "of other heads than that of a causal model",
        &[
            "classifier_dropout",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        ],
    ),
    (
        "of classes that are not PyTorch's, or of old releases' code",
        &[
            "apply_residual_connection_post_layernorm",
            "attention_softmax_in_fp32",
            "bias_dropout_fusion",
            "chunk_size_feed_forward",
            "cross_attention_hidden_size",
            "decoder_layerdrop",
            "ep_size",
            "hidden_dropout_prob",
            "is_decoder",
            "masked_softmax_fusion",
            "offset_alibi",
            "pruned_heads",
            "skip_bias_add",
            "skip_bias_add_qkv",
            "slow_but_exact",
            "tf_legacy_loss",
            "tie_encoder_decoder",
            "pretraining_tp",
            "hidden_act",
            "hidden_activation",
            "n_inner",
            "use_mrope",
            "embedding_fraction",
            "fc_type",
            "torchscript",
            "unsloth_version",
            "use_bfloat16",
            "use_mup",
            "verbose",
        ],
    ),
    (
        "which the scenario says ([framework], [attention], [activation_checkpointing])",
        &[
            "_attn_implementation",
            "_attn_implementation_autoset",
            "_attn_implementation_internal",
            "attn_implementation",
            "gradient_checkpointing",
            "output_router_logits",
            "reorder_and_upcast_attn",
            "use_flash_attn",
            "use_flash_attention",
        ],
    ),
];

/// Keys that are refused if they switch something on: why, and what to write.
const REFUSED: &[(&str, &str, &str)] = &[
    ("quantization_config", "training on quantised weights is not simulated", UNQUANTISED),
    ("compression_config", "training on compressed weights is not simulated", UNQUANTISED),
    ("peft_config", "adapters are not simulated: every weight would be trained", ADAPTERS),
    ("adapter_config", "adapters are not simulated: every weight would be trained", ADAPTERS),
    ("peft_type", "adapters are not simulated: every weight would be trained", ADAPTERS),
    ("lora_config", "adapters are not simulated: every weight would be trained", ADAPTERS),
    ("lora_alpha", "adapters are not simulated: every weight would be trained", ADAPTERS),
    ("lora_rank", "adapters are not simulated: every weight would be trained", ADAPTERS),
    ("lora_r", "adapters are not simulated: every weight would be trained", ADAPTERS),
    ("output_attentions", "attention that returns its weights is not simulated", "set it to false"),
    ("output_hidden_states", "a model that returns all hidden states is not simulated", "set it to false"),
    ("activation_dropout", "dropout inside the feed-forward is not simulated", "set it to 0"),
    ("layerdrop", "blocks that are left out at random are not simulated", "set it to 0"),
    ("layer_drop", "blocks that are left out at random are not simulated", "set it to 0"),
];

const UNQUANTISED: &str =
    "remove the key to simulate training of the unquantised weights (float8 linears are [float8] of the scenario)";
const ADAPTERS: &str = "remove the keys of adapters to simulate training of all weights";

/// Whether a value switches something on.
pub(super) fn on(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::String(_) => true,
    }
}

/// Refuses keys whose effect is not simulated.
pub(super) fn refuse(keys: &Keys<'_>) -> Result<(), ModelError> {
    for &(key, why, remedy) in REFUSED {
        if let Some(value) = keys.peek(key).filter(|value| on(value)) {
            return Err(keys.unsupported(key, value, why, remedy));
        }
    }
    Ok(())
}

/// Refuses a key that nobody asked for, that has a value, and that stands in none of the lists (`noted` are those that the
/// report mentions).
pub(super) fn unknown(keys: &Keys<'_>, class: &str, noted: &[&str]) -> Result<(), ModelError> {
    let known = |key: &str| {
        key.starts_with('_')
            || noted.contains(&key)
            || REFUSED.iter().any(|(refused, ..)| *refused == key)
            || HARMLESS.iter().any(|(_, list)| list.contains(&key))
    };
    match keys.left().find(|(key, _)| !known(key)) {
        None => Ok(()),
        Some((key, value)) => {
            let why = format!("nobody knows what this key does to the training of {class}");
            let remedy = "check its spelling, or remove it if it costs a training step nothing";
            Err(keys.unsupported(key, value, &why, remedy))
        }
    }
}
