//! How a step divides by part of the model: shares add up, FLOPs are closed forms, and time is that of kernels.

use windtunnel::Scenario;
use windtunnel::engine::What;
use windtunnel::program::{Category, Owner, Pass};
use windtunnel::report::text::{Detail, report};
use windtunnel::scenario::Prediction;
use windtunnel::scenario::advice::even_stages;
use windtunnel::scenario::predict::{PartShare, Settings, predict};

/// Layers of one part each, which every framework takes that takes Mamba-2 at all.
const ALONE: &str = r#"[model.config]
model_type = "layers"
hidden_size = 1024
vocab_size = 32768
pattern = "MFMFAF"
num_hidden_layers = 12
layers.M.mixer = { kind = "mamba2", heads = 32, head_dim = 64, groups = 8, state = 128, chunk = 128 }
layers.A.mixer = { kind = "attention", heads = 16, kv_heads = 4, head_dim = 64 }
layers.F.feed_forward = { kind = "dense", width = 4096, activation = "relu2", gated = false }
"#;

/// Mamba-2, gated DeltaNet and attention, with experts behind some and a feed-forward behind others.
const JAMBA: &str = r#"[model.config]
model_type = "layers"
hidden_size = 1024
vocab_size = 32768
pattern = "MDAX"
num_hidden_layers = 8
layers.M.mixer = { kind = "mamba2", heads = 32, head_dim = 64, groups = 8, state = 128, chunk = 128 }
layers.M.feed_forward = { kind = "dense", width = 4096 }
layers.D.mixer = { kind = "gated_delta", key_heads = 8, key_dim = 128, value_heads = 16, value_dim = 128 }
layers.D.feed_forward = { kind = "dense", width = 4096 }
layers.A.mixer = { kind = "attention", heads = 16, kv_heads = 4, head_dim = 64 }
layers.A.feed_forward = { kind = "dense", width = 4096 }
layers.X.mixer = { kind = "attention", heads = 16, kv_heads = 4, head_dim = 64 }
layers.X.feed_forward = { kind = "experts", count = 16, top_k = 2, width = 1024, shared = 1024 }
"#;

/// Mamba-2 in the first half, which takes most of the time: two stages of equally many layers are unequal.
const HEAVY_FIRST: &str = r#"[model.config]
model_type = "layers"
hidden_size = 4096
vocab_size = 8192
pattern = "MMMAFFFF"
layers.M.mixer = { kind = "mamba2", heads = 128, head_dim = 64, groups = 8, state = 128, chunk = 128 }
layers.A.mixer = { kind = "attention", heads = 32, kv_heads = 8, head_dim = 128 }
layers.F.feed_forward = { kind = "dense", width = 4096, activation = "relu2", gated = false }
[mesh]
tp = 2
pp = 2
[batch]
sequence = 8192
accumulation = 16
[megatron]
implementation = "transformer_engine"
"#;

const H100: &str = "[topology]\nname = \"h100-sxm-80gb\"\n";

/// The runtimes in which layers of several kinds run, each with what it needs, around a model.
fn runtimes(model: &str) -> Vec<(&'static str, String)> {
    let megatron = "[megatron]\nimplementation = \"transformer_engine\"\n";
    let cases = [
        ("single_device", "chips = 1\n", "[mesh]\ndp_shard = 1\n", "micro = 2\n", ""),
        ("fsdp2", "nodes = 1\n", "[mesh]\ndp_shard = 8\n", "micro = 2\n", ""),
        ("fsdp1", "nodes = 1\n", "[mesh]\ndp_shard = 8\n", "micro = 2\n", ""),
        ("ddp", "nodes = 1\n", "[mesh]\ndp_replicate = 8\n", "micro = 2\n", ""),
        ("megatron", "nodes = 1\n", "[mesh]\ntp = 2\npp = 2\n", "micro = 2\naccumulation = 4\n", megatron),
    ];
    let write = |(runtime, size, mesh, batch, rest): (&'static str, &str, &str, &str, &str)| {
        (runtime, format!("runtime = \"{runtime}\"\n{H100}{size}{model}{mesh}[batch]\nsequence = 2048\n{batch}{rest}"))
    };
    cases.into_iter().map(write).collect()
}

fn run(text: &str, settings: Settings) -> (Scenario, Prediction) {
    let scenario = Scenario::parse("parts.toml", text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let answer = predict(&scenario, settings).unwrap_or_else(|error| panic!("{error}\n{text}"));
    (scenario, answer)
}

const PLAIN: Settings = Settings { fold: true, record: false, remedies: false };

fn part(parts: &[PartShare], owner: Owner) -> &PartShare {
    parts.iter().find(|part| part.owner == owner).unwrap_or_else(|| panic!("{owner:?} is a part: {parts:?}"))
}

/// Holds the sums of a prediction's parts against what they divide.
fn add_up(scenario: &Scenario, answer: &Prediction, name: &str) {
    let parts = answer.by_part(scenario);
    let sum = |of: fn(&PartShare) -> u128| parts.iter().map(of).sum::<u128>();
    assert_eq!(sum(|part| part.params.into()), scenario.job.model().params().total.into(), "{name}: parameters");
    let convention = |name: &str| answer.mfu.iter().find(|mfu| mfu.name == name).expect("a convention").flops.0;
    assert_eq!(sum(|part| part.model_flops.0), convention("6N + 12LHS"), "{name}: model FLOPs");
    assert_eq!(sum(|part| part.flops.0), convention("hardware"), "{name}: FLOPs");
    // Each class's kernels exactly, and so the mean but for a picosecond a kernel that the report rounds.
    for (class, busy) in answer.classes.iter().zip(&answer.timeline.busy) {
        let kernels = class.program.kernels.iter().zip(&busy.kernel);
        let compute: u64 =
            kernels.filter(|(kernel, _)| kernel.pass != Pass::Communication).map(|(_, time)| time.0).sum();
        assert_eq!(busy.owner.iter().map(|time| time.0).sum::<u64>(), compute, "{name}: time of a class");
    }
    let listed = answer.parts.iter().filter(|part| !matches!(part.group, "communication" | "collective"));
    let (listed, all) = (listed.map(|part| part.busy.0).sum::<u64>(), sum(|part| part.busy.0.into()) as u64);
    assert!(listed.abs_diff(all) <= answer.parts.len() as u64, "{name}: {listed} ps of kernels, {all} ps of parts");
    if answer.memory.report.out_of_memory.is_none() {
        let categories = [Category::Activation, Category::Logits, Category::Recompute];
        let held: u64 = categories.iter().map(|&of| answer.memory.report.breakdown.bytes(of).0).sum();
        assert_eq!(sum(|part| part.activations.0.into()), held.into(), "{name}: activations");
    }
}

#[test]
fn parts_add_up_to_the_step_in_every_runtime_where_kinds_of_layers_mix() {
    for (runtime, text) in runtimes(ALONE) {
        let (scenario, answer) = run(&text, PLAIN);
        add_up(&scenario, &answer, runtime);
        let parts = answer.by_part(&scenario);
        let layers = [Owner::Mamba2, Owner::Attention, Owner::Dense].map(|owner| part(&parts, owner).layers);
        assert_eq!(layers, [4, 2, 6], "{runtime}");
        // Hooks, which copy parameters and gradients, and what a loop does between modules are less than the model's own kernels.
        let all: u64 = parts.iter().map(|part| part.busy.0).sum();
        let rest = parts.iter().find(|part| part.owner == Owner::Rest).map_or(0, |part| part.busy.0);
        assert!(rest * 8 < all, "{runtime}: {rest} of {all} ps are no part's: {parts:#?}");
    }
    let (scenario, answer) = run(&jamba(), PLAIN);
    add_up(&scenario, &answer, "Jamba's layers");
}

/// Experts beside all mixers.
fn jamba() -> String {
    format!(
        "runtime = \"fsdp2\"\n{H100}nodes = 1\n{JAMBA}[framework]\nexperts = \"torchtitan\"\n[mesh]\ndp_shard = 8\n\
         [batch]\nsequence = 2048\n"
    )
}

#[test]
fn parts_add_up_in_models_of_one_kind_and_in_steps_that_are_extended() {
    let many = |runtime: &str, rest: &str| {
        format!("runtime = \"{runtime}\"\n{H100}nodes = 1\n[model]\nname = \"llama-3.1-8b\"\nlayers = 4\n{rest}")
    };
    for text in [
        many("fsdp2", "[mesh]\ndp_shard = 8\n[batch]\nsequence = 2048\naccumulation = 40\n"),
        many("fsdp2", "[mesh]\ndp_shard = 8\n[batch]\nsequence = 2048\n[compile]\nblocks = true\n"),
        many("megatron", "[mesh]\ntp = 2\npp = 4\n[batch]\nsequence = 2048\naccumulation = 24\n"),
        many(
            "megatron",
            "[mesh]\ntp = 2\npp = 4\n[batch]\nsequence = 2048\naccumulation = 64\n[pipeline]\nschedule = \"ZB-H1\"\n[megatron]\nimplementation = \"local\"\n",
        ),
        many(
            "fsdp2",
            "[mesh]\npp = 2\ndp_shard = 4\n[batch]\nsequence = 2048\naccumulation = 8\n[pipeline]\n\
             schedule = \"InterleavedZeroBubble\"\nlayers = [1, 1, 1, 1]\n",
        ),
        many("deepspeed-zero", "[zero]\nstage = 3\n[mesh]\ndp = 8\n[batch]\nsequence = 2048\n"),
    ] {
        let scenario = match Scenario::parse("parts.toml", &text) {
            Ok(scenario) => scenario,
            Err(error) => panic!("{error}\n{text}"),
        };
        let answer = predict(&scenario, PLAIN).unwrap_or_else(|error| panic!("{error}\n{text}"));
        add_up(&scenario, &answer, &text);
        let parts = answer.by_part(&scenario);
        let layer = |owner| part(&parts, owner).busy.0;
        assert!(layer(Owner::Dense) > layer(Owner::Attention) && layer(Owner::Attention) > 0, "{text}: {parts:#?}");
        let page = report(&scenario, &answer, Detail { verbose: true, ..Detail::default() });
        assert!(!page.contains("By part of the model"), "{page}");
    }
}

/// FLOPs of a linear's three matmuls on so many tokens.
fn linear(tokens: u128, inputs: u128, outputs: u128) -> u128 {
    6 * tokens * inputs * outputs
}

#[test]
fn flops_of_each_part_are_their_closed_forms() {
    let (d, v, seq) = (1024, 32_768, 2_048);
    for (runtime, text) in runtimes(ALONE) {
        let (scenario, answer) = run(&text, PLAIN);
        let parts = answer.by_part(&scenario);
        let tokens = u128::from(answer.tokens);
        let flops = |owner| part(&parts, owner).flops.0;
        // Two layers: q, k, v and the output; two products of scores and values forward, five backward.
        let attention = linear(tokens, d, (16 + 2 * 4) * 64) + linear(tokens, 16 * 64, d) + 14 * tokens * seq * 16 * 64;
        assert_eq!(flops(Owner::Attention), 2 * attention, "{runtime}: attention");
        // Four layers: z, x, B, C and dt; the output. What scans is no matmul to PyTorch's counter.
        let inner = 32 * 64;
        let mamba = linear(tokens, d, 2 * inner + 2 * 8 * 128 + 32) + linear(tokens, inner, d);
        assert_eq!(flops(Owner::Mamba2), 4 * mamba, "{runtime}: Mamba-2");
        assert_eq!(flops(Owner::Dense), 6 * 2 * linear(tokens, d, 4_096), "{runtime}: feed-forward");
        assert_eq!(flops(Owner::Head), linear(tokens, d, v), "{runtime}: head");
        assert_eq!(flops(Owner::Embedding), 0, "{runtime}: embedding");
    }
}

#[test]
fn flops_of_experts_and_of_gated_delta_net_are_their_closed_forms() {
    let (scenario, answer) = run(&jamba(), PLAIN);
    let parts = answer.by_part(&scenario);
    let (tokens, d) = (u128::from(answer.tokens), 1024);
    let flops = |owner| part(&parts, owner).flops.0;
    let (keys, values) = (8 * 128, 16 * 128);
    let delta = linear(tokens, d, 2 * keys + 2 * values) + linear(tokens, d, 2 * 16) + linear(tokens, values, d);
    assert_eq!(flops(Owner::GatedDelta), 2 * delta);
    // The router, two experts of sixteen for each token, and a shared one; three matrices each.
    let experts = linear(tokens, d, 16) + 3 * 3 * linear(tokens, d, 1_024);
    assert_eq!(flops(Owner::Experts), 2 * experts);
    assert_eq!(flops(Owner::Dense), 6 * 3 * linear(tokens, d, 4_096));
}

#[test]
fn time_of_a_part_is_the_sum_of_the_durations_of_its_kernels() {
    for (runtime, text) in runtimes(ALONE) {
        let (_, answer) = run(&text, Settings { record: true, ..PLAIN });
        let last = answer.timeline.spans.iter().map(|span| span.step).max().expect("a recorded run has spans");
        for (index, class) in answer.classes.iter().enumerate() {
            let rank = answer.timeline.ranks.iter().find(|rank| rank.class as usize == index).expect("its first rank");
            let mut sums = [0; Owner::COUNT];
            for span in answer.timeline.spans.iter().filter(|span| (span.rank, span.step) == (rank.rank, last)) {
                let What::Kernel(kernel) = span.what else { continue };
                if class.program.kernel(kernel).pass != Pass::Communication {
                    sums[span.scope.owner() as usize] += (span.end - span.start).0;
                }
            }
            assert_eq!(answer.timeline.busy[index].owner.map(|time| time.0), sums, "{runtime}, class {index}");
        }
    }
}

#[test]
fn stages_of_several_kinds_are_divided_so_that_the_step_is_shorter() {
    let text = format!("runtime = \"megatron\"\n{H100}nodes = 1\n{HEAVY_FIRST}");
    let (scenario, answer) = run(&text, PLAIN);
    let change = even_stages(&scenario, &answer).expect("half of the layers have most of the work");
    assert!(change.to_string().starts_with("pipeline.layers = ["), "{change}");
    let divided = scenario.draft.changed(&change).scenario().unwrap_or_else(|error| panic!("{error}"));
    let after = predict(&divided, PLAIN).unwrap_or_else(|error| panic!("{error}"));
    let largest = |answer: &Prediction| answer.classes.iter().map(|class| class.breakdown.compute).max();
    assert!(largest(&after) < largest(&answer) && after.step < answer.step, "{change}: {} {}", answer.step, after.step);
    // A model of one kind of layer is divided as its framework divides it.
    let llama = "[model]\nname = \"llama-3.1-8b\"\nlayers = 5\n[pipeline]\nlayers = [4, 1]\n";
    let (_, text) = runtimes(llama).pop().expect("Megatron-Core is the last");
    let (scenario, answer) = run(&text, PLAIN);
    assert_eq!(even_stages(&scenario, &answer), None);
}

#[test]
fn a_report_shows_parts_where_kinds_of_layers_mix() {
    let (runtime, text) = runtimes(ALONE).swap_remove(1);
    let (scenario, answer) = run(&text, PLAIN);
    let page = report(&scenario, &answer, Detail::default());
    let section = page.split("By part of the model\n").nth(1).unwrap_or_else(|| panic!("{runtime}: {page}"));
    let rows: Vec<&str> = section.lines().skip(1).take_while(|line| line.contains('%')).collect();
    assert!(rows.iter().any(|row| row.contains("Mamba-2")) && rows.len() >= 6, "{section}");
    let json = answer.report(&scenario).json();
    let listed = json["by_part"].as_array().expect("a list");
    assert_eq!(listed.len(), rows.len());
    let html = windtunnel::report::html::page(&scenario, &answer);
    assert!(
        html.contains("By part of the model") && html.contains("gated DeltaNet") == page.contains("gated DeltaNet")
    );
}
