//! `[trained]` and `[lora]` as written.

use serde::Deserialize;
use toml::Spanned;

use crate::program::DType;

/// Parts of a model that can be frozen.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Tables of words and positions.
    Embedding,
    /// All layers.
    Layers,
    /// The final norm.
    Norm,
    /// The head.
    Head,
}

/// `[trained]`: which parts of the model are trained; all others are frozen (`requires_grad_(False)`).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trained {
    /// Parts that are frozen.
    pub freeze: Option<Spanned<Vec<Part>>>,
    /// How many layers, from the last, are trained.
    pub last_layers: Option<Spanned<i64>>,
    /// `enable_input_require_grads`: whether the embedding's result gets a gradient though nothing below it is trained.
    pub input_gradients: Option<Spanned<bool>>,
}

/// Whose forward adapters have.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum LoraCode {
    /// torchtune's.
    Torchtune,
    /// peft's.
    Peft,
}

/// How frozen weights are stored.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum BaseWeights {
    /// As they are.
    Plain,
    /// In NF4 by bitsandbytes.
    Nf4,
}

/// `[lora]`: adapters beside linears of all layers, whose own weights are frozen with everything else.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// `r`.
    pub rank: Spanned<i64>,
    /// `lora_alpha`.
    pub alpha: Option<Spanned<f64>>,
    /// `lora_dropout`.
    pub dropout: Option<Spanned<f64>>,
    /// `target_modules`: names of linears as checkpoints have them.
    pub modules: Spanned<Vec<Spanned<String>>>,
    /// Whose modules.
    pub implementation: Option<LoraCode>,
    /// The adapters' type.
    pub dtype: Option<Spanned<DType>>,
    /// How the weights beside them are stored.
    pub base: Option<Spanned<BaseWeights>>,
}
