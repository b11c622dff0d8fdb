//! Whatever a scenario says, it is answered or refused: no panic, no number that is none, within five seconds and one gigabyte.
//!
//! Cases are numbered ([`cases`]): a seed and a number are the same file everywhere. Workers, which are this very binary, take
//! them one by one ([`worker`]); one that dies costs its case and no other.
//!
//! Other seeds, as many as one likes:
//! `HOSTILE_SEED=7 HOSTILE_CASES=1000000 cargo test --release hostile -- --ignored --nocapture as_many`

mod cases;
mod invariants;
mod worker;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::command::Folder;
pub use cases::Ground;
use worker::{End, Found};

/// The seed of the pass that is part of every run of the tests.
const SEED: u64 = 20_261_125;
/// Pairs of keys in that pass, after every key under every runtime.
const PAIRS: u64 = 2_000;
/// Workers side by side.
const WORKERS: u64 = 2;
/// Cases that one worker takes before another takes over.
const SHARE: u64 = 500;

/// What a pass comes to.
#[derive(Default)]
struct Pass {
    answered: u64,
    refused: u64,
    slowest: (u64, u64),
    largest: (u64, u64),
    wrong: Vec<String>,
}

impl Pass {
    fn add(&mut self, found: Found) {
        match found.end {
            End::Answered => self.answered += 1,
            End::Refused => self.refused += 1,
            End::Wrong(why) => {
                // As it is found: a long pass may be ended before it is over.
                println!("case {}: {why}", found.number);
                self.wrong.push(format!("case {}: {why}", found.number));
            }
        }
        self.slowest = self.slowest.max((found.milliseconds, found.number));
        self.largest = self.largest.max((found.kib, found.number));
    }

    fn said(&self) -> String {
        format!(
            "{} answered, {} refused, {} wrong; the slowest took {} ms of its processors (case {}), the largest {} MiB (case {})",
            self.answered,
            self.refused,
            self.wrong.len(),
            self.slowest.0,
            self.slowest.1,
            self.largest.0 >> 10,
            self.largest.1
        )
    }
}

/// Takes all cases of a range.
fn pass(seed: u64, cases: std::ops::Range<u64>) -> Pass {
    let next = AtomicU64::new(cases.start);
    let passes = std::thread::scope(|scope| {
        let one = || {
            let mut pass = Pass::default();
            loop {
                let from = next.fetch_add(SHARE, Relaxed);
                if from >= cases.end || pass.wrong.len() > 50 {
                    break pass;
                }
                worker::take(seed, from..(from + SHARE).min(cases.end), &mut |found| pass.add(found));
            }
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(one)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    passes.into_iter().fold(Pass::default(), |mut all, one| {
        all.answered += one.answered;
        all.refused += one.refused;
        all.slowest = all.slowest.max(one.slowest);
        all.largest = all.largest.max(one.largest);
        all.wrong.extend(one.wrong);
        all
    })
}

/// The command itself on a case: exit code 0 and one JSON object, or 2 and an error. What is otherwise, if anything.
fn command(ground: &Ground, folder: &Folder, number: u64) -> Option<String> {
    folder.write("scenario.toml", &ground.case(SEED, number));
    let output = folder.windtunnel(&["run", "scenario.toml", "--json", "-"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let held = match output.status.code() {
        Some(0) => serde_json::from_slice::<serde_json::Value>(&output.stdout).is_ok_and(|report| report.is_object()),
        Some(2) => said.starts_with("error: ") && output.stdout.is_empty(),
        _ => false,
    };
    (!held).then(|| format!("case {number}: {:?} {}", output.status, said.lines().next().unwrap_or_default()))
}

#[test]
#[cfg_attr(debug_assertions, ignore)]
fn the_command_answers_with_one_object_or_ends_with_2_and_an_error() {
    let ground = Ground::new();
    let folder = Folder::new("the_command_answers_with_one_object_or_ends_with_2_and_an_error");
    folder.write("config.json", include_str!("tiny/config.json"));
    let cases = (0..ground.singles() + PAIRS).step_by(41);
    let wrong: Vec<String> = cases.filter_map(|number| command(&ground, &folder, number)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Debug builds take ten times as long.
#[test]
#[cfg_attr(debug_assertions, ignore)]
fn every_key_under_every_runtime_and_pairs_of_keys_are_answered_or_refused() {
    let cases = Ground::new().singles() + PAIRS;
    let pass = pass(SEED, 0..cases);
    println!("{}", pass.said());
    assert!(pass.wrong.is_empty(), "{}", pass.wrong.join("\n"));
    assert_eq!(pass.answered + pass.refused, cases);
    // A pass that refuses nearly everything examines nothing.
    assert!(pass.answered > cases / 10, "{}", pass.said());
}

#[test]
#[ignore = "as many cases as HOSTILE_CASES says, of the seed HOSTILE_SEED, from HOSTILE_FROM on"]
fn as_many_cases_as_one_likes_are_answered_or_refused() {
    let number = |name: &str, default: u64| {
        std::env::var(name)
            .map_or(default, |text| text.parse().unwrap_or_else(|why| panic!("{name} = {text:?}: {why}")))
    };
    let from = number("HOSTILE_FROM", 0);
    let pass = pass(number("HOSTILE_SEED", SEED), from..from + number("HOSTILE_CASES", 10_000));
    println!("{}", pass.said());
    assert!(pass.wrong.is_empty(), "{}", pass.wrong.join("\n"));
}

#[test]
#[ignore = "prints the file of case HOSTILE_FROM of the seed HOSTILE_SEED"]
fn show() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("HOSTILE_SEED").unwrap_or(SEED);
    println!("{}", Ground::new().case(seed, number("HOSTILE_FROM").expect("HOSTILE_FROM = a case")));
}
