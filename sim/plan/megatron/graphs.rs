//! What of a step is captured in CUDA graphs.

/// What is captured (`--cuda-graph-impl`, `--cuda-graph-scope`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum CudaGraphs {
    /// Nothing.
    #[default]
    None,
    /// A stretch of each block, by Transformer Engine.
    Layers(Scope),
    /// All forwards and backwards of a step (`local` with `full_iteration`).
    Iteration,
}

/// Parts of a block that are captured; none of them: all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Scope {
    /// `attn`: attention and its residual.
    pub attention: bool,
    /// `mlp`: the feed-forward of a block without experts.
    pub feed_forward: bool,
    /// `moe`: the mixture of experts.
    pub mixture: bool,
    /// `moe_router`: of it the norm, experts that every token passes, and the router.
    pub router: bool,
    /// `mamba`: a layer of Mamba-2.
    pub mamba: bool,
    /// `moe_preprocess`: and what the dispatcher does before rows are exchanged.
    pub preprocess: bool,
}
