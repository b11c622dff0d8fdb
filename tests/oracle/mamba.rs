//! Stacks with Mamba-2 layers against PyTorch's allocator (`tests/oracles/mamba.json`), and hybrids' parameters against transformers'
//! own classes (`tests/oracles/hybrids.json`).

use super::cases;
use windtunnel::memory::{Settings, replay};
use windtunnel::model::huggingface::shipped;
use windtunnel::scenario::Scenario;
use windtunnel::units::Bytes;

/// The scenario of a case: its keys are those of the script that computed it.
fn text(case: &serde_json::Value) -> String {
    let number = |key: &str| case[key].as_u64().expect("a number");
    let (pattern, world) = (case["pattern"].as_str().expect("a pattern"), number("world"));
    let alone = world == 1;
    format!(
        r#"runtime = "{runtime}"
[topology]
name = "h100-sxm-80gb"
{size}
[model.config]
model_type = "nemotron_h"
hidden_size = {dim}
num_hidden_layers = {layers}
hybrid_override_pattern = "{pattern}"
num_attention_heads = {aheads}
num_key_value_heads = {akv}
head_dim = {adim}
intermediate_size = {ffn}
vocab_size = {vocab}
mamba_num_heads = {heads}
mamba_head_dim = {head}
n_groups = {groups}
ssm_state_size = {state}
chunk_size = {chunk}
use_conv_bias = {conv_bias}
tie_word_embeddings = false
[mesh]
dp_shard = {world}
[batch]
sequence = {seq}
micro = {batch}
{precision}
[activation_checkpointing]
policy = "{ac}"
early_stop = true
[optimizer]
implementation = "foreach"
clip_grad_norm = false
"#,
        runtime = if alone { "single_device" } else { "fsdp2" },
        precision = if alone { "[precision]\nstorage = \"bf16\"" } else { "" },
        size = if world > 8 { format!("nodes = {}", world / 8) } else { format!("chips = {world}") },
        layers = pattern.len(),
        conv_bias = case["conv_bias"].as_bool().unwrap_or(true),
        ac = case["ac"].as_str().expect("a policy"),
        dim = number("dim"),
        aheads = number("aheads"),
        akv = number("akv"),
        adim = number("adim"),
        ffn = number("ffn"),
        vocab = number("vocab"),
        heads = number("heads"),
        head = number("head"),
        groups = number("groups"),
        state = number("state"),
        chunk = number("chunk"),
        seq = number("seq"),
        batch = number("batch"),
    )
}

#[test]
fn oracle_peak_memory_of_mamba_2_agrees_with_pytorchs_allocator() {
    let Some(file) = cases::read("mamba.json") else { return };
    let (mut table, mut wrong) = (String::new(), 0);
    let list = file["cases"].as_array().expect("cases");
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiny/scenario.toml");
    for case in list {
        let scenario = Scenario::parse(beside, &text(case)).unwrap_or_else(|error| panic!("{error}"));
        scenario.simulable().unwrap_or_else(|error| panic!("{error}"));
        let program = scenario.job.compile().classes.remove(0);
        let report = replay(&program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        let theirs = ["allocated", "reserved"].map(|key| case[key].as_u64().expect("bytes"));
        let off = |at: usize, ours: u64| 100.0 * (ours as f64 / theirs[at] as f64 - 1.0);
        let both = [off(0, report.peak_allocated.0), off(1, report.peak_reserved.0)];
        wrong += usize::from(both[0].abs() > 0.5);
        let words = ["pattern", "dim", "heads", "groups", "state", "chunk", "seq", "batch", "ac", "world"];
        let words: Vec<String> = words.iter().map(|key| case[key].to_string()).collect();
        table += &format!(
            "{:70} {:+9.4} % {:+9.4} % of {:.0} MiB\n",
            words.join(" "),
            both[0],
            both[1],
            theirs[0] as f64 / 1048576.0
        );
    }
    println!("{table}");
    assert!(list.len() >= 24 && wrong == 0, "{wrong} of {} are off by more than half a per cent\n{table}", list.len());
}

#[test]
fn oracle_hybrids_have_as_many_parameters_as_transformers_classes_make() {
    let Some(file) = cases::read("hybrids.json") else { return };
    let models = file["models"].as_object().expect("models");
    for (name, counted) in models {
        let model = shipped::named(name).unwrap_or_else(|error| panic!("{error}"));
        let theirs = ["parameters", "correction_biases"].map(|key| counted[key].as_u64().expect("a count"));
        // Biases that balance experts are buffers there.
        assert_eq!(model.params().total, theirs.iter().sum::<u64>(), "{name}");
    }
    assert_eq!(models.len(), 5);
}

/// A scenario of a model that is a pattern of gated DeltaNet, Mamba-2 and feed-forwards, with more of the table `[fsdp]`.
fn of_pattern(pattern: &str, fsdp: &str) -> String {
    let kinds = [
        "layers.G.mixer = { kind = \"gated_delta\", key_heads = 16, key_dim = 128, value_heads = 32, value_dim = 128 }\n",
        "layers.M.mixer = { kind = \"mamba2\", heads = 64, head_dim = 64, state = 128 }\n",
        "layers.F.feed_forward = { kind = \"dense\", width = 8192 }\n",
    ];
    // A letter that no layer is of would be refused.
    let kinds: String = kinds.into_iter().filter(|kind| pattern.contains(&kind[7..8])).collect();
    format!(
        "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nchips = 8\n[model.config]\nmodel_type = \"layers\"\n\
         hidden_size = 2048\nvocab_size = 32000\npattern = \"{pattern}\"\n{kinds}\
         [mesh]\ndp_shard = 8\n[fsdp]\n{fsdp}\n[batch]\nsequence = 4096\nmicro = 1\n"
    )
}

#[test]
fn a_shown_model_has_the_operators_of_each_kind_of_layer() {
    let folder = crate::command::Folder::new("show-mixers");
    folder.write("my.toml", &of_pattern("GGGMFG", ""));
    let output = folder.windtunnel(&["show", "model", "my.toml"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("text");
    for module in ["mixer.in_proj_qkvz", "mixer.in_proj ", "feed_forward.w1"] {
        assert!(said.contains(module), "{module}: {said}");
    }
}

#[test]
fn a_matrix_to_shard_on_dimension_1_may_be_in_any_kind_of_layer() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiny/scenario.toml");
    let with = |pattern: &str, name: &str| {
        let text = of_pattern(pattern, &format!("shard_dim_1 = [\"{name}\"]"));
        Scenario::parse(beside, &text).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(with("MF", "w2.weight"), Ok(()));
    assert_eq!(with("FM", "out_proj.weight"), Ok(()));
    let said = with("GG", "w2.weight").expect_err("there is no such matrix");
    assert!(said.contains("no matrix whose name ends in"), "{said}");
}
