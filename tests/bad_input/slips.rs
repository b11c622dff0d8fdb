//! Files as fingers slip on them, and bytes that are no file at all: each gets an answer.

use proptest::prelude::*;
use windtunnel::cost::Profile;
use windtunnel::hardware::{Size, Topology};
use windtunnel::model::huggingface;
use windtunnel::runtime::Plan;
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Scenario, predict};

use crate::make::{FILE, TINY};

/// Reads and, if it can be read, flies: the point is that this returns.
fn survives(text: &str) {
    // Small enough that hundreds take seconds: the tiny model, few micro-batches.
    let text: String = text.lines().map(tiny).collect();
    if let Ok(scenario) = Scenario::parse(FILE, &text)
        && scenario.job.model().layers.count() * u64::from(scenario.job.micro_batches()) <= 64
    {
        let settings = Settings { remedies: false, ..Settings::default() };
        let _ = predict(&scenario, settings);
    }
}

fn tiny(line: &str) -> String {
    let model =
        line.starts_with("name = ") && windtunnel::model::huggingface::shipped(line[7..].trim_matches('"')).is_some();
    if model { "huggingface = \"config.json\"\n".to_owned() } else { format!("{line}\n") }
}

fn shipped_scenarios() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// One change to a file, as fingers slip.
fn mutate(text: &str, at: &prop::sample::Index, how: usize) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if lines.is_empty() {
        return String::new();
    }
    let line = at.index(lines.len());
    let values =
        ["0", "-1", "9223372036854775807", "1e30", "nan", "inf", "\"text\"", "true", "[]", "{}", "", "3", "65536"];
    match how {
        0 => drop(lines.remove(line)),
        1 => lines.insert(line, lines[line].clone()),
        2 => lines[line] = lines[line].chars().rev().collect(),
        3 => lines.swap(line, 0),
        _ => {
            if let Some((key, _)) = lines[line].clone().split_once('=') {
                lines[line] = format!("{key}= {}", values[(how - 4) % values.len()]);
            }
        }
    }
    lines.join("\n")
}

/// Replaces the first quoted quantity of a line by one that nobody sells.
fn mutate_quantity(text: &str, at: &prop::sample::Index, value: usize) -> String {
    let values =
        ["0 B", "1 B", "1 MiB", "1e300 GB", "-1 GB", "1e-300 GB/s", "1 B/s", "1e30 TB/s", "1e30 TFLOP/s", "1 FLOP/s"];
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if let (Some(value), Some(line)) = (values.get(value), (!lines.is_empty()).then(|| at.index(lines.len()))) {
        let mut parts: Vec<&str> = lines[line].split('"').collect();
        if parts.len() >= 3 {
            parts[1] = value;
            lines[line] = parts.join("\"");
        }
    }
    lines.join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_get_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        survives(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_slip_in_ones_own_topology_gets_an_answer(
        slips in prop::collection::vec((any::<prop::sample::Index>(), 0..17_usize, 0..20_usize), 1..4),
    ) {
        let mut text = include_str!("../../topologies/h100-sxm-80gb.toml").to_owned();
        for (at, how, value) in &slips {
            text = mutate_quantity(&mutate(&text, at, *how), at, *value);
        }
        let mut scenario = Scenario::parse(FILE, TINY).unwrap();
        match Topology::parse("mine.toml", &text, &Size::Nodes(1)) {
            Ok(topology) if topology.chips() == 8 => {
                scenario.topology = topology;
                if let Ok(answer) = predict(&scenario, Settings::default()) {
                    let report = windtunnel::report::text::report(&scenario, &answer, Default::default());
                    prop_assert!(!report.contains("NaN"), "{report}");
                }
            }
            Ok(_) => {}
            Err(error) => prop_assert!(error.to_string().contains("mine.toml:"), "{error}"),
        }
    }

    #[test]
    fn any_slip_in_ones_own_profile_gets_an_answer(
        slips in prop::collection::vec((any::<prop::sample::Index>(), 0..17_usize, 0..20_usize), 1..4),
    ) {
        let mut text = include_str!("../../sim/cost/profiles/h100-sxm-80gb.toml").to_owned();
        for (at, how, value) in &slips {
            text = mutate_quantity(&mutate(&text, at, *how), at, *value);
        }
        if let Ok(profile) = Profile::parse("mine.toml", &text) {
            let mut scenario = Scenario::parse(FILE, TINY).unwrap();
            scenario.profile = profile.into();
            let _ = predict(&scenario, Settings::default());
        }
    }

    #[test]
    fn any_slip_in_ones_own_model_gets_an_answer(
        slips in prop::collection::vec((any::<prop::sample::Index>(), 0..17_usize), 1..4),
    ) {
        let mut text = include_str!("../tiny/config.json").to_owned();
        for (at, how) in &slips {
            text = mutate(&text.replace(": ", "= "), at, *how).replace("= ", ": ");
        }
        if let Ok(model) = huggingface::parse(&text, "mine.json")
            && model.layers.count() <= 64
        {
            let mut scenario = Scenario::parse(FILE, TINY).unwrap();
            let mut job = scenario.job.train().expect("FSDP2").clone();
            job.fsdp.wrap.blocks = vec![None; model.layers.count() as usize];
            job.model = model;
            scenario.job = Plan::Torch(job);
            let _ = predict(&scenario, Settings { remedies: false, ..Settings::default() });
        }
    }

    #[test]
    fn any_slip_in_a_shipped_scenario_gets_an_answer(
        which in any::<prop::sample::Index>(),
        slips in prop::collection::vec((any::<prop::sample::Index>(), 0..17_usize), 1..4),
    ) {
        let shipped = shipped_scenarios();
        let mut text = shipped[which.index(shipped.len())].clone();
        for (at, how) in &slips {
            text = mutate(&text, at, *how);
            if text.is_empty() { break; }
        }
        survives(&text);
    }
}
