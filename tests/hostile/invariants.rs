//! What holds of every answer and of every refusal.

use serde_json::Value;
use windtunnel::report::{json, text};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Prediction, Scenario, ScenarioError, predict};

use super::worker::End;
use crate::make::FILE;

/// Keys of the JSON report that may be `null`: where there is no pipeline, nothing to compile, or nobody knows.
const NULLS: [&str; 6] = ["bubble", "stages", "start_up", "steps", "cold_run_s", "host_capacity_bytes"];

/// Takes one case.
pub fn examine(text: &str) -> End {
    match answer(text) {
        Ok((scenario, answer)) => match held(text, &scenario, &answer) {
            Ok(()) => End::Answered,
            Err(why) => End::Wrong(why),
        },
        Err(error) => match told(&error.to_string()) {
            Ok(()) => End::Refused,
            Err(why) => End::Wrong(why),
        },
    }
}

fn answer(text: &str) -> Result<(Scenario, Prediction), ScenarioError> {
    let scenario = Scenario::parse(FILE, text)?;
    let answer = predict(&scenario, Settings { remedies: false, ..Settings::default() })?;
    Ok((scenario, answer))
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

/// Of a refusal: it is short enough to be read, says what is wrong, and cannot drive a terminal once printed.
fn told(error: &str) -> Result<(), String> {
    ensure(!error.trim().is_empty() && error.len() < 8_000, || format!("a refusal of {} bytes", error.len()))?;
    ensure(!error.contains("called `") && !error.contains("panicked"), || format!("speaks of the program: {error}"))
}

/// Of an answer: its numbers are numbers, and agree with one another.
fn held(file: &str, scenario: &Scenario, answer: &Prediction) -> Result<(), String> {
    let (low, high) = answer.interval;
    ensure(low <= answer.step && answer.step <= high, || {
        format!("the step {} is outside {low} to {high}", answer.step)
    })?;
    ensure(answer.step.0 > 0, || "a step takes no time".to_owned())?;
    let parts = answer.breakdown;
    let sum = parts.compute + parts.exposed_communication + parts.bubble + parts.host_bound + parts.waiting;
    // The mean of ranks is rounded part by part.
    ensure(sum.0.abs_diff(answer.step.0) <= 8, || format!("parts sum to {sum} of {}", answer.step))?;
    for mfu in &answer.mfu {
        // Most conventions count all of a causal attention, twice what is computed, or tables that nothing multiplies by.
        let most = if mfu.name.contains("6LHS") { 1.0 } else { 2.0 };
        let can_be = (0.0..=most).contains(&mfu.utilisation);
        ensure(can_be, || format!("MFU by {} is {}", mfu.name, mfu.utilisation))?;
    }
    let memory = &answer.memory;
    let report = &memory.report;
    ensure(report.peak_allocated <= report.peak_reserved, || {
        format!("{} allocated of {} reserved", report.peak_allocated, report.peak_reserved)
    })?;
    let rows: u64 = report.breakdown.sorted().iter().map(|(_, bytes)| bytes.0).sum();
    // Rows are what was asked for. Blocks are rounded to 512 B, and a rest of at most 1 MiB is not split off.
    let blocks: u64 = report.live(&answer.classes[answer.tightest].program).iter().map(|live| live.count).sum();
    let most = rows + (blocks << 20);
    ensure((rows..=most).contains(&report.peak_allocated.0), || {
        format!("rows sum to {rows} B of {} B in {blocks} blocks", report.peak_allocated.0)
    })?;
    // What is short without any limit may fit once the allocator returns what it caches; what fits is within the device.
    ensure(!memory.fits() || memory.device_total() <= memory.capacity, || {
        format!("{} fit in {}", memory.device_total(), memory.capacity)
    })?;
    ensure(memory.on_device || memory.shortfall().0 > 0, || "does not fit, and nothing is missing".to_owned())?;
    let value = json::report(scenario, answer);
    serde_json::from_str::<Value>(&value.to_string()).map_err(|why| format!("the report is not JSON: {why}"))?;
    if let Some(path) = null(&value, "") {
        return Err(format!("{path} is null, which is how JSON writes what is no number"));
    }
    let text =
        text::report(scenario, answer, text::Detail { all_conventions: true, verbose: true, ..Default::default() });
    for nonsense in ["NaN", "inf ", "-0.0 "] {
        // A file may have a name of that kind, which the report repeats.
        ensure(!text.contains(nonsense) || file.contains(nonsense.trim()), || format!("the report says {nonsense:?}"))?;
    }
    Ok(())
}

/// The path of a value that is null and must not be.
fn null(value: &Value, path: &str) -> Option<String> {
    match value {
        Value::Null => Some(path.to_owned()),
        Value::Array(list) => list.iter().find_map(|inner| null(inner, &format!("{path}[]"))),
        Value::Object(map) => map
            .iter()
            .filter(|(key, value)| !(value.is_null() && NULLS.contains(&key.as_str())))
            .find_map(|(key, value)| null(value, &format!("{path}.{key}"))),
        _ => None,
    }
}
