//! `[model]`.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::experts::ExpertLoad;
use super::readers::ALL;
use super::row::Kind::Other;
use super::row::between;

keys! {
    /// The model.
    #[derive(Debug, Deserialize)]
    ["model"] Model in Model;

    /// A shipped model.
    name: Option<Spanned<String>> => ALL.such_as("\"llama-3.1-8b\"");
    /// The path of a Hugging Face `config.json`, relative to the scenario.
    huggingface: Option<Spanned<String>> => ALL.such_as("\"config.json\"");
    /// Keys of a `config.json` in the scenario itself: with `model_type` a whole model, without a name; else what
    /// differs from the named model.
    config: Option<BTreeMap<String, Spanned<toml::Value>>> as Other("a table with keys of a Hugging Face config.json") => ALL.such_as("{ num_hidden_layers = 16 }");
    /// Layers, where the run differs from the named model: a smaller proxy, or another member of its family.
    layers: Option<Spanned<i64>> as between(1, 1_024) => ALL.such_as("16");
    /// Width of the model, for another member of its family. The number of heads stays, so the head dimension follows.
    hidden: Option<Spanned<i64>> as between(1, 1 << 20) => ALL.such_as("4096");
    /// Query heads, for another member of the family. Without `kv_heads`, there are as many key-value heads.
    heads: Option<Spanned<i64>> as between(1, 1 << 20) => ALL.such_as("32");
    /// Key-value heads, for another member of the family.
    kv_heads: Option<Spanned<i64>> as between(1, 1 << 20) => ALL.such_as("8");
    /// Feed-forward width, for another member of the family. By default it grows with the width.
    ffn: Option<Spanned<i64>> as between(1, 1 << 20) => ALL.such_as("14336");
    /// Words of the vocabulary, for another member of the family or as the run pads them.
    vocab: Option<Spanned<i64>> as between(1, 1 << 24) => ALL.such_as("128256");
    /// Whether the head shares the embedding's matrix, where the run differs from the config.
    tied_head: Option<bool> => ALL;
    /// Rows of the table of learned positions, where the run differs from the config.
    positions: Option<Spanned<i64>> as between(1, 1 << 26) => ALL.such_as("8192");
    /// How tokens are distributed over experts.
    expert_load: Option<Spanned<ExpertLoad>> => ALL
        default &["fsdp2", "megatron"] => "\"balanced\"" of "none" at "of the job or the machine: no framework has a default";
}
