//! Multi-token prediction in scenarios: what it counts, where it lies, and what is refused.

use windtunnel::model::huggingface::{parse as read, shipped};
use windtunnel::scenario::predict::{Prediction, Settings};
use windtunnel::scenario::{Scenario, predict};

use crate::command::Folder;
use crate::make::{FILE, parse};

/// DeepSeek-V3 in a pipeline, four blocks of it.
fn scenario(keys: &str) -> String {
    format!(
        r#"runtime = "megatron"

[topology]
name = "h100-sxm-80gb"
nodes = 4

[model]
name = "deepseek-v3"
layers = 4

[mesh]
pp = 2
ep = 8

[batch]
sequence = 4096
accumulation = 2

[megatron]
distributed_optimizer = true
hidden_dropout = false
attention_dropout = false
{keys}
"#
    )
}

/// The same with two stages on a rank, exchanges beside another micro-batch.
fn beside(keys: &str, layers: &str) -> String {
    let pipeline = format!("[pipeline]\nvirtual_stages = 2\nlayers = {layers}\n\n[batch]");
    scenario(&format!("{keys}\nmoe_token_dispatcher_type = \"alltoall\"\noverlap_moe_expert_parallel_comm = true"))
        .replace("[batch]", &pipeline)
        .replace("accumulation = 2", "accumulation = 8")
        .replace("ep = 8", "ep = 16")
}

fn flown(keys: &str) -> Prediction {
    predict(&parse(&scenario(keys)), Settings::default()).unwrap_or_else(|error| panic!("{keys}: {error}"))
}

fn refusal(text: &str) -> String {
    let answer = Scenario::parse(FILE, text).and_then(|scenario| predict(&scenario, Settings::default()));
    answer.map(|_| ()).expect_err("should be refused").to_string()
}

/// `model.safetensors.index.json` of deepseek-ai/DeepSeek-V3: 684,531,386,000 parameters with the module, scales and copies of
/// the embedding and of the head among them; README_WEIGHTS.md says 11.5 B of its own.
#[test]
fn deepseeks_module_has_as_many_parameters_as_published() {
    let mut model = shipped::named("deepseek-v3").unwrap();
    let without = model.params();
    model.mtp_layers = 1;
    let more = model.params().total - without.total;
    let copies = 2 * model.vocab * model.width;
    let published = 684_531_386_000 - 671_026_419_200 - copies;
    assert!((more as f64 / published as f64 - 1.0).abs() < 0.005, "{more} and {published}");
    assert!((more as f64 / 11.5e9 - 1.0).abs() < 0.012, "{more}");
}

/// Megatron-LM core_v0.16.1, `megatron/training/training.py`, `num_floating_point_operations`, run for DeepSeek-V3 at 4,096
/// tokens: FLOPs of a sequence with one module less those without.
#[test]
fn a_module_counts_in_model_flops_as_megatron_counts_it() {
    let theirs = 1_064_931_126_411_264.0 - 1_023_230_173_249_536.0;
    let flops = |modules: u64| {
        let answer = flown(&format!("mtp_num_layers = {modules}"));
        let tokens = answer.tokens as f64;
        answer.mfu.iter().find(|mfu| mfu.name == "6N + 6LHS").unwrap().flops.0 as f64 / tokens * 4096.0
    };
    let more = flops(1) - flops(0);
    assert!((more / theirs - 1.0).abs() < 0.002, "{more:e} and {theirs:e}");
}

#[test]
fn the_last_stage_has_the_module_and_a_copy_of_the_embedding() {
    let [without, with] = [0, 1].map(|modules| flown(&format!("mtp_num_layers = {modules}")));
    let held = |answer: &Prediction, stage: usize| answer.classes[stage].memory.report.peak_allocated.0;
    // A table that two stages share is a bucket of its own, with padding of its own.
    assert!((held(&without, 0) as f64 / held(&with, 0) as f64 - 1.0).abs() < 1e-3);
    assert!(held(&with, 1) > held(&without, 1));
    assert!(with.step > without.step);
}

/// As Megatron-Bridge's H100 recipe of 25.09 cuts DeepSeek-V3 (`Et|(tt|)*30mL`).
#[test]
fn a_module_may_have_a_stage_of_its_own_and_be_cut_into_parts_there() {
    let step = |text: &str| {
        let answer = predict(&parse(text), Settings::default()).unwrap_or_else(|error| panic!("{text}: {error}"));
        answer.step
    };
    let together = beside("mtp_num_layers = 1", "[2, 1, 1, 0]");
    let apart = together.replace("overlap_moe_expert_parallel_comm = true\n", "");
    assert!(step(&together) < step(&apart));
}

#[test]
fn a_models_file_says_how_many_modules_it_has_and_the_key_overrides_it() {
    let text = std::fs::read_to_string("scenarios/models/deepseek-v3.json").unwrap();
    let text = text.replace("\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1");
    assert_eq!(read(&text, "config.json").unwrap().mtp_layers, 1);
    let too_many = text.replace("\"num_nextn_predict_layers\": 1", "\"num_nextn_predict_layers\": 17");
    assert!(read(&too_many, "config.json").is_err());
    let folder = Folder::new("ahead-of-a-file");
    folder.write("model.json", &text);
    let says = |keys: &str| {
        let text = scenario(keys).replace("name = \"deepseek-v3\"", "huggingface = \"model.json\"");
        let path = folder.path.join("my.toml");
        let read =
            Scenario::parse(&path.display().to_string(), &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        (read.job.model().mtp_layers, read.assumption_lines().iter().any(|line| line == "megatron.mtp_num_layers = 1"))
    };
    assert_eq!(says(""), (1, true));
    assert_eq!(says("mtp_num_layers = 0"), (0, false));
}

#[test]
fn what_refuses_a_module_says_how_to_train_without_it() {
    let said = refusal(&scenario("mtp_num_layers = 1\nrecompute = { uniform = 2 }"));
    assert!(said.ends_with("write megatron.mtp_num_layers = 0 to train without it"), "{said}");
    let without = parse(&scenario("mtp_num_layers = 0\nrecompute = { uniform = 2 }"));
    assert!(without.simulable().is_ok());
}

#[test]
fn what_has_no_rules_beside_a_module_is_refused_by_name() {
    for (text, what) in [
        (
            scenario("mtp_num_layers = 1\nfp8 = \"delayed\"\nrecompute = { uniform = 1 }"),
            "multi-token prediction with recomputed layers, in fp8",
        ),
        (
            scenario("mtp_num_layers = 1\nrecompute = { uniform = 2 }"),
            "multi-token prediction with several layers recomputed as one",
        ),
        (
            beside("mtp_num_layers = 2", "[1, 1, 1, 1]"),
            "multi-token prediction by several modules with exchanges overlapped with another micro-batch",
        ),
        (
            beside("mtp_num_layers = 1\nfp8 = \"delayed\"", "[1, 1, 1, 1]"),
            "multi-token prediction with exchanges overlapped with another micro-batch, in fp8",
        ),
        (
            scenario("mtp_num_layers = 1\nfp8 = \"delayed\"")
                .replace("[batch]", "[pipeline]\nlayers = [4, 0]\n\n[batch]"),
            "multi-token prediction on a stage without blocks, in fp8",
        ),
        (scenario("mtp_num_layers = 17"), "megatron.mtp_num_layers"),
    ] {
        let said = refusal(&text);
        assert!(said.contains(what), "{said}");
    }
}

#[test]
fn a_shown_model_has_its_modules() {
    let folder = Folder::new("ahead-shown");
    folder.write("my.toml", &scenario("mtp_num_layers = 1"));
    let said = String::from_utf8(folder.windtunnel(&["show", "model", "my.toml"]).stdout).unwrap();
    let each = parse(&scenario("mtp_num_layers = 1")).job.model().params().ahead;
    assert!(
        said.contains(&format!("modules ahead: 1, each a block, a projection of 2D to D and three norms, of {each}")),
        "{said}"
    );
    folder.write("my.toml", &scenario("mtp_num_layers = 0"));
    let said = String::from_utf8(folder.windtunnel(&["show", "model", "my.toml"]).stdout).unwrap();
    assert!(!said.contains("modules ahead"), "{said}");
}
