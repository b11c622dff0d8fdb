//! fp8 in Transformer Engine's blocks under Megatron-Core, against closed forms of what its Python does
//! (`transformer_engine/pytorch/module/layernorm_linear.py`, `linear.py`, `quantization.py`, `tensor/utils.py`, 2.9).
//!
//! Letters: T tokens of a micro-batch, t tensor-parallel ranks, h width, A and K widths of queries and of keys, f
//! feed-forward width, n heads; bytes.

use windtunnel::model::{
    Activation, Attention, Dense, Dropout, FeedForward, Gating, Layer, Layers, Mixer, ModelConfig, Norm, NormPlacement,
    Norms, Position,
};
use windtunnel::program::builder::Section;
use windtunnel::program::{Builder, Collective, DType, Instr, Pass, Program, StreamId, Work};
use windtunnel::runtime::eager::framework::Megatron;
use windtunnel::runtime::eager::main_gradients::{MainGradients, ParamHooks};
use windtunnel::runtime::eager::{Eager, FrameworkState, LayerNorm, TensorGroup};
use windtunnel::runtime::megatron::{
    self, Block, Chunk, Core, CrossEntropy, Ends, Engine, Fp8Recipe, Gradients, Implementation, Loader, Matmuls,
    MegatronPlan, Mesh, Optimizer, Overlap, Pipeline, Recompute, RecomputeModules, Sharing, Split,
};
use windtunnel::schedule::find;

const LAYERS: u64 = 4;
const SEQ: u64 = 256;
const WIDTH: u64 = 512;
const HEADS: u64 = 8;
const KV: u64 = 256;
const FFN: u64 = 1024;
const VOCAB: u64 = 1024;
const DELAYED: Fp8Recipe = Fp8Recipe::Delayed;
/// Bytes of the random state that the kernel of attention leaves.
const RANDOM: u64 = 16;

fn model() -> ModelConfig {
    let attention = Attention { kv_heads: 4, fused_qkv: true, ..Attention::plain(HEADS, WIDTH / HEADS) };
    let dense = Dense { width: FFN, gating: Gating::Gated(Activation::Silu), bias: false };
    let layer = Layer {
        mixer: Mixer::Attention(attention),
        feed_forward: FeedForward::Dense(dense),
        norms: Norms { kind: Norm::Rms, placement: NormPlacement::Pre },
    };
    ModelConfig {
        name: "a small Llama".to_owned(),
        layers: Layers::alike(layer, LAYERS),
        width: WIDTH,
        vocab: VOCAB,
        final_norm: Some(Norm::Rms),
        embedding_norm: None,
        position: Position::Rope { dims: WIDTH / HEADS },
        tied_head: false,
        context: None,
        logit_softcap: false,
        mtp_layers: 0,
        mtp_block: vec![],
        mtp_repeated: false,
        scaled_embedding: false,
        rope_scaled: false,
        dropout: Dropout::default(),
        model_type: "",
        source: "this test".to_owned(),
        notes: vec![],
    }
}

fn job(matmuls: Matmuls, tp: u32) -> MegatronPlan {
    MegatronPlan {
        split: Split {
            model: model(),
            batch: 1,
            seq: SEQ,
            documents: None,
            micro_batches: 3,
            mesh: Mesh { tp, cp: 1, sharing: Sharing::ring(), dp: 2, pp: 1, ep: 1, etp: tp },
            sequence_parallel: tp > 1,
            overlap_tensor: None,
            pipeline: Pipeline {
                schedule: find("Megatron1F1B").unwrap(),
                virtual_stages: 1,
                layers: vec![LAYERS],
                overlap_p2p: false,
                scatter_gather: false,
            },
            block: Block {
                implementation: Implementation::TransformerEngine,
                layer_norm: LayerNorm::Torch,
                core: Core::Flash,
                hidden_dropout: false,
                attention_dropout: false,
                fused_activation: true,
                fused_squared_relu: false,
                fused_dropout: true,
                fused_rope: true,
                cross_entropy: CrossEntropy::Compiled,
                release: Default::default(),
                recompute: Recompute::None,
                recompute_modules: RecomputeModules::default(),
            },
            mixture: None,
            matmuls,
            dtype: DType::Bf16,
            vocabulary_multiple: 128,
            workspace: 32 << 20,
            copies_gradients: false,
            trained: None,
            persistent_workspace: true,
            multiprocessors: 132,
        },
        engine: Engine::Core,
        gradients: Gradients { dtype: DType::Fp32, fused_accumulation: true, overlap_reduce: false, bucket: None },
        optimizer: Optimizer {
            distributed: true,
            overlap_gather: false,
            align_gather: false,
            master: DType::Fp32,
            remainders: false,
            first_moment: DType::Fp32,
            second_moment: DType::Fp32,
            fused: true,
            clip: true,
        },
        fsdp: None,
        loader: Loader::There,
        checks_for_nan: false,
        graphs: Default::default(),
    }
}

fn fp8(recipe: Fp8Recipe, parameters: bool) -> Matmuls {
    Matmuls::Fp8 { recipe, parameters, any_layout: false }
}

fn program(job: &MegatronPlan) -> Program {
    assert_eq!(megatron::refuses(job), None);
    megatron::compile(job).programs().remove(0)
}

/// Elements of a block's four weights on a rank.
fn weights(t: u64) -> u64 {
    (WIDTH * (WIDTH + 2 * KV) + WIDTH * WIDTH + WIDTH * 2 * FFN + FFN * WIDTH) / t
}

#[derive(Debug)]
struct Nothing;

impl ParamHooks for Nothing {
    fn read(&mut self, _: &mut Builder, _: usize) {}
    fn arrived(&mut self, _: &mut Builder, _: usize) {}
}

/// What `layers` blocks keep for backward.
fn kept(job: &MegatronPlan, layers: u64) -> u64 {
    let mut program = Builder::new(job.split.mesh.ranks(), &["compute", "tp"]);
    let group = program.add_group(job.split.mesh.tensor());
    program.section(Section::Step);
    let chunk = Chunk::new(job, Ends::NONE, 0..layers, 0);
    let mut megatron = Box::new(Megatron::new(MainGradients::new(DType::Fp32, true, Box::new(Nothing))));
    if job.split.mesh.tp > 1 {
        megatron.tensor = Some(TensorGroup { group, ranks: 2, stream: StreamId(1) });
    }
    let mut eager = Eager::new(program, job.split.eager(), chunk.params().len(), FrameworkState::Megatron(megatron));
    let input = eager.storage(SEQ * WIDTH * 2 / u64::from(job.split.mesh.tp), "input");
    let _ = chunk.forward(&mut eager, Some(input));
    let program = eager.program.finish();
    let live = program.step.iter().map(|instr| match *instr {
        Instr::Alloc { buffer } => i128::from(program.buffer(buffer).bytes.0),
        Instr::Free { buffer } => -i128::from(program.buffer(buffer).bytes.0),
        _ => 0,
    });
    u64::try_from(live.sum::<i128>()).unwrap()
}

/// Bytes that one block keeps more for every further block.
fn kept_by_a_block(matmuls: Matmuls, tp: u32) -> u64 {
    let job = job(matmuls, tp);
    (kept(&job, 3) - kept(&job, 1)) / 2
}

/// How often a kernel is launched in a pass.
fn launches(program: &Program, name: &str, pass: Pass) -> usize {
    let kernels = program.step.iter().filter_map(|instr| match *instr {
        Instr::Launch { kernel, .. } => Some(program.kernel(kernel)),
        _ => None,
    });
    kernels.filter(|kernel| kernel.name == name && kernel.pass == pass).count()
}

/// Bytes of a group's collectives of one kind, in order.
fn exchanged(program: &Program, group: &str, kind: Collective) -> Vec<u64> {
    let comms = program.step.iter().filter_map(|instr| match *instr {
        Instr::Collective { comm, .. } => Some(program.comm(comm)),
        _ => None,
    });
    let ours = comms.filter(|comm| comm.kind == kind && program.group(comm.group).name == group);
    ours.map(|comm| comm.bytes.0).collect()
}

#[test]
fn fp8_blocks_keep_what_linears_read_in_one_byte_and_once() {
    let (a, k, h, f, n) = (WIDTH, KV, WIDTH, FFN, HEADS);
    for t in [1, 2, 4] {
        let tokens = SEQ / t;
        // Norm inputs 2 · 2h; q, k, v and the context 4A + 4K; SwiGLU's input 4f; statistics. In bf16 the linears add the
        // norms' results 2 · 2h and SwiGLU's 2f, and share the context; in fp8 they add a byte of each, the context too where
        // scales are of earlier steps: otherwise they share it (`save_original_input`).
        let plain = tokens * (8 * h + 4 * a + 4 * k + 6 * f + 4 * n + 8) + RANDOM;
        let scaled = |context: u64| tokens * (6 * h + context * a + 4 * k + 5 * f + 4 * n + 8) + RANDOM;
        assert_eq!(kept_by_a_block(Matmuls::Plain, t as u32), plain);
        for (recipe, context) in [(DELAYED, 5), (Fp8Recipe::Tensorwise, 4)] {
            for parameters in [false, true] {
                let kept = kept_by_a_block(fp8(recipe, parameters), t as u32);
                assert_eq!(kept, scaled(context), "{recipe:?}, {t} ranks");
            }
        }
        // Blockwise: an fp32 number for each 128.
        let blockwise = scaled(4) + tokens * (f + 2 * h) / 128 * 4;
        assert_eq!(kept_by_a_block(fp8(Fp8Recipe::Blockwise, false), t as u32), blockwise, "{t} ranks");
    }
}

#[test]
fn fp8_weights_are_cast_in_the_first_micro_batch_of_a_step_alone() {
    let (layers, micro_batches) = (LAYERS as usize, 3);
    let count = |parameters, name| launches(&program(&job(fp8(DELAYED, parameters), 2)), name, Pass::Forward);
    // Two linears of a block cast what they read, every time; the norms before the other two write fp8.
    assert_eq!(count(false, "te.cast_transpose"), layers * (2 * micro_batches + 4));
    assert_eq!(count(false, "te.fp8_transpose"), 0);
    assert_eq!(count(true, "te.cast_transpose"), layers * 2 * micro_batches);
    assert_eq!(count(true, "te.fp8_transpose"), layers * 4);
    // With one rank nothing is gathered, and what norms have written is transposed at once.
    let one = program(&job(fp8(DELAYED, true), 1));
    assert_eq!(launches(&one, "te.fp8_transpose", Pass::Forward), layers * (4 + 2 * micro_batches));
    assert_eq!(launches(&one, "te.fp8_transpose", Pass::Backward), 0);
    // Gradients of a block's four results: two are gathered in fp8 and transposed, as are the two norms' results.
    let two = program(&job(fp8(DELAYED, true), 2));
    assert_eq!(launches(&two, "te.cast_transpose", Pass::Backward), layers * 2 * micro_batches);
    assert_eq!(launches(&two, "te.cast", Pass::Backward), layers * 2 * micro_batches);
    assert_eq!(launches(&two, "te.fp8_transpose", Pass::Backward), layers * 4 * micro_batches);
}

#[test]
fn fp8_is_gathered_in_one_byte_and_scattered_in_two() {
    let whole = SEQ * WIDTH;
    let forward_and_backward = 3 * LAYERS as usize * (2 + 4);
    let gathers = |recipe| exchanged(&program(&job(fp8(recipe, false), 2)), "tp", Collective::AllGather);
    let of = |list: Vec<u64>, bytes| list.into_iter().filter(|&one| one == bytes).count();
    // The head and the embedding exchange in bf16: an input twice, and a gradient.
    let others = 3 * 3;
    for recipe in [DELAYED, Fp8Recipe::Tensorwise] {
        assert_eq!(of(gathers(recipe), whole), forward_and_backward);
        assert_eq!(of(gathers(recipe), 2 * whole), others);
    }
    // With the scales of its blocks; of gradients both copies at once.
    let blocks = whole + whole / 128 * 4;
    for (bytes, count) in [(blocks, 4), (2 * blocks, 2)] {
        assert_eq!(of(gathers(Fp8Recipe::Blockwise), bytes), 3 * LAYERS as usize * count);
    }
    assert_eq!(of(gathers(Fp8Recipe::Blockwise), 2 * whole), others);
    for matmuls in [Matmuls::Plain, fp8(DELAYED, true), fp8(Fp8Recipe::Blockwise, false)] {
        let scatters = exchanged(&program(&job(matmuls, 2)), "tp", Collective::ReduceScatter);
        assert_eq!(of(scatters, 2 * whole), 3 * (4 * LAYERS as usize + 2));
    }
}

#[test]
fn fp8_beside_matmuls_moves_and_multiplies_as_much() {
    let plain = program(&job(fp8(DELAYED, true), 4));
    let mut overlapping = job(fp8(DELAYED, true), 4);
    overlapping.split.overlap_tensor = Some(Overlap::default());
    let overlapped = program(&overlapping);
    let all = |program, kind| -> u64 {
        ["tp", "tp user buffers"].iter().flat_map(|group| exchanged(program, group, kind)).sum()
    };
    let scatter = Collective::ReduceScatter;
    assert_eq!(all(&plain, scatter), all(&overlapped, scatter));
    // What is gathered for both ways into a linear comes in three messages instead, of a byte for each number.
    let messages = overlapped.step.iter().filter(|instr| matches!(instr, Instr::Exchange { .. })).count();
    assert_eq!(messages, 3 * LAYERS as usize * 4 * 3);
    let gather = Collective::AllGather;
    assert_eq!(all(&plain, gather) - all(&overlapped, gather), 3 * LAYERS * 4 * SEQ * WIDTH);
    for pass in [Pass::Forward, Pass::Backward] {
        assert_eq!(plain.flops_of(pass), overlapped.flops_of(pass));
    }
    let count = |name| launches(&overlapped, name, Pass::Backward);
    assert_eq!(count("te.fp8_transpose"), launches(&plain, "te.fp8_transpose", Pass::Backward));
}

#[test]
fn fp8_maxima_are_reduced_twice_a_micro_batch_over_the_ranks_of_a_stage() {
    let program = program(&job(fp8(DELAYED, true), 2));
    // Four linears of a block, and three products of attention, which has scales though it uses none: input, weight and result
    // in forward, two gradients in backward, 4 B each.
    let [forward, backward] = [3, 2].map(|tensors| 4 * (4 + 3) * LAYERS * tensors);
    assert_eq!(exchanged(&program, "amax", Collective::AllReduce), [forward, backward].repeat(3));
    let group = program.groups.iter().find(|group| group.name == "amax").unwrap();
    assert_eq!((group.size, group.stride), (4, 1));
}

#[test]
fn fp8_scales_of_their_own_are_agreed_on_by_ranks_that_hold_parts() {
    let program = program(&job(fp8(Fp8Recipe::Tensorwise, false), 2));
    // Two norms' results and two gradients of a block, each of a part of the sequence.
    let reduced = exchanged(&program, "tp", Collective::AllReduce);
    let tiny = reduced.into_iter().filter(|&bytes| bytes == 4).count();
    assert_eq!(tiny, 3 * 4 * LAYERS as usize);
    assert!(exchanged(&program, "amax", Collective::AllReduce).is_empty());
}

#[test]
fn fp8_parameters_are_gathered_in_one_byte_unless_numbers_share_scales_and_the_rest_in_two() {
    let (blocks, rest) = (LAYERS * weights(2), 2 * VOCAB * WIDTH / 2 + (2 * LAYERS + 1) * WIDTH);
    let gathers = |matmuls| exchanged(&program(&job(matmuls, 2)), "dp", Collective::AllGather);
    // The sizes are multiples of what buffers are padded to.
    assert_eq!(gathers(Matmuls::Plain), [2 * (blocks + rest)]);
    assert_eq!(gathers(fp8(DELAYED, false)), [2 * (blocks + rest)]);
    assert_eq!(gathers(fp8(DELAYED, true)), [blocks + 2 * rest]);
    // Both copies of an MXFP8 parameter are made of what is gathered, into the buffer of the gradients.
    let mxfp8 = |parameters| fp8(Fp8Recipe::Mxfp8, parameters);
    assert_eq!(gathers(mxfp8(true)), [2 * (blocks + rest)]);
    let scatters = |matmuls| exchanged(&program(&job(matmuls, 2)), "dp", Collective::ReduceScatter);
    assert_eq!(scatters(fp8(DELAYED, true)), scatters(Matmuls::Plain));
    // What is there before the first step: the copies that are multiplied with, beside the parameters.
    assert_eq!(held(Matmuls::Plain), 2 * (blocks + rest));
    assert_eq!(held(fp8(DELAYED, false)), 4 * blocks + 2 * rest);
    assert_eq!(held(fp8(DELAYED, true)), 2 * blocks + 2 * rest);
    let copies = 2 * (blocks + blocks / 32);
    assert_eq!(held(mxfp8(false)), copies + 2 * blocks + 2 * rest);
    // The rest has a buffer to be gathered into, and is not a part of it.
    assert_eq!(held(mxfp8(true)), copies + 4 * rest);
    // As often as under MXFP8 that is gathered wide and kept so, weights are quantised once a step, and no master is cast to fp8.
    let casts = |parameters, name| launches(&program(&job(mxfp8(parameters), 2)), name, Pass::Forward);
    assert_eq!(casts(true, "te.mxfp8_quantize"), casts(false, "te.mxfp8_quantize"));
    assert_eq!(launches(&program(&job(mxfp8(true), 2)), "te.cast", Pass::Optimizer), 0);
    let zeros = |matmuls| {
        let program = program(&job(matmuls, 2));
        let of = |pass| launches(&program, "aten.zero_", pass);
        of(Pass::Forward) + of(Pass::Backward) + of(Pass::Optimizer)
    };
    // The gradients' buffers, and what was gathered into them.
    assert_eq!(zeros(mxfp8(true)), zeros(fp8(DELAYED, true)) + 1);
}

/// Bytes of parameters, and of copies that linears multiply by, before the first step.
fn held(matmuls: Matmuls) -> u64 {
    let program = program(&job(matmuls, 2));
    let names = ["param_data", "parameters", "fp8 weight", "fp8 transposed weight"];
    let buffers = program.setup.iter().filter_map(|instr| match *instr {
        Instr::Alloc { buffer } => Some(program.buffer(buffer)),
        _ => None,
    });
    buffers.filter(|buffer| names.contains(&buffer.name)).map(|buffer| buffer.bytes.0).sum()
}

#[test]
fn fp8_on_a_chip_that_multiplies_whichever_way_operands_lie_has_no_transposed_copies() {
    let (blocks, rest) = (LAYERS * weights(2), 2 * VOCAB * WIDTH / 2 + (2 * LAYERS + 1) * WIDTH);
    for recipe in [DELAYED, Fp8Recipe::Tensorwise] {
        let on_blackwell = |parameters| Matmuls::Fp8 { recipe, parameters, any_layout: true };
        assert_eq!(held(on_blackwell(false)), 3 * blocks + 2 * rest);
        assert_eq!(held(on_blackwell(true)), blocks + 2 * rest);
        let program = program(&job(on_blackwell(true), 2));
        for pass in [Pass::Forward, Pass::Backward] {
            let turned = ["te.fp8_transpose", "te.cast_transpose"].map(|name| launches(&program, name, pass));
            assert_eq!(turned, [0, 0]);
        }
        // Backward still finds one copy of what each linear has read.
        for t in [1, 2] {
            assert_eq!(kept_by_a_block(on_blackwell(false), t), kept_by_a_block(fp8(recipe, false), t));
        }
    }
    let blocks_of_scales = |any_layout| held(Matmuls::Fp8 { recipe: Fp8Recipe::Mxfp8, parameters: true, any_layout });
    assert_eq!(blocks_of_scales(true), blocks_of_scales(false), "their copies differ");
}

#[test]
fn fp8_multiplies_the_linears_of_blocks_and_nothing_else() {
    let flops = |program: &Program, fp8: bool| -> u128 {
        let kernels = program.step.iter().filter_map(|instr| match *instr {
            Instr::Launch { kernel, .. } => Some(program.kernel(kernel).work),
            _ => None,
        });
        let counted = kernels.filter(|work| matches!(work, Work::Matmul { dtype: DType::Fp8, .. }) == fp8);
        counted.map(|work| work.flops().0).sum()
    };
    let plain = program(&job(Matmuls::Plain, 2));
    for recipe in [DELAYED, Fp8Recipe::Tensorwise, Fp8Recipe::Blockwise] {
        let program = program(&job(fp8(recipe, false), 2));
        assert_eq!(flops(&program, true), 3 * 6 * u128::from(SEQ * LAYERS * weights(2)));
        assert_eq!(flops(&program, true) + flops(&program, false), flops(&plain, false));
    }
}

#[test]
fn fp8_that_nobody_has_is_refused_by_name() {
    let refused = |change: &dyn Fn(&mut MegatronPlan)| {
        let mut job = job(fp8(DELAYED, false), 2);
        change(&mut job);
        megatron::refuses(&job).map_or("nothing".into(), |refusal| refusal.problem)
    };
    assert_eq!(refused(&|_| {}), "nothing");
    assert!(refused(&|job| job.split.block.implementation = Implementation::Local).contains("Transformer Engine"));
    let odd = |layer: &mut Layer| {
        if let FeedForward::Dense(dense) = &mut layer.feed_forward {
            dense.width = 1000;
        }
    };
    assert!(refused(&|job| job.split.model.layers.edit(odd)).contains("16"));
    assert!(refused(&|job| job.split.matmuls = fp8(Fp8Recipe::Blockwise, true)).contains("blockwise"));
    let beside = |job: &mut MegatronPlan| {
        job.split.matmuls = fp8(Fp8Recipe::Blockwise, false);
        job.split.overlap_tensor = Some(Overlap::default());
    };
    assert!(refused(&beside).contains("overlap"));
}
