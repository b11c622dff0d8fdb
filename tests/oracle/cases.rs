//! Reads the oracle files and turns their configurations into jobs.

use std::path::PathBuf;

use serde::Deserialize;
use windtunnel::model::experts::{Experts, Implementation, Router, Score};
use windtunnel::model::head::Loss;
use windtunnel::model::routing::Load;
use windtunnel::model::style::{NormCode, Style};
use windtunnel::model::tensor::TensorParallel;
use windtunnel::model::{
    Activation, Attention, Dense, Dropout, FeedForward, Gating, Layer, Layers, Mixer, ModelConfig, Norm, NormPlacement,
    Norms, Position, QkNorm,
};
use windtunnel::program::{DType, Dispatch};
use windtunnel::runtime::compiled::Rotate;
use windtunnel::runtime::eager::{LayerNorm, Settings};
use windtunnel::runtime::fsdp::{Fsdp, MixedPrecision, Reshard, Version, Wrap};
use windtunnel::runtime::optimizer::{Adam, Decay, How, Optimizer, Sgd};
use windtunnel::runtime::train::{Checkpoint, Initialisation, KeepLogits, Loop, TorchPlan};

#[derive(Clone, Debug, Deserialize)]
pub struct Dims {
    pub dim: u64,
    pub n_layers: u64,
    pub n_heads: u64,
    pub n_kv_heads: u64,
    pub ffn: u64,
    pub vocab: u64,
    pub head_dim: u64,
    pub n_experts: u64,
    #[serde(default)]
    pub top_k: u64,
    #[serde(default)]
    pub moe_impl: String,
    #[serde(default)]
    pub shared: u64,
    #[serde(default)]
    pub dense_first: u64,
    #[serde(default)]
    pub rope: String,
    #[serde(default)]
    pub norm: String,
    #[serde(default)]
    pub placement: String,
    #[serde(default)]
    pub rope_dims: u64,
    #[serde(default)]
    pub positions: u64,
    #[serde(default)]
    pub alibi: bool,
    #[serde(default)]
    pub act: String,
    #[serde(default = "yes")]
    pub gated: bool,
    #[serde(default)]
    pub qkv_bias: bool,
    #[serde(default)]
    pub output_bias: bool,
    #[serde(default)]
    pub ffn_bias: bool,
    #[serde(default)]
    pub fused_qkv: bool,
    #[serde(default)]
    pub qk_norm: String,
    #[serde(default)]
    pub tied_head: bool,
    #[serde(default)]
    pub sliding_window: u64,
    #[serde(default)]
    pub global_every: u64,
    #[serde(default)]
    pub logit_softcap: f64,
    #[serde(default)]
    pub scaled_embedding: bool,
    #[serde(default)]
    pub embedding_norm: bool,
    #[serde(default)]
    pub composite_norm: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    pub seq: u64,
    pub bs: u64,
    pub world: u32,
    pub wrap: String,
    pub reshard: serde_json::Value,
    pub root_reshard: serde_json::Value,
    pub mp: String,
    pub ac: String,
    pub opt: String,
    pub ga: u32,
    pub ga_sync: String,
    pub fwd_prefetch: usize,
    pub bwd_prefetch: usize,
    pub tp: u64,
    #[serde(default)]
    pub sp: bool,
    #[serde(default)]
    pub loss_parallel: bool,
    pub hsdp: u32,
    pub early_stop: bool,
    pub clip: u32,
    pub rs_max_input_buffers: usize,
    pub cpu_offload: bool,
    #[serde(default = "yes")]
    pub ga_is_last: bool,
    #[serde(default)]
    pub compile: bool,
    #[serde(default)]
    pub compile_loss: bool,
    #[serde(default)]
    pub expert_shard1: bool,
    #[serde(default)]
    pub output_fp32: bool,
    #[serde(default)]
    pub loss: String,
    #[serde(default)]
    pub chunks: u32,
}

fn yes() -> bool {
    true
}

/// The folder the oracles are read from.
pub fn folder() -> PathBuf {
    std::env::var_os("WINDTUNNEL_ORACLES")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles")), PathBuf::from)
}

/// Whether the oracles are those of another folder, which may hold fewer files and cases.
pub fn elsewhere() -> bool {
    std::env::var_os("WINDTUNNEL_ORACLES").is_some()
}

/// One oracle file; none if another folder is read and has no such file.
pub fn read(name: &str) -> Option<serde_json::Value> {
    let path = folder().join(name);
    if elsewhere() && !path.is_file() {
        println!("{} is not there: nothing to check", path.display());
        return None;
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// The oracles' model: Llama's shape where a case says nothing else.
pub fn model(dims: &Dims) -> ModelConfig {
    let head_dim = if dims.head_dim == 0 { dims.dim / dims.n_heads } else { dims.head_dim };
    let act = match dims.act.as_str() {
        "gelu" => Activation::Gelu,
        "gelu_tanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        "relu2" => Activation::ReluSquared,
        _ => Activation::Silu,
    };
    let norm = match dims.norm.as_str() {
        "ln" => Norm::Layer { bias: true },
        "ln_nobias" => Norm::Layer { bias: false },
        _ => Norm::Rms,
    };
    let placement = match dims.placement.as_str() {
        "pre_post" => NormPlacement::PreAndPost,
        "post" => NormPlacement::Post,
        "parallel" => NormPlacement::Parallel,
        "parallel_shared" => NormPlacement::ParallelShared,
        _ => NormPlacement::Pre,
    };
    let gating = if dims.gated { Gating::Gated(act) } else { Gating::Plain(act) };
    let attention = Attention {
        kv_heads: dims.n_kv_heads,
        qkv_bias: dims.qkv_bias,
        output_bias: dims.output_bias,
        fused_qkv: dims.fused_qkv,
        qk_norm: match dims.qk_norm.as_str() {
            "head" => Some(QkNorm::PerHead),
            "full" => Some(QkNorm::Full),
            _ => None,
        },
        softcap: false,
        ..Attention::plain(dims.n_heads, head_dim)
    };
    let layer = |place: u64| {
        let slides = dims.global_every == 0 || !(place + 1).is_multiple_of(dims.global_every);
        let window = (dims.sliding_window > 0 && slides).then_some(dims.sliding_window);
        let feed_forward = if dims.n_experts > 0 && place >= dims.dense_first {
            FeedForward::Experts(experts(dims, gating))
        } else {
            FeedForward::Dense(Dense { width: dims.ffn, gating, bias: dims.ffn_bias })
        };
        let norms = Norms { kind: norm, placement };
        Layer { mixer: Mixer::Attention(Attention { window, ..attention }), feed_forward, norms }
    };
    ModelConfig {
        name: "oracle".to_owned(),
        layers: Layers::new(dims.n_layers, dims.dense_first, dims.global_every.max(1), layer),
        width: dims.dim,
        vocab: dims.vocab,
        final_norm: Some(norm),
        embedding_norm: dims.embedding_norm.then_some(norm),
        position: match (dims.alibi, dims.positions, dims.rope.as_str(), dims.rope_dims) {
            (true, ..) => Position::Alibi,
            (_, 0, "none", _) => Position::None,
            (_, 0, _, 0) => Position::Rope { dims: head_dim },
            (_, 0, _, dims) => Position::Rope { dims },
            (_, positions, ..) => Position::Learned { positions },
        },
        tied_head: dims.tied_head,
        context: None,
        logit_softcap: dims.logit_softcap > 0.0,
        mtp_layers: 0,
        mtp_block: vec![],
        mtp_repeated: false,
        scaled_embedding: dims.scaled_embedding,
        rope_scaled: false,
        dropout: Dropout::default(),
        model_type: "",
        notes: vec![],
        source: "tests/oracles".to_owned(),
    }
}

/// The oracle's mixture: softmax, the k largest, divided by their sum; every expert gets as many rows.
fn experts(dims: &Dims, gating: Gating) -> Experts {
    Experts {
        count: dims.n_experts,
        top_k: dims.top_k,
        width: dims.ffn,
        latent: None,
        shared: dims.shared,
        shared_gate: false,
        gating,
        router: Router {
            score: Score::Softmax,
            normalises: true,
            scales: false,
            bias: false,
            correction: false,
            groups: None,
        },
        bias: false,
        clamped: false,
        auxiliary_loss: false,
        load: Load::Balanced,
    }
}

fn reshard(value: &serde_json::Value, default: Reshard) -> Reshard {
    match value {
        serde_json::Value::Bool(true) => Reshard::Always,
        serde_json::Value::Bool(false) => Reshard::Never,
        serde_json::Value::Number(ranks) => Reshard::To(ranks.as_u64().unwrap() as u32),
        _ => default,
    }
}

/// The job a case describes; none if it shards experts on their width.
pub fn job(dims: &Dims, config: &Config) -> Option<TorchPlan> {
    if config.expert_shard1 {
        return None;
    }
    let model = model(dims);
    let mixed_precision = match config.mp.as_str() {
        "mixed" => precision(DType::Fp32, Some(DType::Bf16), Some(DType::Fp32)),
        "mixed_bf16reduce" => precision(DType::Fp32, Some(DType::Bf16), Some(DType::Bf16)),
        "bf16" => precision(DType::Bf16, None, None),
        "bf16_fp32reduce" => precision(DType::Bf16, None, Some(DType::Fp32)),
        "fp32" => precision(DType::Fp32, None, None),
        other => panic!("unknown mixed precision {other}"),
    };
    let blocks = reshard(&config.reshard, Reshard::Always);
    let titan = config.wrap == "titan";
    let wrapped = (config.wrap != "root").then_some(blocks);
    let root = reshard(&config.root_reshard, Reshard::Never);
    let wrap = Wrap {
        embedding: titan.then_some(blocks),
        head: titan.then_some(Reshard::Never),
        ..Wrap::of_blocks(vec![wrapped; model.layers.count() as usize], root)
    };
    let fsdp = Fsdp {
        version: Version::Two,
        shard: config.world / config.hsdp / config.tp as u32,
        replicate: config.hsdp,
        wrap,
        mixed_precision,
        forward_prefetch: config.fwd_prefetch,
        backward_prefetch: config.bwd_prefetch,
        prefetches_ends: false,
        second_dims: vec![],
        reduce_scatter_buffers: config.rs_max_input_buffers,
        // The oracle's runs list this key but never set it on the model.
        unshard_in_backward: true,
        cpu_offload: config.cpu_offload,
    };
    Some(TorchPlan {
        batch: config.bs,
        seq: config.seq,
        documents: None,
        accumulation: config.ga,
        sync_every: config.ga_sync == "every",
        marks_last: config.ga_is_last,
        keeps_gathered: false,
        all_reduce_every: true,
        fsdp,
        ddp: None,
        tensor: match config.tp {
            1 => TensorParallel::NONE,
            ranks => TensorParallel { ranks, sequence: config.sp, loss: config.loss_parallel, asynchronous: false },
        },
        checkpoint: match config.ac.as_str() {
            "none" => Checkpoint::None,
            "full" => Checkpoint::Full,
            "every2" => Checkpoint::Blocks((0..model.layers.count()).map(|layer| layer % 2 == 0).collect()),
            "sac_op" => Checkpoint::SelectiveOp,
            other => panic!("unknown activation checkpointing {other}"),
        },
        eager: Settings {
            workspace: 32 << 20,
            persistent_workspace: false,
            fused_rms_norm: !dims.composite_norm,
            norm_code: NormCode::Torch,
            layer_norm: LayerNorm::Torch,
            bias_tensor: true,
            sms: 132,
            early_stop: config.early_stop,
            attention_reads_back: false,
            copies_gradients: false,
            flex_attention: false,
            unnamed_logits: false,
            offload: None,
            forward: Dispatch::EagerForward,
            backward: Dispatch::EagerBackward,
        },
        optimizer: match config.opt.as_str() {
            "adamw_foreach" => adamw(How::Foreach),
            "adamw_fused" => adamw(How::Fused),
            "sgd" => Optimizer::Sgd(Sgd { how: How::Foreach, decays: false, momentum: false, nesterov: false }),
            other => panic!("unknown optimizer {other}"),
        },
        master_weights: false,
        clip: config.clip > 0,
        scale_gradients: false,
        step_in_backward: false,
        pipeline: None,
        training_loop: Loop::default(),
        unpad: false,
        trained: None,
        max_positions: config.seq,
        compile: config.compile,
        context: 1,
        rotate: Rotate::default(),
        float8: None,
        checkpoint_compiled: false,
        initialisation: Initialisation::default(),
        autocast: None,
        cuda_graphs: false,
        reentrant: false,
        around_hooks: false,
        style: Style {
            experts: match dims.moe_impl.as_str() {
                "grouped" => Implementation::Grouped,
                "expert_choice" => Implementation::ExpertChoice,
                _ => Implementation::Loop,
            },
            ..Style::default()
        },
        keep_logits: KeepLogits::No,
        loss_inside: false,
        reference: None,
        output: config.output_fp32.then_some(DType::Fp32),
        loss: match config.loss.as_str() {
            "bf16" => Loss::Bf16CrossEntropy { compiled: config.compile_loss },
            "chunked" => Loss::ChunkedOutput { chunks: config.chunks, compiled: config.compile_loss },
            "chunked_linear" => Loss::ChunkedLinear { chunks: config.chunks },
            "fused_linear" => Loss::FusedLinear,
            _ => Loss::Fp32CrossEntropy { compiled: config.compile_loss },
        },
        model,
    })
}

fn adamw(how: How) -> Optimizer {
    Optimizer::Adam(Adam::new(how, Decay::OfWeights, false))
}

fn precision(storage: DType, param: Option<DType>, reduce: Option<DType>) -> MixedPrecision {
    MixedPrecision { storage, param, reduce }
}
