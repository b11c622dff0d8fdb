//! Rows of the lanes of tensor, pipeline and data parallelism become scenarios of Megatron's runtime. What is expected
//! here was read off the row and the source that its framework's table cites, by hand.

use std::collections::BTreeMap;
use std::path::Path;

use toml::{Table, Value};
use windtunnel::receipt::Reason;
use windtunnel::receipt::map::{Mapped, map};
use windtunnel::receipt::read::Receipts;
use windtunnel::receipt::table::Tables;

const LANES: [&str; 7] = ["tp+pp", "fsdp+tp", "context-parallel", "moe-ep", "fp8", "zero3", "ddp"];

fn receipts(file: &str) -> Receipts {
    let mut receipts = Receipts::default();
    receipts.add(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/receipts").join(file)).unwrap();
    receipts
}

fn mapped(id: &str) -> Result<Mapped, Reason> {
    map(receipts("public.jsonl").find(id).unwrap(), &Tables::shipped())
}

/// The value of a key `table.key` of a mapped row.
fn at<'t>(keys: &'t Table, key: &str) -> Option<&'t Value> {
    let (table, rest) = key.split_once('.')?;
    keys.get(table)?.get(rest)
}

/// Holds that a row maps to a scenario with these keys (a part of it).
fn holds(id: &str, expected: &str) {
    let text = mapped(id).unwrap_or_else(|why| panic!("{id}: {}", why.words())).text;
    let (keys, expected): (Table, Table) = (text.parse().unwrap(), expected.parse().unwrap());
    for (table, inner) in &expected {
        for (key, value) in inner.as_table().unwrap() {
            let key = format!("{table}.{key}");
            assert_eq!(at(&keys, &key), Some(value), "{id}: {key} in\n{text}");
        }
    }
}

#[test]
fn the_175b_of_korthikanti_is_interleaved_with_sequence_parallelism() {
    // arXiv 2205.05198, Tables 3 and 5: 96 layers, width 12,288, TP 8, PP 8, m = 3, micro-batch 1, batch 64, 64 A100.
    holds(
        "nv-korthikanti22-t5-175b-selective-sp",
        r#"
        topology = { name = "a100-sxm-80gb", nodes = 8 }
        model = { layers = 96, hidden = 12288, heads = 96, vocab = 51200 }
        mesh = { tp = 8, cp = 1, pp = 8 }
        pipeline = { virtual_stages = 3 }
        batch = { sequence = 2048, micro = 1, accumulation = 64 }
        tensor_parallel = { sequence = true }
        precision = { param = "fp16" }
        megatron = { recompute = "core_attn", attention = "unfused", hidden_dropout = true }
        measured = { step_time = "13.75 s" }
        "#,
    );
}

#[test]
fn narayanans_76b_has_the_micro_batch_of_its_launch_script_and_the_time_of_its_formula() {
    // examples/sc21/run_table_1.sh: MBS=2, PP=4, five layers a virtual stage. Equation 3 of the paper on 1,024 A100 at
    // 140 TFLOP/s: 96·1792·2048·60·10240²·(1 + 2048/61440 + 51200/(16·60·10240)) / (1024·140e12) s = 16.06 s.
    holds(
        "nv-narayanan21-t1-76.1b",
        r#"
        mesh = { tp = 8, cp = 1, pp = 4 }
        pipeline = { virtual_stages = 3 }
        batch = { micro = 2, accumulation = 28 }
        tensor_parallel = { sequence = false }
        megatron = { recompute = { uniform = 1 } }
        "#,
    );
    let text = mapped("nv-narayanan21-t1-76.1b").unwrap().text;
    let keys: Table = text.parse().unwrap();
    let rate = at(&keys, "measured.tokens_per_second_per_chip").and_then(Value::as_float).unwrap();
    let step = 1792.0 * 2048.0 / 1024.0 / rate;
    assert!((step - 16.06).abs() < 0.01, "{step}");
}

#[test]
fn blooms_prequel_printed_the_time_that_its_tflops_make() {
    // The prequel, Best TFLOPs: 20B model, NLAYERS=8, 108.47 TFLOP/s; elapsed time per iteration 769.99 s.
    let id = "bloom-20b-h14400-l80-n8-d1t8p1-mbs1-gbs2048";
    holds(id, "model = { layers = 8, hidden = 14400, heads = 32 }\nbatch = { micro = 1, accumulation = 2048 }");
    let keys: Table = mapped(id).unwrap().text.parse().unwrap();
    assert_eq!(at(&keys, "measured.step_time").and_then(Value::as_str), Some("769.99 s"));
    // 8·N of blocks a token, N = 12·L·D² + 13·L·D (bigscience-workshop/Megatron-DeepSpeed before its pull request 251).
    let blocks = 8.0 * (12.0 * 14400.0 * 14400.0 + 13.0 * 14400.0);
    let step: f64 = 8.0 * blocks * 2048.0 * 2048.0 / (8.0 * 108.47e12);
    assert!((step / 769.99 - 1.0).abs() < 1e-3, "{step}");
}

#[test]
fn bloom_counts_its_embeddings_as_layers_from_the_day_it_did() {
    // 106 + 2 over 12 stages; the day before, 72 layers over 12 are six each, which needs no list.
    holds(
        "bloom-195b-hnone-l106-n384-d8t4p12-mbs2-gbs2048",
        r#"
        topology = { nodes = 48, nic_bandwidth = "2.53 GB/s" }
        model = { layers = 106, hidden = 12288, heads = 64 }
        mesh = { tp = 4, pp = 12 }
        pipeline = { layers = [8, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 8] }
        batch = { micro = 2, accumulation = 128 }
        precision = { param = "bf16" }
        megatron = { distributed_optimizer = true, grad_reduce_in_fp32 = true }
        measured = { step_time = "116.54 s", peak_memory = "67 GB" }
        "#,
    );
    let text = mapped("bloom-181b-h14336-l72-n384-d8t4p12-mbs2-gbs2048").unwrap().text;
    assert!(!text.contains("\nlayers = ["), "{text}");
    assert!(text.contains("param = \"fp16\"") && text.contains("grad_reduce_in_fp32 = false"), "{text}");
}

#[test]
fn a_nemo_row_has_what_its_release_shipped_as_configuration() {
    // dgxc-benchmarking, tag v24.11.1: llama3.1_70b.yaml and configure.sh.
    holds(
        "dgxc-v24.11.1-llama3.1-70b-fp8-h100x64-gbs128",
        r#"
        model = { name = "llama-3.1-70b" }
        mesh = { tp = 4, cp = 2, pp = 4 }
        pipeline = { virtual_stages = 5, overlap_p2p = true }
        batch = { sequence = 8192, micro = 1, accumulation = 64 }
        tensor_parallel = { sequence = true }
        attention = { backend = "cudnn" }
        megatron = { recompute = "none", tp_comm_overlap = true, tp_comm_bulk_sm_margin = false, fp8 = "delayed", fp8_param_gather = true, bucket_size = 39321600, grad_reduce_in_fp32 = false }
        measured = { step_time = "11.01 s" }
        "#,
    );
    let text = mapped("dgxc-v24.11.1-llama3.1-70b-bf16-h100x64-gbs128").unwrap().text;
    let bf16: Table = text.parse().unwrap();
    assert!(at(&bf16, "megatron.fp8").is_none() && at(&bf16, "megatron.fp8_param_gather").is_none(), "{text}");
}

#[test]
fn nanotrons_smallest_model_comes_from_its_script() {
    // scripts/scaling_benchmarks.py: "1B": (16, 2048, 32, 8192), 131,072 words, tied; 1.34B.
    holds(
        "misc-nanotron-1.34b-h100x512-dp128tp2pp2",
        r#"
        model = { layers = 16, hidden = 2048, ffn = 8192, heads = 32, kv_heads = 32, vocab = 131072, tied_head = true }
        mesh = { tp = 2, pp = 2 }
        tensor_parallel = { sequence = true }
        batch = { micro = 2, accumulation = 1 }
        nanotron = { zero_stage = 1, pp_engine = "1f1b" }
        measured = { peak_memory = "8.4 GiB" }
        "#,
    );
}

#[test]
fn internevos_optimizer_states_are_spread_over_the_replicas_of_a_node() {
    // doc/en/train_performance.md: zero1=8, tp=1 on two nodes, checkpoint=False, four cards of 100 Gbit/s.
    holds(
        "misc-internevo-7b-tp1-zero1-8-n16",
        r#"
        topology = { name = "a100-sxm-80gb", nodes = 2, nic_bandwidth = "6.25 GB/s" }
        batch = { micro = 2, accumulation = 4 }
        internevo = { zero1 = 8, checkpoint = false, reduce_bucket_size = 536870912 }
        "#,
    );
}

#[test]
fn a_stage_of_one_layer_leaves_the_ends_to_the_embeddings() {
    // Qi et al. 2024: 30 layers on 8 ranks, first and last stage one fewer; interleaved with one layer a chunk.
    holds(
        "misc-zb-table-4-6.2b-p8-b3-m24-zb-2p",
        r#"pipeline = { schedule = "ZB-2p", layers = [3, 4, 4, 4, 4, 4, 4, 3] }"#,
    );
    let keys: Table = mapped("misc-zb-table-4-6.2b-p8-b3-m24-1f1b-i").unwrap().text.parse().unwrap();
    let layers = at(&keys, "pipeline.layers").and_then(Value::as_array).unwrap();
    assert_eq!(layers.len(), 32);
    assert_eq!(layers.iter().filter_map(Value::as_integer).sum::<i64>(), 30);
}

#[test]
fn deepseek_v3s_last_stage_is_a_module_ahead_and_the_loss() {
    // Megatron-Bridge v0.1.0rc4, run_script.py: Et|(tt|)*30mL on 8 ranks of 4 stages, experts over 64, DeepEP.
    let layers = format!("[1, {}0]", "2, ".repeat(30));
    holds(
        "nv-mbridge-25.09-pretrain-deepseekv3-dgx-h100x1024-fp8-gbs8192-tp2pp8cp1ep64",
        &format!(
            r#"
            model = {{ name = "deepseek-v3" }}
            mesh = {{ tp = 2, pp = 8, ep = 64, etp = 1 }}
            pipeline = {{ virtual_stages = 4, layers = {layers} }}
            megatron = {{ mtp_num_layers = 1, moe_token_dispatcher_type = "flex", recompute_modules = ["mla_up_proj", "mlp"] }}
            "#
        ),
    );
}

/// Layers of a hybrid's pattern, in which bars stand between stages.
fn pattern(keys: &Table) -> Option<i64> {
    let pattern = at(keys, "model.config")?.get("hybrid_layer_pattern")?.as_str()?;
    Some(pattern.chars().filter(|letter| *letter != '|').count() as i64)
}

#[test]
fn lists_of_layers_add_up_to_the_model() {
    let tables = Tables::shipped();
    let mut lists = 0;
    for entry in &receipts("public.jsonl").entries {
        let Ok(mapped) = map(entry, &tables) else { continue };
        let keys: Table = mapped.text.parse().unwrap();
        let Some(list) = at(&keys, "pipeline.layers").and_then(Value::as_array) else { continue };
        let whole = |key: &str| at(&keys, key).and_then(Value::as_integer);
        let stages = whole("mesh.pp").unwrap_or(1) * whole("pipeline.virtual_stages").unwrap_or(1);
        let v = at(&keys, "pipeline.schedule").and_then(Value::as_str) == Some("ZBVZeroBubble");
        assert_eq!(list.len() as i64, if v && stages == 16 { 32 } else { stages }, "{}", entry.row.id);
        let stacked = entry.row.model.n_layers.map(|layers| layers as i64).or_else(|| pattern(&keys));
        let layers = whole("model.layers").or(stacked).unwrap();
        assert_eq!(list.iter().filter_map(Value::as_integer).sum::<i64>(), layers, "{}", entry.row.id);
        lists += 1;
    }
    assert!(lists > 60, "{lists}");
}

#[test]
fn what_is_not_mapped_says_why() {
    let tables = Tables::shipped();
    let mut lanes: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for entry in &receipts("public.jsonl").entries {
        let row = &entry.row;
        if !LANES.contains(&&*row.lane) || !["A", "B"].contains(&row.grade()) {
            continue;
        }
        let counts = lanes.entry(row.lane.clone()).or_default();
        match map(entry, &tables) {
            Ok(_) => counts[0] += 1,
            // Parallelism, experts and fp8 are never somebody else's business.
            Err(Reason::Panicked(why)) => panic!("{}: {why}", row.id),
            Err(Reason::Outside(why)) => {
                let known = why.starts_with("LoRA") || why == "not a CUDA machine";
                let known = known || why.contains("are simulated") || why.contains("fine-tuning");
                assert!(known, "{}: {why}", row.id);
            }
            Err(Reason::Uncovered(why) | Reason::Contradiction(why)) => {
                assert!(!why.is_empty(), "{}", row.id);
                counts[1] += 1;
            }
        }
    }
    let [mapped, not] = lanes["tp+pp"];
    assert!(mapped * 100 >= (mapped + not) * 85, "{mapped} of {}", mapped + not);
}

#[test]
fn a_test_of_experts_is_put_together_from_its_arguments() {
    // tests/functional_tests/test_cases/moe/gpt3_mcore_tp2_pp2_ep2_te_4experts2parallel/model_config.yaml at d98e8a64d.
    holds(
        "mlmgold-moe-gpt3-mcore-tp2-pp2-ep2-te-4experts2parallel-dev-dgx-h100",
        r#"
        mesh = { tp = 2, pp = 2, ep = 2 }
        megatron = { implementation = "local", attention = "unfused", moe_grouped_gemm = false, bias_activation_fusion = false, gradient_accumulation_fusion = false }
        [model.config]
        model_type = "megatron"
        num_layers = 12
        hidden_size = 512
        num_attention_heads = 8
        ffn_hidden_size = 2048
        untie_embeddings_and_output_weights = false
        max_position_embeddings = 1024
        vocab_size = 50257
        add_bias_linear = false
        num_experts = 4
        moe_layer_freq = 1
        moe_router_topk = 1
        moe_router_load_balancing_type = "sinkhorn"
        "#,
    );
}

#[test]
fn a_degree_that_a_row_leaves_out_is_what_the_others_leave() {
    let why = |id: &str| mapped(id).unwrap_err();
    // 64 V100, dp 1, pp 16: tp 4 is no contradiction. Its sequence is not stated.
    assert_eq!(why("bloom-v100-30b-n64-pp16-l71"), Reason::Uncovered("states no sequence length".to_owned()));
    assert!(why("bloom-v100-52b-n64-ppnone-l369").words().contains("neither tp nor pp"));
}

#[test]
fn reasons_name_what_is_missing() {
    let why = |id: &str| mapped(id).unwrap_err().words().to_owned();
    assert_eq!(why("nv-nemo-longseq-llama-2-7b-h100-s4k-cp1"), "states no micro-batch");
    assert_eq!(why("jaxtb-paxml-5b-h100x256-te-fp8-dp1fsdp256tp1-2048"), "fp8 under xla");
}

#[test]
fn every_multi_node_row_of_vtrain_maps() {
    let receipts = receipts("vtrain-a100.jsonl");
    assert_eq!((receipts.entries.len(), receipts.faults.len()), (109, 0));
    let tables = Tables::shipped();
    for entry in &receipts.entries {
        let mapped = map(entry, &tables).unwrap_or_else(|why| panic!("{}: {}", entry.row.id, why.words()));
        let keys: Table = mapped.text.parse().unwrap();
        let whole = |key: &str| at(&keys, key).and_then(Value::as_integer).unwrap();
        let replica = whole("mesh.tp") * whole("mesh.pp");
        let replicas = 8 * whole("topology.nodes") / replica;
        let sequences = whole("batch.micro") * whole("batch.accumulation") * replicas;
        assert_eq!(Some(sequences as f64), entry.row.batch.global_batch, "{}", entry.row.id);
    }
}
