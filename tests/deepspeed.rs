//! Megatron's modules in DeepSpeed's pipeline engine: what is passed on, what is gathered, what is refused.

use std::collections::BTreeMap;

use windtunnel::program::{Collective, Direction, Instr, Program};

use crate::command::Folder;
use crate::make;

/// Four stages of two blocks, 2,304 wide, over two tensor-parallel ranks; eight micro-batches of 2,048 tokens in fp16.
const GPT: &str = r#"runtime = "deepspeed"

[topology]
name = "a100-sxm-80gb"
nodes = 1

[model]
name = "gpt-megatron-1.7b"
layers = 8

[mesh]
tp = 2
pp = 4

[batch]
sequence = 2048
accumulation = 8

[precision]
param = "fp16"
"#;

/// Bytes of a hidden state.
const HIDDEN: u64 = 2048 * 2304 * 2;

fn stages(text: &str) -> Vec<Program> {
    make::parse(text).job.compile().programs()
}

/// How often messages of each size go in each direction in a step.
fn messages(program: &Program) -> BTreeMap<(bool, u64), usize> {
    let mut counts = BTreeMap::new();
    for instr in &program.step {
        let Instr::Exchange { exchange, .. } = *instr else { continue };
        let ends = &program.exchanges[exchange.0 as usize];
        assert_eq!(ends.len(), 1, "every message is a call of its own");
        let end = program.transfers[ends[0].0 as usize];
        *counts.entry((end.direction == Direction::Send, end.bytes.0)).or_default() += 1;
    }
    counts
}

/// How often a collective of a kind and size runs over a group in a step.
fn collectives(program: &Program, group: &str, kind: Collective) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    for instr in &program.step {
        let Instr::Collective { comm, .. } = *instr else { continue };
        let comm = program.comms[comm.0 as usize];
        if comm.kind == kind && program.groups[comm.group.0 as usize].name == group {
            *counts.entry(comm.bytes.0).or_default() += 1;
        }
    }
    counts
}

#[test]
fn tensor_parallel_ranks_pass_slices_behind_what_describes_them() {
    // Nine numbers of eight bytes: three sizes and their count, how many slices, which one, and three bounds.
    let (slice, meta) = (HIDDEN / 2, 9 * 8);
    for (stage, program) in stages(GPT).iter().enumerate() {
        let neighbours = if stage == 0 || stage == 3 { 1 } else { 2 };
        let each = 8 * neighbours;
        let expected = BTreeMap::from([
            ((true, slice), each),
            ((true, meta), each),
            ((false, slice), each),
            ((false, meta), each),
        ]);
        assert_eq!(messages(program), expected, "stage {stage}");
    }
}

#[test]
fn a_middle_stage_gathers_three_times_a_micro_batch() {
    // Its input, then in backward the output once more and the output's gradient.
    for (program, times) in stages(GPT).iter().zip([2, 3, 3, 1]) {
        assert_eq!(collectives(program, "tp", Collective::AllGather), BTreeMap::from([(HIDDEN, 8 * times)]));
    }
}

#[test]
fn what_one_rank_holds_whole_is_one_message() {
    for program in stages(&GPT.replace("tp = 2", "tp = 1")) {
        assert!(messages(&program).keys().all(|&(_, bytes)| bytes == HIDDEN));
        assert!(collectives(&program, "tp", Collective::AllGather).is_empty());
    }
}

#[test]
fn gradients_are_summed_on_every_replica_though_each_steps_a_part() {
    let two = GPT.replace("pp = 4", "pp = 2") + "\n[megatron]\ndistributed_optimizer = true\n";
    for (runtime, kind, other) in [
        ("deepspeed", Collective::AllReduce, Collective::ReduceScatter),
        ("megatron", Collective::ReduceScatter, Collective::AllReduce),
    ] {
        let text = two.replace("\"deepspeed\"", &format!("{runtime:?}"));
        let program = &stages(&text)[0];
        assert!(!collectives(program, "dp", kind).is_empty(), "{runtime}");
        assert!(collectives(program, "dp", other).is_empty(), "{runtime}");
        assert!(!collectives(program, "dp", Collective::AllGather).is_empty(), "{runtime}");
    }
}

#[test]
fn bf16_costs_four_bytes_a_parameter_that_no_replica_shares() {
    // So BLOOM's chronicle counts it on 28 February 2022, against fp16: sums in fp32 for those in fp16, beside gradients that stay.
    let two = GPT.replace("pp = 4", "pp = 2") + "\n[megatron]\ndistributed_optimizer = true\n";
    let gradients = |text: &str| {
        let program = &stages(text)[0];
        let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
        for instr in &program.setup {
            let Instr::Alloc { buffer } = *instr else { continue };
            let buffer = program.buffer(buffer);
            *bytes.entry(buffer.name).or_default() += buffer.bytes.0;
        }
        ["param_data", "grad_data", "grad"].map(|name| bytes.get(name).copied().unwrap_or(0))
    };
    let [parameters, sums, beside] = gradients(&two);
    assert_eq!((sums, beside), (parameters, 0));
    let [same, wider, kept] = gradients(&two.replace("\"fp16\"", "\"bf16\""));
    assert_eq!((same, wider), (parameters, 2 * parameters));
    // The buffers are padded, each gradient is not.
    let more = (wider + kept - sums) as f64 / (parameters as f64 / 2.0);
    assert!((3.999..=4.0).contains(&more), "{more} bytes a parameter");
}

#[test]
fn sums_in_fp32_are_reduced_in_bf16() {
    let two = GPT.replace("pp = 4", "pp = 2").replace("\"fp16\"", "\"bf16\"");
    let reduced: u64 = collectives(&stages(&two)[0], "dp", Collective::AllReduce).keys().sum();
    let fp16: u64 = collectives(&stages(&GPT.replace("pp = 4", "pp = 2"))[0], "dp", Collective::AllReduce).keys().sum();
    assert_eq!(reduced, fp16);
}

#[test]
fn a_micro_batch_more_keeps_nothing_more() {
    let kept = |text: &str| -> Vec<i64> {
        let balance = |program: &Program| {
            program.step.iter().fold(0, |sum, instr| match instr {
                Instr::Alloc { .. } => sum + 1,
                Instr::Free { .. } => sum - 1,
                _ => sum,
            })
        };
        stages(text).iter().map(balance).collect()
    };
    assert_eq!(kept(GPT), kept(&GPT.replace("accumulation = 8", "accumulation = 12")));
}

#[test]
fn messages_that_block_cost_themselves_and_no_more_than_that() {
    // Two neighbours meet once a forward and a backward, so the period stays F + B = 3·F and what the messages take. If all
    // stages went in step it would be that and 2·B = 4·F.
    let wide = GPT.replace("1.7b", "39.1b");
    let period = |runtime: &str| {
        let time = |count: u32| {
            let text = wide.replace("accumulation = 8", &format!("accumulation = {count}"));
            make::fly(&text.replace("\"deepspeed\"", runtime)).step.seconds()
        };
        (time(32) - time(16)) / 16.0
    };
    let ratio = period("\"deepspeed\"") / period("\"megatron\"");
    assert!((1.0..1.25).contains(&ratio), "{ratio}");
}

#[test]
fn a_host_that_waits_for_every_launch_does_its_own_work_between_them() {
    let one = GPT.replace("tp = 2", "tp = 1").replace("pp = 4", "pp = 1").replace("nodes = 1", "chips = 1");
    let waits = make::with(&one, "framework", "launch_blocking", true);
    let (free, held) = (make::fly(&one), make::fly(&waits));
    // The same kernels, one at a time: what the device does takes as long as before, what the host does is no longer hidden.
    assert_eq!(free.breakdown.compute, held.breakdown.compute);
    let program = held.programs()[0];
    let launches = program.step.iter().filter(|instr| matches!(instr, Instr::Launch { .. })).count();
    let each = (held.step.seconds() - free.step.seconds()) / launches as f64;
    assert!((10e-6..100e-6).contains(&each), "{each} s a launch");
}

#[test]
fn with_blocking_launches_nothing_is_issued_before_the_last_has_ended() {
    for program in stages(GPT).into_iter().map(Program::blocking) {
        for (at, instr) in program.step.iter().enumerate() {
            let (Instr::Launch { stream, .. } | Instr::Collective { stream, .. } | Instr::Exchange { stream, .. }) =
                *instr
            else {
                continue;
            };
            let Instr::Record { stream: marked, event } = program.step[at + 1] else { panic!("no event") };
            assert_eq!(marked, stream);
            assert_eq!(program.step[at + 2], Instr::HostWait { event });
        }
    }
}

#[test]
fn what_the_engine_does_not_have_is_refused_with_what_would_do() {
    let add = |line: &str| format!("{GPT}\n{line}\n");
    let cases = [
        (
            add("[megatron]\nimplementation = \"transformer_engine\""),
            "transformer_engine",
            "implementation = \"local\"",
        ),
        (add("[megatron]\ngradient_accumulation_fusion = true"), "gradient_accumulation_fusion", "fusion = false"),
        (add("[megatron]\noverlap_grad_reduce = true"), "overlap_grad_reduce", "reduce = false"),
        (
            add("[megatron]\ncross_entropy_loss_fusion = true\ncross_entropy_fusion_impl = \"te\""),
            "cross_entropy_fusion_impl",
            "cross_entropy_fusion_impl = \"native\"",
        ),
        (add("[pipeline]\nvirtual_stages = 2"), "virtual_stages", "virtual_stages = 1"),
        (add("[pipeline]\nschedule = \"GPipe\""), "GPipe", "DeepSpeed1F1B"),
        (add("[tensor_parallel]\nsequence = true"), "tensor_parallel.sequence", "sequence = false"),
        (add("[fsdp]\nreshard_after_forward = true"), "runtime = \"deepspeed\"", "megatron.distributed_optimizer"),
    ];
    for (number, (text, problem, remedy)) in cases.iter().enumerate() {
        let folder = Folder::new(&format!("deepspeed-{number}"));
        folder.write("my.toml", text);
        let said = folder.refuses(&["run", "my.toml"]);
        assert!(said.contains(problem) && said.contains(remedy) && said.contains("--> my.toml:"), "{said}");
    }
}
