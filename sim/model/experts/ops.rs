//! What only a mixture of experts does, as operators.

/// What only a mixture of experts does, in the order of its forward. Tokens T, copies of tokens C = T·k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertOp {
    /// Logits in fp32 → softmax over all experts.
    Score,
    /// The k largest scores divided by their sum, in the compute type, and their experts.
    Choose,
    /// Logits → the k largest, their softmax in the compute type, and their experts.
    ChooseFirst,
    /// Choices → the copies' order by expert, and the token of each (`argsort`, `// k`).
    Sort,
    /// Rows of tokens in the order of experts (`index_select`); reads tokens and rows.
    Dispatch,
    /// Where each expert's rows end, which a grouped matmul reads.
    Offsets,
    /// `x @ w[expert]`, one expert's rows; parameter: the weights of all.
    One {
        /// The expert.
        expert: u64,
        /// Experts the parameter holds.
        count: u64,
        /// Columns of the input.
        inputs: u64,
        /// Columns of the output.
        outputs: u64,
    },
    /// All experts' rows at once; parameter: the weights of all.
    All {
        /// Experts.
        count: u64,
        /// Columns of the input.
        inputs: u64,
        /// Columns of the output.
        outputs: u64,
    },
    /// Each copy's weight, in the order of experts; reads weights and order.
    Pick,
    /// Rows times their weights.
    Weigh,
    /// Rows added to the tokens they came from (`index_add`); reads rows and their tokens.
    Combine,
    /// What only torchtitan's does.
    Titan(TitanOp),
    /// What only a mixture does whose experts choose.
    Choice(ChoiceOp),
}

/// What torchtitan's mixture does, each as one of its operators or a few that belong together. Copies C, rows R received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TitanOp {
    /// `gate(x)` under fp32 autocast: input and weight are cast, and the logits are fp32; parameter: the weight.
    Gate {
        /// Columns of the weight.
        inputs: u64,
        /// Its rows, one for each expert.
        outputs: u64,
    },
    /// Logits → sigmoid of each.
    Sigmoid,
    /// Scores and the bias that balances the load; no gradient comes back.
    Bias,
    /// Scores of a token's best groups of experts, by the sum of the two largest in each; the others are −∞. And which those
    /// are (`_get_node_limited_routing_scores`).
    Limit {
        /// Groups that experts are in.
        groups: u64,
        /// Groups that a token may choose from.
        chosen: u64,
    },
    /// The k largest and their experts; only the experts are used.
    Choose,
    /// Scores of the chosen (`gather`).
    Gather,
    /// Divided by their sum.
    Normalise,
    /// Which experts each token goes to, and how many tokens each expert gets.
    Map,
    /// Rows of tokens in the order of experts (`x[rows]`).
    Take,
    /// Each rank tells the others how many rows it sends them, and the host reads both sizes.
    Count {
        /// Ranks.
        ranks: u64,
    },
    /// Rows to the ranks of their experts, or back.
    Exchange,
    /// Rows in the order of the rank's experts, where each came from, and how many each expert has.
    Permute,
    /// Where each expert's rows end.
    Ends,
    /// All of the rank's experts at once, `x @ wᵀ`; parameter: their weights.
    All {
        /// Experts of the rank.
        count: u64,
        /// Columns of the input.
        inputs: u64,
        /// Columns of the output.
        outputs: u64,
    },
    /// Rows in the order in which they came.
    Unpermute,
    /// What tokens are added up in.
    Zeros,
    /// Rows times their weights, in fp32.
    Weigh,
    /// Rows added to the tokens they are of, in a fixed order (`deterministic_scatter_add`).
    Scatter,
}

/// What only a mixture does whose experts choose their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceOp {
    /// Logits in fp32 → softmax over all experts; its gradient comes with experts first.
    Score,
    /// Scores, experts first → the largest of each expert in the compute type, and their tokens.
    Choose {
        /// Experts.
        count: u64,
        /// Tokens each expert takes.
        places: u64,
    },
    /// All experts' rows in a batched matmul; parameter: the weights of all.
    All {
        /// Experts.
        count: u64,
        /// Columns of the input.
        inputs: u64,
        /// Columns of the output.
        outputs: u64,
    },
}
