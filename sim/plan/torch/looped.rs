//! What a training loop does around forward, backward and optimizer.

/// What the loop does besides forward, backward and optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Loop {
    /// Cross-entropy metrics computed on the logits of each micro-batch.
    pub train_metrics: u32,
    /// Numbers reduced over all ranks and read back at the end of a step.
    pub host_syncs: u32,
}

/// How long the loop's variable holds the logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum KeepLogits {
    /// It has none: they go when the loss has been computed.
    #[default]
    No,
    /// Until backward is over (`out = model(...)`, `out.loss.backward()`, `del out`).
    Backward,
    /// Until the next forward has returned.
    NextForward,
}
