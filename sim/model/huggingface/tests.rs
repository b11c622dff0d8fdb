//! Parameter counts against published ones, defaults, errors, and that no text at all makes the importer panic.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::Value;

use super::{ModelError, load, parse, shipped};
use crate::model::{ModelConfig, Norm, NormPlacement, Position};
use crate::units::Finite;

fn model(name: &str) -> ModelConfig {
    shipped::named(name).unwrap_or_else(|error| panic!("{error}"))
}

/// The model of `text` with `"key": value` pairs added or replaced; `null` stays, `Value::Null` in `gone` removes.
fn changed(name: &str, changes: &[(&str, Value)], gone: &[&str]) -> Result<ModelConfig, ModelError> {
    let mut value: Value =
        serde_json::from_str(shipped(name).expect("a shipped name")).expect("shipped files are JSON");
    let map = value.as_object_mut().expect("shipped files are objects");
    gone.iter().for_each(|key| drop(map.remove(*key)));
    changes.iter().for_each(|(key, value)| drop(map.insert(key.to_string(), value.clone())));
    parse(&value.to_string(), "config.json")
}

fn error(name: &str, changes: &[(&str, Value)], gone: &[&str]) -> String {
    changed(name, changes, gone).expect_err("should be an error").to_string()
}

/// Totals of the parameters that transformers 5.24's classes make of these configurations on the meta device; a number for each expert that
/// corrects the choice is a buffer there.
#[test]
fn parameter_counts_are_those_of_transformers_classes() {
    for (name, made) in [
        ("olmo-3-7b", 7_298_011_136),
        ("olmo-3-32b", 32_233_522_176),
        ("smollm3-3b", 3_075_098_624),
        ("glm-4.5-air", 106_852_245_504 + 45 * 128),
        ("glm-4.5", 352_797_814_784 + 89 * 160),
    ] {
        assert_eq!(shipped::named(name).expect(name).params().total, made, "{name}");
    }
}

/// Totals of the weights on the Hugging Face Hub, a matrix shared by embedding and head counted once.
#[test]
fn parameter_counts_are_the_published_ones() {
    for (name, published) in [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("code-llama-34b", 33_743_970_304),
        ("tinyllama-1.1b", 1_100_048_384),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("mistral-7b-v0.1", 7_241_732_096),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("gemma-2b", 2_506_172_416),
        ("gemma-7b", 8_537_680_896),
        ("gemma-2-2b", 2_614_341_888),
        ("gemma-2-9b", 9_241_705_984),
        ("gemma-3-1b", 999_885_952),
        ("phi-3-mini", 3_821_079_552),
        ("olmo-2-7b", 7_298_617_344),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("gpt-neox-20b", 20_554_567_680),
        ("mpt-7b", 6_649_286_656),
        ("bloom-176b", 176_247_271_424),
        ("falcon-7b", 6_921_720_704),
        ("opt-125m", 125_239_296),
        ("opt-1.3b", 1_315_758_080),
        ("opt-6.7b", 6_658_473_984),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v2", 235_741_434_880),
        // 684,531,386,000 with the block for multi-token prediction, which is left out.
        ("deepseek-v3", 671_026_419_200),
        ("gpt-oss-20b", 20_914_757_184),
        ("gpt-oss-120b", 116_829_156_672),
    ] {
        assert_eq!(model(name).params().total, published, "{name}");
    }
}

/// In billions, as the models' papers and cards print them. Mixtral (arXiv 2401.04088, section 1): 13; DeepSeek-V2
/// (arXiv 2405.04434): 21 and, Lite, 2.4; V3 (arXiv 2412.19437): 37; Qwen 3 (arXiv 2505.09388, Table 2): 3 and 22;
/// GPT-OSS (arXiv 2508.10925, Table 1): 3.61 and 5.13, "embeddings are not counted, unembeddings are", as in V2-Lite's.
#[test]
fn active_parameters_round_to_the_published_ones() {
    for (name, published, embedded) in [
        ("mixtral-8x7b", 13.0, true),
        ("mixtral-8x22b", 39.0, true),
        ("qwen3-30b-a3b", 3.3, true),
        ("qwen3-235b-a22b", 22.0, true),
        ("deepseek-v2-lite", 2.4, false),
        ("deepseek-v2", 21.0, true),
        ("deepseek-v3", 37.0, false),
        ("gpt-oss-20b", 3.61, false),
        ("gpt-oss-120b", 5.13, false),
    ] {
        let params = model(name).params();
        let active = params.active - if embedded { 0 } else { params.embedding };
        let billions = active as f64 / 1e9;
        assert!((billions / published - 1.0).abs() < 0.025, "{name}: {billions}");
    }
}

#[test]
fn which_blocks_have_experts_is_read() {
    let sparse = |name: &str| model(name).expert_blocks();
    assert_eq!((sparse("deepseek-v3"), sparse("deepseek-v2-lite"), sparse("mixtral-8x7b")), (58, 26, 32));
    let read = |key, value: Value| changed("qwen3-30b-a3b", &[(key, value)], &[]);
    assert_eq!(read("mlp_only_layers", serde_json::json!([0, 1])).expect("the first two").expert_blocks(), 46);
    assert_eq!(read("decoder_sparse_step", Value::from(2)).expect("every other").expert_blocks(), 24);
    assert!(read("decoder_sparse_step", Value::from(2)).expect("every other").layers.at(0).experts().is_none());
    let wrong = read("mlp_only_layers", serde_json::json!([5])).expect_err("not the first").to_string();
    assert!(wrong.contains("dense blocks in other places are not described"), "{wrong}");
    let wrong = read("num_experts_per_tok", Value::from(129)).expect_err("too many").to_string();
    assert!(wrong.contains("129 experts for each token and 128 experts do not fit"), "{wrong}");
    let wrong = error("mixtral-8x7b", &[("num_nextn_predict_layers", Value::from(1))], &[]);
    assert!(wrong.contains("set it to 0 to leave it out"), "{wrong}");
    let deepseek = model("deepseek-v2");
    let latent = deepseek.latent().expect("latent attention");
    assert_eq!((latent.query_rank, latent.rank, latent.value), (Some(1536), 512, 128));
}

/// mosaicml/llm-foundry, scripts/train/benchmarking/README.md at 4952183: the learned positions follow the sequence.
#[test]
fn llm_foundry_counts_are_those_of_its_benchmark_table() {
    for (name, positions, printed) in [
        ("125m", 512, 124_131_840),
        ("125m", 2048, 125_311_488),
        ("125m", 65536, 174_070_272),
        ("350m", 2048, 355_985_408),
        ("760m", 2048, 760_470_528),
        ("1b", 2048, 1_315_950_592),
        ("3b", 2048, 2_651_837_440),
        ("7b", 2048, 6_658_859_008),
        ("7b", 65536, 6_918_905_856),
        ("13b", 32768, 13_011_240_960),
        ("30b", 8192, 30_019_254_272),
        ("70b", 2048, 64_862_437_376),
    ] {
        let name = format!("llm-foundry-mpt-{name}");
        let model = changed(&name, &[("max_seq_len", Value::from(positions))], &[]).expect("a good config");
        assert_eq!(model.params().total, printed, "{name} with {positions} positions");
    }
}

/// Narayanan et al. 2021, equation 2, which leaves out the final norm: 12lh²(1 + 13/12h + (V + s)/12lh).
#[test]
fn megatron_models_follow_the_papers_formula() {
    // Those that a paper names by their billions; others are of Megatron's own tests.
    let billions = |name: &str| name.strip_prefix("gpt-megatron-")?.strip_suffix('b')?.parse::<f64>().ok();
    for (name, billions) in shipped::names().filter_map(|name| Some((name, billions(name)?))) {
        let model = model(name);
        let (l, h) = (model.layers.count(), model.width);
        assert_eq!(model.params().total, l * (12 * h * h + 13 * h) + (51_200 + 2048) * h + 2 * h, "{name}");
        assert!((model.params().total as f64 / 1e9 / billions - 1.0).abs() < 0.03, "{name}");
    }
}

/// In billions, embedding tables and everything else. NVIDIA 2024 (arXiv 2406.11704), section 2.1, prints both for 340B.
/// Parmar et al. 2024 (arXiv 2402.16819), section 2, prints 12.5 and 3.2 for 15B; twice 256,000 × 6,144 of its own Table 1
/// is 3.146, so only the first is held to.
#[test]
fn nemotron_counts_round_to_the_papers() {
    for (name, embedding, others) in [("nemotron-4-15b", 3.146, 12.5), ("nemotron-4-340b", 9.4, 331.6)] {
        let params = model(name).params();
        let tables = params.embedding + params.head;
        assert!((tables as f64 / 1e9 - embedding).abs() < 0.05, "{name}: {tables}");
        assert!(((params.total - tables) as f64 / 1e9 - others).abs() < 0.05, "{name}: {}", params.total - tables);
    }
}

#[test]
fn every_shipped_file_is_in_the_table_and_says_its_source() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/models");
    let files = std::fs::read_dir(folder).expect("the folder exists").map(|entry| entry.expect("readable").path());
    let stems: BTreeSet<String> =
        files.map(|path| path.file_stem().expect("a stem").to_string_lossy().into_owned()).collect();
    assert_eq!(stems, shipped::names().map(String::from).collect::<BTreeSet<_>>());
    for name in shipped::names() {
        let model = model(name);
        assert_eq!(model.name, name);
        assert!(model.source.len() > 20 && !model.source.ends_with(".json"), "{name}: {}", model.source);
        // MaxText's first decoder alone has a part that is read and left out.
        let first = name.strip_prefix("maxtext-").is_some_and(|size| size.starts_with(|c: char| c.is_ascii_digit()));
        let left_out = match name {
            "smollm3-3b" => vec!["layers without rotary positions (no_rope_layers) are simulated with them"],
            _ if first => vec!["a norm on values is left out"],
            _ => vec![],
        };
        assert_eq!(model.notes, left_out, "{name}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.'), "{name}");
        let from_disk = load(format!("{folder}/{name}.json").as_ref()).expect("the same file on disk");
        assert_eq!(from_disk, model);
    }
}

#[test]
fn what_is_special_about_each_architecture_is_read() {
    let window = |model: &ModelConfig, place| model.layers.at(place).window();
    let gemma = model("gemma-2-9b");
    assert!(gemma.caps_scores() && gemma.logit_softcap && gemma.scaled_embedding && gemma.tied_head);
    assert_eq!(
        (window(&gemma, 0), window(&gemma, 1), gemma.norms().placement),
        (Some(4096), None, NormPlacement::PreAndPost)
    );
    let gemma = model("gemma-3-1b");
    assert_eq!((window(&gemma, 4), window(&gemma, 5), gemma.caps_scores()), (Some(512), None, false));
    assert_eq!((window(&model("mistral-7b-v0.1"), 31), window(&model("mistral-7b-v0.2"), 31)), (Some(4096), None));
    assert_eq!(model("gpt-neox-20b").position, Position::Rope { dims: 24 });
    assert_eq!(model("nemotron-4-15b").position, Position::Rope { dims: 64 });
    assert_eq!(
        (model("mpt-7b").position, model("mpt-7b").norms().kind),
        (Position::Alibi, Norm::Layer { bias: false })
    );
    assert_eq!(model("llm-foundry-mpt-7b").position, Position::Learned { positions: 2048 });
    assert_eq!(model("opt-125m").position, Position::Learned { positions: 2050 });
    assert_eq!((model("falcon-7b").kv_heads(), model("gpt2").feed_forward_width()), (1, 3072));
    let qwen = model("qwen2.5-7b");
    let attention = qwen.attention().expect("attention of heads");
    assert!(attention.qkv_bias && !attention.output_bias && !qwen.tied_head);
}

#[test]
fn absent_keys_take_the_default_of_their_class() {
    let without = |name, gone: &[&str]| changed(name, &[], gone).expect("still a model");
    assert_eq!(without("llama-2-7b", &["num_key_value_heads"]).kv_heads(), 32);
    assert_eq!(
        without("mistral-7b-v0.1", &["num_key_value_heads", "sliding_window"]).layers.at(0).window(),
        Some(4096)
    );
    assert!(!without("llama-3.2-1b", &["tie_word_embeddings"]).tied_head);
    assert!(without("gemma-7b", &["tie_word_embeddings"]).tied_head);
    assert!(without("gpt2", &["tie_word_embeddings"]).tied_head);
    assert_eq!(without("gemma-7b", &["head_dim", "num_key_value_heads"]).params(), model("gemma-7b").params());
    assert!(without("gemma-2-9b", &["attn_logit_softcapping"]).caps_scores());
    let null = changed("gemma-2-9b", &[("attn_logit_softcapping", Value::Null)], &[]).expect("still a model");
    assert!(!null.caps_scores());
    assert_eq!(without("gpt-neox-20b", &["rotary_pct"]).position, Position::Rope { dims: 24 });
}

#[test]
fn sizes_must_be_there_and_sane() {
    for key in ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"] {
        let message = error("llama-3.1-8b", &[], &[key]);
        assert!(message.starts_with(&format!("config.json: {key:?} is missing: expected")), "{message}");
        assert_eq!(error("llama-3.1-8b", &[(key, Value::Null)], &[]), message);
        for bad in ["0", "-1", "1e300", "18446744073709551615", "4096.5", "\"4096\"", "true", "[]", "{}"] {
            let value: Value = serde_json::from_str(bad).expect("JSON");
            let message = error("llama-3.1-8b", &[(key, value)], &[]);
            assert!(message.contains(key) && message.contains("a whole number from 1 to"), "{message}");
        }
    }
    assert_eq!(
        error("llama-3.1-8b", &[("hidden_size", Value::from(4097))], &[]),
        "config.json: the width 4097 and 32 heads do not fit: the first must be a multiple of the second; \
         correct one of them, or say \"head_dim\" if the architecture has it"
    );
    assert!(
        changed("llama-3.1-8b", &[("hidden_size", Value::from(4097)), ("head_dim", Value::from(128))], &[]).is_ok()
    );
    let message = error("gpt2", &[("n_embd", Value::from(769)), ("head_dim", Value::from(64))], &[]);
    assert!(message.contains("the width 769 and 12 heads do not fit"), "{message}");
    let message = error("llama-3.1-8b", &[("num_key_value_heads", Value::from(5))], &[]);
    assert!(message.contains("32 query heads and 5 key-value heads do not fit"), "{message}");
    let message = error("llama-3.1-8b", &[("head_dim", Value::from(1 << 20))], &[]);
    assert!(message.contains("largest width believed"), "{message}");
}

#[test]
fn models_that_cannot_be_described_are_refused_with_a_remedy() {
    let refused = |key, value: Value| error("llama-3.1-8b", &[(key, value)], &[]);
    let moe = "no reader describes this mixture of experts; the model types with experts that can be read are mixtral";
    assert!(refused("num_local_experts", Value::from(8)).contains(moe));
    assert!(refused("model_type", Value::from("qwen2_moe")).contains(moe));
    assert!(refused("is_encoder_decoder", Value::from(true)).contains("encoder-decoder models are not supported"));
    assert!(refused("vision_config", serde_json::json!({"depth": 1})).contains("\"text_config\""));
    assert!(refused("kv_lora_rank", Value::from(512)).contains("latent attention"));
    assert!(refused("model_type", Value::from("mamba")).contains("that can be read are llama, mistral, qwen2"));
    assert!(error("llama-3.1-8b", &[], &["model_type"]).contains("\"model_type\" is missing"));
    assert!(refused("hidden_act", Value::from("tanhshrink")).contains("expected one of silu"));
    assert!(refused("partial_rotary_factor", Value::from(1.5)).contains("at most 1"));
    assert!(changed("llama-3.1-8b", &[("num_local_experts", Value::from(1))], &[]).is_ok());
    let windows = [("use_sliding_window", Value::from(true)), ("max_window_layers", Value::from(20))];
    assert!(error("qwen2.5-7b", &windows, &[]).contains("say 0 for a window everywhere or 28 for none"));
}

#[test]
fn what_is_left_out_is_noted() {
    let changes = [("sliding_window", Value::from(4096)), ("attention_dropout", Value::from(0.1))];
    let noted = changed("llama-3.1-8b", &changes, &[]).expect("still a model").notes;
    assert_eq!(noted, ["\"sliding_window\" is 4096, which LlamaConfig does not read: ignored"]);
}

#[test]
fn dropout_is_read_with_the_defaults_of_each_class() {
    let of = |name, changes: &[(&str, Value)]| {
        let dropout = changed(name, changes, &[]).expect("still a model").dropout;
        [dropout.embedding, dropout.attention, dropout.residual].map(Finite::get)
    };
    assert_eq!(of("gpt2", &[]), [0.1, 0.1, 0.1]);
    assert_eq!(of("gpt2", &[("attn_pdrop", Value::from(0.0))]), [0.1, 0.0, 0.1]);
    assert_eq!(of("opt-125m", &[]), [0.0, 0.0, 0.1]);
    assert_eq!(of("llama-3.1-8b", &[]), [0.0; 3]);
    assert!(error("gpt2", &[("resid_pdrop", Value::from(1.5))], &[]).contains("a probability, from 0 to below 1"));
}

#[test]
fn keys_that_nobody_reads_are_errors_unless_they_cost_a_training_step_nothing() {
    let refused = |key: &str, value: Value| error("llama-3.1-8b", &[(key, value)], &[]);
    assert!(refused("lora_rank", Value::from(16)).contains("adapters are not simulated"));
    assert!(refused("quantization_config", serde_json::json!({"bits": 4})).contains("remove the key to simulate"));
    assert!(refused("hiden_size", Value::from(4096)).contains("check its spelling"));
    for (key, value) in [
        ("rms_norm_eps", Value::from(1e-5)),
        ("pretraining_tp", Value::from(4)),
        ("architectures", serde_json::json!(["LlamaForCausalLM"])),
        ("unheard_of", Value::Null),
    ] {
        assert!(changed("llama-3.1-8b", &[(key, value)], &[]).is_ok(), "{key}");
    }
}

#[test]
fn listed_layer_types_are_read_as_a_pattern() {
    let types = |pattern: &[u8], layers: usize| -> Value {
        let word = |i: usize| if pattern[i % pattern.len()] == b'f' { "full_attention" } else { "sliding_attention" };
        (0..layers).map(word).collect::<Vec<_>>().into()
    };
    let read = |value| changed("gemma-3-1b", &[("layer_types", value)], &["sliding_window_pattern"]);
    let kinds = |value| {
        let model = read(value).expect("a pattern");
        let windows: String =
            model.layers.iter().map(|layer| if layer.window().is_some() { 's' } else { 'f' }).collect();
        (windows, model.layers.kinds().len())
    };
    assert_eq!(kinds(types(b"sssf", 26)), ("sssfsssfsssfsssfsssfsssfss".to_owned(), 2));
    assert_eq!(kinds(types(b"s", 26)), ("s".repeat(26), 1));
    assert_eq!(kinds(types(b"f", 26)), ("f".repeat(26), 1));
    assert!(read(types(b"fs", 26)).expect_err("not the last").to_string().contains("the last of every N blocks"));
    assert!(read(types(b"s", 25)).expect_err("too few").to_string().contains("26 entries, one for each block, not 25"));
}

#[test]
fn errors_point_at_the_place() {
    let syntax = parse("{\n  \"model_type\": \"llama\",\n  \"hidden_size\" 4096\n}", "a/config.json");
    assert_eq!(syntax.expect_err("a colon is missing").to_string(), "a/config.json:3:17: not JSON: expected `:`");
    let text = "{\n  \"model_type\": \"gpt2\",\n  \"n_embd\": -1\n}";
    assert_eq!(
        parse(text, "x.json").expect_err("negative").to_string(),
        "x.json:3: \"n_embd\" is -1: expected the model's width, a whole number from 1 to 1048576"
    );
    assert_eq!(
        parse("[]", "x.json").expect_err("a list").to_string(),
        "x.json: expected an object {…} with the keys of a config.json, found a list"
    );
    let absent = load("no/such/config.json".as_ref()).expect_err("no file").to_string();
    assert!(absent.starts_with("cannot read no/such/config.json: "), "{absent}");
    assert!(shipped::named("llama-4").expect_err("not there").to_string().contains("llama-3.1-8b"));
}

#[test]
fn a_config_json_is_named_after_its_folder() {
    let text = shipped("gpt2").expect("shipped");
    assert_eq!(parse(text, "models/my-gpt/config.json").expect("good").name, "my-gpt");
    let named = changed("gpt2", &[("_name_or_path", Value::from("org/base/"))], &["_source"]).expect("good");
    assert_eq!((named.name.as_str(), named.source.as_str()), ("base", "config.json"));
}

/// Keys of config.json files on the Hugging Face Hub, whole.
#[test]
fn whole_configs_of_the_hub_are_read() {
    for text in [
        r#"{"_name_or_path": "facebook/opt-125m", "activation_dropout": 0.0, "activation_function": "relu",
            "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": true,
            "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0,
            "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 12, "num_hidden_layers": 12,
            "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16", "transformers_version": "4.21.0.dev0",
            "use_cache": true, "vocab_size": 50272, "word_embed_proj_dim": 768}"#,
        r#"{"architectures": ["GemmaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 2,
            "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu", "hidden_activation": null, "hidden_size": 2048,
            "initializer_range": 0.02, "intermediate_size": 16384, "max_position_embeddings": 8192, "model_type": "gemma",
            "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0,
            "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
            "transformers_version": "4.38.0.dev0", "use_cache": true, "vocab_size": 256000}"#,
        r#"{"apply_residual_connection_post_layernorm": false, "attention_dropout": 0.0, "architectures": ["BloomForCausalLM"],
            "attention_softmax_in_fp32": true, "bias_dropout_fusion": true, "bos_token_id": 1, "eos_token_id": 2,
            "pad_token_id": 3, "unk_token_id": 0, "hidden_dropout": 0.0, "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": true, "model_type": "bloom", "n_embed": 1024,
            "n_inner": null, "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100, "pretraining_tp": 1,
            "seq_length": 2048, "skip_bias_add": true, "skip_bias_add_qkv": false, "transformers_version": "4.20.0",
            "use_cache": true, "vocab_size": 250880}"#,
    ] {
        parse(text, "config.json").expect("a config of the Hub");
    }
}

/// A JSON value of any shape, rich in numbers near the limits.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0_u32..64).prop_map(|bit| Value::from(1_u64 << bit)),
        (0_u64..70).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop_oneof![Just("gelu"), Just("mptglu"), Just("full_attention")].prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec(("[a-z_]{1,9}", inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&String::from_utf8_lossy(&bytes), "x.json");
    }

    #[test]
    fn no_changed_key_makes_it_panic(
        at in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any_value()), 1..4),
    ) {
        let names: Vec<&str> = shipped::names().collect();
        let mut value: Value = serde_json::from_str(shipped(names[at.index(names.len())]).expect("shipped")).expect("JSON");
        let map = value.as_object_mut().expect("an object");
        let mut keys: Vec<String> = map.keys().filter(|key| *key != "_source").cloned().collect();
        keys.extend(["head_dim", "layer_types", "ffn_config", "rope_parameters", "n_inner"].map(String::from));
        for (index, change) in changes {
            map.insert(keys[index.index(keys.len())].clone(), change);
        }
        if let Ok(model) = parse(&value.to_string(), "x.json") {
            prop_assert!(model.params().total < 1 << 60);
            prop_assert!(model.heads() % model.kv_heads() == 0 && model.layers.count() > 0);
            prop_assert!(model.feed_forward_width() > 0 || !model.is_transformer());
            let _ = (model.layers.at(0).window(), model.layers.last().window());
        }
    }

    #[test]
    fn no_cut_text_makes_it_panic(at in any::<prop::sample::Index>(), cut in any::<prop::sample::Index>(), with in ".{0,3}") {
        let names: Vec<&str> = shipped::names().collect();
        let text = shipped(names[at.index(names.len())]).expect("shipped");
        let (head, tail) = text.split_at(cut.index(text.len()));
        let _ = parse(&format!("{head}{with}{}", tail.get(1..).unwrap_or("")), "x.json");
    }
}
