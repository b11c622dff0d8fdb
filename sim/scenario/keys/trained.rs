//! `[trained]` and `[lora]` as written.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{ADAPTERS, MEGATRON, OTHERS, PYTORCH};
use super::row::between;
use crate::program::DType;

words! {
    /// Parts of a model that can be frozen.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Part {
        /// Tables of words and positions.
        Embedding = "embedding",
        /// All layers.
        Layers = "layers",
        /// The final norm.
        Norm = "norm",
        /// The head.
        Head = "head",
    }
}

keys! {
    /// Which parts of the model are trained; all of it where this is left out.
    #[derive(Debug, Deserialize)]
    ["trained"] Trained in Model.instead(&[
        (MEGATRON, "frozen parameters are simulated under FSDP2 and on one device, not under Megatron-Core: remove the table"),
        (OTHERS, "frozen parameters are simulated under FSDP2 and on one device: remove the table"),
    ]);

    /// Parts that are frozen.
    freeze: Option<Spanned<Vec<Part>>> => PYTORCH.such_as("[\"embedding\"]");
    /// How many layers, counted from the last, are trained; the others are frozen.
    last_layers: Option<Spanned<i64>> as between(0, 1 << 20) => PYTORCH.such_as("4");
    /// `enable_input_require_grads`: whether the embedding's result gets a gradient though nothing below it is
    /// trained.
    input_gradients: Option<Spanned<bool>> => PYTORCH;
}

words! {
    /// Whose forward adapters have.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum LoraCode {
        /// torchtune's.
        Torchtune = "torchtune",
        /// peft's.
        Peft = "peft",
    }
}

words! {
    /// How frozen weights are stored.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum BaseWeights {
        /// As they are.
        Plain = "plain",
        /// In NF4 by bitsandbytes.
        Nf4 = "nf4",
    }
}

keys! {
    /// Low-rank adapters beside linears of all layers. Everything else is frozen.
    #[derive(Debug, Deserialize)]
    ["lora"] Lora in Model.instead(&[
        (&["megatron"], "adapters under Megatron-Core are those of NeMo and Megatron-Bridge, in the activations' type: remove the key"),
        (&["deepspeed"], "adapters are simulated under Megatron-Core, FSDP2 and on one device: remove the table"),
        (OTHERS, "adapters are simulated under Megatron-Core, FSDP2 and on one device: remove the table"),
    ]);

    /// `r`: rank of the adapters.
    rank: Spanned<i64> as between(1, 1 << 16) => ADAPTERS.such_as("16");
    /// `lora_alpha`: scales their result. It changes neither time nor memory.
    alpha: Option<Spanned<f64>> => ADAPTERS.such_as("32.0");
    /// `lora_dropout`: the share of their input that dropout zeroes.
    dropout: Option<Spanned<f64>> => ADAPTERS.such_as("0.05");
    /// `target_modules`: linears that have adapters, such as `q_proj`, `linear_qkv`, or `all-linear`.
    modules: Spanned<Vec<Spanned<String>>> => ADAPTERS.such_as("[\"all-linear\"]");
    /// Whose modules run: they differ in casts and in what is kept.
    implementation: Option<LoraCode> => PYTORCH;
    /// The type adapters are stored and multiplied in.
    dtype: Option<Spanned<DType>> => PYTORCH;
    /// How the layers' frozen linears are stored: as they are, or in NF4 with quantized scales (bitsandbytes).
    base: Option<Spanned<BaseWeights>> => PYTORCH;
}
