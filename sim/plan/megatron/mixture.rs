//! How a mixture of experts is run.

use crate::units::Finite;

/// `--moe-token-dispatcher-type`: how rows get to experts and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum TokenDispatcher {
    /// `alltoall`.
    AllToAll,
    /// `allgather`, Megatron's default.
    AllGather,
    /// `flex`, by DeepEP (`--moe-flex-dispatcher-backend deepep`).
    Flex,
    /// `flex`, by NVIDIA's Hybrid-EP (`--moe-flex-dispatcher-backend hybridep`).
    Hybrid,
}

impl TokenDispatcher {
    /// One of each name.
    pub const ALL: &[TokenDispatcher] = &[TokenDispatcher::AllToAll, TokenDispatcher::AllGather, TokenDispatcher::Flex];

    /// As Megatron's argument names it.
    pub fn name(self) -> &'static str {
        match self {
            TokenDispatcher::AllToAll => "alltoall",
            TokenDispatcher::AllGather => "allgather",
            TokenDispatcher::Flex | TokenDispatcher::Hybrid => "flex",
        }
    }

    /// The one of a name, if there is one.
    pub fn find(name: &str) -> Option<TokenDispatcher> {
        TokenDispatcher::ALL.iter().copied().find(|one| one.name() == name)
    }
}

/// The most rows that an expert takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct ExpertCapacity {
    /// Over what it would get of a balanced load (`--moe-expert-capacity-factor`).
    pub factor: Finite,
    /// Whether it is filled up to that (`--moe-pad-expert-input-to-capacity`).
    pub pads: bool,
}

/// How a mixture of experts is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Mixture {
    /// `--moe-token-dispatcher-type`: how rows get to experts and back.
    pub dispatcher: TokenDispatcher,
    /// `--moe-flex-dispatcher-num-sms`: processors (SMs) that DeepEP's or Hybrid-EP's kernels run on; none: each library's own number.
    pub exchange_processors: Option<u32>,
    /// The most rows that an expert takes; none: it takes whatever comes.
    pub capacity: Option<ExpertCapacity>,
    /// `--moe-grouped-gemm`: the rank's experts are multiplied in one call; if not, one after the other (`SequentialMLP`).
    pub grouped: bool,
    /// `--moe-permute-fusion`: rows are put in order by Transformer Engine's kernels.
    pub permute_fusion: bool,
    /// `--moe-router-dtype fp32`: logits and weights of experts are in fp32.
    pub fp32_router: bool,
    /// `--moe-router-fusion`: choice and weights of experts are one kernel.
    pub router_fusion: bool,
    /// `--moe-aux-loss-coeff` above 0: a loss that balances experts.
    pub auxiliary_loss: bool,
    /// `--moe-router-force-load-balancing`: every token draws its experts at random.
    pub drawn: bool,
    /// `--moe-shared-expert-overlap`: shared experts run beside the dispatcher, on a stream of their own.
    pub shared_overlap: bool,
    /// Beside that, whether what is waited for at once is issued on the stream that waits (PyTorch from 2.8 on).
    pub in_line: bool,
    /// `--delay-wgrad-compute`: blocks' weight gradients are made when the exchanges of their part have been issued.
    pub delay_wgrad: bool,
}
