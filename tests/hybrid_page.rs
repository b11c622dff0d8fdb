//! `docs/guide/hybrid.md`: a model of four billion parameters on 8 H200 and on 8 TPU v6e, feature by feature. The page is what is simulated.

use std::fmt::Write;

use super::pages::fresh;
use windtunnel::scenario::{Prediction, Scenario};

/// Attention and a dense feed-forward, of the sizes of Qwen3-4B.
const DENSE: &str = r#"hidden_size = 2560
pattern = "A"
num_hidden_layers = 36
layers.A.mixer = { kind = "attention", heads = 32, kv_heads = 8, head_dim = 128, qk_norm = true }
layers.A.feed_forward = { kind = "dense", width = 9728 }"#;
/// 64 routed experts and one that every token passes in place of the feed-forward.
const EXPERTS: &str = r#"hidden_size = 2048
pattern = "A"
num_hidden_layers = 24
layers.A.mixer = { kind = "attention", heads = 32, kv_heads = 8, head_dim = 128 }
layers.A.feed_forward = { kind = "experts", count = 64, top_k = 6, width = 320, shared = 320 }"#;
/// Mamba-2 in the place of attention in two layers of three.
const MAMBA: &str = r#"hidden_size = 2048
pattern = "MMA"
num_hidden_layers = 24
layers.M.mixer = { kind = "mamba2", heads = 64, head_dim = 64, groups = 8, state = 128, chunk = 128 }
layers.M.feed_forward = { kind = "experts", count = 64, top_k = 6, width = 320, shared = 320 }
layers.A.mixer = { kind = "attention", heads = 32, kv_heads = 8, head_dim = 128 }
layers.A.feed_forward = { kind = "experts", count = 64, top_k = 6, width = 320, shared = 320 }"#;
/// A recurrent layer, gated DeltaNet, in the place of one of the two.
const RECURRENT: &str = r#"hidden_size = 2048
pattern = "MRA"
num_hidden_layers = 24
layers.M.mixer = { kind = "mamba2", heads = 64, head_dim = 64, groups = 8, state = 128, chunk = 128 }
layers.M.feed_forward = { kind = "experts", count = 64, top_k = 6, width = 320, shared = 320 }
layers.R.mixer = { kind = "gated_delta", key_heads = 16, key_dim = 128, value_heads = 32, value_dim = 128 }
layers.R.feed_forward = { kind = "experts", count = 64, top_k = 6, width = 320, shared = 320 }
layers.A.mixer = { kind = "attention", heads = 32, kv_heads = 8, head_dim = 128 }
layers.A.feed_forward = { kind = "experts", count = 64, top_k = 6, width = 320, shared = 320 }"#;

/// One row: what is turned on, the model, the sequence and micro-batch, and keys on either machine.
struct Feature {
    what: &'static str,
    model: &'static str,
    batch: (u64, u64),
    gpu: &'static str,
    tpu: &'static str,
}

const FEATURES: [Feature; 9] = [
    Feature { what: "dense: attention and a feed-forward", model: DENSE, batch: (8192, 2), gpu: "", tpu: "" },
    Feature { what: "64 routed experts and a shared one", model: EXPERTS, batch: (8192, 2), gpu: "", tpu: "" },
    Feature { what: "and Mamba-2 in two layers of three", model: MAMBA, batch: (8192, 2), gpu: "", tpu: "" },
    Feature { what: "and a recurrent layer, gated DeltaNet", model: RECURRENT, batch: (8192, 2), gpu: "", tpu: "" },
    Feature {
        what: "dense, fp8",
        model: DENSE,
        batch: (8192, 2),
        gpu: "[compile]\nblocks = true\n[float8]\nrecipe = \"tensorwise\"\n",
        tpu: "[float8]\nrecipe = \"tensorwise\"\n",
    },
    Feature {
        what: "dense, Muon",
        model: DENSE,
        batch: (8192, 2),
        gpu: "[optimizer]\nname = \"muon\"\n",
        tpu: "[optimizer]\nname = \"muon\"\n",
    },
    Feature {
        what: "dense, LoRA of rank 16",
        model: DENSE,
        batch: (8192, 2),
        gpu: "[lora]\nrank = 16\nmodules = [\"all-linear\"]\n",
        tpu: "[lora]\nrank = 16\nmodules = [\"all-linear\"]\n",
    },
    Feature { what: "dense, 65,536 tokens of context", model: DENSE, batch: (65536, 1), gpu: "", tpu: "" },
    Feature { what: "Mamba-2 and experts, 65,536 tokens", model: MAMBA, batch: (65536, 1), gpu: "", tpu: "" },
];

fn gpu(feature: &Feature) -> String {
    let (sequence, micro) = feature.batch;
    format!(
        "runtime = \"fsdp2\"\n[topology]\nname = \"h200-sxm-141gb\"\nnodes = 1\n[model.config]\nmodel_type = \"layers\"\nvocab_size = 131072\n\
         rotary_dims = 128\n{}\n[mesh]\ndp_shard = 8\n[batch]\nsequence = {sequence}\nmicro = {micro}\n[activation_checkpointing]\npolicy = \
         \"full\"\n[attention]\nbackend = \"cudnn\"\n{}",
        feature.model, feature.gpu
    )
}

fn tpu(feature: &Feature) -> String {
    let (sequence, micro) = feature.batch;
    format!(
        "runtime = \"xla\"\n[topology]\nname = \"tpu-v6e\"\nslice = \"2x4\"\n[model.config]\nmodel_type = \"layers\"\nvocab_size = 131072\n\
         rotary_dims = 128\n{}\n[mesh]\nfsdp = 8\n[batch]\nsequence = {sequence}\nmicro = {micro}\n[xla]\nremat_policy = \"full\"\n{}",
        feature.model, feature.tpu
    )
}

/// What the step waits for most, and whether it fits.
fn binds(answer: &Prediction) -> String {
    let parts = answer.breakdown;
    let total = parts.total().seconds();
    let share = |part: f64| 100.0 * part / total;
    let named = [
        ("compute", parts.compute.seconds()),
        ("communication", parts.exposed_communication.seconds()),
        ("other ranks", parts.bubble.seconds()),
        ("the host", parts.host_bound.seconds()),
    ];
    let (name, part) = named.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).expect("parts");
    format!("{name}, {:.0} %", share(part))
}

/// A row's cells: step, tokens a second and chip, peak, what binds; or why there is none.
fn cells(text: &str) -> String {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiny/scenario.toml");
    let answer = match Scenario::parse(beside, text) {
        Ok(scenario) => scenario.predict().map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match answer {
        Ok(answer) => {
            let step = answer.step.seconds();
            let fits = if answer.memory.refused() { ", **does not fit**" } else { "" };
            format!(
                "{:.0} ms | {:.0} | {:.1} GiB{fits} | {}",
                1e3 * step,
                answer.tokens as f64 / step / 8.0,
                answer.memory.report.peak_reserved.0 as f64 / f64::from(1 << 30),
                binds(&answer)
            )
        }
        Err(error) => {
            let first = error.lines().next().unwrap_or_default().replace('|', "\\|");
            format!("— | — | — | refused: {first}")
        }
    }
}

fn page() -> String {
    let mut page = String::from(
        "# A 4B hybrid, one feature at a time\n\nGenerated by `UPDATE=1 cargo test hybrid_page`. Each row is one scenario: the same machine and batch, one \
         feature more. All models have about four billion parameters, in bf16 with AdamW unless a row says otherwise, and every layer runs again in \
         backward. Tokens are per second and chip. The last column is what takes most of the step, or the first line of the refusal.\n",
    );
    let table = |page: &mut String, title: &str, text: &dyn Fn(&Feature) -> String| {
        let _ =
            write!(page, "\n## {title}\n\n| turned on | step | tokens/s | reserved | binds |\n|---|---|---|---|---|\n");
        for feature in &FEATURES {
            let _ = writeln!(page, "| {} | {} |", feature.what, cells(&text(feature)));
        }
    };
    table(&mut page, "8 H200, `fully_shard`", &gpu);
    table(&mut page, "TPU v6e-8, XLA", &tpu);
    page.push_str(&format!(
        "\n## The third row as a file\n\n```toml\n{}```\n\n`windtunnel run` prints what each part costs, `windtunnel compare` the difference of two rows, and \
         [Layers of several kinds](layers.md) says what a pattern may have.\n",
        gpu(&FEATURES[2])
    ));
    page
}

#[test]
fn the_page_of_a_hybrid_is_what_is_simulated() {
    fresh("docs/guide/hybrid.md", &page(), "what is simulated");
}
