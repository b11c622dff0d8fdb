//! The configurations of `tests/oracles/megatron.json` as jobs.

use serde::Deserialize;
use windtunnel::model::{Activation, FeedForward, ModelConfig, Norm, NormPlacement, Position};
use windtunnel::program::DType;
use windtunnel::runtime::eager::LayerNorm;
use windtunnel::runtime::megatron::{
    Again, Block, Core, CrossEntropy, Engine, Gradients, Implementation, Job, Matmuls, Mesh, Optimizer, Pipeline,
    Recompute, Sharing,
};
use windtunnel::schedule::find;

#[derive(Debug, Deserialize)]
pub struct Config {
    pub world: u32,
    pub rank: u32,
    pub tp: u32,
    pub sp: bool,
    pub pp: u32,
    pub vpp: Option<u32>,
    pub cp: u32,
    pub layers: u64,
    pub hidden: u64,
    pub heads: u64,
    pub kv: u64,
    pub ffn: u64,
    pub vocab: u64,
    pub seq: u64,
    pub micro: u64,
    pub micro_batches: u32,
    pub dropout: f64,
    pub recompute: Option<String>,
    pub recompute_layers: u64,
    pub distributed_optimizer: bool,
    pub overlap_grad_reduce: bool,
    pub overlap_param_gather: bool,
    pub swiglu: bool,
    pub rope: bool,
    pub bias: bool,
    pub tied: bool,
    pub clip: f64,
    pub fp32_reduce: bool,
}

impl Config {
    /// The pipeline rank that the case looks at.
    pub fn stage(&self) -> usize {
        (self.rank / (self.world / self.pp)) as usize
    }

    pub fn job(&self) -> Job {
        let virtual_stages = self.vpp.unwrap_or(1);
        let stages = u64::from(self.pp * virtual_stages);
        Job {
            engine: Engine::Core,
            model: self.model(),
            batch: self.micro,
            seq: self.seq,
            micro_batches: self.micro_batches,
            mesh: Mesh {
                tp: self.tp,
                cp: self.cp,
                sharing: Sharing::ring(),
                pp: self.pp,
                dp: self.world / (self.tp * self.cp * self.pp),
                ep: 1,
                etp: self.tp,
            },
            sequence_parallel: self.sp && self.tp > 1,
            overlap_tensor: false,
            pipeline: Pipeline {
                schedule: find(if virtual_stages > 1 { "MegatronInterleaved" } else { "Megatron1F1B" }).unwrap(),
                virtual_stages,
                layers: vec![self.layers / stages; stages as usize],
                overlap_p2p: false,
                scatter_gather: false,
            },
            block: Block {
                implementation: Implementation::Local,
                layer_norm: LayerNorm::Torch,
                core: Core::Unfused { fused_softmax: true },
                hidden_dropout: self.dropout > 0.0,
                attention_dropout: self.dropout > 0.0,
                fused_activation: true,
                fused_dropout: true,
                fused_rope: false,
                cross_entropy: CrossEntropy::Composed,
                again: Again::default(),
                recompute: match self.recompute.as_deref() {
                    None => Recompute::None,
                    Some("selective") => Recompute::Core,
                    Some("uniform") => Recompute::Uniform { layers: self.recompute_layers },
                    Some("block") => Recompute::Block { layers: self.recompute_layers },
                    Some(other) => panic!("unknown recompute {other}"),
                },
            },
            mixture: None,
            matmuls: Matmuls::Plain,
            dtype: DType::Bf16,
            gradients: Gradients {
                dtype: if self.fp32_reduce { DType::Fp32 } else { DType::Bf16 },
                fused_accumulation: false,
                overlap_reduce: self.overlap_grad_reduce,
                bucket: self.overlap_grad_reduce.then_some(40_000_000),
            },
            optimizer: Optimizer {
                distributed: self.distributed_optimizer,
                overlap_gather: self.overlap_param_gather,
                align_gather: false,
                master: DType::Fp32,
                first_moment: DType::Fp32,
                second_moment: DType::Fp32,
                fused: false,
                clip: self.clip > 0.0,
            },
            vocabulary_multiple: 1,
            fsdp: None,
            checks_for_nan: false,
            graphs: Default::default(),
            // PyTorch 2.15 on a chip that poses as an H100.
            workspace: 32 << 20,
            persistent_workspace: false,
            multiprocessors: 132,
        }
    }

    fn model(&self) -> ModelConfig {
        ModelConfig {
            name: "oracle".to_owned(),
            layers: self.layers,
            width: self.hidden,
            heads: self.heads,
            kv_heads: self.kv,
            head_dim: self.hidden / self.heads,
            ffn: self.ffn,
            experts: None,
            latent: None,
            sinks: false,
            vocab: self.vocab,
            norm: Norm::Layer { bias: true },
            norm_placement: NormPlacement::Pre,
            final_norm: true,
            embedding_norm: false,
            position: if self.rope {
                Position::Rope { dims: self.hidden / self.heads }
            } else {
                Position::Learned { positions: self.seq }
            },
            feed_forward: if self.swiglu {
                FeedForward::Gated(Activation::Silu)
            } else {
                FeedForward::Plain(Activation::Gelu)
            },
            qkv_bias: self.bias,
            output_bias: self.bias,
            ffn_bias: self.bias,
            fused_qkv: true,
            qk_norm: None,
            tied_head: self.tied,
            sliding_window: None,
            global_every: 0,
            attention_softcap: false,
            logit_softcap: false,
            predicts_ahead: 0,
            scaled_embedding: false,
            source: "tests/oracles/megatron_core.py".to_owned(),
            notes: vec![],
        }
    }
}
