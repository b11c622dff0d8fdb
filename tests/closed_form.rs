//! What can be worked out by hand: bytes of parameters and of the optimizer, FLOPs, and which way things grow.

use windtunnel::program::{Category, Instr, Pass, Program, Work};
use windtunnel::scenario::{Prediction, Scenario};
use windtunnel::units::Time;

use crate::make::{self, FILE, TINY, apply, fly, with};

fn compile(text: &str) -> Program {
    make::program(text)
}

/// Bytes of a category that a rank allocates before its second step.
fn bytes(program: &Program, category: Category) -> u64 {
    let of = |instr: &Instr| match *instr {
        Instr::Alloc { buffer } if program.buffer(buffer).category == category => program.buffer(buffer).bytes.0,
        _ => 0,
    };
    program.before_second().map(of).sum()
}

/// FLOPs of the kernels of one pass in a step.
fn flops(program: &Program, pass: Pass) -> u128 {
    let of = |instr: &Instr| match *instr {
        Instr::Launch { kernel, .. } if program.kernel(kernel).pass == pass => program.kernel(kernel).work.flops().0,
        _ => 0,
    };
    program.step.iter().map(of).sum()
}

/// Parameters of the tiny model, counted by hand.
const D: u64 = 64;
const F: u64 = 160;
const V: u64 = 512;
const KV: u64 = 2 * 16;
const BLOCK: u64 = D * (D + 2 * KV) + D * D + 3 * D * F + 2 * D;
const PARAMETERS: u64 = V * D + 3 * BLOCK + D + V * D;

#[test]
fn parameters_are_counted_by_hand() {
    assert_eq!(make::parse(TINY).job.model().params().total, PARAMETERS);
}

#[test]
fn a_rank_holds_its_share_of_the_parameters_and_twice_that_of_moments() {
    for shard in [1, 2, 4, 8] {
        let text = make::with(TINY, "mesh", "dp_shard", shard);
        let program = compile(&make::with(&text, "optimizer", "implementation", "fused"));
        // All rows divide by 8, so nothing is padded; Adam keeps two moments and a step counter of 4 B for each tensor.
        let share = 4 * PARAMETERS / shard as u64;
        let tensors = 1 + 3 * 9 + 2;
        assert_eq!(bytes(&program, Category::Parameter), share);
        assert_eq!(bytes(&program, Category::OptimizerState), 2 * share + 4 * tensors);
    }
}

#[test]
fn plain_sgd_keeps_no_state() {
    let text = make::with(TINY, "optimizer", "name", "sgd");
    assert_eq!(bytes(&compile(&text), Category::OptimizerState), 0);
}

#[test]
fn a_forward_is_two_flops_for_each_weight_and_token_and_four_for_each_pair_of_tokens() {
    let (batch, seq) = (1, 128);
    let weights = u128::from(PARAMETERS - V * D - 7 * D);
    let attention = 3 * 4 * seq * seq * u128::from(D) * batch;
    let program = compile(TINY);
    assert_eq!(flops(&program, Pass::Forward), 2 * weights * seq * batch + attention);
}

#[test]
fn backward_is_twice_the_matmuls_and_five_halves_of_the_attention() {
    let program = compile(TINY);
    let attention = 3 * 4 * 128 * 128 * u128::from(D);
    let matmuls = flops(&program, Pass::Forward) - attention;
    assert_eq!(flops(&program, Pass::Backward), 2 * matmuls + attention * 5 / 2);
}

#[test]
fn full_recompute_runs_the_blocks_forward_once_more_up_to_the_last_matmul() {
    let plain = compile(TINY);
    let full = |early_stop: bool| {
        let text = make::with(TINY, "activation_checkpointing", "policy", "full");
        compile(&make::with(&text, "activation_checkpointing", "early_stop", early_stop))
    };
    let head = 2 * u128::from(V * D) * 128;
    let blocks = flops(&plain, Pass::Forward) - head;
    let program = full(false);
    assert_eq!(flops(&program, Pass::Recompute), blocks);
    assert_eq!(flops(&program, Pass::Forward), flops(&plain, Pass::Forward));
    assert_eq!(flops(&program, Pass::Backward), flops(&plain, Pass::Backward));
    assert_eq!(program.flops.0, plain.flops.0 + blocks);
    // With early stop, the down projection's output, which nothing saves, is not computed again.
    let down = 3 * 2 * u128::from(F * D) * 128;
    assert_eq!(flops(&full(true), Pass::Recompute), blocks - down);
}

/// Two ranks share the tiny model's four query heads, two key-value heads, feed-forward width and vocabulary.
fn split(sequence: bool) -> String {
    apply(TINY, &format!("mesh.tp = 2, mesh.dp_shard = 4, tensor_parallel.sequence = {sequence}"))
}

#[test]
fn tensor_parallel_ranks_share_the_matmuls_and_the_attention_equally() {
    let whole = compile(TINY);
    for program in [compile(&split(true)), compile(&split(false))] {
        for pass in [Pass::Forward, Pass::Backward] {
            assert_eq!(2 * flops(&program, pass), flops(&whole, pass));
        }
    }
}

#[test]
fn tensor_parallel_ranks_share_all_parameters_but_those_of_norms() {
    let norms = 7 * D;
    let program = compile(&split(true));
    assert_eq!(bytes(&program, Category::Parameter), 4 * (PARAMETERS - norms) / 2 / 4 + 4 * norms / 4);
}

#[test]
fn tensor_parallel_ranks_exchange_the_activations_of_a_block_eight_times() {
    use windtunnel::program::Collective;
    let bytes = |program: &Program, kind| -> u64 {
        let of = |instr: &Instr| match *instr {
            Instr::Collective { comm, .. } => Some(program.comm(comm)),
            _ => None,
        };
        let tp = |comm: &&windtunnel::program::Comm| program.groups[comm.group.0 as usize].name == "tp";
        program.step.iter().filter_map(of).filter(tp).filter(|comm| comm.kind == kind).map(|comm| comm.bytes.0).sum()
    };
    let activations = 2 * 128 * D;
    let program = compile(&split(true));
    // Two gathers and two reduce-scatters each way in each of three blocks (arXiv 2205.05198, section 4.2.2); the
    // embedding's sum and the head's gather likewise.
    assert_eq!(bytes(&program, Collective::AllGather), (3 * 4 + 2) * activations);
    assert_eq!(bytes(&program, Collective::ReduceScatter), (3 * 4 + 2) * activations);
    // Three numbers a token for the loss, the norms' gradients in fp32, and the norm that gradients are clipped to.
    assert_eq!(bytes(&program, Collective::AllReduce), 3 * 4 * 128 + 7 * 4 * D + 4);
    // Without sequence parallelism: two sums forward in each block, and one backward for each linear that reads the
    // residual stream; the embedding's sum, and the head's.
    let program = compile(&split(false));
    assert_eq!(bytes(&program, Collective::AllReduce), (3 * (2 + 5) + 2) * activations + 3 * 4 * 128 + 4);
}

#[test]
fn twice_the_micro_batches_are_twice_the_flops() {
    for policy in ["none", "full", "selective_op"] {
        let text = make::with(TINY, "activation_checkpointing", "policy", policy);
        let [once, twice] = [1, 2].map(|count| compile(&make::with(&text, "batch", "accumulation", count)));
        for pass in [Pass::Forward, Pass::Backward, Pass::Recompute] {
            assert_eq!(2 * flops(&once, pass), flops(&twice, pass), "{policy}");
        }
    }
}

const LLAMA: &str = include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml");

/// Kernels that compute, as opposed to those that copy for a collective or step the optimizer.
fn compute(answer: &Prediction) -> Time {
    let groups = ["forward", "backward", "recompute"];
    answer.parts.iter().filter(|part| groups.contains(&part.group)).map(|part| part.busy).sum()
}

#[test]
fn twice_the_micro_batches_take_about_twice_the_time() {
    let [once, twice] = [1, 2].map(|count| make::fly(&make::with(LLAMA, "batch", "accumulation", count)));
    let ratio = compute(&twice).seconds() / compute(&once).seconds();
    assert!((1.95..2.05).contains(&ratio), "{ratio}");
    assert_eq!(twice.tokens, 2 * once.tokens);
    assert!(twice.step > once.step && twice.step.0 < 2 * once.step.0 + once.step.0 / 20);
}

#[test]
fn a_longer_sequence_takes_longer_and_needs_more() {
    let lengths = [512, 1024, 2048, 4096, 8192, 16384];
    let answers = lengths.map(|length| make::fly(&make::with(LLAMA, "batch", "sequence", length)));
    for pair in answers.windows(2) {
        assert!(pair[0].step < pair[1].step);
        assert!(pair[0].memory.report.peak_allocated < pair[1].memory.report.peak_allocated);
    }
    // Attention grows with the square, the rest with the length: between two and four times.
    let ratio = answers[5].step.seconds() / answers[4].step.seconds();
    assert!((2.0..4.0).contains(&ratio), "{ratio}");
}

#[test]
fn the_wider_the_sharding_the_lower_the_peak() {
    let answers = [1, 2, 4, 8].map(|shard| make::fly(&make::with(LLAMA, "mesh", "dp_shard", shard)));
    for pair in answers.windows(2) {
        assert!(pair[0].memory.report.peak_allocated > pair[1].memory.report.peak_allocated);
    }
}

#[test]
fn every_block_kept_costs_memory_and_every_block_recomputed_costs_time() {
    let [none, selective, full] = ["none", "selective_op", "full"]
        .map(|policy| make::fly(&make::with(LLAMA, "activation_checkpointing", "policy", policy)));
    assert!(none.memory.report.peak_allocated > selective.memory.report.peak_allocated);
    assert!(selective.memory.report.peak_allocated > full.memory.report.peak_allocated);
    assert!(none.step < selective.step && selective.step < full.step);
}

#[test]
fn mfu_is_model_flops_over_peak() {
    let answer = make::fly(LLAMA);
    let peak = make::parse(LLAMA).topology.chip.peak.bf16.0;
    for mfu in &answer.mfu {
        let expected = mfu.flops.0 as f64 / (8.0 * peak * answer.step.seconds());
        assert!((mfu.utilisation - expected).abs() < 1e-12, "{}", mfu.name);
    }
}

#[test]
fn a_longer_table_of_positions_is_so_many_more_parameters() {
    let gpt2 = TINY.replace("huggingface = \"config.json\"", "name = \"gpt2\"");
    let long = make::with(&make::with(&gpt2, "model", "positions", 4096), "batch", "sequence", 4096);
    let more = make::parse(&long).job.model().params().total - make::parse(&gpt2).job.model().params().total;
    assert_eq!(more, (4096 - 1024) * 768);
}

#[test]
fn a_slower_network_slows_what_crosses_it_by_its_line_rate() {
    let two_nodes = include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml");
    let two_nodes = apply(two_nodes, "topology.nodes = 2, mesh.dp_shard = 16, model.layers = 2, batch.sequence = 512");
    let wide = with(&two_nodes, "topology", "nic_bandwidth", "50 GB/s");
    assert_eq!(fly(&two_nodes).step, fly(&wide).step, "the topology's own network");
    let narrow = with(&two_nodes, "topology", "nic_bandwidth", "6.25 GB/s");
    // Both are bound by the network, which carries an eighth.
    let ratio = fly(&narrow).step.seconds() / fly(&wide).step.seconds();
    assert!((4.0..=8.0).contains(&ratio), "{ratio}");
    assert!(Scenario::parse(FILE, &with(&two_nodes, "topology", "nic_bandwidth", "0 GB/s")).is_err());
}

#[test]
fn a_compiled_loss_never_holds_logits_in_fp32() {
    let eager = apply(TINY, "batch.sequence = 8192, model.tied_head = true");
    let compiled = with(&eager, "compile", "loss", true);
    // Eager holds the log-softmax and, at the peak, two gradients of the same size; compiled the logits and one in bf16.
    let largest = |text: &str| {
        let program = compile(text);
        let logits = program.buffers.iter().filter(|buffer| buffer.name.contains("softmax"));
        logits.map(|buffer| buffer.bytes.0).max().unwrap()
    };
    let words = 8192 * make::parse(TINY).job.model().vocab;
    assert_eq!((largest(&eager), largest(&compiled)), (4 * words, 2 * words));
    assert!(fly(&compiled).step < fly(&eager).step);
}

#[test]
fn a_head_by_vocabulary_runs_four_matmuls_where_whole_logits_take_three() {
    let text = apply(TINY, "batch.sequence = 1024");
    let parts = apply(&text, "loss.kind = 'vocabulary_chunked', loss.words = 96");
    let scenario = make::parse(&text);
    let model = scenario.job.model();
    let matmul = 2 * 1024 * u128::from(model.width * model.vocab);
    assert_eq!(compile(&parts).flops.0 - compile(&text).flops.0, matmul);
    // The host waits for an answer for each of 6 parts, forward and backward.
    let waits = |text: &str| compile(text).step.iter().filter(|instr| matches!(instr, Instr::HostWait { .. })).count();
    assert_eq!(waits(&parts) - waits(&text), 12);
}

#[test]
fn a_checkpoint_around_a_compiled_block_runs_all_of_it_again() {
    let text = apply(TINY, "compile.blocks = true, activation_checkpointing.policy = 'full'");
    let around = with(&text, "activation_checkpointing", "around_compiled", true);
    let forward: u128 = {
        let once = compile(&apply(TINY, "compile.blocks = true"));
        let scenario = make::parse(TINY);
        let model = scenario.job.model();
        flops(&once, Pass::Forward) - 2 * 128 * u128::from(model.width * model.vocab)
    };
    assert_eq!(flops(&compile(&around), Pass::Recompute), forward);
    assert!(flops(&compile(&text), Pass::Recompute) < forward, "compiled together, what nobody reads is left out");
}

#[test]
fn inputs_of_checkpoints_go_to_the_host_and_come_back_once() {
    let text = apply(TINY, "batch.sequence = 1024, activation_checkpointing.policy = 'full'");
    let copied = |text: &str, to_host: bool| -> u64 {
        let program = compile(text);
        let of = |instr: &Instr| match instr {
            Instr::Launch { kernel, .. } => match program.kernel(*kernel).work {
                Work::HostCopy { bytes, to_host: there } if there == to_host => bytes.0,
                _ => 0,
            },
            _ => 0,
        };
        program.step.iter().map(of).sum()
    };
    let scenario = make::parse(&text);
    let model = scenario.job.model();
    let all = model.layers.count() * 1024 * model.width * 2;
    let on = |stream: &str| with(&text, "activation_checkpointing", "offload", stream);
    assert_eq!((copied(&on("default_stream"), true), copied(&on("default_stream"), false)), (all, all));
    // The last is still there when backward begins; the others that are go when it is used.
    assert_eq!(
        (copied(&on("own_stream"), true), copied(&on("own_stream"), false)),
        (all, all - 1024 * model.width * 2)
    );
}

#[test]
fn an_attention_that_reads_back_waits_once_in_each_forward_and_recompute() {
    let waits = |change: &str| {
        let program = compile(&apply(TINY, change));
        program.step.iter().filter(|instr| matches!(instr, Instr::HostWait { .. })).count() as u64
    };
    let layers = make::parse(TINY).job.model().layers.count();
    let base = waits("batch.sequence = 128");
    assert_eq!(waits("attention.reads_back = true") - base, layers);
    assert_eq!(waits("attention.reads_back = true, activation_checkpointing.policy = 'full'") - base, 2 * layers);
    assert_eq!(waits("attention.reads_back = true, compile.blocks = true") - base, layers);
}
