//! Whatever integer a scenario accepts, alone or with the largest accumulation, is answered or refused in ten seconds and one
//! gigabyte of memory.

mod keys;
mod plans;

use std::process::Command;
use std::time::Instant;

use rayon::prelude::*;
use windtunnel::scenario::Scenario;

use crate::make;
use keys::Key;

/// Seconds, and KiB of address space, that a prediction may take.
const SECONDS: u32 = 10;
const KIB: u32 = 1 << 20;
const ACCUMULATION: i64 = 1 << 16;
/// One case of so many is run each time.
const SAMPLE: usize = 40;

/// Whether a plan is accepted, before anything is written.
fn accepted(plan: &toml::Table) -> bool {
    let read = Scenario::parse(make::FILE, &plan.to_string());
    read.is_ok_and(|scenario| scenario.simulable().is_ok())
}

/// The plan with an integer of some value, on a machine on which that is accepted.
fn with(plan: &toml::Table, key: &Key, value: i64) -> Option<toml::Table> {
    let written = key.set(plan, value);
    let sized = |nodes: i64| make::with(&written.to_string(), "topology", "nodes", nodes).parse().ok();
    let same = std::iter::once(Some(written.clone()));
    let larger = [value, value / 8, 1 << 14].into_iter().filter(|_| key.path[0] == "mesh").map(sized);
    same.chain(larger).flatten().find(accepted)
}

/// The plan with the largest value that is accepted of an integer, to a 64th.
fn largest(plan: &toml::Table, key: &Key) -> Option<(i64, toml::Table)> {
    let known = [1, 2, 4, 0, 16, 128, 2048, 65_536].into_iter().any(|value| with(plan, key, value).is_some());
    let powers = [62, 50, 40, 36, 32, 30, 28, 26].into_iter().chain((0..26).rev()).filter(|_| known);
    let mut values = powers.map(|power| 1_i64 << power).chain([0]);
    let (mut best, mut found) = values.find_map(|value| Some((value, with(plan, key, value)?)))?;
    let mut beyond = best.saturating_mul(2);
    while beyond - best > 1 + best / 64 {
        let middle = best + (beyond - best) / 2;
        match with(plan, key, middle) {
            Some(plan) => (best, found) = (middle, plan),
            None => beyond = middle,
        }
    }
    Some((best, found))
}

/// The plan with the largest accumulation that is accepted beside the rest.
fn accumulated(plan: &toml::Table) -> Option<toml::Table> {
    let key = Key { path: vec!["batch".to_owned(), "accumulation".to_owned()], kind: None };
    let halves = std::iter::successors(Some(ACCUMULATION), |&count| (count > 1).then_some(count / 2));
    halves.map(|count| key.set(plan, count)).find(accepted)
}

/// Runs a plan within its limits; what went wrong, if anything.
fn run(name: &str, plan: &toml::Table) -> Option<String> {
    let folder = concat!(env!("CARGO_TARGET_TMPDIR"), "/limits");
    std::fs::create_dir_all(folder).unwrap();
    std::fs::copy(make::FILE.replace("scenario.toml", "config.json"), format!("{folder}/config.json")).unwrap();
    let file = format!("{folder}/{}.toml", name.replace(|letter: char| !letter.is_alphanumeric(), "-"));
    std::fs::write(&file, plan.to_string()).unwrap();
    let limited = format!("ulimit -v {KIB}; exec timeout {SECONDS} \"$0\" run \"$1\"");
    let binary = env!("CARGO_BIN_EXE_windtunnel");
    // Address space that threads reserve and do not use is no memory.
    let environment = [("RAYON_NUM_THREADS", "2"), ("MALLOC_ARENA_MAX", "1")];
    let output = Command::new("bash").args(["-c", &limited, binary, &file]).envs(environment).output().unwrap();
    let status = output.status.code();
    let said = String::from_utf8_lossy(&output.stderr);
    let ended = matches!(status, Some(0)) || status == Some(2) && said.starts_with("error: ");
    let wrong = (!ended).then(|| format!("{name}: {status:?} {}\n  {file}", said.lines().next().unwrap_or_default()));
    // As they are found: the whole takes minutes.
    wrong.iter().for_each(|wrong| println!("{wrong}"));
    wrong
}

/// Each integer of each plan at its largest, and the keys that no plan accepts.
fn cases(every: usize, nth: usize) -> (Vec<(String, toml::Table)>, Vec<String>) {
    let (plans, keys) = (plans::all(), keys::all());
    let pairs: Vec<(usize, &Key)> = (0..plans.len()).flat_map(|plan| keys.iter().map(move |key| (plan, key))).collect();
    let chosen: Vec<_> = pairs.into_iter().skip(nth).step_by(every).collect();
    let found: Vec<_> = chosen.par_iter().map(|(plan, key)| (*plan, *key, largest(&plans[*plan], key))).collect();
    let never = keys.iter().filter(|key| found.iter().all(|(_, known, largest)| known != key || largest.is_none()));
    let never = never.map(Key::name).collect();
    println!("{} pairs of a plan and an integer", found.len());
    let mut cases = vec![];
    for (plan, key, largest) in found {
        let Some((value, found)) = largest else { continue };
        let name = format!("{plan} {} {value}", key.name());
        let accumulated = accumulated(&found);
        cases.push((name.clone(), found));
        cases.extend(accumulated.map(|found| (format!("{name} accumulated"), found)));
    }
    (cases, never)
}

fn wrong(cases: &[(String, toml::Table)]) -> Vec<String> {
    cases.par_iter().filter_map(|(name, plan)| run(name, plan)).collect()
}

/// Debug builds take ten times as long.
#[test]
#[cfg_attr(debug_assertions, ignore)]
fn a_sample_of_integers_at_their_largest_is_answered_or_refused_in_time() {
    let wrong = wrong(&cases(SAMPLE, 7).0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "takes ten minutes: every integer of every plan"]
fn every_integer_at_its_largest_is_answered_or_refused_in_time() {
    let (cases, never) = cases(1, 0);
    println!("{} cases", cases.len());
    let started = Instant::now();
    let wrong = wrong(&cases);
    println!("run in {:?}", started.elapsed());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(never.is_empty(), "no plan accepts {}", never.join(", "));
}
