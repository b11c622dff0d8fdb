//! How many ranks each axis has, and the groups that they form.

use super::Sharing;
use crate::program::Group;
use crate::units::Bytes;

/// How many ranks each axis has. Ranks are counted `tp-cp-dp-pp`, the first fastest (`--use-tp-pp-dp-mapping` unset;
/// `core/parallel_state.py`, `initialize_model_parallel`, order `tp-cp-ep-dp-pp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Mesh {
    /// `--tensor-model-parallel-size`.
    pub tp: u32,
    /// `--context-parallel-size`.
    pub cp: u32,
    /// How those ranks share a sequence.
    pub sharing: Sharing,
    /// Replicas of the model: what the other axes leave.
    pub dp: u32,
    /// `--pipeline-model-parallel-size`.
    pub pp: u32,
    /// `--expert-model-parallel-size`: ranks of a stage that experts are spread over.
    pub ep: u32,
    /// `--expert-tensor-parallel-size`: ranks that each expert is split over.
    pub etp: u32,
}

impl Mesh {
    /// Ranks of the job.
    pub fn ranks(self) -> u32 {
        self.tp * self.cp * self.dp * self.pp
    }

    /// Ranks of one pipeline stage, which all run the same program.
    pub fn ranks_of_stage(self) -> u32 {
        self.tp * self.cp * self.dp
    }

    /// Elements of a bucket of gradients where a file leaves it open (`core/distributed/distributed_data_parallel.py`).
    pub fn bucket(self) -> u64 {
        40_000_000.max(1_000_000 * u64::from(self.dp * self.cp))
    }

    /// Tensor-parallel ranks: neighbours.
    pub fn tensor(self) -> Group {
        Group::new("tp", self.tp, 1)
    }

    /// The same as they write into each other's buffers, by kernels that slow those beside them or do not.
    pub fn user_buffers(self, bytes: Bytes, slows: bool) -> Group {
        Group { user_buffers: Some(bytes), slows, ..Group::new("tp user buffers", self.tp, 1) }
    }

    /// Ranks that share a sequence.
    pub fn context(self) -> Group {
        Group::new("cp", self.cp, self.tp)
    }

    /// Those of them among which heads are spread: neighbours but for tensor-parallel ranks (`create_hierarchical_groups`).
    pub fn context_heads(self) -> Group {
        Group::new(if self.sharing.heads < self.cp { "cp_a2a" } else { "cp" }, self.sharing.heads, self.tp)
    }

    /// Those of them among which tokens are spread.
    pub fn context_tokens(self) -> Group {
        let heads = self.sharing.heads;
        if heads == 1 { self.context() } else { Group::new("cp_p2p", self.cp / heads, self.tp * heads) }
    }

    /// Ranks with the same parameters: over them gradients are reduced and optimizer states sharded.
    pub fn data(self) -> Group {
        Group::new(if self.cp > 1 { "dp_cp" } else { "dp" }, self.dp * self.cp, self.tp)
    }

    /// Ranks that experts are spread over. Of a stage's ranks those that share an expert are neighbours, then come those
    /// with other experts, then those with the same (order `tp-cp-ep-dp-pp` over experts' own sizes).
    pub fn experts(self) -> Group {
        Group::new("ep", self.ep, self.etp)
    }

    /// Ranks that share an expert.
    pub fn expert_tensor(self) -> Group {
        Group::new("etp", self.etp, 1)
    }

    /// Both, which have all experts once.
    pub fn all_experts(self) -> Group {
        Group::new("etp_ep", self.etp * self.ep, 1)
    }

    /// Ranks with the same experts: over them their gradients are reduced and their optimizer states sharded.
    pub fn expert_data(self) -> Group {
        let span = self.etp * self.ep;
        Group::new("expert_dp", self.ranks_of_stage() / span, span)
    }

    /// Whether experts are spread over ranks, and their parameters kept apart from the others.
    pub fn shards_experts(self) -> bool {
        self.ep > 1
    }

    /// Ranks that share a sequence, in either way: experts' load is balanced over them.
    pub fn sequence(self) -> Group {
        Group::new("tp_cp", self.tp * self.cp, 1)
    }

    /// The ranks of one stage, over which maxima of fp8 numbers are reduced
    /// (`TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP`).
    pub fn stage(self) -> Group {
        Group::new("amax", self.ranks_of_stage(), 1)
    }

    /// The stages of a pipeline.
    pub fn pipeline(self) -> Group {
        Group::new("pp", self.pp, self.ranks_of_stage())
    }

    /// The first and the last stage, which share a tied embedding.
    pub fn embedding(self) -> Group {
        Group::ends("embedding", self.pp, self.ranks_of_stage())
    }

    /// All parts of one replica (`get_model_parallel_group`): gradient norms are summed over it.
    pub fn world(self) -> Group {
        Group::new("world", self.ranks(), 1)
    }
}
