//! Shared experts beside the exchanges of the routed ones (`moe_shared_expert_overlap`), in scenarios.

use std::collections::BTreeMap;

use windtunnel::program::{Instr, Pass, Program, StreamId};

use crate::command::Folder;
use crate::make::{fly, parse};

/// Three dense blocks of DeepSeek-V3's and two with experts, these over two nodes.
pub const PLAN: &str = r#"runtime = "megatron"

[topology]
name = "h100-sxm-80gb"
nodes = 2

[model]
name = "deepseek-v3"
layers = 5

[mesh]
tp = 2
ep = 16
etp = 1

[batch]
sequence = 4096
accumulation = 2

[tensor_parallel]
sequence = true

[megatron]
moe_aux_loss = true
moe_token_dispatcher_type = "alltoall"
moe_shared_expert_overlap = true
mtp_num_layers = 0
"#;

#[test]
fn shared_experts_beside_exchanges_do_the_same_work_and_exchanges_are_waited_for_less() {
    let before = PLAN.replacen("moe_shared_expert_overlap = true", "moe_shared_expert_overlap = false", 1);
    let [beside, before] = [PLAN, &before].map(fly);
    assert_eq!(beside.classes[0].program.flops, before.classes[0].program.flops);
    assert!(beside.step < before.step, "{:?} and {:?}", beside.step, before.step);
    assert!(beside.breakdown.exposed_communication < before.breakdown.exposed_communication);
}

#[test]
fn in_one_queue_a_wait_for_another_stream_holds_up_the_shared_experts() {
    let with = |line: &str| fly(&format!("{PLAN}{line}"));
    let own = with("waited_collectives = \"own_stream\"\n");
    let queues = "\n[framework]\ndevice_max_connections = 32\n";
    assert!(own.breakdown.exposed_communication > with("").breakdown.exposed_communication);
    // With a queue for each stream it does not matter.
    let many = with(&format!("waited_collectives = \"own_stream\"\n{queues}"));
    assert!(many.breakdown.exposed_communication < own.breakdown.exposed_communication);
}

#[test]
fn the_sum_of_all_experts_waits_for_the_shared_ones_and_so_does_the_optimizer() {
    let program: Program = parse(PLAN).job.compile().programs().remove(0);
    let shared = program.streams.iter().position(|name| *name == "shared experts").expect("they have a stream");
    // Of each stream and event: how many kernels of the shared experts' stream they are behind.
    let (mut streams, mut events) = (vec![0; program.streams.len()], BTreeMap::new());
    let mut sums = 0;
    for instr in &program.step {
        match *instr {
            Instr::Launch { stream, .. } if usize::from(stream.0) == shared => streams[shared] += 1,
            Instr::Launch { stream: StreamId(0), kernel, .. } => {
                let kernel = program.kernel(kernel);
                if kernel.name == "aten.add_" && kernel.pass == Pass::Forward {
                    assert_eq!(streams[0], streams[shared]);
                    sums += 1;
                }
                assert!(kernel.pass != Pass::Optimizer || streams[0] == streams[shared]);
            }
            Instr::Record { stream, event } => _ = events.insert(event.0, streams[usize::from(stream.0)]),
            Instr::Wait { stream, event } => {
                let stream = usize::from(stream.0);
                streams[stream] = streams[stream].max(events.get(&event.0).copied().unwrap_or(0));
            }
            _ => {}
        }
    }
    // Of two blocks with experts and two micro-batches: the sum, and the router's count of what each expert gets.
    assert_eq!(sums, 2 * 2 * 2);
    assert_eq!(streams[shared], 2 * 2 * 8, "three kernels forward and five back of each");
}

#[test]
fn shared_experts_beside_exchanges_say_what_they_need() {
    let folder = Folder::new("megatron-shared");
    for (old, new, problem, remedy) in [
        ("deepseek-v3", "qwen3-30b-a3b", "and qwen3-30b-a3b has none", "remove the key"),
        ("deepseek-v3", "llama-3.1-8b", "says how experts are run", "remove the key"),
        (
            "\"alltoall\"",
            "\"flex\"",
            "is for the dispatcher \"alltoall\", not \"flex\"",
            "moe_token_dispatcher_type = \"alltoall\"",
        ),
        (
            "[megatron]\n",
            "[megatron]\nrecompute_modules = [\"shared_experts\"]\n",
            "recompute_modules runs all of them again",
            "remove \"shared_experts\" from the list",
        ),
        (
            "[megatron]\n",
            "[megatron]\ncuda_graph_impl = \"transformer_engine\"\ncuda_graph_scope = [\"moe_router\"]\n",
            "in CUDA graphs with overlapped shared experts are not simulated",
            "narrow cuda_graph_scope",
        ),
        (
            "moe_shared_expert_overlap = true",
            "waited_collectives = \"own_stream\"",
            "which matters where others overlap with them",
            "write megatron.moe_shared_expert_overlap = true",
        ),
        (
            "ep = 16\netp = 1\n",
            "ep = 4\netp = 1\npp = 2\n\n[pipeline]\nvirtual_stages = 2\nlayers = [1, 1, 1, 2]\n",
            "both fill the time of exchanges",
            "remove one of the two keys",
        ),
    ] {
        let mut text = PLAN.replacen(old, new, 1);
        if new.contains("llama") {
            text = text.replacen("ep = 16\netp = 1\n", "", 1);
            text = text.replacen("moe_aux_loss = true\nmoe_token_dispatcher_type = \"alltoall\"\n", "", 1);
        }
        if new.contains("pipeline") {
            text += "overlap_moe_expert_parallel_comm = true\n";
        }
        folder.write("my.toml", &text);
        let said = folder.refuses(&["run", "my.toml"]);
        assert!(said.contains("moe_shared_expert_overlap") || new.contains("cuda"), "{said}");
        assert!(said.contains(problem) && said.contains(remedy), "{new}\n{said}");
    }
}
