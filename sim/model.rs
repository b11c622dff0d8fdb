//! A decoder-only transformer: what it is made of, in whole logical sizes, before any sharding.
//!
//! Shape letters, used for every tensor of a model (`xq_BSNH` has shape batch × sequence × heads × head dimension):
//! `B` sequences in a micro-batch, `S` sequence length, `D` model width, `N` query heads, `K` key-value heads,
//! `H` head dimension, `F` feed-forward width, `V` vocabulary, `E` experts, `C` copies of tokens sent to experts
//! (`B·S·k`), `X` expert width, `L` the part of the sequence that one of several
//! tensor-parallel ranks holds (S where it is not split).
//!
//! [`ModelConfig`] says which parts a model has, and which kinds its layers are of ([`Layers`]). `block` turns a kind into
//! operators, forward only; backward passes, saved activations, FLOPs and bytes are derived from those. To add a mixer or a
//! feed-forward: a file under `layer/`, a variant of [`Mixer`] or [`FeedForward`], and its forward operators. To add an
//! importer: a file, and a line in the loader.

pub mod autocast;
pub mod block;
mod config;
pub mod documents;
pub mod drawn;
pub mod experts;
pub mod fuse;
mod gated_delta;
pub mod graph;
pub mod head;
pub mod huggingface;
pub mod internlm;
pub mod latent;
pub mod layer;
mod mamba;
pub mod megatron;
pub mod nanotron;
pub mod operators;
pub mod packed;
mod parts;
pub mod preference;
pub mod routing;
pub mod style;
pub mod tensor;
pub mod trained;
pub mod transformers;
pub mod unpad;

pub use config::{ModelConfig, ParamCount};
pub use layer::{Attention, Dense, FeedForward, GatedDelta, Layer, Layers, Mamba2, Mixer, Norms};
pub use operators::Activation;
pub use parts::{Dropout, Gating, Norm, NormPlacement, Position, QkNorm};
