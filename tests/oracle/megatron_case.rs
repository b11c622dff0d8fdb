//! Cases of Megatron-Core (`tests/oracles/megatron*.json`) as jobs.

use serde_json::Value;
use windtunnel::model::{
    Activation, Attention, Dense, Dropout, FeedForward, Gating, Layer, Layers, Mixer, ModelConfig, Norm, NormPlacement,
    Norms, Position,
};
use windtunnel::program::DType;
use windtunnel::runtime::eager::LayerNorm;
use windtunnel::runtime::megatron::{
    Block, Core, CpCommType, CrossEntropy, Engine, Gradients, Implementation, Loader, Matmuls, MegatronPlan, Mesh,
    Optimizer, Parts, Pipeline, Recompute, RecomputeModules, Sharing, Split,
};
use windtunnel::schedule::find;

fn model(c: &Value) -> ModelConfig {
    let number = |key: &str| c[key].as_u64().unwrap();
    let on = |key: &str| c[key].as_bool().unwrap();
    let head_dim = number("hidden") / number("heads");
    let bias = on("bias");
    let attention = Attention {
        kv_heads: number("kv"),
        qkv_bias: bias,
        output_bias: bias,
        fused_qkv: true,
        ..Attention::plain(number("heads"), head_dim)
    };
    let gating = if on("swiglu") { Gating::Gated(Activation::Silu) } else { Gating::Plain(Activation::Gelu) };
    let norm = if c["rms_norm"].as_bool().unwrap_or(false) { Norm::Rms } else { Norm::Layer { bias: true } };
    let layer = Layer {
        mixer: Mixer::Attention(attention),
        feed_forward: FeedForward::Dense(Dense { width: number("ffn"), gating, bias }),
        norms: Norms { kind: norm, placement: NormPlacement::Pre },
    };
    ModelConfig {
        name: "oracle".to_owned(),
        layers: Layers::alike(layer, number("layers")),
        width: number("hidden"),
        vocab: number("vocab"),
        final_norm: Some(norm),
        embedding_norm: None,
        position: if on("rope") {
            Position::Rope { dims: head_dim }
        } else {
            Position::Learned { positions: number("seq") }
        },
        tied_head: on("tied"),
        context: None,
        logit_softcap: false,
        mtp_layers: 0,
        mtp_block: vec![],
        mtp_repeated: false,
        scaled_embedding: false,
        rope_scaled: false,
        dropout: Dropout::default(),
        model_type: "",
        source: "tests/oracles/megatron_core.py".to_owned(),
        notes: vec![],
    }
}

fn sharing(c: &Value, cp: u32) -> Sharing {
    let way = c["cp_comm_type"].as_str().map_or(CpCommType::P2p, |name| CpCommType::find(name).unwrap());
    let heads = match way.parts() {
        Parts::Tokens => 1,
        Parts::Heads => cp,
        Parts::Both => c["hierarchical"][0].as_u64().unwrap() as u32,
    };
    Sharing { comm_type: way, heads }
}

/// The pipeline rank that a case looks at.
pub fn stage(c: &Value) -> usize {
    let number = |key: &str| c[key].as_u64().unwrap();
    (number("rank") / (number("world") / number("pp"))) as usize
}

/// The job of a case.
pub fn job(c: &Value) -> MegatronPlan {
    let number = |key: &str| c[key].as_u64().unwrap();
    let on = |key: &str| c[key].as_bool().unwrap();
    let dropout = c["dropout"].as_f64().unwrap() > 0.0;
    let (tp, cp, pp) = (number("tp") as u32, number("cp") as u32, number("pp") as u32);
    let dp = number("world") as u32 / (tp * cp * pp);
    let virtual_stages = c["vpp"].as_u64().unwrap_or(1) as u32;
    let stages = u64::from(pp * virtual_stages);
    let fused = c["fusions"].as_bool().unwrap_or(true);
    let engine = c["transformer_engine"].as_bool().unwrap_or(false);
    let layers = number("recompute_layers");
    let schedule = if virtual_stages > 1 { "MegatronInterleaved" } else { "Megatron1F1B" };
    MegatronPlan {
        split: Split {
            model: model(c),
            batch: number("micro"),
            seq: number("seq"),
            documents: None,
            micro_batches: number("micro_batches") as u32,
            mesh: Mesh { tp, cp, sharing: sharing(c, cp), dp, pp, ep: 1, etp: tp },
            sequence_parallel: on("sp") && tp > 1,
            overlap_tensor: None,
            pipeline: Pipeline {
                schedule: find(schedule).unwrap(),
                virtual_stages,
                layers: vec![number("layers") / stages; stages as usize],
                overlap_p2p: false,
                scatter_gather: false,
            },
            block: Block {
                implementation: if engine { Implementation::TransformerEngine } else { Implementation::Local },
                layer_norm: LayerNorm::Torch,
                core: if engine { Core::Flash } else { Core::Unfused { fused_softmax: fused } },
                hidden_dropout: dropout,
                attention_dropout: dropout,
                fused_activation: fused,
                fused_squared_relu: false,
                fused_dropout: fused,
                fused_rope: false,
                cross_entropy: match &c["fused_loss"] {
                    Value::String(_) => CrossEntropy::Engine,
                    fused if fused.as_bool().unwrap_or(false) => CrossEntropy::Compiled,
                    _ => CrossEntropy::Composed,
                },
                release: Default::default(),
                recompute_modules: RecomputeModules::default(),
                recompute: match c["recompute"].as_str() {
                    Some("uniform") => Recompute::Uniform { layers },
                    Some("block") => Recompute::Block { layers },
                    Some("selective") => Recompute::Core,
                    _ => Recompute::None,
                },
            },
            mixture: None,
            matmuls: Matmuls::Plain,
            dtype: DType::Bf16,
            vocabulary_multiple: 1,
            // PyTorch 2.15 on a chip that poses as an H100.
            workspace: 32 << 20,
            persistent_workspace: false,
            multiprocessors: 132,
            copies_gradients: false,
            trained: None,
        },
        engine: Engine::Core,
        gradients: Gradients {
            dtype: if on("fp32_reduce") { DType::Fp32 } else { DType::Bf16 },
            fused_accumulation: c["fused_accumulation"].as_bool().unwrap_or(false),
            overlap_reduce: on("overlap_grad_reduce"),
            bucket: on("overlap_grad_reduce").then_some(40_000_000),
        },
        optimizer: Optimizer {
            distributed: on("distributed_optimizer"),
            overlap_gather: on("overlap_param_gather"),
            align_gather: false,
            master: DType::Fp32,
            remainders: false,
            first_moment: DType::Fp32,
            second_moment: DType::Fp32,
            // With Transformer Engine there is its fused Adam.
            fused: engine,
            clip: c["clip"].as_f64().unwrap() > 0.0,
        },
        fsdp: None,
        loader: Loader::There,
        checks_for_nan: false,
        graphs: Default::default(),
    }
}
