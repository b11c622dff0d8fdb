//! Training steps of small stacks measured on one H200 (`tests/oracles/hybrid-steps.jsonl`, made by `calibrate/mixers/hybrids.py`):
//! Mamba-2 alone, Nemotron-H's layers, and Llama's layers under Muon. The board was at its power limit.
//!
//! Steps are predicted 7 to 8 % too short, and those of Muon 16 %. The rates of Mamba-2's scan kernels come from profiles of other steps of
//! the same three stacks, so these rows are no independent witness of them; why Muon's is further off is not known yet. The bound on time
//! is no claim about others.

use windtunnel::scenario::Scenario;

/// Model, optimizer and what it has of each part, as the script builds it.
fn model(id: &str) -> Option<String> {
    let (name, rest) = id.split_once('/')?;
    let pattern = rest.split('/').next()?;
    let head = match name {
        "nemotron-h-8b" => "hidden_size = 4096\nvocab_size = 131072",
        "mamba2-2.7b" => "hidden_size = 2560\nvocab_size = 50288",
        "llama-3-8b" if pattern.contains('*') => "hidden_size = 4096\nvocab_size = 128256",
        _ => return None,
    };
    let mixers = match name {
        "nemotron-h-8b" => {
            "layers.M.mixer = { kind = \"mamba2\", heads = 128, head_dim = 64, groups = 8, state = 128, chunk = 128 }
layers.A.mixer = { kind = \"attention\", heads = 32, kv_heads = 8, head_dim = 128 }
layers.F.feed_forward = { kind = \"dense\", width = 21504, activation = \"relu2\", gated = false }"
        }
        "mamba2-2.7b" => "layers.M.mixer = { kind = \"mamba2\", heads = 80, head_dim = 64, state = 128 }",
        _ => {
            "layers.A.mixer = { kind = \"attention\", heads = 32, kv_heads = 8, head_dim = 128 }
layers.F.feed_forward = { kind = \"dense\", width = 14336 }"
        }
    };
    let pattern = pattern.replace('*', "A").replace('-', "F");
    Some(format!("[model.config]\nmodel_type = \"layers\"\npattern = \"{pattern}\"\n{head}\n{mixers}\n"))
}

#[test]
fn memory_of_hybrids_on_an_h200_is_predicted_within_a_per_cent_and_time_within_a_fifth() {
    let text = include_str!("oracles/hybrid-steps.jsonl");
    let (mut table, mut wrong, mut compared) = (String::new(), 0, 0);
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiny/scenario.toml");
    for line in text.lines() {
        let row: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
        let Some(model) = row["id"].as_str().and_then(model) else { continue };
        let optimizer = if row["optimizer"] == "muon" { "name = \"muon\"" } else { "name = \"adamw\"" };
        let scenario = format!(
            "runtime = \"single_device\"\n[topology]\nname = \"h200-sxm-141gb\"\nchips = 1\n{model}[mesh]\ndp_shard = 1\n\
             [batch]\nsequence = {}\nmicro = {}\n[precision]\nstorage = \"bf16\"\n[activation_checkpointing]\npolicy = \"{}\"\n\
             [optimizer]\n{optimizer}\nimplementation = \"fused\"\nclip_grad_norm = false\n",
            row["sequence"],
            row["micro"],
            row["ac"].as_str().expect("a policy"),
        );
        let scenario = Scenario::parse(beside, &scenario).unwrap_or_else(|error| panic!("{error}\n{scenario}"));
        let answer = scenario.predict().unwrap_or_else(|error| panic!("{error}"));
        let ours = (answer.step.seconds() * 1e3, answer.memory.report.peak_allocated.0 as f64);
        let theirs = ["median"].map(|key| row["step_ms"][key].as_f64().expect("a time"))[0];
        let memory = row["peak_allocated"].as_f64().expect("bytes");
        let off = (100.0 * (ours.0 / theirs - 1.0), 100.0 * (ours.1 / memory - 1.0));
        wrong += usize::from(off.0.abs() > 20.0 || off.1.abs() > 1.0);
        table += &format!(
            "{:50} {theirs:8.2} ms {:+7.1} %   {:7.2} GiB {:+7.2} %\n",
            row["id"],
            off.0,
            memory / f64::from(1 << 30),
            off.1
        );
        compared += 1;
    }
    println!("{table}");
    assert!(compared >= 4 && wrong == 0, "{table}");
}
