//! Laws that hold whatever the plan: what more of a resource may never do, and sums that must come out. Exceptions are named.

use proptest::prelude::*;
use toml::Table;
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Prediction, Scenario, predict};

use crate::every_key::plans;
use crate::make::{self, FILE};

/// A plan's prediction, if it has one.
fn answer(plan: &str) -> Option<Prediction> {
    let scenario = Scenario::parse(FILE, plan).ok()?;
    predict(&scenario, Settings { remedies: false, ..Settings::default() }).ok()
}

/// The plan with a key set, and what it comes to.
fn set(plan: &str, key: &str, value: impl Into<toml::Value>) -> Option<Prediction> {
    let (table, key) = key.split_once('.').unwrap();
    answer(&make::with(plan, table, key, value))
}

/// The plan on a machine of its own kind of which one fact is another.
fn on(plan: &str, name: &str, from: &str, to: &str) -> Option<Prediction> {
    let mut file: Table = plan.parse().unwrap();
    let topology = file["topology"].as_table_mut().unwrap();
    let shipped = topology["name"].as_str()?;
    // A machine of the plan's own has no shipped file.
    let text = std::fs::read_to_string(format!("{}/topologies/{shipped}.toml", env!("CARGO_MANIFEST_DIR"))).ok()?;
    if !text.contains(from) {
        return None;
    }
    let path = format!("{}/{shipped}-{name}.toml", env!("CARGO_TARGET_TMPDIR"));
    // Tests run side by side: nobody reads a file that is half written.
    let whole = format!("{path}.{}.{:?}", std::process::id(), std::thread::current().id());
    std::fs::write(&whole, text.replacen(from, to, 1)).unwrap();
    std::fs::rename(&whole, &path).unwrap();
    topology.insert("name".to_owned(), path.into());
    answer(&file.to_string())
}

/// Plans of every framework, and a name for each.
fn all() -> Vec<(String, String)> {
    plans::plans().into_iter().map(|plan| (plans::name(&plan), plan)).collect()
}

/// Fails with everything that broke a law, if anything did; `kept` of the plans must have had something to say.
fn law(rule: &str, kept: usize, broken: impl Fn(&str) -> Option<Result<(), String>> + Sync) {
    use rayon::prelude::*;
    let plans = all();
    let found: Vec<(String, Result<(), String>)> =
        plans.par_iter().filter_map(|(name, plan)| Some((name.clone(), broken(plan)?))).collect();
    assert!(found.len() >= kept, "{rule}: only {} plans have something to say", found.len());
    let wrong: Vec<String> =
        found.into_iter().filter_map(|(name, held)| Some(format!("{name}: {}", held.err()?))).collect();
    assert!(wrong.is_empty(), "{rule}\n{}", wrong.join("\n"));
}

fn ensure(holds: bool, why: String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why) }
}

#[test]
fn a_faster_network_between_nodes_never_lengthens_a_step() {
    law("a faster network never hurts", 20, |plan| {
        let larger = make::with(plan, "topology", "nodes", 2);
        let steps =
            ["25 GB/s", "50 GB/s", "100 GB/s"].map(|rate| Some(set(&larger, "topology.nic_bandwidth", rate)?.step));
        let [slow, middle, fast] = steps;
        let (slow, middle, fast) = (slow?, middle?, fast?);
        // Kernels slow down beside collectives: one that ends sooner may have met a longer kernel. The step moves by less than that.
        let held =
            |slower: windtunnel::units::Time, faster: windtunnel::units::Time| faster.0 <= slower.0 + slower.0 / 200;
        Some(ensure(held(slow, middle) && held(middle, fast), format!("{slow}, {middle}, {fast}")))
    });
}

#[test]
fn more_work_never_takes_less_time_nor_less_memory() {
    law("more work takes no less", 30, |plan| {
        let plain = answer(plan)?;
        let file: Table = plan.parse().unwrap();
        let sequence = file["batch"]["sequence"].as_integer()?;
        let more = set(plan, "batch.sequence", 2 * sequence)?;
        Some(ensure(
            more.step >= plain.step && more.memory.report.peak_allocated >= plain.memory.report.peak_allocated,
            format!(
                "{} and {} at {sequence} tokens, {} and {} at twice as many",
                plain.step, plain.memory.report.peak_allocated, more.step, more.memory.report.peak_allocated
            ),
        ))
    });
}

#[test]
fn more_layers_never_take_less_time_nor_less_memory() {
    law("more layers take no less", 30, |plan| {
        let file: Table = plan.parse().unwrap();
        let layers = file["model"].get("layers").and_then(toml::Value::as_integer)?;
        let (plain, more) = (answer(plan)?, set(plan, "model.layers", 2 * layers)?);
        // Exception: ZeRO-3 reduces gradients in buckets of so many elements. Where layers more shift the cuts, less waits at once.
        let cut = file.get("zero").and_then(|zero| zero["stage"].as_integer()) == Some(3);
        let [less, as_much] = [&plain, &more].map(|answer| answer.memory.report.peak_allocated);
        Some(ensure(
            more.step >= plain.step && (cut || as_much >= less),
            format!(
                "{layers} layers {} and {}, twice as many {} and {}",
                plain.step, plain.memory.report.peak_allocated, more.step, more.memory.report.peak_allocated
            ),
        ))
    });
}

#[test]
fn more_device_memory_never_makes_a_plan_that_fits_fail_nor_a_step_longer() {
    law("more memory never hurts", 30, |plan| {
        let plain = answer(plan)?;
        let more = on(plan, "more-memory", "memory = { value = \"79.", "memory = { value = \"159.")?;
        Some(ensure(
            more.memory.fits() >= plain.memory.fits() && more.step <= plain.step,
            format!("{} {}, {} {}", plain.memory.fits(), plain.step, more.memory.fits(), more.step),
        ))
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Exception: where ranks do not divide a tensor every shard is padded, and 48 shards of 64 rows hold more than 24 do.
    #[test]
    fn more_ranks_that_share_a_model_never_hold_more_of_it(text in make::scenarios()) {
        let file: Table = text.parse().unwrap();
        let mesh = file["mesh"].as_table().unwrap();
        let degree = |name: &str| mesh.get(name).and_then(toml::Value::as_integer).unwrap_or(1);
        let nodes = file["topology"]["nodes"].as_integer().unwrap();
        prop_assume!(nodes != 3);
        let larger = make::with(&make::with(&text, "topology", "nodes", 2 * nodes), "mesh", "dp_shard", 2 * degree("dp_shard"));
        let Some(more) = answer(&larger) else { return Ok(()) };
        let plain = answer(&text).unwrap();
        let start = |answer: &Prediction| answer.memory.report.phases.first().map_or(0, |phase| phase.end_allocated.0);
        prop_assert!(start(&more) <= start(&plain) + start(&plain) / 50, "{} then {}", start(&plain), start(&more));
    }

    #[test]
    fn parts_of_a_step_sum_to_it_and_rows_of_memory_to_their_peak(text in make::scenarios()) {
        let answer = make::fly(&text);
        let parts = answer.breakdown;
        let sum = parts.compute + parts.exposed_communication + parts.bubble + parts.host_bound + parts.waiting;
        prop_assert_eq!(sum, answer.step);
        let report = &answer.memory.report;
        let rows: u64 = report.breakdown.sorted().iter().map(|(_, bytes)| bytes.0).sum();
        prop_assert_eq!(rows, report.peak_allocated.0);
        prop_assert!(report.peak_allocated <= report.peak_reserved);
        prop_assert!(answer.interval.0 <= answer.step && answer.step <= answer.interval.1);
    }
}
