//! Megatron-FSDP in scenarios: what a replica keeps and exchanges in closed form, what its keys change, and what is refused.

use crate::followed;
use crate::make::{self, FILE, MEGATRON, parse, program, replaced};
use windtunnel::program::{Collective, Instr, Program};

/// Sixteen blocks of a model on eight replicas, with everything shared.
pub fn sharded(changes: &[(&str, &str)]) -> String {
    let one_stage = replaced(
        MEGATRON,
        &[
            ("huggingface = \"config.json\"", "name = \"llama-3.2-1b\""),
            ("layers = 4\n", ""),
            ("tp = 2\npp = 2", "tp = 1"),
        ],
    );
    let keys = "
[megatron]
use_megatron_fsdp = true
data_parallel_sharding_strategy = \"optim_grads_params\"
distributed_optimizer = true
overlap_grad_reduce = true
overlap_param_gather = true
";
    replaced(&format!("{one_stage}{keys}"), changes)
}

const STRATEGY: &str = "\"optim_grads_params\"";

/// Bytes that are there before the first step, by what they are.
fn kept(program: &Program, name: &str) -> u64 {
    let blocks = program.setup.iter().filter_map(|instr| match *instr {
        Instr::Alloc { buffer } => Some(program.buffer(buffer)),
        _ => None,
    });
    blocks.filter(|block| block.name == name).map(|block| block.bytes.0).sum()
}

/// Bytes of a step's collectives over replicas.
fn exchanged(program: &Program, kind: Collective) -> u64 {
    let comms = program.step.iter().filter_map(|instr| match *instr {
        Instr::Collective { comm, .. } => Some(program.comm(comm)),
        _ => None,
    });
    comms.filter(|comm| comm.kind == kind && program.group(comm.group).name == "dp").map(|comm| comm.bytes.0).sum()
}

fn refused(changes: &[(&str, &str)]) -> String {
    followed::refusal(FILE, &sharded(changes))
}

#[test]
fn each_strategy_shares_one_thing_more_than_the_one_before() {
    // Llama 3.2 1B's groups, filled up, are its parameters and at most a thousandth more.
    let parameters = 1_235_814_400_u64;
    for (strategy, weights, main, gradients) in
        [("\"no_shard\"", 1, 1, 1), ("\"optim\"", 1, 8, 1), ("\"optim_grads\"", 1, 8, 8), (STRATEGY, 8, 8, 8)]
    {
        let program = program(&sharded(&[(STRATEGY, strategy)]));
        for (name, ranks, bytes) in [("param_data", weights, 2), ("main_param", main, 4), ("grad_data", gradients, 4)] {
            let elements = kept(&program, name) * ranks / bytes;
            let more = elements as f64 / parameters as f64 - 1.0;
            assert!((0.0..0.001).contains(&more), "{strategy} {name}: {elements}");
        }
    }
}

#[test]
fn blocks_are_gathered_for_forward_and_backward_of_each_micro_batch_and_reduced_in_each() {
    // Embedding and last norm are one group, gathered once a step; four micro-batches gather the blocks twice each, but
    // what is gathered at the step's beginning, and at the end of each forward, is there for half of those.
    let near = program(&sharded(&[("[megatron]", "[megatron]\nsuggested_communication_unit_size = 2")]));
    let all = 8 * kept(&near, "param_data");
    let tables = 2 * 128_256 * 2_048;
    let blocks = all - tables;
    let gathered = exchanged(&near, Collective::AllGather) as f64;
    // One block is gathered ahead of the last norm in vain in every micro-batch, and again by the next forward in all but the first.
    let expected = tables as f64 + blocks as f64 * 4.0 * (2.0 + 1.0 / 16.0);
    assert!((gathered / expected - 1.0).abs() < 0.01, "{gathered} {expected}");
    assert_eq!(exchanged(&near, Collective::ReduceScatter), 4 * 2 * all);
}

#[test]
fn under_optim_parameters_and_gradients_cross_once_a_step() {
    let program = program(&sharded(&[(STRATEGY, "\"optim\"")]));
    let all = kept(&program, "param_data");
    assert_eq!(exchanged(&program, Collective::AllGather), all);
    assert_eq!(exchanged(&program, Collective::ReduceScatter), 2 * all);
}

#[test]
fn two_sets_of_blocks_stand_in_for_all_that_would_be_gathered_ahead() {
    let flown = |keys: &str| make::fly(&sharded(&[("[megatron]", &format!("[megatron]\n{keys}"))]));
    let of = |flown: &windtunnel::scenario::Prediction| flown.memory.report.peak_allocated.0;
    let (open, buffered) = (flown(""), flown("fsdp_double_buffer = true"));
    // 973 million elements in blocks: up to half a billion are gathered ahead, and all their gradients may wait.
    assert!(of(&buffered) < of(&open), "{} {}", of(&buffered), of(&open));
}

#[test]
fn a_communicator_of_their_own_lets_gathers_overtake_reductions() {
    let streams = |key: &str| {
        let program = program(&sharded(&[("[megatron]", &format!("[megatron]\n{key}"))]));
        let on = |kind: Collective| {
            program.step.iter().find_map(|instr| match *instr {
                Instr::Collective { stream, comm, .. } if program.comm(comm).kind == kind => Some(stream),
                _ => None,
            })
        };
        [on(Collective::AllGather), on(Collective::ReduceScatter)]
    };
    let [gathers, reductions] = streams("create_all_gather_group = false");
    assert_eq!(gathers, reductions);
    let [gathers, reductions] = streams("create_all_gather_group = true");
    assert_ne!(gathers, reductions);
}

#[test]
fn a_default_is_listed_and_written_out_changes_nothing() {
    let text = sharded(&[]);
    let size = "megatron.suggested_communication_unit_size = 1000000000";
    assert!(parse(&text).assumption_lines().iter().any(|line| line == size));
    let written = sharded(&[("[megatron]", "[megatron]\nsuggested_communication_unit_size = 1_000_000_000")]);
    assert_eq!(program(&text).step, program(&written).step);
}

#[test]
fn megatron_fsdp_is_never_run_in_one_queue() {
    assert!(!parse(&sharded(&[("tp = 1", "tp = 2")])).one_queue);
}

#[test]
fn what_megatron_fsdp_stops_at_or_nobody_has_simulated_is_refused_with_a_remedy() {
    for (from, to, problem, remedy) in [
        ("tp = 1", "tp = 1\npp = 2", "in a pipeline is not simulated", "mesh.pp = 1"),
        ("tp = 1", "tp = 8", "of one replica has nobody to share with", "more chips"),
        ("distributed_optimizer = true", "distributed_optimizer = false", "distributed optimizer alone", "= true"),
        (
            "distributed_optimizer = true",
            "distributed_optimizer = true\nfp8 = \"delayed\"",
            "fp8 matmuls",
            "remove megatron.fp8",
        ),
        (
            "overlap_grad_reduce = true",
            "overlap_grad_reduce = true\ngradient_accumulation_fusion = true",
            "bf16 matmul write to gradients in fp32",
            "gradient_accumulation_fusion = false",
        ),
        (
            "overlap_grad_reduce = true",
            "overlap_grad_reduce = true\nexp_avg_dtype = \"bf16\"",
            "in less than fp32 is not simulated",
            "exp_avg_dtype",
        ),
        (
            "overlap_grad_reduce = true",
            "overlap_grad_reduce = true\ncuda_graph_impl = \"transformer_engine\"",
            "CUDA graphs under use_megatron_fsdp are not simulated",
            "cuda_graph_impl = \"none\"",
        ),
        ("use_megatron_fsdp = true", "use_megatron_fsdp = false", "which is not used", "use_megatron_fsdp = true"),
        ("[mesh]", "[framework]\ndevice_max_connections = 1\n\n[mesh]", "CUDA_DEVICE_MAX_CONNECTIONS", "= 8"),
        ("name = \"llama-3.2-1b\"", "name = \"mixtral-8x7b\"", "mixture of experts is not simulated", "dense model"),
        ("[mesh]", "[precision]\nparam = \"fp16\"\n\n[mesh]", "in another type than bf16 is not simulated", "bf16"),
    ] {
        let said = refused(&[(from, to)]);
        assert!(said.contains(problem), "{to}\n{said}");
        assert!(said.lines().last().unwrap().contains(remedy), "{to}\n{said}");
    }
    let said = refused(&[(STRATEGY, "\"no_shard\""), ("overlap_param_gather = true", "overlap_param_gather = false")]);
    assert!(said.contains("under no_shard") && said.contains("overlap_param_gather = true"), "{said}");
    let said = refused(&[(STRATEGY, "\"everything\"")]);
    assert!(said.contains("optim_grads_params"), "{said}");
}
