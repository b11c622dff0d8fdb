//! What follows from several keys of a framework's dump, as the framework's code takes it: entries whose names begin with `=`.

use serde_json::{Value, json};

use super::Dump;

/// Adds them.
pub fn add(framework: &str, dump: &mut Dump) {
    let found = match framework {
        "torchtitan" => torchtitan(dump),
        "megatron" => megatron(dump),
        "deepspeed" => deepspeed(dump),
        "nanotron" => nanotron(dump),
        "maxtext" => maxtext(dump),
        "accelerate" => accelerate(dump),
        "axolotl" => axolotl(dump),
        "torchtune" => torchtune(dump),
        other => panic!("{other} has no rules here"),
    };
    dump.extend(found.into_iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.to_owned(), value)));
}

type Found = Vec<(&'static str, Value)>;

/// The first of some keys that has a value.
fn first<'d>(dump: &'d Dump, keys: &[&str]) -> Option<&'d Value> {
    keys.iter().find_map(|key| dump.get(*key)).filter(|value| !value.is_null())
}

fn number(dump: &Dump, keys: &[&str]) -> Option<i64> {
    first(dump, keys)?.as_i64()
}

fn flag(dump: &Dump, keys: &[&str]) -> bool {
    first(dump, keys).and_then(Value::as_bool).unwrap_or(false)
}

fn word<'d>(dump: &'d Dump, keys: &[&str]) -> &'d str {
    first(dump, keys).and_then(Value::as_str).unwrap_or("")
}

/// Numbers that end a key such as `model_spec.model.layers.0,2-5.attention.…`.
fn layers(dump: &Dump) -> Option<i64> {
    let ranges = dump.keys().filter_map(|key| key.strip_prefix("model_spec.model.layers.")?.split('.').next());
    let last = ranges.flat_map(|range| range.split([',', '-'])).filter_map(|number| number.parse::<i64>().ok()).max();
    last.map(|last| last + 1)
}

fn torchtitan(dump: &Dump) -> Found {
    let pp =
        number(dump, &["parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree"]).unwrap_or(1);
    let tp = number(dump, &["parallelism.tensor_parallel_degree", "training.tensor_parallel_degree"]).unwrap_or(1);
    let local = number(dump, &["training.local_batch_size", "training.batch_size"]);
    let part = number(dump, &["parallelism.pipeline_parallel_microbatch_size"]);
    // Before that key there was a number of micro-batches, by default as many as stages.
    let micro = if pp > 1 { part } else { local };
    let global = number(dump, &["training.global_batch_size"]).filter(|all| *all > 0);
    let parts = micro.and_then(|micro| Some(local? / micro)).filter(|_| global.is_none());
    let mode = word(dump, &["activation_checkpoint.mode", "training.activation_checkpoint"]);
    let option = first(dump, &["activation_checkpoint.selective_ac_option"]);
    let option =
        option.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)).unwrap_or_default();
    let policy = match (mode, word(dump, &["activation_checkpoint.class"]), option.as_str()) {
        ("none", ..) => json!("none"),
        ("full", ..) | (_, "FullAC.Config", _) => json!("full"),
        (_, "SelectiveAC.Config", _) | ("selective", _, "op") => json!("selective_op"),
        ("selective", _, "1") => json!("full"),
        ("selective", _, every) => json!({"every": every.parse::<i64>().unwrap()}),
        _ => Value::Null,
    };
    let reshard = match word(dump, &["parallelism.fsdp_reshard_after_forward"]) {
        "default" => json!(pp == 1),
        "always" => json!(true),
        "never" => json!(false),
        _ => Value::Null,
    };
    let components = first(dump, &["compile.components"]).and_then(Value::as_array);
    let model = components.is_none_or(|list| list.contains(&json!("model")));
    let compiled = first(dump, &["compile.enable", "training.compile"]).and_then(Value::as_bool);
    let new = dump.contains_key("model_spec.name");
    let fused = dump.iter().any(|(key, value)| key.ends_with("qkv_linear.class") && value == "FusedQKVLinear.Config");
    let experts = number(dump, &["model_args.moe_args.num_experts", "model_args.num_experts"]);
    let dense = dump.get("model_args.moe_enabled") == Some(&json!(false));
    let given = dump.iter().find(|(key, _)| key.ends_with(".moe.num_experts")).and_then(|(_, value)| value.as_i64());
    let experts = experts.or(given).filter(|_| !dense);
    // A vocabulary of -1 is the tokenizer's.
    let vocab = number(dump, &["model_args.vocab_size", "model_spec.model.vocab_size"]).filter(|words| *words > 0);
    let ep = number(dump, &["parallelism.expert_parallel_degree"]).map(|ep| if experts.is_some() { ep } else { 1 });
    vec![
        ("=piped", json!(pp > 1)),
        ("=split", json!(tp > 1)),
        ("=micro", json!(micro)),
        ("=global", json!(global)),
        ("=accumulation", json!(parts)),
        ("=policy", policy),
        ("=reshard", reshard),
        ("=compiled", json!(compiled.map(|enabled| enabled && model))),
        ("=loss_parallel", json!(!flag(dump, &["parallelism.disable_loss_parallel"]))),
        ("=cuda_graphs", if new { json!(!flag(dump, &["training.disable_cuda_graphs"])) } else { Value::Null }),
        ("=fused_qkv", if new { json!(fused) } else { Value::Null }),
        ("=experts", json!(experts)),
        ("=layers", json!(layers(dump))),
        ("=vocab", json!(vocab)),
        ("=ep", json!(ep)),
    ]
}

/// A share of dropout as whether there is any.
fn drops(dump: &Dump, key: &str) -> Value {
    json!(first(dump, &[key]).and_then(Value::as_f64).map(|share| share > 0.0))
}

fn megatron(dump: &Dump) -> Found {
    let precision = match (flag(dump, &["args.bf16"]), flag(dump, &["args.fp16"])) {
        (true, _) => "bf16",
        (_, true) => "fp16",
        _ => "fp32",
    };
    let method = word(dump, &["args.recompute_method"]);
    let layers = number(dump, &["args.recompute_num_layers"]).unwrap_or(1);
    let modules = first(dump, &["args.recompute_modules"]).cloned().unwrap_or(json!(["core_attn"]));
    let recompute = match word(dump, &["args.recompute_granularity"]) {
        "full" => json!({ method: layers }),
        "selective" if modules == json!(["core_attn"]) => json!("core_attn"),
        "selective" => Value::Null,
        _ => json!("none"),
    };
    let fp8 = if word(dump, &["args.fp8"]).is_empty() { "none" } else { word(dump, &["args.fp8_recipe"]) };
    let dense = first(dump, &["args.num_experts"]).is_none();
    vec![
        ("=precision", json!(precision)),
        ("=recompute", recompute),
        ("=fp8", json!(fp8)),
        ("=hidden_dropout", drops(dump, "args.hidden_dropout")),
        ("=attention_dropout", drops(dump, "args.attention_dropout")),
        ("=clip", drops(dump, "args.clip_grad")),
        ("=tied", json!(!flag(dump, &["args.untie_embeddings_and_output_weights"]))),
        ("=rope", json!(word(dump, &["args.position_embedding_type"]) == "rope")),
        // Where all layers have experts, no layer has the dense width.
        ("=ffn", if dense { json!(number(dump, &["args.ffn_hidden_size"])) } else { Value::Null }),
        ("=etp", json!(number(dump, &["args.tensor_model_parallel_size"]))),
    ]
}

fn deepspeed(dump: &Dump) -> Found {
    let stage = number(dump, &["zero_config.stage"]).unwrap_or(0);
    let half = flag(dump, &["bfloat16_config.enabled"]) || flag(dump, &["float16_config.enabled"]);
    vec![
        ("=third", json!(stage == 3)),
        ("=overlap", json!(stage == 3)),
        ("=clip", drops(dump, "gradient_clipping")),
        // fp16 is taken as bf16, which is as wide, and named as not modelled.
        ("=precision", json!(if half { "bf16" } else { "fp32" })),
    ]
}

fn nanotron(dump: &Dump) -> Found {
    let above = |key: &str| json!(number(dump, &[key]).unwrap_or(1) > 1);
    vec![("=piped", above("parallelism.pp")), ("=split", above("parallelism.tp"))]
}

fn maxtext(dump: &Dump) -> Found {
    let axis = |name: &str| number(dump, &[&format!("ici_{name}_parallelism")]).unwrap_or(1);
    let devices = number(dump, &["num_target_devices"]);
    let others: i64 =
        ["data", "fsdp_transpose", "sequence", "context", "tensor", "pipeline", "expert"].map(axis).iter().product();
    let fsdp = if axis("fsdp") == -1 { devices.map(|devices| devices / others) } else { Some(axis("fsdp")) };
    let each = first(dump, &["per_device_batch_size"]).and_then(Value::as_f64);
    let micro = each.map(|each| each * (axis("tensor") * axis("context")) as f64);
    let clip = first(dump, &["gradient_clipping_threshold"]).and_then(Value::as_f64).map(|at| at > 0.0);
    let mu = match word(dump, &["mu_dtype"]) {
        "" => json!("float32"),
        word => json!(word),
    };
    vec![("=fsdp", json!(fsdp)), ("=micro", json!(micro)), ("=clip", json!(clip)), ("=mu_dtype", mu)]
}

fn runtime(version: Option<i64>) -> Value {
    json!(if version == Some(2) { "fsdp2" } else { "fsdp1" })
}

fn accelerate(dump: &Dump) -> Found {
    let version = number(dump, &["fsdp.fsdp_version"]);
    let reshard = match word(dump, &["fsdp.sharding_strategy"]) {
        "" => first(dump, &["fsdp.reshard_after_forward"]).cloned().unwrap_or(Value::Null),
        strategy => json!(strategy == "FULL_SHARD" || strategy == "HYBRID_SHARD"),
    };
    let recomputes = flag(dump, &["fsdp.activation_checkpointing"]);
    vec![
        ("=runtime", runtime(version)),
        ("=reshard", reshard),
        ("=policy", json!(if recomputes { "full" } else { "none" })),
    ]
}

fn axolotl(dump: &Dump) -> Found {
    let recomputes = flag(dump, &["gradient_checkpointing"]) || flag(dump, &["fsdp_config.activation_checkpointing"]);
    vec![
        ("=runtime", runtime(number(dump, &["fsdp_version"]))),
        ("=policy", json!(if recomputes { "full" } else { "none" })),
    ]
}

fn torchtune(dump: &Dump) -> Found {
    let recomputes = flag(dump, &["enable_activation_checkpointing"]);
    vec![
        ("=policy", json!(if recomputes { "full" } else { "none" })),
        ("=fused", if flag(dump, &["optimizer.fused"]) { json!("fused") } else { json!("foreach") }),
        ("=clip", json!(first(dump, &["clip_grad_norm"]).is_some())),
    ]
}
