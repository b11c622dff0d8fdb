//! Peak memory against PyTorch's own allocator and FSDP2 memory tracker.

use super::cases::{self, Config, Dims};
use windtunnel::memory::{MemoryReport, Settings, replay};
use windtunnel::program::Category;
use windtunnel::runtime::train;
use windtunnel::units::Bytes;

struct Case {
    id: String,
    allocated: u64,
    reserved: u64,
    breakdown: serde_json::Value,
    predicted: MemoryReport,
}

fn cases() -> Vec<Case> {
    let file = cases::read("fsdp2/memory.json");
    let mut all = vec![];
    for case in file["cases"].as_array().unwrap() {
        let dims: Dims = serde_json::from_value(case["model_dims"].clone()).unwrap();
        let config: Config = serde_json::from_value(case["config"].clone()).unwrap();
        let Some(job) = cases::job(&dims, &config) else { continue };
        let settings = Settings { expandable_segments: false, capacity: Bytes(1 << 43) };
        let predicted = replay(&train::compile(&job), settings);
        all.push(Case {
            id: case["id"].as_str().unwrap().to_owned(),
            allocated: case["outputs"]["peak_allocated"].as_u64().unwrap(),
            reserved: case["outputs"]["peak_reserved"].as_u64().unwrap(),
            breakdown: case["peak_breakdown"].clone(),
            predicted,
        });
    }
    all
}

fn error(predicted: u64, measured: u64) -> f64 {
    predicted as f64 / measured as f64 - 1.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn oracle_peak_memory_agrees_with_pytorchs_allocator() {
    let cases = cases();
    let mut table = String::new();
    let (mut allocated, mut reserved) = (vec![], vec![]);
    for case in &cases {
        let a = error(case.predicted.peak_allocated.0, case.allocated);
        let r = error(case.predicted.peak_reserved.0, case.reserved);
        table += &format!(
            "{:40} allocated {:8.3} {:8.3} GiB {:+.3} %   reserved {:8.3} {:8.3} GiB {:+.3} %\n",
            case.id,
            case.predicted.peak_allocated.gib(),
            Bytes(case.allocated).gib(),
            a * 100.0,
            case.predicted.peak_reserved.gib(),
            Bytes(case.reserved).gib(),
            r * 100.0,
        );
        allocated.push(a.abs());
        reserved.push(r.abs());
    }
    println!("{table}");
    println!(
        "{} cases: allocated median {:.4} % worst {:.3} %, reserved median {:.3} % worst {:.3} %",
        cases.len(),
        median(allocated.clone()) * 100.0,
        allocated.iter().copied().fold(0.0, f64::max) * 100.0,
        median(reserved.clone()) * 100.0,
        reserved.iter().copied().fold(0.0, f64::max) * 100.0,
    );
    assert!(!cases.is_empty());
    assert!(allocated.iter().all(|&error| error <= 0.01), "an allocated peak is off by over 1 %:\n{table}");
    assert!(median(allocated) <= 0.003, "the median allocated peak is off by over 0.3 %:\n{table}");
    assert!(reserved.iter().all(|&error| error <= 0.03), "a reserved peak is off by over 3 %:\n{table}");
}

/// Our category for each group of the oracle's breakdown.
fn group(category: Category) -> &'static str {
    match category {
        Category::Parameter | Category::Buffer => "init(sharded_param+buffer+input)",
        Category::OptimizerState => "opt_state",
        Category::UnshardedParameter => "unsharded_param",
        Category::AllGatherInput => "ag_input",
        Category::AllGatherOutput => "ag_output",
        Category::PostForwardShard => "post_fwd_shard",
        Category::ReduceScatterInput => "rs_input",
        Category::ShardedGradient => "sharded_grad(rs_output)",
        Category::UnshardedGradient => "unsharded_grad",
        Category::Activation | Category::Logits => "fwd",
        Category::Recompute => "recompute",
        Category::BackwardTemporary => "bwd",
        Category::OptimizerTemporary => "opt_temp",
        Category::Workspace => "workspace",
    }
}

#[test]
fn oracle_peak_breakdown_agrees_group_by_group() {
    let mut wrong = String::new();
    let mut checked = 0;
    for case in cases() {
        for phase in &case.predicted.phases {
            let expected = &case.breakdown[&phase.name];
            let Some(total) = expected["total"].as_u64() else { continue };
            let mut ours = std::collections::BTreeMap::<&str, i64>::new();
            for (category, bytes) in phase.breakdown.sorted() {
                *ours.entry(group(category)).or_default() += bytes.0 as i64;
            }
            for (name, bytes) in expected["by_group"].as_object().unwrap() {
                *ours.entry(name.as_str()).or_default() -= bytes.as_i64().unwrap();
            }
            for (name, difference) in ours {
                checked += 1;
                if difference.unsigned_abs() as f64 > 0.02 * total as f64 {
                    wrong += &format!("{} {} {name}: {:+.3} GiB\n", case.id, phase.name, difference as f64 / f64::from(1 << 30));
                }
            }
        }
    }
    println!("{checked} groups checked\n{wrong}");
    assert!(checked > 0 && wrong.is_empty(), "groups off by over 2 % of the phase's total:\n{wrong}");
}
