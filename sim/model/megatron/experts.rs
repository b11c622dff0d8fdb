//! What a mixture of experts does in Megatron-Core (`core/transformer/moe`, 0.16.1), where experts may be distributed over ranks.
//!
//! ```text
//! T tokens of a rank ─► Route ─► Select ─► Permute ─► Exchange ─► Collect ─► Sort ─► Grouped, Weigh, Grouped
//!        ▲                                                                                      │
//!        └─────────────── Unpermute ◄── Exchange ◄── Scatter ◄── Sort ◄──────────────────────────┘
//! ```

use super::Fp8;
use crate::program::{ExchangeLibrary, Rows, Way};

/// How many rows are where. Tokens T, experts E, each token chooses k of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// T: tokens of the rank.
    pub tokens: u64,
    /// E: experts of the block, on whatever rank.
    pub experts: u64,
    /// k.
    pub top_k: u64,
    /// Experts of the rank.
    pub local: u64,
    /// Ranks that experts are spread over (`--expert-model-parallel-size`).
    pub ranks: u64,
    /// Ranks that each expert is split over (`--expert-tensor-parallel-size`).
    pub tensor: u64,
    /// The most rows that an expert takes of one rank, if it is not whatever comes.
    pub capacity: Option<Capacity>,
    /// Rows that leave the rank: T·k, or what experts take of them.
    pub sent: u64,
    /// Rows that reach it from the ranks that it exchanges with.
    pub received: u64,
    /// Rows that its experts multiply: those that reached any rank that shares them, each expert's filled up to the multiple
    /// that fp8 needs (`Fp8Padding`).
    pub multiplied: u64,
    /// Numbers of a row: the model's width, or that which experts see.
    pub width: u64,
    /// Processors that exchange kernels run on, if the job says (`--moe-flex-dispatcher-num-sms`).
    pub processors: Option<u32>,
}

/// The most rows that an expert takes of a rank (`--moe-expert-capacity-factor`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Rows.
    pub rows: u64,
    /// Whether fewer are filled up to as many (`--moe-pad-expert-input-to-capacity`): sizes are then known beforehand.
    pub pads: bool,
}

impl Routed {
    /// What a library's kernels take from rank to rank.
    pub fn exchanged(&self, way: Way, library: ExchangeLibrary) -> Rows {
        let &Routed { tokens, experts, top_k, processors, .. } = self;
        Rows { way, tokens, experts, top_k, library, processors }
    }

    /// Whether every expert is given as many rows, known beforehand.
    pub fn pads(&self) -> bool {
        self.capacity.is_some_and(|capacity| capacity.pads)
    }

    /// Whether rows are filled up before the experts and cut after them.
    pub fn fills(&self) -> bool {
        self.multiplied != self.rows()
    }

    /// Rows of the rank's experts: those that reached any rank that shares them.
    pub fn rows(&self) -> u64 {
        self.received * self.tensor
    }

    /// Whether rows of one expert lie apart when they arrive.
    pub fn sorts(&self) -> bool {
        self.local > 1
    }
}

/// How a token's scores become weights (`topk_routing_with_score_function`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// The k largest logits, then softmax of those.
    Chosen,
    /// Softmax of all logits, then the k largest (`--moe-router-pre-softmax`).
    All,
    /// Sigmoid of all logits, then the k largest, divided by their sum (`--moe-router-score-function sigmoid`).
    Sigmoid,
    /// Experts are chosen by a matrix whose rows and columns are scaled in turn until loads are even. Weights are sigmoids of the
    /// logits, or softmax where a token has several experts (`--moe-router-load-balancing-type sinkhorn`).
    Sinkhorn,
}

/// What else decides which experts are chosen, and with which weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// A number for each expert that is added for the choice alone (`--moe-router-enable-expert-bias`).
    pub correction: bool,
    /// Groups of experts, and those of them that a token may choose from (`--moe-router-num-groups`,
    /// `--moe-router-group-topk`).
    pub groups: Option<(u64, u64)>,
    /// Whether weights are multiplied by a number (`--moe-router-topk-scaling-factor`).
    pub scales: bool,
}

/// One operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutedOp {
    /// `TopKRouter`: logits, weights of the chosen experts, the map of the chosen; and the loss that balances experts.
    /// Parameters: the router's weight, its bias if any. Outputs: weights `[T, E]`, map `[T, E]`.
    Route {
        /// Sizes.
        routed: Routed,
        /// Scores.
        scores: Scores,
        /// The choice.
        choice: Choice,
        /// Whether the loss has a term that balances the load (`--moe-aux-loss-coeff` above 0).
        auxiliary: bool,
        /// Whether choice and weights are one kernel of Transformer Engine's (`--moe-router-fusion`).
        fused: bool,
    },
    /// How many rows go where, told to all ranks ahead of [`RoutedOp::Select`], which tells the host. Input: the map. Output: none
    /// that anything reads.
    Count {
        /// Sizes.
        routed: Routed,
    },
    /// Which token each row is of, and its weight: counts, exchanged and read by the host, and two selections by the map.
    /// Inputs: weights, map. Outputs: weights of rows, tokens of rows.
    Select {
        /// Sizes.
        routed: Routed,
        /// Whether it is Transformer Engine's (`--moe-permute-fusion`): no selection by a mask, whose size the host reads.
        fused: bool,
        /// Whether counts have been told to all ranks.
        counted: bool,
    },
    /// Rows of tokens in the order of experts. Inputs: tokens, tokens of rows.
    Permute {
        /// Whether it is Transformer Engine's.
        fused: bool,
        /// Whether the host waits for counts on their way to it.
        waits: bool,
    },
    /// Rows to the ranks of their experts, or back (`all_to_all`).
    Exchange,
    /// Rows that reached any of the ranks that share an expert: gathered, and in backward reduced and scattered.
    Collect,
    /// The opposite of [`RoutedOp::Collect`]: rows are summed over those ranks, each of which keeps a part.
    Scatter,
    /// Rows by expert that came by rank, or the opposite (`sort_chunks_by_idxs`).
    Sort {
        /// Whether it is Transformer Engine's.
        fused: bool,
    },
    /// Transformer Engine's `GroupedLinear`: each expert's matrix with its rows. Parameters: one weight for each, then one
    /// bias for each if they have some.
    Grouped {
        /// Columns of a weight.
        inputs: u64,
        /// Its rows.
        outputs: u64,
        /// Experts of the rank.
        local: u64,
        /// How it multiplies in fp8; none: in the activations' type.
        fp8: Option<Fp8>,
    },
    /// Each expert's rows filled up to a multiple, or cut back (`Fp8Padding`, `Fp8Unpadding`).
    Fill,
    /// Each expert's bias times the weights of its rows, expert by expert (`TEGroupedMLP._apply_bias`). Inputs: rows,
    /// weights. Parameters: one bias for each.
    AddBiases,
    /// The activation times the weights of rows. Inputs: rows, weights.
    Weigh {
        /// Whether the input's second half is multiplied with the activated first.
        gated: bool,
        /// Whether it is one kernel (`weighted_bias_swiglu_impl`; of what is not gated `weighted_squared_relu_impl`).
        fused: bool,
        /// Whether both halves are clamped before, in operators of their own (`weighted_bias_quick_geglu_impl`).
        clamped: bool,
    },
    /// A step that only one dispatcher has, by the name that its rules know it by (`runtime/eager/megatron/dispatch`).
    Own {
        /// The step.
        step: &'static str,
        /// Sizes.
        routed: Routed,
    },
    /// Rows added to the tokens they are of. Inputs: rows, tokens of rows.
    Unpermute {
        /// Whether it is Transformer Engine's.
        fused: bool,
    },
    /// What every token's experts make, added in place to a view of what the routed ones do. Inputs: the latter, the former.
    AddShared,
}
