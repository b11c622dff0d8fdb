//! What the plan is held to.

use std::path::PathBuf;

use super::{Job, between, family, ranked, runs};
use crate::points::What;

fn scenarios() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scenarios")
}

#[test]
fn the_kernels_of_the_shipped_scenarios_carry_most_of_their_steps() {
    let worth = runs::worth(&[scenarios()], &|_| {}).expect("the shipped scenarios");
    assert!(worth.runs >= 10, "{} runs", worth.runs);
    let all: f64 = worth.values.values().sum();
    // Kernels beside communication and on two streams add up to a little more than the step.
    assert!((0.5..1.3).contains(&all), "{all} of the steps' time");
    let has = |m: u64, n: u64, k: u64| {
        worth
            .values
            .keys()
            .any(|what| matches!(what, What::Matmul { m: a, n: b, k: c, .. } if (*a, *b, *c) == (m, n, k)))
    };
    assert!(has(8192, 14_336, 4096), "Llama 3.1 8B's feed-forward at 8,192 tokens is planned");
    let families: std::collections::BTreeSet<&str> = worth.values.keys().map(family).collect();
    assert!(["attention", "matmul", "memory"].iter().all(|family| families.contains(family)), "{families:?}");
    let jobs = ranked(worth.jobs());
    assert!(jobs.windows(2).all(|pair| pair[0].value >= pair[1].value));
    let text = serde_json::to_string(&jobs[0]).expect("JSON");
    assert!(text.starts_with("{\"what\":{\"") && text.contains("\"value\":0."), "{text}");
    assert_eq!(between(std::iter::empty(), 7).len(), 7);
}

#[test]
fn every_file_beside_the_receipts_is_one_or_is_left_out() {
    let mut unmapped = 0;
    let receipts = scenarios().join("../tests/receipts");
    let runs = runs::read(&[receipts], &mut unmapped).unwrap_or_else(|why| panic!("{why}"));
    assert!(runs.len() > 500, "{} runs, {unmapped} left out", runs.len());
}

#[test]
fn a_run_that_meets_a_bug_is_named_and_the_others_are_planned_all_the_same() {
    let broken = "llama3.1-8b-fsdp2-8xh100.toml";
    let worth = runs::worth_by(&[scenarios()], &|_| {}, |scenario| {
        assert!(!scenario.file.ends_with(broken), "a buffer is handed on once");
        Some([(What::Overhead { call: "launch".to_owned() }, 1.0)].into())
    });
    let worth = worth.expect("the other scenarios");
    assert!(worth.runs >= 10 && worth.values.len() == 1, "{} runs", worth.runs);
    let [row] = &worth.panicked[..] else { panic!("{:?}", worth.panicked) };
    assert!(row.contains(broken) && row.ends_with("a buffer is handed on once"), "{row}");
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let error = runs::worth(&[PathBuf::from("no/such/folder.jsonl")], &|_| {}).expect_err("nothing there").to_string();
    assert!(error.contains("no/such/folder.jsonl"), "{error}");
}

#[test]
fn the_most_valuable_comes_first_and_nothing_comes_twice() {
    let job = |call: &str, value| Job { what: What::Overhead { call: call.to_owned() }, value };
    let ranked = ranked(vec![job("a", 0.1), job("b", 0.3), job("c", 0.2), job("a", 0.25)]);
    let calls: Vec<_> = ranked.iter().map(|job| (job.what.clone(), (job.value * 100.0).round())).collect();
    let what = |call: &str| What::Overhead { call: call.to_owned() };
    assert_eq!(calls, [(what("a"), 35.0), (what("b"), 30.0), (what("c"), 20.0)]);
}

#[test]
fn every_kind_of_memory_bound_kernel_is_measured_by_one_of_its_family() {
    use windtunnel::cost::Software;
    use windtunnel::program::{MemoryKind, Work};
    use windtunnel::units::Bytes;
    let family = |kind| match kind {
        MemoryKind::Elementwise => Some("elementwise"),
        MemoryKind::Norm => Some("norm"),
        MemoryKind::NormBackward => Some("norm_backward"),
        MemoryKind::Softmax => Some("softmax"),
        MemoryKind::Gather => Some("gather"),
        MemoryKind::Scatter => Some("scatter"),
        MemoryKind::Foreach => Some("foreach"),
        MemoryKind::Copy => Some("copy"),
        MemoryKind::Complex => Some("complex"),
        // Kernels of one library each: their shares are published, or their norm's.
        MemoryKind::RmsNorm
        | MemoryKind::RmsNormBackward
        | MemoryKind::LayerNorm
        | MemoryKind::LayerNormBackward
        | MemoryKind::ApexNorm
        | MemoryKind::ApexNormBackward
        | MemoryKind::PersistentNorm
        | MemoryKind::PersistentNormBackward
        | MemoryKind::LogSoftmax
        | MemoryKind::LogSoftmaxBackward
        | MemoryKind::CompiledLogSoftmax
        | MemoryKind::CompiledLogSoftmaxBackward
        | MemoryKind::FusedOptimizer
        | MemoryKind::FusedOptimizer16
        | MemoryKind::ChunkCat
        | MemoryKind::Cast
        | MemoryKind::ChunkScan
        | MemoryKind::ChunkState
        | MemoryKind::GatedNormBackward
        | MemoryKind::Strided => None,
    };
    for &kind in MemoryKind::ALL {
        let Some(family) = family(kind) else { continue };
        let work = Work::Memory { kind, read: Bytes(1 << 26), written: Bytes(1 << 26) };
        let Some(What::Memory { family: own, read, written, .. }) = super::kernels::what(&work, &Software::default())
        else {
            panic!("{kind:?} is not measured")
        };
        // Half a power of two at most from what was asked for, by whole units.
        assert_eq!(own, family);
        assert!(((1 << 27) - (1 << 22)..=1 << 27).contains(&(read + written)), "{kind:?}: {read} + {written}");
    }
}

#[test]
fn the_schema_of_a_plan_is_generated_from_its_structs() {
    let generator = schemars::generate::SchemaSettings::draft07().into_generator();
    let mut schema = generator.into_root_schema_for::<Job>().to_value();
    schema["title"] = "Windtunnel plan".into();
    schema["description"] =
        "A line of the file that `windtunnel calibrate plan --json` writes and `windtunnel calibrate cuda --plan` \
                             reads. Generated from calibrate/plan.rs and calibrate/points.rs."
            .into();
    let text = format!("{schema:#}\n").replace(r"\\[", "[").replace(r"\\]", "]");
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema/plan.json");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &text).expect("docs can be written");
    }
    let shown = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        shown == text,
        "docs/schema/plan.json says something else than the structs: UPDATE=1 cargo test -p windtunnel-calibrate --lib"
    );
}
