//! What Megatron-Bridge makes of a configuration at start, before any argument of it counts.
//!
//! `mixed_precision` and `comm_overlap` write over fields of `model`, `optimizer` and `ddp`; a few fields of these write over each other
//! (Megatron-Bridge 0.6.2, `src/megatron/bridge/training/config.py`, `runtime_config_update` and `validate`; `mixed_precision.py`,
//! `comm_overlap.py`). A file that a run saved has them written already, and is read the same.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use super::settings::Raw;
use crate::tables;

/// Buckets of overlapped reductions, in elements, where nobody says how large (`comm_overlap.py:577`).
const BUCKET: u64 = 128 << 20;

/// `tables/bridge.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    others: BTreeMap<String, String>,
    reach: BTreeMap<String, Vec<String>>,
    defaults: BTreeMap<String, Value>,
    names: BTreeMap<String, BTreeMap<String, Value>>,
}

static RULES: LazyLock<Rules> =
    LazyLock::new(|| tables::read(include_str!("tables/bridge.toml")).expect("a test reads every table"));

/// `tables/bridge-defaults.toml`: fields that are not read here, and at which values they say nothing.
static DEFAULTS: LazyLock<BTreeMap<String, Vec<Value>>> =
    LazyLock::new(|| tables::read(include_str!("tables/bridge-defaults.toml")).expect("a test reads every table"));

/// Whether a text is a configuration of Bridge's own classes.
pub fn is(text: &str) -> bool {
    text.contains("_target_: megatron.bridge.") || text.contains("\"_target_\": \"megatron.bridge.")
}

/// What no field of the file describes, what to do about it, and the key that says so: a provider that builds modules of its own, or a
/// recipe of `mixed_precision` that a user has registered.
pub fn refused(raw: &[Raw]) -> Option<(&'static str, &'static str, &Raw)> {
    raw.iter().rev().find_map(|raw| {
        let name = raw.value.as_str()?;
        match raw.key.as_str() {
            "model._target_" => {
                let (_, what) = RULES.others.iter().find(|(part, _)| name.contains(part.as_str()))?;
                Some((what.as_str(), "import a provider of GPT, latent attention or hybrids", raw))
            }
            "mixed_precision" if named(name).is_none() => {
                let remedy = "write its fields in its place: mixed_precision with bf16, fp8, fp8_recipe, grad_reduce_in_fp32 and so on";
                Some(("a recipe of mixed_precision that is none of Megatron-Bridge's", remedy, raw))
            }
            _ => None,
        }
    })
}

/// The settings as Bridge has them once a run has started, and what to say of it.
pub fn started(raw: Vec<Raw>) -> (Vec<Raw>, Vec<String>) {
    let mut file = Sections { all: BTreeMap::new(), over: vec![] };
    for one in raw {
        file.all.insert(one.key.clone(), one);
    }
    file.objects_become_words();
    file.mixed_precision();
    file.comm_overlap();
    file.fields_that_follow();
    file.all.retain(|_, raw| !says_nothing(raw));
    let notes = match file.over.is_empty() {
        true => vec![],
        false => vec![format!("Megatron-Bridge writes over the file at start: {}.", file.over.join("; "))],
    };
    (file.all.into_values().collect(), notes)
}

/// Settings by their dotted keys.
struct Sections {
    all: BTreeMap<String, Raw>,
    /// What the file says otherwise than the run has it.
    over: Vec<String>,
}

impl Sections {
    fn value(&self, key: &str) -> Option<&Value> {
        self.all.get(key).map(|raw| &raw.value).filter(|value| !value.is_null())
    }

    fn is(&self, key: &str) -> bool {
        self.value(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn degree(&self, key: &str) -> i64 {
        self.value(key).and_then(Value::as_i64).unwrap_or(1)
    }

    /// Whether a section is in the file, and is not null.
    fn has(&self, section: &str) -> bool {
        let inside = format!("{section}.");
        self.all.keys().any(|key| key.starts_with(&inside)) || self.value(section).is_some()
    }

    /// Whether a field decides anything: those of fp8 only with fp8, and not how amaxima are kept.
    fn matters(&self, key: &str) -> bool {
        let field = key.rsplit('.').next().unwrap_or(key);
        let of_fp8 =
            field.starts_with("fp8_") || field.starts_with("num_layers_at_") || field == "first_last_layers_bf16";
        !(of_fp8 && self.value("model.fp8").is_none() || field.starts_with("fp8_amax") || field == "fp8_margin")
    }

    /// Writes a value over the file's, with the place that decides it.
    fn put(&mut self, key: &str, value: Value, line: Option<usize>) {
        let before = self.all.get(key);
        let told = |before: &&Raw| !before.value.is_null() && before.value != value && self.matters(key);
        if let Some(before) = before.filter(told) {
            let place = before.line.map_or(String::new(), |line| format!(" (line {line})"));
            self.over.push(format!("{key} is {value} and not {}{place}", before.value));
        }
        let line = line.or(before.and_then(|before| before.line));
        self.set(key, value, line);
    }

    /// Writes a value that the file says in another way.
    fn set(&mut self, key: &str, value: impl Into<Value>, line: Option<usize>) {
        self.all.insert(key.to_owned(), Raw { key: key.to_owned(), value: value.into(), line });
    }

    fn line(&self, key: &str) -> Option<usize> {
        self.all.get(key)?.line
    }

    /// `{_target_: torch.bfloat16}` is bf16, and `{_name_: attn}` attn.
    fn objects_become_words(&mut self) {
        for (tail, others) in
            [("._name_", ["_target_", "_call_", "_args_"]), ("._target_", ["_call_", "_args_", "_partial_"])]
        {
            let keys: Vec<String> =
                self.all.keys().filter_map(|key| key.strip_suffix(tail).map(str::to_owned)).collect();
            for key in keys.into_iter().filter(|key| key.contains('.')) {
                let Some(found) = self.all.get(&format!("{key}{tail}")).cloned() else { continue };
                let Some(word) = word(&found.value) else { continue };
                self.all.remove(&format!("{key}{tail}"));
                for other in others {
                    self.all.remove(&format!("{key}.{other}"));
                }
                self.set(&key, word, found.line);
            }
        }
        for raw in self.all.values_mut() {
            if let Value::Array(list) = &mut raw.value {
                for one in list {
                    if let Some(name) = one.get("_name_").cloned() {
                        *one = name;
                    }
                }
            }
        }
    }

    /// Every field of `mixed_precision`, defaults included, is written to the sections that have a field of its name.
    fn mixed_precision(&mut self) {
        const SECTION: &str = "mixed_precision";
        if !self.has(SECTION) {
            return;
        }
        let mut fields = RULES.defaults.clone();
        let line = self.line(SECTION);
        if let Some((dtype, stands_for)) = self.value(SECTION).and_then(Value::as_str).and_then(named) {
            fields.extend(stands_for.clone());
            fields.insert(dtype.to_owned(), Value::Bool(true));
            fields.insert("grad_reduce_in_fp32".to_owned(), Value::Bool(dtype == "bf16"));
            self.all.remove(SECTION);
        }
        for (field, sections) in &RULES.reach {
            let own = self.all.remove(&format!("{SECTION}.{field}"));
            let line = own.as_ref().and_then(|own| own.line).or(line);
            let value = own.map(|own| own.value).or_else(|| fields.get(field).cloned()).unwrap_or(Value::Null);
            for section in sections {
                self.put(&format!("{section}.{field}"), value.clone(), line);
            }
        }
        // `fp8_param` and `fp4_param` are kept equal to `…_gather` (lines 77-99).
        let inside = format!("{SECTION}.");
        self.all.retain(|key, _| !key.starts_with(&inside) && key != "model.fp8_param" && key != "model.fp4_param");
    }

    /// What the file leaves open in `comm_overlap` is computed, and all of it is written.
    fn comm_overlap(&mut self) {
        const SECTION: &str = "comm_overlap";
        if !self.has(SECTION) {
            return;
        }
        let [tp, pp, chunks] =
            ["tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"]
                .map(|key| self.degree(&format!("model.{key}")));
        let deep = pp > 1 && chunks > 1;
        let sequence = tp > 1 && self.is("model.sequence_parallel");
        let tensor = sequence && self.is("comm_overlap.tp_comm_overlap");
        let mut written = vec![
            ("model", "tp_comm_overlap", Value::Bool(tensor)),
            ("model", "overlap_p2p_comm", self.stated("overlap_p2p_comm", deep)),
            ("model", "defer_embedding_wgrad_compute", self.stated("defer_embedding_wgrad_compute", false)),
            ("model", "overlap_moe_expert_parallel_comm", self.stated("overlap_moe_expert_parallel_comm", false)),
            ("model", "delay_wgrad_compute", self.stated("delay_wgrad_compute", false)),
        ];
        // Replicas leave out ranks that share a sequence. How many there are the file does not say: more than one.
        if self.is("ddp.use_distributed_optimizer") || self.is("optimizer.use_distributed_optimizer") {
            let bucket = self.value("comm_overlap.bucket_size").cloned().unwrap_or(Value::from(BUCKET));
            let gathers = self.stated("overlap_param_gather", true);
            written.extend([
                ("ddp", "overlap_grad_reduce", self.stated("overlap_grad_reduce", true)),
                ("ddp", "overlap_param_gather", gathers.clone()),
                ("optimizer", "overlap_param_gather", gathers),
                ("ddp", "align_param_gather", self.stated("align_param_gather", deep)),
                ("ddp", "bucket_size", bucket),
                (
                    "optimizer",
                    "overlap_param_gather_with_optimizer_step",
                    self.stated("overlap_param_gather_with_optimizer_step", false),
                ),
            ]);
        }
        for (section, field, value) in written {
            let line = self.line(&format!("{SECTION}.{field}"));
            self.put(&format!("{section}.{field}"), value, line);
        }
        let inside = format!("{SECTION}.");
        self.all.retain(|key, _| !key.starts_with(&inside));
    }

    /// A flag of `comm_overlap`, or what is computed where it is open.
    fn stated(&self, field: &str, computed: bool) -> Value {
        self.value(&format!("comm_overlap.{field}")).cloned().unwrap_or(Value::Bool(computed))
    }

    /// Fields that sections share, and those whose default is not Megatron-LM's.
    fn fields_that_follow(&mut self) {
        for field in ["overlap_param_gather", "use_distributed_optimizer"] {
            let [one, other] = ["ddp", "optimizer"].map(|section| format!("{section}.{field}"));
            if self.is(&one) || self.is(&other) {
                let line = self.line(if self.is(&one) { &one } else { &other });
                [one, other].iter().for_each(|key| self.set(key, true, line));
            }
        }
        // No rule makes bf16 add up in fp32 here: this flag alone says it.
        if !self.is("ddp.grad_reduce_in_fp32") {
            let line = self.all.remove("ddp.grad_reduce_in_fp32").and_then(|raw| raw.line);
            self.set("ddp.grad_reduce_in_bf16", true, line);
        }
        // One graph for all: another name, and another place for it (`transformer_config.py:2383`).
        let words = |value: Option<&Value>| match value {
            Some(Value::Array(list)) => list.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect(),
            Some(Value::String(word)) if word != "full" => vec![word.clone()],
            _ => vec![],
        };
        let mut scope: Vec<String> = words(self.value("model.cuda_graph_modules"));
        scope.extend(words(self.value("model.cuda_graph_scope")));
        let line = self.line("model.cuda_graph_modules").or(self.line("model.cuda_graph_scope"));
        self.all.remove("model.cuda_graph_modules");
        if self.value("model.cuda_graph_impl").is_some_and(|kind| kind == "full_iteration") {
            self.set("model.cuda_graph_impl", "local", self.line("model.cuda_graph_impl"));
            scope = vec!["full_iteration".to_owned()];
        }
        self.set("model.cuda_graph_scope", scope, line);
        for variable in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDA_DEVICE_MAX_CONNECTIONS"] {
            if let Some(raw) = self.all.remove(&format!("env_vars.{variable}")) {
                let key = format!("env.{variable}");
                self.all.insert(key.clone(), Raw { key, ..raw });
            }
        }
        // The tokenizer's words are written over the model's, and padded; else the model's own number is taken as it is
        // (`setup.py:295, 681`). A file of a run has the tokenizer's there already.
        if self.is("tokenizer.use_tokenizer_vocab_size") || self.value("model.vocab_size").is_none() {
            let other = match self.value("tokenizer.vocab_size") {
                Some(_) => "model.vocab_size",
                None => "tokenizer.vocab_size",
            };
            self.all.remove(other);
        } else {
            self.all.remove("tokenizer.vocab_size");
            if !self.is("model.should_pad_vocab") {
                self.set("model.make_vocab_size_divisible_by", 1, self.line("model.vocab_size"));
            }
        }
        self.all.remove("model.should_pad_vocab");
        let function = self.value("model.activation_func._target_").and_then(Value::as_str);
        if function.is_some_and(|name| name.ends_with(".squared_relu")) {
            self.set("model.squared_relu", true, self.line("model.activation_func._target_"));
        }
        // Either switches it on (`config.py:1071`).
        if self.is("dist.use_megatron_fsdp") {
            self.set("ddp.use_megatron_fsdp", true, self.line("dist.use_megatron_fsdp"));
        }
        // Its optimizer is told the recipe of fp8 though nothing is in fp8 ("tensorwise" where none is named), and Megatron-Core then keeps
        // fp32 masters beside Transformer Engine's (`optimizer_config.py:404`, core_v0.19.2).
        let fp32 = self.value("optimizer.main_params_dtype").and_then(word).is_none_or(|dtype| dtype == "fp32");
        let recipe =
            self.value("optimizer.fp8_recipe").and_then(Value::as_str).is_some_and(|recipe| recipe != "delayed");
        if self.is("optimizer.use_precision_aware_optimizer") && fp32 && recipe {
            self.set("optimizer.store_param_remainders", false, self.line("optimizer.use_precision_aware_optimizer"));
        }
        if self.degree("model.expert_model_parallel_size") > 1
            && self.value("model.expert_tensor_parallel_size").is_none()
        {
            self.set("model.expert_tensor_parallel_size", 1, None);
        }
    }
}

/// Whether a setting is what its class has anyway: a file holds every field.
fn says_nothing(raw: &Raw) -> bool {
    let (section, field) = raw.key.rsplit_once('.').unwrap_or(("", &raw.key));
    let alike =
        |known: &Value| known == &raw.value || known.as_f64().is_some_and(|number| raw.value.as_f64() == Some(number));
    match DEFAULTS.get(field) {
        Some(known) => !section.contains('.') && (raw.value.is_null() || known.iter().any(alike)),
        None => section.is_empty() && raw.value.is_null(),
    }
}

/// A type of PyTorch's, or a name of an enumeration.
fn word(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    match text.strip_prefix("torch.") {
        Some("bfloat16") => Some("bf16".to_owned()),
        Some("float32") => Some("fp32".to_owned()),
        Some("float16") => Some("fp16".to_owned()),
        Some("uint8" | "float8_e4m3fn") => Some("fp8".to_owned()),
        Some(_) => None,
        None => (!text.contains('.')).then(|| text.to_owned()),
    }
}

/// The type of a recipe of `mixed_precision`, and the fields that its name stands for; hyphens and underscores are alike.
fn named(name: &str) -> Option<(&'static str, &'static BTreeMap<String, Value>)> {
    let name = name.replace('-', "_");
    ["bf16", "fp16"].into_iter().find_map(|dtype| {
        let rest = name.replacen(&format!("{dtype}_"), "", 1);
        (rest.len() < name.len()).then(|| Some((dtype, RULES.names.get(&rest)?)))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(lines: &[(&str, Value)]) -> (BTreeMap<String, Value>, Vec<String>) {
        let raw = lines.iter().enumerate().map(|(at, (key, value))| Raw {
            key: (*key).to_owned(),
            value: value.clone(),
            line: Some(at + 1),
        });
        let (raw, notes) = started(raw.collect());
        (raw.into_iter().map(|raw| (raw.key, raw.value)).collect(), notes)
    }

    #[test]
    fn mixed_precision_writes_over_the_sections_that_say_otherwise() {
        let (all, notes) = after(&[
            ("ddp.grad_reduce_in_fp32", Value::Bool(true)),
            ("mixed_precision.bf16", Value::Bool(true)),
            ("mixed_precision.fp8", Value::from("e4m3")),
            ("mixed_precision.fp8_recipe", Value::from("mxfp8")),
            ("mixed_precision.grad_reduce_in_fp32", Value::Bool(false)),
            ("model.fp8", Value::Null),
        ]);
        assert_eq!(all["model.fp8"], "e4m3");
        assert_eq!(all["model.fp8_recipe"], "mxfp8");
        assert_eq!(all["ddp.grad_reduce_in_bf16"], true);
        assert!(notes[0].contains("ddp.grad_reduce_in_fp32 is false and not true (line 1)"), "{notes:?}");
    }

    #[test]
    fn a_name_of_mixed_precision_stands_for_its_fields() {
        for (name, recipe, first_and_last, fp32) in [
            ("bf16_mixed", "tensorwise", false, true),
            ("fp16-mixed", "tensorwise", false, false),
            ("bf16_with_fp8_delayed_scaling_mixed", "delayed", false, true),
            ("bf16_with_fp8_current_scaling_mixed", "tensorwise", true, true),
            ("bf16-with-mxfp8-mixed", "mxfp8", false, true),
            ("fp16_with_fp8_subchannel_scaling_mixed", "blockwise", false, false),
            ("nanov2_bf16_with_fp8_current_scaling_mixed", "blockwise", true, true),
        ] {
            let (all, _) = after(&[("mixed_precision", Value::from(name))]);
            assert_eq!(all["model.fp8_recipe"], recipe, "{name}");
            assert_eq!(all["model.first_last_layers_bf16"], first_and_last, "{name}");
            assert_eq!(all.contains_key("ddp.grad_reduce_in_bf16"), !fp32, "{name}");
        }
    }

    #[test]
    fn a_recipe_that_only_a_user_has_registered_is_refused_with_its_line() {
        let raw =
            |value: &str| vec![Raw { key: "mixed_precision".to_owned(), value: Value::from(value), line: Some(7) }];
        assert_eq!(refused(&raw("bf16_with_mxfp8_mixed")), None);
        assert!(refused(&raw("bf16_with_my_own_mixed")).is_some_and(|(_, _, raw)| raw.line == Some(7)));
    }

    #[test]
    fn what_comm_overlap_leaves_open_is_computed_and_what_it_says_wins() {
        let base = [
            ("comm_overlap.tp_comm_overlap", Value::Bool(true)),
            ("ddp.use_distributed_optimizer", Value::Bool(true)),
            ("ddp.overlap_param_gather", Value::Bool(false)),
            ("model.overlap_moe_expert_parallel_comm", Value::Bool(true)),
            ("model.pipeline_model_parallel_size", Value::from(4)),
            ("model.virtual_pipeline_model_parallel_size", Value::from(2)),
        ];
        let (all, notes) = after(&base);
        for (key, value) in [
            ("model.tp_comm_overlap", Value::Bool(false)),
            ("model.overlap_p2p_comm", Value::Bool(true)),
            ("model.overlap_moe_expert_parallel_comm", Value::Bool(false)),
            ("ddp.overlap_param_gather", Value::Bool(true)),
            ("ddp.align_param_gather", Value::Bool(true)),
            ("ddp.bucket_size", Value::from(134_217_728)),
        ] {
            assert_eq!(all[key], value, "{key}");
        }
        assert!(notes[0].contains("overlap_moe_expert_parallel_comm is false and not true (line 4)"), "{notes:?}");
        let mut said = base.to_vec();
        said.push(("comm_overlap.bucket_size", Value::from(1000)));
        said.push(("comm_overlap.overlap_grad_reduce", Value::Bool(false)));
        let (all, _) = after(&said);
        assert_eq!(
            (&all["ddp.bucket_size"], &all["ddp.overlap_grad_reduce"]),
            (&Value::from(1000), &Value::Bool(false))
        );
    }

    #[test]
    fn objects_are_words_and_graphs_of_a_whole_iteration_have_their_older_name() {
        let modules =
            serde_json::json!([{"_name_": "attn", "_target_": "x.CudaGraphModule"}, {"_name_": "moe_router"}]);
        let (all, _) = after(&[
            ("optimizer.exp_avg_dtype._call_", Value::Bool(false)),
            ("optimizer.exp_avg_dtype._target_", Value::from("torch.bfloat16")),
            ("model.attention_backend._name_", Value::from("flash")),
            ("model.attention_backend._target_", Value::from("megatron.core.transformer.enums.AttnBackend")),
            ("model.cuda_graph_modules", modules),
        ]);
        assert_eq!(all["optimizer.exp_avg_dtype"], "bf16");
        assert_eq!(all["model.attention_backend"], "flash");
        assert_eq!(all["model.cuda_graph_scope"], serde_json::json!(["attn", "moe_router"]));
        let (all, _) = after(&[("model.cuda_graph_impl", Value::from("full_iteration"))]);
        assert_eq!(
            (&all["model.cuda_graph_impl"], &all["model.cuda_graph_scope"]),
            (&Value::from("local"), &serde_json::json!(["full_iteration"]))
        );
    }
}
