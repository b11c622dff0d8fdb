//! Mixtures of experts in scenarios: what is flown, what is only described, what is refused and how.

use std::collections::BTreeMap;

use windtunnel::model::block;
use windtunnel::model::huggingface::shipped;
use windtunnel::model::style::Style;
use windtunnel::model::tensor::TensorParallel;
use windtunnel::program::{Category, Collective, DType, Direction, ExchangeId, Instr, Pass, Program, StreamId};
use windtunnel::scenario::predict::{Prediction, Settings};
use windtunnel::scenario::{Scenario, predict};

use crate::command::Folder;
use crate::make::{FILE, parse};

/// A shipped model, four blocks of it, on one node.
fn scenario(model: &str, rest: &str) -> String {
    format!(
        r#"runtime = "fsdp2"

[topology]
name = "h100-sxm-80gb"
nodes = 1

[model]
name = "{model}"
layers = 4

[mesh]

[batch]
sequence = 1024

{rest}"#
    )
}

fn refusal(text: &str) -> String {
    let answer = Scenario::parse(FILE, text).and_then(|scenario| predict(&scenario, Settings::default()));
    answer.map(|_| ()).expect_err("should be refused").to_string()
}

#[test]
fn every_model_with_experts_is_described_and_flown_or_refused_by_name() {
    for (model, missing) in [
        ("mixtral-8x7b", None),
        ("mixtral-8x22b", None),
        ("qwen3-30b-a3b", None),
        ("qwen3-235b-a22b", None),
        ("deepseek-v2-lite", Some("a router whose weights do not sum to one")),
        ("deepseek-v2", Some("a router whose weights do not sum to one")),
        ("deepseek-v3", Some("a router that is no softmax over all experts, or over the chosen ones")),
        ("gpt-oss-20b", Some("attention sinks")),
        ("gpt-oss-120b", Some("attention sinks")),
    ] {
        let text = scenario(model, "");
        let understood = parse(&text);
        assert!(
            understood.assumption_lines().iter().any(|line| line.starts_with("framework.experts = \"grouped\"")),
            "{model}"
        );
        match missing {
            None => assert!(understood.simulable().is_ok(), "{model}"),
            Some(what) => {
                let said = refusal(&text);
                assert!(
                    said.contains(&format!("{model} needs {what}, which is described but not simulated")),
                    "{said}"
                );
                let flies = model.starts_with("deepseek");
                let remedy =
                    if flies { "write framework.experts = \"torchtitan\"" } else { "take mixtral-8x7b, qwen3" };
                assert!(said.contains(remedy), "{said}");
            }
        }
    }
}

#[test]
fn every_model_with_experts_can_be_shown() {
    for (model, says) in [
        ("mixtral-8x7b", "E=8 k=2 X=14336 · 32 blocks with experts of 1451270144 parameters"),
        ("deepseek-v3", "E=256 k=8 X=2048 (shared ones 2048 wide) · 58 blocks with experts of"),
        ("gpt-oss-120b", "gpt-oss-120b (116.829 B parameters, 5.712 B active)"),
    ] {
        let folder = Folder::new(&format!("show-{model}"));
        folder.write("my.toml", &scenario(model, "[framework]\nexperts = \"loop\"\n").replacen("layers = 4\n", "", 1));
        let output = folder.windtunnel(&["show", "model", "my.toml"]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.contains(says), "{said}");
        // Alike experts share a line.
        assert!(said.lines().count() < 120 && said.contains(" × "), "{said}");
        let refused = folder.windtunnel(&["show", "program", "my.toml"]).status.code();
        assert_eq!(refused, Some(if model == "mixtral-8x7b" { 0 } else { 2 }), "{model}");
    }
}

#[test]
fn operators_hold_the_parameters_that_are_counted() {
    for name in ["mixtral-8x22b", "qwen3-235b-a22b", "deepseek-v2-lite", "deepseek-v2"] {
        let model = shipped::named(name).unwrap();
        let dims = block::dims(&model, 1, 1024, TensorParallel::NONE);
        for layer in model.layers.kinds() {
            let graph = block::block(&model, dims, DType::Bf16, layer, Style::default());
            let held: u64 = graph.params.iter().map(|param| param.elements()).sum();
            assert_eq!(held, layer.params(model.width).0, "{name}");
        }
    }
}

#[test]
fn what_has_no_rules_for_experts_is_refused() {
    for (rest, what) in [
        ("[compile]\nblocks = true\n", "compiled blocks with experts"),
        ("[activation_checkpointing]\npolicy = \"selective_op\"\n", "selective checkpointing of blocks with experts"),
    ] {
        let said = refusal(&scenario("mixtral-8x7b", rest));
        assert!(said.contains(what), "{said}");
    }
    let split = scenario("mixtral-8x7b", "").replacen("[mesh]", "[mesh]\ntp = 2", 1);
    assert!(refusal(&split).contains("experts under tensor parallelism"));
    let fsdp1 = scenario("mixtral-8x7b", "").replacen("fsdp2", "fsdp1", 1);
    assert!(refusal(&fsdp1).contains("experts under FSDP1"));
    let few = scenario("qwen3-30b-a3b", "").replacen("1024", "8", 1);
    assert!(refusal(&few).contains("experts that no token reaches"));
    let dense = scenario("llama-3.1-8b", "[framework]\nexperts = \"loop\"\n");
    assert!(refusal(&dense).contains("framework.experts says how experts are run, and llama-3.1-8b has none"));
}

#[test]
fn mfu_counts_the_parameters_a_token_meets_and_grouped_matmuls_do_the_same_work() {
    let fly = |how: &str| {
        let text = scenario("mixtral-8x7b", &format!("[framework]\nexperts = \"{how}\"\n"));
        let scenario = parse(&text);
        (predict(&scenario, Settings::default()).unwrap_or_else(|error| panic!("{error}")), scenario)
    };
    let ((one, scenario), (all, _)) = (fly("loop"), fly("grouped"));
    assert_eq!(one.classes[0].program.flops, all.classes[0].program.flops);
    let model = scenario.job.model();
    let met = u128::from(model.params().active - model.vocab * model.width);
    let six = one.mfu.iter().find(|mfu| mfu.name == "6N").expect("a convention");
    assert_eq!(six.flops.0, 6 * met * u128::from(one.tokens));
    // A loop launches each expert's matmuls on their own, and fills the gradient of all for each.
    assert!(one.step > all.step);
}

#[test]
fn the_rank_that_is_sent_the_most_sets_the_pace_whichever_it_is() {
    let step = |load: &str| {
        let text = scenario("mixtral-8x7b", "[megatron]\n")
            .replacen("fsdp2", "megatron", 1)
            .replacen("layers = 4", &format!("layers = 4\nexpert_load{load}"), 1)
            .replacen("[mesh]", "[mesh]\nep = 8", 1);
        predict(&parse(&text), Settings::default()).unwrap_or_else(|error| panic!("{error}")).step
    };
    let even = step(" = \"balanced\"");
    let first = step(".measured = [2, 1, 1, 1, 1, 1, 1, 0]");
    // One expert on each rank: which of them is asked for twice as often does not matter.
    assert_eq!(first, step(".measured = [0, 1, 1, 1, 1, 1, 1, 2]"));
    assert!(first > even);
    assert_eq!(even, step(".power_law = 0.0"));
    assert_eq!(even, step(".measured = [7, 7, 7, 7, 7, 7, 7, 7]"));
    assert!(step(".power_law = 1.0") > step(".power_law = 0.5"));
}

#[test]
fn deepseek_flies_under_megatron_with_every_dispatcher() {
    for (dispatcher, backend) in
        [("alltoall", None), ("allgather", None), ("flex", None), ("flex", Some("deepep")), ("flex", Some("hybridep"))]
    {
        let backend = backend.map(|name| format!("moe_flex_dispatcher_backend = \"{name}\"\n")).unwrap_or_default();
        let keys = format!("[megatron]\nmoe_token_dispatcher_type = \"{dispatcher}\"\n{backend}");
        let text =
            scenario("deepseek-v3", &keys).replacen("fsdp2", "megatron", 1).replacen("[mesh]", "[mesh]\nep = 8", 1);
        let scenario = parse(&text);
        let answer = predict(&scenario, Settings::default()).unwrap_or_else(|error| panic!("{dispatcher}: {error}"));
        let issued = answer.classes[0].program.comms.iter().filter(|comm| matches!(comm.kind, Collective::Rows(_)));
        assert_eq!(issued.count() > 0, dispatcher == "flex");
        let processors = if backend.contains("hybridep") { 16 } else { 20 };
        let noted = |name: &str| scenario.assumption_lines().iter().any(|line| line.contains(name));
        assert_eq!(noted(&format!("moe_flex_dispatcher_num_sms = {processors}")), dispatcher == "flex");
    }
}

#[test]
fn hybrid_ep_takes_rows_as_often_as_deepep_and_alone_puts_them_in_order_and_fills_them_up() {
    let program = |backend: &str| {
        let keys = format!(
            "[megatron]\nfp8 = \"tensorwise\"\nmoe_permute_fusion = true\nmoe_token_dispatcher_type = \"flex\"\n\
             moe_flex_dispatcher_backend = \"{backend}\"\nhidden_dropout = false\nattention_dropout = false\n"
        );
        let text = scenario("qwen3-30b-a3b", &keys)
            .replacen("fsdp2", "megatron", 1)
            .replacen("[mesh]", "[mesh]\nep = 8", 1)
            .replacen("sequence = 1024", "sequence = 1032", 1);
        let answer = predict(&parse(&text), Settings::default()).unwrap_or_else(|error| panic!("{backend}: {error}"));
        answer.classes.into_iter().next().unwrap().program
    };
    let [deep, hybrid] = ["deepep", "hybridep"].map(program);
    let taken = |program: &Program, way: &str| {
        let comms = program.step.iter().filter_map(|instr| match *instr {
            Instr::Collective { comm, .. } => Some(program.comm(comm)),
            _ => None,
        });
        comms.filter(|comm| comm.kind.name() == way).map(|comm| comm.bytes.0).collect::<Vec<_>>()
    };
    for way in ["dispatch", "combine"] {
        assert_eq!(taken(&deep, way), taken(&hybrid, way));
        // Once in forward and once in backward of four blocks.
        assert_eq!(taken(&hybrid, way).len(), 8);
    }
    assert!(taken(&hybrid, "notify").is_empty() && !taken(&deep, "notify").is_empty());
    let names = |program: &Program| program.kernels.iter().map(|kernel| kernel.name).collect::<Vec<_>>();
    let own = |name: &&str| name.starts_with("hybrid_ep.");
    assert!(names(&hybrid).iter().any(own) && !names(&deep).iter().any(own));
    let apart = |name: &&str| name.starts_with("te.fused_multi_row") || name.contains("permute") && !own(name);
    assert!(!names(&hybrid).iter().any(apart), "{:?}", names(&hybrid));
    assert!(names(&deep).iter().any(apart));
}

#[test]
fn experts_in_fp8_multiply_filled_rows_and_what_has_no_rules_is_refused() {
    let fp8 = |model: &str, keys: &str, sequence: u64| {
        scenario(
            model,
            &format!("[megatron]\nfp8 = \"tensorwise\"\nhidden_dropout = false\nattention_dropout = false\n{keys}"),
        )
        .replacen("fsdp2", "megatron", 1)
        .replacen("[mesh]", "[mesh]\nep = 8", 1)
        .replacen("sequence = 1024", &format!("sequence = {sequence}"), 1)
    };
    let kernels = |sequence| {
        let answer = predict(&parse(&fp8("qwen3-30b-a3b", "", sequence)), Settings::default());
        let program = answer.unwrap_or_else(|error| panic!("{error}")).classes.remove(0).program;
        program.kernels.iter().map(|kernel| kernel.name).collect::<Vec<_>>()
    };
    // 1,024 tokens of a rank send each of 128 experts 64 rows, from 8 ranks 512; 1,032 send 64 or 65, and 16 divides no 520.
    let fills = |name: &&str| name.starts_with("te.fused_multi_row");
    assert!(!kernels(1024).iter().any(fills));
    assert!(kernels(1032).iter().any(fills));
    for (model, keys, what) in [
        ("deepseek-v3", "recompute_modules = [\"mla_up_proj\"]\n", "under delayed scaling run again there"),
        ("qwen3-30b-a3b", "recompute_modules = [\"moe_act\"]\n", "Megatron-Core refuses under delayed scaling"),
    ] {
        let text = fp8(model, keys, 1024);
        let text = if keys.is_empty() { text } else { text.replacen("tensorwise", "delayed", 1) };
        let said = refusal(&text);
        assert!(said.contains(what), "{said}");
    }
}

#[test]
fn all_to_alls_beside_another_micro_batch_move_as_much_and_are_waited_for_less() {
    let plan = |together: bool| {
        let text = scenario(
            "qwen3-30b-a3b",
            &format!(
                "[megatron]\nmoe_token_dispatcher_type = \"alltoall\"\noverlap_moe_expert_parallel_comm = {together}\n"
            ),
        )
        .replacen("fsdp2", "megatron", 1)
        .replacen("nodes = 1", "nodes = 4", 1)
        .replacen("[mesh]", "[mesh]\npp = 2\nep = 16\n\n[pipeline]\nvirtual_stages = 2", 1)
        .replacen("sequence = 1024", "sequence = 4096\naccumulation = 8", 1);
        parse(&text)
    };
    let [alone, together] = [false, true].map(plan);
    let issued = |program: &Program| {
        let comms = program.step.iter().filter_map(|instr| match *instr {
            Instr::Collective { comm, .. } => Some(program.comm(comm).bytes.0),
            _ => None,
        });
        (program.flops, comms.clone().count(), comms.sum::<u64>())
    };
    let [one, other] = [&alone, &together].map(|plan| plan.job.compile());
    for (one, other) in one.classes.iter().zip(&other.classes) {
        assert_eq!(issued(one), issued(other));
    }
    let fly = |plan: &Scenario| predict(plan, Settings::default()).unwrap_or_else(|error| panic!("{error}"));
    let (alone, together) = (fly(&alone), fly(&together));
    assert!(together.step < alone.step);
    // One more forward is under way before the first backward.
    let most = |answer: &Prediction| answer.classes[0].memory.report.peak_allocated;
    assert!(most(&together) > most(&alone));
}

#[test]
fn beside_another_micro_batch_dense_blocks_too_are_sent_when_they_are_there() {
    // Of four stages of one block each the first three are dense.
    let keys = "[megatron]\nmoe_token_dispatcher_type = \"alltoall\"\noverlap_moe_expert_parallel_comm = true\ndelay_wgrad_compute = false\n";
    let text = scenario("deepseek-v3", keys)
        .replacen("fsdp2", "megatron", 1)
        .replacen("[mesh]", "[mesh]\npp = 2\nep = 4\n\n[pipeline]\nvirtual_stages = 2", 1)
        .replacen("sequence = 1024", "sequence = 1024\naccumulation = 8", 1);
    let plan = parse(&text);
    assert!(
        !plan.assumption_lines().iter().any(|line| line.contains("delay_wgrad_compute")),
        "what is written is not assumed"
    );
    let sends = |program: &Program, exchange: ExchangeId| {
        let mut ends = program.exchanges[exchange.0 as usize].iter();
        ends.any(|end| program.transfers[end.0 as usize].direction == Direction::Send)
    };
    for program in plan.job.compile().classes {
        // Of each stream and event: the last operation of the default stream that it is behind.
        let (mut streams, mut events) = (vec![0; program.streams.len()], BTreeMap::new());
        let mut last = [0, 0];
        for (at, instr) in program.step.iter().enumerate() {
            match *instr {
                Instr::Launch { stream: StreamId(0), kernel, .. } => {
                    streams[0] = at;
                    last[usize::from(program.kernel(kernel).pass == Pass::Forward)] = at;
                }
                Instr::Record { stream, event } => {
                    events.insert(event.0, streams[usize::from(stream.0)]);
                }
                Instr::Wait { stream, event } => {
                    let behind = &mut streams[usize::from(stream.0)];
                    *behind = events[&event.0].max(*behind);
                }
                Instr::Exchange { stream, exchange, .. } if sends(&program, exchange) => {
                    let behind = streams[usize::from(stream.0)];
                    assert!(behind >= last[0].min(last[1]), "{at}: behind {behind} of {last:?}");
                }
                _ => {}
            }
        }
    }
}

/// A model with experts under torchtitan's runtime, over so many ranks.
fn spread(model: &str, ep: u32, rest: &str) -> String {
    scenario(model, &format!("[framework]\nexperts = \"torchtitan\"\n{rest}")).replacen(
        "[mesh]",
        &format!("[mesh]\nep = {ep}"),
        1,
    )
}

#[test]
fn torchtitans_experts_do_the_same_work_over_any_number_of_ranks_and_weigh_as_much_in_all() {
    let fly = |ep| {
        let scenario = parse(&spread("qwen3-30b-a3b", ep, ""));
        predict(&scenario, Settings::default()).unwrap_or_else(|error| panic!("{ep}: {error}"))
    };
    let held = |program: &Program| -> u64 {
        let buffers = program.setup.iter().filter_map(|instr| match *instr {
            Instr::Alloc { buffer } => Some(program.buffer(buffer)),
            _ => None,
        });
        buffers.filter(|buffer| buffer.category == Category::Parameter).map(|buffer| buffer.bytes.0).sum()
    };
    let model = parse(&spread("qwen3-30b-a3b", 1, "")).job.model().clone();
    let alone = fly(1);
    for ep in [2, 4, 8] {
        let answer = fly(ep);
        let (one, other) = (&alone.classes[0].program, &answer.classes[0].program);
        assert_eq!(one.flops, other.flops, "{ep}");
        // Eight ranks hold every parameter once, in fp32.
        assert_eq!(8 * held(other), 4 * model.params().total, "{ep}");
        let exchanges =
            |comms: &[windtunnel::program::Comm]| comms.iter().filter(|comm| comm.kind == Collective::AllToAll).count();
        assert!(exchanges(&one.comms) == 0 && exchanges(&other.comms) > 0);
    }
}

#[test]
fn experts_spread_over_one_rank_are_not_spread() {
    let assumed = |mesh: &str| parse(&scenario("mixtral-8x7b", "").replacen("[mesh]", mesh, 1)).assumption_lines();
    assert_eq!(assumed("[mesh]\nep = 1"), assumed("[mesh]"));
    let titan = spread("mixtral-8x7b", 1, "");
    assert_eq!(parse(&titan).assumption_lines(), parse(&titan.replacen("ep = 1\n", "", 1)).assumption_lines());
}

#[test]
fn torchtitans_busiest_rank_sets_the_pace() {
    let step = |load: &str| {
        let text = spread("mixtral-8x7b", 4, "").replacen("layers = 4", &format!("layers = 4\nexpert_load{load}"), 1);
        predict(&parse(&text), Settings::default()).unwrap_or_else(|error| panic!("{error}")).step
    };
    let even = step(" = \"balanced\"");
    let busy = step(".measured = [2, 2, 1, 1, 1, 1, 1, 1]");
    assert_eq!(busy, step(".measured = [1, 1, 1, 1, 1, 1, 2, 2]"));
    assert!(busy > even);
}

#[test]
fn deepseeks_latent_attention_and_router_fly_as_torchtitan_writes_them() {
    let scenario = parse(&spread("deepseek-v2-lite", 8, "[loss]\nkind = \"chunked_gradients\"\nchunks = 4\n"));
    for line in [
        "fsdp.forward_prefetch = 1",
        "note: torchtitan balances experts by a bias of the router, which deepseek-v2-lite does not have",
        "note: torchtitan trains deepseek-v2-lite without its auxiliary loss",
    ] {
        assert!(scenario.assumption_lines().contains(&line.to_owned()), "{:?}", scenario.assumption_lines());
    }
    let answer = predict(&scenario, Settings::default()).unwrap_or_else(|error| panic!("{error}"));
    assert!(answer.step.0 > 0);
}

#[test]
fn experts_over_ranks_that_cannot_be_are_refused_with_both_numbers() {
    for (text, what) in [
        (spread("mixtral-8x7b", 3, ""), "mesh.ep = 3 does not divide the 8 ranks that shard the model"),
        (spread("llama-3.1-8b", 2, ""), "mesh.ep spreads experts over ranks, and llama-3.1-8b has none"),
        (spread("mixtral-8x7b", 2, "").replacen("\"torchtitan\"", "\"loop\"", 1), "as torchtitan does it"),
        (
            spread("mixtral-8x7b", 2, "[fsdp]\nreshard_after_forward = 4\n"),
            "modules reshard to 4 ranks, and mesh.ep = 2 shards experts over other ranks",
        ),
        (spread("gpt-oss-20b", 2, ""), "attention sinks"),
        (
            spread("deepseek-v3", 2, "[activation_checkpointing]\npolicy = \"selective_op\"\n"),
            "selective checkpointing of a router that chooses among groups",
        ),
    ] {
        let said = refusal(&text);
        assert!(said.contains(what), "{said}");
    }
    let titan = spread("mixtral-8x7b", 1, "").replacen("ep = 1\n", "", 1);
    let fsdp1 = titan.replacen("fsdp2", "fsdp1", 1);
    assert!(refusal(&fsdp1).contains("torchtitan's mixtures run under fully_shard"));
}
