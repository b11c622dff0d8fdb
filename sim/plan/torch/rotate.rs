//! How ranks share a sequence under PyTorch's context parallelism.

use serde::Deserialize;

/// How keys and values get round (`set_rotate_method`).
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Those of all ranks are gathered at once.
    #[default]
    AllGather,
    /// Each step passes them on to the next rank.
    AllToAll,
}

/// How ranks share a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Rotate {
    /// How keys and values get round.
    pub method: Method,
    /// Whether each rank has a part of the sequence's head and one of its tail (`headtail`).
    pub balanced: bool,
}

impl Default for Rotate {
    fn default() -> Rotate {
        Rotate { method: Method::default(), balanced: true }
    }
}
