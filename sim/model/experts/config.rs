//! What a mixture of experts is made of, and how it is written.

use crate::model::operators::Activation;
use crate::model::parts::Gating;
use crate::model::routing::Load;

/// How scores over experts become weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Score {
    /// Softmax over all experts, then the k largest (Mixtral, Qwen 3, DeepSeek-V2).
    Softmax,
    /// The k largest, then softmax over those (GPT-OSS).
    SoftmaxOfChosen,
    /// Sigmoid of each (DeepSeek-V3).
    Sigmoid,
    /// Sigmoid of each, experts chosen so that loads are even (Megatron-Core's `sinkhorn`).
    Sinkhorn,
}

/// The router: one linear, scores, a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Router {
    /// Scores.
    pub score: Score,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalises: bool,
    /// Whether the weights are multiplied by a number (`routed_scaling_factor`).
    pub scales: bool,
    /// Whether the linear has a bias (GPT-OSS).
    pub bias: bool,
    /// Whether a bias that no gradient reaches is added for the choice alone (DeepSeek-V3, arXiv 2408.15664).
    pub correction: bool,
    /// Groups that experts are in and groups that a token may choose from; none: all are one group.
    pub groups: Option<(u64, u64)>,
}

/// The mixture that stands in a block's feed-forward's place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Experts {
    /// E: routed experts.
    pub count: u64,
    /// k: experts each token is sent to.
    pub top_k: u64,
    /// X: width of one expert.
    pub width: u64,
    /// Width of what routed experts read and write, where the hidden state goes through a linear before them and through another after
    /// them (`moe_latent_size`: Nemotron 3 Super and Ultra).
    pub latent: Option<u64>,
    /// Width of the shared experts together, which every token passes; 0: none.
    pub shared: u64,
    /// Whether a number for each token weighs what shared experts make (Qwen3-Next).
    pub shared_gate: bool,
    /// How the hidden values of each expert are made.
    pub gating: Gating,
    /// The router.
    pub router: Router,
    /// Whether experts have biases (GPT-OSS).
    pub bias: bool,
    /// Whether both halves of what a gated expert activates are clamped first (`swiglu_limit`: GPT-OSS).
    pub clamped: bool,
    /// Whether the loss has a term that balances the load.
    pub auxiliary_loss: bool,
    /// How tokens spread over experts.
    pub load: Load,
}

impl Experts {
    /// Whether they square a ReLU, without a gate.
    pub fn square_relu(&self) -> bool {
        self.gating == Gating::Plain(Activation::ReluSquared)
    }

    /// Matrices and biases of one expert.
    fn one(&self, inputs: u64) -> u64 {
        let up = self.gating.ups();
        (up + 1) * inputs * self.width + if self.bias { up * self.width + inputs } else { 0 }
    }

    /// Parameters of a block's mixture of models `width` wide: all, and those that one token meets.
    pub fn params(&self, width: u64) -> (u64, u64) {
        let Router { bias, correction, .. } = self.router;
        let router = width * self.count + self.count * (u64::from(bias) + u64::from(correction));
        let shared = (self.gating.ups() + 1) * width * self.shared + if self.shared_gate { width } else { 0 };
        let beside = router + shared;
        let one = self.one(self.latent.unwrap_or(width));
        let beside = beside + self.latent.map_or(0, |latent| 2 * width * latent);
        (beside + self.count * one, beside + self.top_k * one)
    }
}

/// How a block's mixture is written, and its experts are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Implementation {
    /// One expert after the other, each on its rows.
    #[default]
    Loop,
    /// All experts in one grouped matmul (`torch._grouped_mm`).
    Grouped,
    /// As torchtitan writes it ([`super::titan`]).
    Torchtitan {
        /// Ranks that the experts are spread over.
        ranks: u64,
    },
    /// Each expert chooses its tokens ([`super::choice`]).
    ExpertChoice,
}

impl Implementation {
    /// Ranks that experts are spread over.
    pub fn ranks(self) -> u64 {
        if let Implementation::Torchtitan { ranks } = self { ranks } else { 1 }
    }
}
