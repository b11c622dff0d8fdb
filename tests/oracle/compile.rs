//! Compiled blocks against inductor: what is saved, how many kernels run, what a step allocates.

use serde::Deserialize;
use windtunnel::memory::{Settings, replay};
use windtunnel::model::fuse::{self, Launch, Policy};
use windtunnel::model::style::Style;
use windtunnel::model::tensor::TensorParallel;
use windtunnel::model::{
    Activation, Attention, Dense, FeedForward, Gating, Layer, Layers, Mixer, ModelConfig, Norm, NormPlacement, Norms,
    Position, QkNorm, block,
};
use windtunnel::program::{DType, Pass, Program};
use windtunnel::runtime::train;
use windtunnel::units::{Bytes, Flops};

use super::cases::{self, Config, Dims};

/// A block as the oracle describes it; D = 1024, N = 8, H = 128, F = 2816.
#[derive(Debug, Deserialize)]
struct Shape {
    norm: String,
    place: String,
    ffn: String,
    act: String,
    qkv_bias: bool,
    out_bias: bool,
    ffn_bias: bool,
    fused: bool,
    qk: Option<String>,
    rope: bool,
    kv: u64,
    dtype: String,
    ac: String,
    #[serde(rename = "S")]
    seq: u64,
}

#[derive(Debug, Deserialize)]
struct Block {
    config: Shape,
    saved: Vec<u64>,
    input_saved: bool,
    forward_kernels: usize,
    backward_kernels: usize,
}

fn model(shape: &Shape) -> ModelConfig {
    let dims = serde_json::json!({
        "dim": 1024, "n_layers": 1, "n_heads": 8, "n_kv_heads": shape.kv, "ffn": 2816, "vocab": 1024, "head_dim": 128,
        "n_experts": 0,
    });
    let dims: Dims = serde_json::from_value(dims).unwrap();
    let act = match shape.act.as_str() {
        "silu" => Activation::Silu,
        "gelu" => Activation::Gelu,
        "gelutanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        "relu2" => Activation::ReluSquared,
        other => panic!("unknown activation {other}"),
    };
    let norm = if shape.norm == "rms" { Norm::Rms } else { Norm::Layer { bias: shape.norm == "layerb" } };
    let placement = match shape.place.as_str() {
        "pre" => NormPlacement::Pre,
        "post" => NormPlacement::Post,
        "prepost" => NormPlacement::PreAndPost,
        "par" => NormPlacement::Parallel,
        "parshared" => NormPlacement::ParallelShared,
        other => panic!("unknown placement {other}"),
    };
    let attention = Attention {
        kv_heads: shape.kv,
        qkv_bias: shape.qkv_bias,
        output_bias: shape.out_bias,
        fused_qkv: shape.fused,
        qk_norm: shape.qk.as_deref().map(|qk| if qk == "head" { QkNorm::PerHead } else { QkNorm::Full }),
        ..Attention::plain(8, 128)
    };
    let gating = if shape.ffn == "gated" { Gating::Gated(act) } else { Gating::Plain(act) };
    let layer = Layer {
        mixer: Mixer::Attention(attention),
        feed_forward: FeedForward::Dense(Dense { width: 2816, gating, bias: shape.ffn_bias }),
        norms: Norms { kind: norm, placement },
    };
    ModelConfig {
        layers: Layers::alike(layer, 1),
        final_norm: Some(norm),
        position: if shape.rope { Position::Rope { dims: 128 } } else { Position::None },
        ..cases::model(&dims)
    }
}

fn compiled(shape: &Shape) -> fuse::Compiled {
    let model = model(shape);
    let dtype = if shape.dtype == "bf16" { DType::Bf16 } else { DType::Fp32 };
    let graph = block::block(
        &model,
        block::dims(&model, 1, shape.seq, TensorParallel::NONE),
        dtype,
        model.layers.at(0),
        Style::default(),
    );
    let policy = match shape.ac.as_str() {
        "none" => Policy::MinCut,
        "full" => Policy::Input,
        _ => Policy::ComputeIntensive,
    };
    fuse::compile(&graph, policy, fuse::Options::default())
}

fn blocks() -> Vec<Block> {
    let file = cases::read("compile.json");
    file.map_or_else(Vec::new, |file| serde_json::from_value(file["blocks"].clone()).unwrap())
}

#[test]
fn oracle_compiled_blocks_save_what_the_partitioner_saves() {
    let mut wrong = String::new();
    let blocks = blocks();
    for block in &blocks {
        let ours = compiled(&block.config);
        let mut saved: Vec<u64> =
            ours.saved.iter().filter(|&&tensor| tensor != 0).map(|&tensor| ours.tensors[tensor].bytes).collect();
        let mut expected = block.saved.clone();
        saved.sort_unstable();
        expected.sort_unstable();
        if saved != expected || ours.saved.contains(&0) != block.input_saved {
            wrong += &format!("{:?}\n  ours   {saved:?}\n  theirs {expected:?}\n", block.config);
        }
    }
    assert!((blocks.len() >= 29 || cases::elsewhere()) && wrong.is_empty(), "{wrong}");
}

#[test]
fn oracle_compiled_blocks_launch_as_many_generated_kernels_as_inductor() {
    let mut table = String::new();
    let (mut off, mut total) = (0, 0);
    for block in blocks() {
        let ours = compiled(&block.config);
        let count = |kernels: &[fuse::Kernel]| {
            kernels.iter().filter(|kernel| matches!(kernel.launch, Launch::Fused(_))).count()
        };
        let (forward, backward) = (count(&ours.forward), count(&ours.backward));
        off += forward.abs_diff(block.forward_kernels) + backward.abs_diff(block.backward_kernels);
        total += block.forward_kernels + block.backward_kernels;
        if (forward, backward) != (block.forward_kernels, block.backward_kernels) {
            table += &format!(
                "{forward} {} forward, {backward} {} backward: {:?}\n",
                block.forward_kernels, block.backward_kernels, block.config
            );
        }
    }
    println!("{off} of {total} kernels off\n{table}");
    assert!(off * 50 <= total, "{off} of {total} kernels off:\n{table}");
}

#[test]
fn oracle_compiled_steps_allocate_what_pytorch_allocates() {
    let Some(file) = cases::read("compile.json") else { return };
    let (mut table, mut worst) = (String::new(), 0f64);
    for case in file["steps"].as_array().unwrap() {
        let dims: Dims = serde_json::from_value(case["model_dims"].clone()).unwrap();
        let config: Config = serde_json::from_value(case["config"].clone()).unwrap();
        let settings = Settings { expandable_segments: false, capacity: Bytes(1 << 43) };
        let report = replay(&train::compile(&cases::job(&dims, &config).unwrap()), settings);
        for phase in &report.phases {
            let Some(expected) = case["phases"].get(&phase.name) else { continue };
            for (name, ours) in [("now", phase.end_allocated.0), ("peak", phase.peak_allocated.0)] {
                let theirs = expected[name].as_u64().unwrap();
                let off = ours as f64 / theirs as f64 - 1.0;
                worst = worst.max(off.abs());
                table +=
                    &format!("{} {:6} {name:4} {ours:14} {theirs:14} {:+.4} %\n", case["id"], phase.name, off * 100.0);
            }
        }
    }
    println!("{table}");
    assert!((!table.is_empty() || cases::elsewhere()) && worst <= 0.01, "off by {:.3} %:\n{table}", worst * 100.0);
}

fn flops(program: &Program, pass: Pass) -> Flops {
    program.flops_of(pass)
}

#[test]
fn compiling_changes_no_flops_and_launches_fewer_kernels() {
    let Some(file) = cases::read("compile.json") else { return };
    let case = &file["steps"][0];
    let dims: Dims = serde_json::from_value(case["model_dims"].clone()).unwrap();
    let config: Config = serde_json::from_value(case["config"].clone()).unwrap();
    for ac in ["none", "full", "sac_op"] {
        let run = |compile| {
            let config = Config { ac: ac.to_owned(), early_stop: true, compile, ..config.clone() };
            train::compile(&cases::job(&dims, &config).unwrap())
        };
        let (eager, compiled) = (run(false), run(true));
        for pass in [Pass::Forward, Pass::Backward, Pass::Recompute] {
            assert_eq!(flops(&eager, pass), flops(&compiled, pass), "{ac} {pass:?}");
        }
        let launches = |program: &Program| {
            let launch =
                |instr: &&windtunnel::program::Instr| matches!(instr, windtunnel::program::Instr::Launch { .. });
            program.step.iter().filter(launch).count()
        };
        assert!(launches(&compiled) < launches(&eager), "{ac}");
    }
}
