//! Nothing in a file is read over: whatever somebody writes, under any framework and in any plan, changes the prediction, is
//! refused, or is said to have no effect.
//!
//! Keys are those of the one table (`sim/scenario/keys.rs`), which `tests/keys.rs` holds to the reader. To cover more, add a plan to
//! [`plans`].

pub mod keys;
pub mod plans;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use rayon::prelude::*;
use toml::Table;
use windtunnel::program::Program;
use windtunnel::report;
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Assumption, Idle, Scenario, predict};

use crate::make::FILE;
use keys::Key;

/// A list of keys in `tests/every_key/known.tsv`, where a line says what it is about, and the key.
fn known(about: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/every_key/known.tsv");
    let text = std::fs::read_to_string(path).unwrap();
    let fields = text.lines().filter_map(|line| line.split_once('\t'));
    fields.filter(|(of, _)| *of == about).map(|(_, key)| key.to_owned()).collect()
}

/// What a file comes to.
struct Seen {
    /// All that the report says, but what was left open, what has no effect, and what was asked.
    said: String,
    programs: Vec<Program>,
    issued: OnceLock<String>,
    idle: Vec<Idle>,
    /// Keys that the file leaves out, and for which a value was taken.
    taken: Vec<String>,
}

impl Seen {
    /// A file's prediction, or why there is none.
    fn of(text: &str) -> Result<Seen, String> {
        let scenario = Scenario::parse(FILE, text).map_err(|error| error.to_string())?;
        // Of most keys the scenario says whether they have an effect; of this one a second prediction does.
        let settings = Settings { remedies: text.contains("device_max_connections"), ..Settings::default() };
        let answer = predict(&scenario, settings).map_err(|error| error.to_string())?;
        let mut said = report::json::report(&scenario, &answer);
        for key in ["assumptions", "keys_without_effect", "questions"] {
            said.as_object_mut().unwrap().remove(key).unwrap();
        }
        let programs = answer.programs().into_iter().cloned().collect();
        let idle = [scenario.idle, answer.idle].concat();
        let taken = scenario.assumptions.iter().filter_map(Assumption::key).map(str::to_owned).collect();
        Ok(Seen { said: said.to_string(), programs, issued: OnceLock::new(), idle, taken })
    }

    /// What ranks issue, where it is asked for: to write it takes as long as to predict. Kernels are in the report, with their times:
    /// names that say who asked for them are none of it.
    fn issued(&self) -> &str {
        let one = |program: &Program| {
            let Program { setup, first, step, comms, transfers, groups, buffers, renames, host, .. } = program;
            format!("{:?}", (setup, first, step, comms, transfers, groups, buffers, renames, host))
        };
        self.issued.get_or_init(|| self.programs.iter().map(one).collect())
    }

    fn names(&self, key: &str) -> bool {
        self.idle.iter().any(|idle| idle.key == key)
    }

    /// Whether the report says what was taken for a key, or for its table.
    fn states(&self, key: &str) -> bool {
        self.taken.iter().any(|taken| key == taken || key.starts_with(&format!("{taken}.")))
    }
}

/// What becomes of a key in a plan.
#[derive(PartialEq, Eq)]
enum Fate {
    /// All values but at most one are refused.
    Refused,
    /// A value changes the prediction.
    Counts,
    /// The report says that none does.
    Named,
    /// Several values come to the same, and the report does not say so; or it says so and is wrong.
    Wrong(String),
}

fn fate(file: &Table, key: &Key, plain: &Seen) -> Fate {
    let (mut named, mut silent) = (false, vec![]);
    for value in key.values.iter().filter(|value| keys::get(file, &key.name) != Some(value)) {
        let seen = match Seen::of(&keys::set(file, &key.name, value.clone()).to_string()) {
            Ok(seen) => seen,
            Err(why) if why.contains("means nothing under") || why.contains("belongs to runtime") => {
                return Fate::Refused;
            }
            Err(_) => continue,
        };
        // What is said to have no effect has none on the report; what counts may change no more than what ranks issue.
        let same = seen.said == plain.said && (seen.names(&key.name) || seen.issued() == plain.issued());
        match (seen.names(&key.name), same) {
            (true, false) => return Fate::Wrong(format!("{value} has an effect, and is said to have none")),
            (true, true) => named = true,
            (false, false) => return Fate::Counts,
            (false, true) => silent.push(value.to_string()),
        }
    }
    match (named, silent.len(), key.values.len()) {
        (true, ..) => Fate::Named,
        (_, 2.., _) | (_, 1, 1) => Fate::Wrong(format!("{} come to the same in silence", silent.join(" and "))),
        _ => Fate::Refused,
    }
}

#[test]
fn every_key_changes_the_prediction_or_is_refused_or_is_said_to_have_no_effect() {
    let keys = keys::all();
    let plans = plans::plans();
    let plain: Vec<(Table, Seen)> = plans
        .par_iter()
        .map(|plan| (plan.parse().unwrap(), Seen::of(plan).unwrap_or_else(|why| panic!("{why}\n\n{plan}"))))
        .collect();
    let pairs: Vec<(usize, &Key)> = (0..plans.len()).flat_map(|plan| keys.iter().map(move |key| (plan, key))).collect();
    let fates: Vec<Fate> = pairs.par_iter().map(|&(plan, key)| fate(&plain[plan].0, key, &plain[plan].1)).collect();
    let mut wrong = vec![];
    let mut met = BTreeSet::new();
    let mut unstated = BTreeSet::new();
    for ((plan, key), fate) in pairs.into_iter().zip(fates) {
        let (file, seen) = &plain[plan];
        if fate == Fate::Counts && keys::get(file, &key.name).is_none() && !seen.states(&key.name) {
            unstated.insert(key.name.as_str());
        }
        match fate {
            Fate::Wrong(how) => wrong.push(format!("{}: {}: {how}", plans::name(&plans[plan]), key.name)),
            Fate::Counts | Fate::Named => drop(met.insert(key.name.as_str())),
            Fate::Refused => {}
        }
    }
    wrong.sort();
    // Nobody has found out yet why these change nothing, so no report says it.
    let silent = known("silent");
    let told = wrong.len();
    wrong.retain(|line| !silent.iter().any(|known| line.starts_with(&format!("{known}: "))));
    assert_eq!(told - wrong.len(), silent.len(), "known.tsv lists what is silent no more");
    let never: Vec<&str> = keys.iter().map(|key| key.name.as_str()).filter(|key| !met.contains(key)).collect();
    let lists = format!("unreached: {never:?}\nunstated: {unstated:?}");
    assert!(wrong.is_empty(), "{}\n{lists}", wrong.join("\n"));
    assert_eq!(never, known("unreached"), "keys of which no plan takes a second value\n{lists}");
    let unstated: Vec<&str> = unstated.into_iter().collect();
    assert_eq!(unstated, known("unstated"), "keys that count, and of which the report does not say what is taken");
}
