//! What importers make of small configurations, and of broken ones.

use super::{IMPORTERS, ImportError, Imported, Importer, Machine, Request, find, import, recognise};

const TITAN: &str = "[model]\nname = \"llama3\"\nflavor = \"8B\"\n\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n\n[compile]\nenable = true\n";

const MEGATRON: &str = "#!/bin/bash\nTP=4\nARGS=(\n  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336\n  \
                        --num-attention-heads 32 --group-query-attention --num-query-groups 8\n  --seq-length 8192 \
                        --max-position-embeddings 8192 --position-embedding-type rope\n  --normalization RMSNorm --swiglu \
                        --disable-bias-linear --untie-embeddings-and-output-weights\n  --micro-batch-size 1 \
                        --global-batch-size 128 --bf16 --lr 3e-4\n  --tensor-model-parallel-size $TP \
                        --sequence-parallel --use-distributed-optimizer --no-rope-fusion\n)\ntorchrun --nproc_per_node 8 \
                        pretrain_gpt.py ${ARGS[@]}\n";

const NANOTRON: &str = "general:\n  run: small\nmodel:\n  dtype: bfloat16\n  model_config:\n    is_llama_config: true\n    \
                        hidden_size: 4096\n    intermediate_size: 14336\n    num_attention_heads: 32\n    \
                        num_hidden_layers: 32\n    num_key_value_heads: 32\n    vocab_size: 131072\noptimizer:\n  \
                        zero_stage: 1\n  accumulate_grad_in_fp32: true\nparallelism:\n  dp: 2\n  pp: 4\n  pp_engine: 1f1b\n  \
                        tp: 1\ntokens:\n  batch_accumulation_per_replica: 8\n  micro_batch_size: 1\n  sequence_length: 4096\n";

const MAXTEXT: &str = "base_config: \"base.yml\"\nmodel_name: \"llama3.1-8b\"\nper_device_batch_size: 2\nmax_target_length: 8192\n\
                       remat_policy: \"full\"\nattention: \"flash\"\ngcs_metrics: true\n";

const DEEPSPEED: &str = "{\n \"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\", \"overlap_comm\": true},\n \
                         \"bf16\": {\"enabled\": true},\n \"train_micro_batch_size_per_gpu\": 1,\n \
                         \"gradient_accumulation_steps\": 4,\n \"wall_clock_breakdown\": false\n}\n";

const ACCELERATE: &str = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n  \
                          fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_reshard_after_forward: true\n  \
                          fsdp_activation_checkpointing: true\n";

const TORCHTUNE: &str = "model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\ntokenizer:\n  max_seq_len: 2048\ndataset:\n  \
                         packed: true\nbatch_size: 2\ngradient_accumulation_steps: 4\noptimizer:\n  _component_: \
                         torch.optim.AdamW\n  fused: true\n  lr: 2e-5\nloss:\n  _component_: \
                         torchtune.modules.loss.CEWithChunkedOutputLoss\ndtype: bf16\ncompile: true\n\
                         enable_activation_checkpointing: true\ncustom_sharded_layers: ['tok_embeddings', 'output']\n";

const AXOLOTL: &str = "base_model: NousResearch/Meta-Llama-3.1-8B\nsequence_len: 4096\nmicro_batch_size: 1\n\
                       gradient_accumulation_steps: 2\nsample_packing: true\nbf16: true\noptimizer: adamw_torch_fused\n\
                       gradient_checkpointing: true\nfsdp_version: 2\nfsdp_config:\n  auto_wrap_policy: \
                       TRANSFORMER_BASED_WRAP\n  reshard_after_forward: true\n";

const NEMO: &str = "trainer:\n  devices: 8\n  num_nodes: 1\n  precision: bf16\n  gradient_clip_val: 1.0\nmodel:\n  \
                    micro_batch_size: 1\n  global_batch_size: 128\n  tensor_model_parallel_size: 4\n  encoder_seq_length: 4096\n  \
                    num_layers: 32\n  hidden_size: 4096\n  ffn_hidden_size: 14336\n  num_attention_heads: 32\n  \
                    num_query_groups: 8\n  normalization: rmsnorm\n  bias: false\n  activation: fast-swiglu\n  \
                    position_embedding_type: rope\n  share_embeddings_and_output_weights: false\n  transformer_engine: true\n  \
                    sequence_parallel: true\n  data:\n    seq_length: ${model.encoder_seq_length}\n  optim:\n    name: \
                    distributed_fused_adam\n";

const HF: &str = include_str!("../../scenarios/models/llama-3.1-8b.json");

/// The path of a model that is shipped.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/models/llama-3.1-8b.json");

fn gpus() -> Machine {
    Machine { on: Some("h100-sxm-80gb".to_owned()), nodes: Some(1), ..Machine::default() }
}

/// A small configuration of each importer, its file and its machine.
fn small(importer: &Importer) -> (&'static str, &'static str, Machine) {
    match importer.name {
        "torchtitan" => ("a.toml", TITAN, gpus()),
        "megatron" => ("a.sh", MEGATRON, gpus()),
        "nanotron" => ("a.yaml", NANOTRON, gpus()),
        "deepspeed" => ("ds.json", DEEPSPEED, gpus()),
        "hf" => (MODEL, HF, gpus()),
        "accelerate" => ("a.yaml", ACCELERATE, gpus()),
        "torchtune" => ("a.yaml", TORCHTUNE, gpus()),
        "axolotl" => ("a.yaml", AXOLOTL, gpus()),
        "nemo" => ("a.yaml", NEMO, gpus()),
        "maxtext" => {
            let slice = Some("2x4".to_owned());
            ("a.yml", MAXTEXT, Machine { on: Some("tpu-v6e".to_owned()), slice, ..Machine::default() })
        }
        other => panic!("{other} has no small configuration here"),
    }
}

fn read(name: &str, text: &str, words: &[&str]) -> Result<Imported, ImportError> {
    let importer = find(name).expect("it is registered");
    let (file, _, machine) = small(importer);
    let overrides: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let model = matches!(name, "deepspeed" | "accelerate").then_some(MODEL);
    import(importer, &Request { file, text, overrides: &overrides, machine, model, ..Request::default() })
}

#[test]
fn a_scenario_says_that_the_defaults_of_another_release_are_in_it() {
    for importer in IMPORTERS.iter().filter(|importer| importer.name != "hf") {
        let (file, text, machine) = small(importer);
        let model = matches!(importer.name, "deepspeed" | "accelerate").then_some(MODEL);
        let request = Request { file, text, machine, model, version: Some("999.1"), ..Request::default() };
        let imported = import(importer, &request).unwrap_or_else(|error| panic!("{}: {error}", importer.name));
        assert!(line(&imported, "framework.unknown_release").starts_with("\"999.1\" # "), "{}", importer.name);
        let scenario = imported.scenario().unwrap_or_else(|error| panic!("{}: {error}", importer.name));
        assert_eq!(scenario.unknown_release.as_deref(), Some("999.1"), "{}", importer.name);
    }
}

/// `key = value # why` of a key.
fn line(imported: &Imported, key: &str) -> String {
    let entry = imported.entries.iter().find(|entry| entry.key == key);
    entry.map_or_else(|| "absent".to_owned(), |entry| format!("{} # {}", entry.value, entry.why))
}

#[test]
fn a_small_configuration_of_each_framework_makes_a_scenario_that_is_accepted() {
    for importer in IMPORTERS {
        let (_, text, _) = small(importer);
        let imported = read(importer.name, text, &[]).unwrap_or_else(|error| panic!("{}: {error}", importer.name));
        imported.scenario().unwrap_or_else(|error| panic!("{}: {error}\n{}", importer.name, imported.text()));
        assert!(imported.unknown.is_empty(), "{}: {:?}", importer.name, imported.unknown);
    }
}

#[test]
fn every_key_of_a_scenario_says_where_it_comes_from() {
    for importer in IMPORTERS {
        let (_, text, _) = small(importer);
        let written = read(importer.name, text, &[]).expect("it is read").text();
        let mut before = "";
        for line in written.lines() {
            let is_key = line.contains(" = ") && !line.starts_with('#');
            assert!(!is_key || line.contains(" # ") || before.starts_with("# "), "{}: {line}", importer.name);
            before = line;
        }
    }
}

#[test]
fn each_configuration_is_recognised_as_its_own_and_a_scenario_as_none() {
    for importer in IMPORTERS {
        let (file, text, _) = small(importer);
        let found = recognise(file, text).expect("it is not ambiguous").map(|found| found.name);
        assert_eq!(found, Some(importer.name));
        let written = read(importer.name, text, &[]).expect("it is read").text();
        assert!(recognise("a.toml", &written).expect("it is not ambiguous").is_none(), "{}", importer.name);
    }
    assert!(recognise("a.toml", "[topologie]\nname = 1").expect("it is not ambiguous").is_none());
    assert!(recognise("-", "runtime = \"fsdp2\"\n[topology\n").expect("it is not ambiguous").is_none());
}

#[test]
fn torchtitan_without_ranks_of_data_casts_nothing() {
    let importer = find("torchtitan").expect("there is one");
    let read = |tp: u32| {
        let text = format!("{TITAN}[parallelism]\ntensor_parallel_degree = {tp}\n");
        let request = Request { file: "job.toml", text: &text, machine: gpus(), ..Request::default() };
        let imported = import(importer, &request).expect("it is read");
        imported.get("precision.param").and_then(toml::Value::as_str).map(str::to_owned)
    };
    // Eight GPUs: by two four ranks shard and cast; by eight none does (torchtitan 0.2.2, distributed/utils.py, maybe_enable_amp).
    assert_eq!((read(2).as_deref(), read(8).as_deref()), (Some("bf16"), Some("fp32")));
}

#[test]
fn stated_keys_name_their_line_and_defaults_their_source() {
    let titan = read("torchtitan", TITAN, &["--optimizer.weight_decay=0.2"]).expect("it is read");
    assert_eq!(line(&titan, "batch.micro"), "2 # training.local_batch_size, a.toml:6");
    assert_eq!(line(&titan, "optimizer.weight_decay"), "0.2 # optimizer.weight_decay, the command line");
    let layers = line(&titan, "activation_checkpointing.policy");
    assert!(
        layers.starts_with("{ every = 2 } # default of activation_checkpoint.mode in torchtitan 0.2.2"),
        "{layers}"
    );
    assert!(layers.contains("torchtitan/config/job_config.py:"), "{layers}");
}

#[test]
fn a_pipeline_of_torchtitan_takes_its_parts_from_the_local_batch() {
    let words = [
        "parallelism.pipeline_parallel_degree=2",
        "training.local_batch_size=8",
        "parallelism.pipeline_parallel_schedule=Interleaved1F1B",
    ];
    let titan = read("torchtitan", TITAN, &words).expect("it is read");
    assert_eq!(titan.get("batch.micro").and_then(toml::Value::as_integer), Some(1));
    assert_eq!(titan.get("batch.accumulation").and_then(toml::Value::as_integer), Some(8));
    assert_eq!(titan.get("pipeline.virtual_stages").and_then(toml::Value::as_integer), Some(2));
    assert!(line(&titan, "fsdp.reshard_after_forward").starts_with("false # default"));
    titan.scenario().expect("it is accepted");
}

#[test]
fn experts_over_ranks_mean_nothing_for_a_model_without_them() {
    let dense = read("torchtitan", TITAN, &["parallelism.expert_parallel_degree=4"]).expect("it is read");
    assert_eq!((line(&dense, "mesh.ep").as_str(), dense.notes.len()), ("absent", 2), "{:?}", dense.notes);
    let words = ["parallelism.expert_parallel_degree=4", "model.name=deepseek_v3", "model.flavor=16B"];
    let mixture = read("torchtitan", TITAN, &words).expect("it is read");
    assert_eq!(line(&mixture, "mesh.ep"), "4 # parallelism.expert_parallel_degree, the command line");
}

#[test]
fn a_configuration_of_an_older_torchtitan_is_told_by_its_keys() {
    let text = "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nbatch_size = 1\nseq_len = 4096\ncompile = true\n[float8]\nfilter_fqns = [\"output\"]\n";
    let titan = read("torchtitan", text, &[]).expect("it is read");
    assert_eq!(titan.of, "torchtitan 0.1.0");
    assert_eq!(line(&titan, "batch.micro"), "1 # training.batch_size, a.toml:5");
    assert!(line(&titan, "compile.blocks").starts_with("true # training.compile, a.toml:7"));
    assert!(line(&titan, "framework.repeat_kv").starts_with("true"));
}

#[test]
fn keys_that_matter_and_keys_that_nobody_knows_are_named() {
    let text = format!(
        "{TITAN}backend = \"eager\"\n[validation]\nenable = true\n[metrics]\nlog_freq = 1\n[training2]\nseqlen = 3\n"
    );
    let titan = read("torchtitan", &text, &[]).expect("it is read");
    let named: Vec<&str> = titan.unmodelled.iter().map(|left| left.key.as_str()).collect();
    assert_eq!(named, ["compile.backend", "validation.enable"]);
    assert_eq!(titan.unknown.len(), 1, "{:?}", titan.unknown);
    assert!(titan.unknown[0].starts_with("training2.seqlen (a.toml:"), "{:?}", titan.unknown);
    assert_eq!(titan.idle, ["metrics.log_freq"]);
}

#[test]
fn arguments_of_megatron_are_read_through_the_scripts_variables() {
    let megatron = read("megatron", MEGATRON, &["--micro-batch-size", "2"]).expect("it is read");
    assert_eq!(line(&megatron, "mesh.tp"), "4 # tensor_model_parallel_size, a.sh:9");
    assert_eq!(line(&megatron, "batch.micro"), "2 # micro_batch_size, the command line");
    assert_eq!(line(&megatron, "model.kv_heads"), "8 # num_query_groups, a.sh:5");
    assert_eq!(line(&megatron, "megatron.rope_fusion"), "false # no_rope_fusion, a.sh:9");
    assert_eq!(line(&megatron, "megatron.grad_reduce_in_fp32"), "true # bf16, a.sh:8");
    assert!(line(&megatron, "model.name").starts_with("\"llama-3-8b\""));
}

#[test]
fn uneven_stages_of_megatron_are_a_list_of_layers() {
    let arguments = "--pipeline-model-parallel-size 4 --account-for-embedding-in-pipeline-split --num-layers 31";
    let words: Vec<&str> = arguments.split(' ').chain(["--tensor-model-parallel-size", "1"]).collect();
    let megatron = read("megatron", MEGATRON, &words).expect("it is read");
    assert!(line(&megatron, "pipeline.layers").starts_with("[7, 8, 8, 8] #"), "{}", line(&megatron, "pipeline.layers"));
    let words = ["--pipeline-model-parallel-size", "4", "--decoder-last-pipeline-num-layers", "2"];
    let megatron = read("megatron", MEGATRON, &words).expect("it is read");
    assert!(
        line(&megatron, "pipeline.layers").starts_with("[10, 10, 10, 2] #"),
        "{}",
        line(&megatron, "pipeline.layers")
    );
}

#[test]
fn what_only_a_shell_knows_is_an_error_where_it_matters() {
    let text = MEGATRON.replace("TP=4", "TP=$(nproc)");
    let error = read("megatron", &text, &[]).expect_err("it is not known").to_string();
    assert!(error.starts_with("a.sh:") && error.contains("tensor_model_parallel_size"), "{error}");
    read("megatron", &text, &["--tensor-model-parallel-size", "2"]).expect("the command line says it");
}

#[test]
fn auto_in_deepspeed_is_what_the_trainer_fills_in() {
    let zero = read("deepspeed", DEEPSPEED, &["sequence_length=2048"]).expect("it is read");
    assert!(
        line(&zero, "zero.reduce_bucket_size").starts_with("16777216 #"),
        "{}",
        line(&zero, "zero.reduce_bucket_size")
    );
    assert_eq!(line(&zero, "zero.overlap_comm"), "true # zero_optimization.overlap_comm, ds.json:2");
    assert_eq!(line(&zero, "batch.sequence"), "2048 # sequence_length, the command line");
}

#[test]
fn fp16_of_deepspeed_is_named_and_taken_as_bf16() {
    let text = DEEPSPEED.replace("bf16", "fp16");
    let zero = read("deepspeed", &text, &[]).expect("it is read");
    assert!(line(&zero, "precision.param").starts_with("\"bf16\" # fp16.enabled, ds.json:3"));
    assert_eq!(zero.unmodelled.iter().map(|left| left.key.as_str()).collect::<Vec<_>>(), ["fp16.enabled"]);
    zero.scenario().expect("it is accepted");
}

#[test]
fn a_recipe_of_torchtitan_is_read_from_its_command_line() {
    let line_of = "torchrun -m torchtitan.train --module llama3 --config llama3_8b --training.local_batch_size 2 --compile.enable";
    let titan = read("torchtitan", line_of, &["--training.seq_len=4096"]).expect("it is read");
    assert_eq!(titan.of, "torchtitan 0.3.0");
    assert_eq!(line(&titan, "batch.micro"), "2 # training.local_batch_size, a.toml:1");
    assert_eq!(line(&titan, "batch.sequence"), "4096 # training.seq_len, the command line");
    let decay = line(&titan, "optimizer.weight_decay");
    assert!(decay.contains("torchtitan/models/llama3/config_registry.py:184 (llama3_8b)"), "{decay}");
    titan.scenario().expect("it is accepted");
    let error = read("torchtitan", "--module llama3 --config llama3_9b", &[]).expect_err("there is none").to_string();
    assert!(error.contains("did you mean \"llama3:llama3_8b\""), "{error}");
}

#[test]
fn experts_and_latent_attention_of_any_sizes_are_keys_of_a_config() {
    let words = "--num-experts 32 --moe-router-topk 4 --moe-ffn-hidden-size 1024 --moe-layer-freq ([0]*2+[1]*30) \
                 --multi-latent-attention --kv-lora-rank 256 --moe-shared-expert-intermediate-size 2048 --vocab-size 1000 \
                 --moe-router-score-function sigmoid";
    let words: Vec<&str> = words.split_whitespace().collect();
    let megatron = read("megatron", MEGATRON, &words).expect("it is read");
    let model = megatron.model().expect("it is a model");
    let experts = model.experts().expect("it has experts");
    assert_eq!((experts.count, experts.top_k, experts.width, experts.shared), (32, 4, 1024, 2048));
    assert_eq!((model.layers.count(), model.expert_blocks(), model.vocab), (32, 30, 1000));
    assert_eq!(model.latent().map(|latent| (latent.rank, latent.query_rank)), Some((256, None)));
    let error = read("megatron", MEGATRON, &[&words[..], &["--moe-layer-freq", "([0]*2+[1]*3)"]].concat());
    let error = error.expect_err("it is too short").to_string();
    assert!(error.contains("a list of 32 numbers"), "{error}");
}

/// A recipe of Megatron-LM's has its arguments in a table, with underscores, and its environment beside them.
#[test]
fn arguments_in_yaml_are_those_of_a_script() {
    let script = "export CUDA_DEVICE_MAX_CONNECTIONS=1\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n\
                  torchrun pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --seq-length 512 \
                  --micro-batch-size 1 --bf16 --recompute-granularity selective --recompute-modules mlp moe_act \
                  --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 512 --normalization RMSNorm --swiglu \
                  --disable-bias-linear --position-embedding-type rope\n";
    let yaml = "DEPENDENCIES:\n  image: some\nENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: '1'\n  \
                PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True\nARGS:\n  num_layers: 4\n  hidden_size: 1024\n  \
                num_attention_heads: 8\n  seq_length: 512\n  micro_batch_size: 1\n  bf16: true\n  \
                recompute_granularity: selective\n  recompute_modules: \"[mlp moe_act]\"\n  num_experts: 8\n  \
                moe_router_topk: 2\n  moe_ffn_hidden_size: 512\n  normalization: RMSNorm\n  swiglu: true\n  \
                disable_bias_linear: true\n  position_embedding_type: rope\n";
    assert_eq!(recognise("recipe.yaml", yaml).expect("it is one").map(|importer| importer.name), Some("megatron"));
    let keys = |text: &str| {
        let read = read("megatron", text, &[]).expect("it is read");
        let entries = read.entries.into_iter().filter(|entry| entry.key != "description");
        entries.map(|entry| (entry.key, entry.value)).collect::<Vec<_>>()
    };
    let found = keys(yaml);
    assert_eq!(found, keys(script));
    let has = |key: &str, value: toml::Value| found.contains(&(key.to_owned(), value));
    assert!(has("memory.expandable_segments", true.into()) && has("framework.device_max_connections", 1.into()));
    assert!(has("megatron.recompute_modules", vec!["mlp", "moe_act"].into()), "{found:?}");
}

#[test]
fn arguments_that_no_shipped_architecture_has_together_are_the_model_themselves() {
    let gelu = MEGATRON.replace("--swiglu ", "").replace("--position-embedding-type rope", "");
    let words = "--num-experts 8 --moe-router-topk 1 --moe-router-load-balancing-type sinkhorn --no-bias-gelu-fusion \
                 --vocab-size 1000";
    let words: Vec<&str> = words.split_whitespace().collect();
    let megatron = read("megatron", &gelu, &words).expect("it is read");
    assert_eq!(line(&megatron, "megatron.moe_grouped_gemm").split(' ').next(), Some("false"));
    let model = megatron.model().expect("it is a model");
    let experts = model.experts().expect("it has experts");
    assert_eq!((experts.count, experts.top_k, experts.width), (8, 1, 14336));
    assert_eq!(experts.gating, crate::model::Gating::Plain(crate::model::Activation::Gelu));
    assert_eq!(model.position, crate::model::Position::Learned { positions: 8192 });
    let dense = read("megatron", &gelu, &["--vocab-size", "1000"]).expect("it is read").model().expect("it is a model");
    assert_eq!((dense.norms().kind, dense.feed_forward_width()), (crate::model::Norm::Rms, 14336));
}

#[test]
fn a_layout_of_stages_is_a_list_of_layers() {
    let words = ["--pipeline-model-parallel-size", "2", "--pipeline-model-parallel-layout", "Et*8|t*8|t*9|t*7L"];
    let megatron = read("megatron", MEGATRON, &words).expect("it is read");
    assert!(line(&megatron, "pipeline.layers").starts_with("[8, 8, 9, 7] #"), "{}", line(&megatron, "pipeline.layers"));
    assert!(line(&megatron, "pipeline.virtual_stages").starts_with("2 #"));
    let short = [&words[..3], &["Et*8|t*8L"]].concat();
    let error = read("megatron", MEGATRON, &short).expect_err("layers are missing").to_string();
    assert!(error.contains("a layout of 32 layers, and this one has 16"), "{error}");
}

#[test]
fn adapters_and_replicas_are_refused_with_their_place() {
    for (name, word, what) in [
        (
            "torchtune",
            "model._component_=torchtune.models.llama3_1.qlora_llama3_1_8b",
            "an adapter beside packed or normed weights",
        ),
        ("axolotl", "adapter=qlora", "an adapter beside frozen weights (qlora)"),
        ("axolotl", "load_in_4bit=true", "weights that are kept in 4 or 8 bits"),
        ("axolotl", "deepspeed=zero3.json", "names a file of DeepSpeed"),
        ("axolotl", "base_model=org/unheard-of", "which is no shipped model"),
        ("accelerate", "distributed_type=MULTI_GPU", "replicas of the whole model (DDP)"),
        ("accelerate", "mixed_precision=fp8", "mixed_precision fp8"),
    ] {
        let importer = find(name).expect("it is registered");
        let error = read(name, small(importer).1, &[word]).expect_err(word).to_string();
        assert!(error.contains(what) && error.contains("is not simulated"), "{word}: {error}");
    }
}

#[test]
fn adapters_of_torchtune_are_read_with_their_modules() {
    let importer = find("torchtune").expect("it is registered");
    let words = [
        "model._component_=torchtune.models.llama3_1.lora_llama3_1_8b",
        "model.lora_rank=8",
        "model.lora_attn_modules=[q_proj,v_proj]",
        "model.apply_lora_to_mlp=true",
    ];
    let read = read("torchtune", small(importer).1, &words).expect("it is read");
    assert!(line(&read, "lora.rank").starts_with("8 #"), "{}", line(&read, "lora.rank"));
    let modules = line(&read, "lora.modules");
    assert!(modules.contains("q_proj") && modules.contains("down_proj"), "{modules}");
}

#[test]
fn accelerates_own_section_of_deepspeed_is_read() {
    let text = "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: \
                cpu\n  gradient_accumulation_steps: 4\n  gradient_clipping: 1.0\n";
    let zero = read("accelerate", text, &["per_device_train_batch_size=2"]).expect("it is read");
    assert_eq!(line(&zero, "runtime"), "\"deepspeed-zero\" # distributed_type: DEEPSPEED");
    assert_eq!(line(&zero, "batch.accumulation"), "4 # deepspeed_config.gradient_accumulation_steps, a.yaml:6");
    assert_eq!(line(&zero, "batch.micro"), "2 # per_device_train_batch_size, the command line");
    zero.scenario().expect("it is accepted");
}

#[test]
fn an_axis_of_maxtext_that_is_left_open_has_the_chips_that_others_leave() {
    let maxtext = read("maxtext", MAXTEXT, &["ici_tensor_parallelism=2"]).expect("it is read");
    assert_eq!(maxtext.get("mesh.fsdp").and_then(toml::Value::as_integer), Some(4));
    assert!(line(&maxtext, "batch.micro").starts_with("4 # per_device_batch_size, a.yml:3"));
}

#[test]
fn a_configuration_without_its_machine_is_refused_with_an_example() {
    for importer in IMPORTERS {
        let (file, text, machine) = small(importer);
        let model = Some(MODEL);
        for machine in [Machine::default(), Machine { on: Some("h101".to_owned()), ..machine }] {
            let request = Request { file, text, machine, model, ..Request::default() };
            let error = import(importer, &request).expect_err("there is no such machine").to_string();
            assert!(error.contains("such as: windtunnel import"), "{}: {error}", importer.name);
        }
    }
}

#[test]
fn broken_configurations_are_errors_with_a_place() {
    let deep = "[".repeat(50_000);
    for importer in IMPORTERS {
        let (file, text, _) = small(importer);
        // Cut anywhere, it is read or refused.
        for at in (0..text.len()).step_by(7).filter(|at| text.is_char_boundary(*at)) {
            if let Err(error) = read(importer.name, &text[..at], &[]) {
                let error = error.to_string();
                assert!(error.contains(file), "{} cut at {at}: {error}", importer.name);
            }
        }
        for broken in ["\u{0}", "a = [", "{\"a\": ", "a: [\n", &deep] {
            let error = read(importer.name, broken, &[]).expect_err("it is broken").to_string();
            assert!(error.contains(file), "{}: {error}", importer.name);
        }
    }
}

#[test]
fn wrong_types_name_the_key_and_what_it_should_be() {
    let cases = [
        ("torchtitan", "training.seq_len", "training.seq_len=-4"),
        ("torchtitan", "parallelism.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree=0"),
        ("torchtitan", "activation_checkpoint.mode", "activation_checkpoint.mode=most"),
        ("torchtitan", "compile.enable", "compile.enable=maybe"),
        ("megatron", "hidden_size", "--hidden-size=wide"),
        ("nanotron", "parallelism.dp", "parallelism.dp=0"),
        ("deepspeed", "zero_optimization.overlap_comm", "zero_optimization.overlap_comm=2"),
        ("maxtext", "per_device_batch_size", "per_device_batch_size=0.3"),
        ("accelerate", "fsdp_config.version", "fsdp_config.version=3"),
        ("torchtune", "batch_size", "batch_size=0"),
        ("axolotl", "micro_batch_size", "micro_batch_size=-1"),
        ("nemo", "num_layers", "model.num_layers=many"),
    ];
    for (name, key, word) in cases {
        let importer = find(name).expect("it is registered");
        let error = read(name, small(importer).1, &[word]).expect_err(word).to_string();
        assert!(error.starts_with(&format!("the command line: {key} is ")), "{word}: {error}");
    }
}

#[test]
fn keys_that_are_written_twice_are_refused() {
    let cases = [
        ("torchtitan", "[model]\nflavor = \"8B\"\nflavor = \"70B\"\n"),
        ("nanotron", "tokens:\n  a: 1\n  a: 2\n"),
        ("deepspeed", "{\"a\": 1,\n\"a\": 2}"),
    ];
    for (name, text) in cases {
        let error = read(name, text, &[]).expect_err(text).to_string();
        assert!(error.contains(":3: ") || error.contains(":2: "), "{error}");
    }
}

#[test]
fn a_long_file_is_read_or_refused_in_a_few_seconds() {
    let long: String = (0..100_000).map(|at| format!("key{at} = {at}\n")).collect();
    let error = read("torchtitan", &long, &[]).expect_err("it has too many keys").to_string();
    assert!(error.contains("so many values"), "{error}");
    let script = |comment: usize| format!("{MEGATRON}# {}\n", "y".repeat(comment));
    read("megatron", &script(1 << 20), &[]).expect("a comment is long");
    let error = read("megatron", &script(10 << 20), &[]).expect_err("nobody wrote this").to_string();
    assert!(error.contains("longer than 2 MiB"), "{error}");
}

#[test]
fn control_characters_of_a_configuration_do_not_leave_its_comments() {
    let text = format!("{TITAN}backend = \"a\\nb = 1\"\n\"x\\ny\" = 1\n");
    let titan = read("torchtitan", &text, &[]).expect("it is read");
    titan.scenario().unwrap_or_else(|error| panic!("{error}\n{}", titan.text()));
}
