//! Other values of what a file does not state: what the answer would be if the default is not what the user's run has.

use toml::Value;

use crate::cost::attention::Backend;
use crate::runtime::megatron::TokenDispatcher;
use crate::runtime::spmd::Policy;
use crate::scenario::keys::{self, Choice, Key, Kind};
use crate::scenario::{Change, Scenario};
use crate::units::Power;

/// Switches for looking for errors, with which nobody trains.
const TO_DEBUG: [&str; 1] = ["framework.launch_blocking"];

/// The exponent of a load that no loss balances perfectly: with it the busiest of 64 ranks of four experts gets 1.35 times its share. An
/// auxiliary-loss-free router began at 1.338 on average and 1.971 on its worst rank, and was at 1.212 and 1.724 after 18 steps
/// (marin-community/marin, issue 7668: top-8 of 256 experts on 64 GB200 under Megatron-Core).
const NATURAL_LOAD: f64 = 0.08;

/// What a site that is short of power limits a board to: Meta's H100 run at 500 of 700 W (pytorch/torchtitan@b5bcd76c66d0,
/// `benchmarks/llama3_h100_202412_torchtitan.md`).
const LIMITED: f64 = 500.0 / 700.0;

/// Each default with a change that takes its key to another value: all other words of a choice, the other way of a switch, twice a
/// count. Names, sizes and lists have no other value that suggests itself.
pub(super) fn others(scenario: &Scenario) -> Vec<(String, Change)> {
    let taken = scenario.assumptions.iter().filter_map(|assumption| assumption.taken());
    let taken = taken.filter(|taken| !TO_DEBUG.contains(&taken.key.as_str()));
    let of_one = |(key, value): (&str, Value), line: String| {
        let values = keys::row(key).map_or(vec![], |row| alternatives(row, &value));
        values.into_iter().map(move |value| (line.clone(), Change::set(key, value))).collect::<Vec<_>>()
    };
    taken
        .flat_map(|taken| of_one((&taken.key, taken.value.value()), format!("{} = {}", taken.key, taken.value)))
        .collect()
}

/// Names of a key whose kind is text, where they are known.
fn names(key: &str) -> Vec<&'static str> {
    match key {
        "megatron.moe_token_dispatcher_type" => TokenDispatcher::ALL.iter().map(|one| one.name()).collect(),
        "xla.remat_policy" => Policy::NAMED.iter().map(|(name, _)| *name).collect(),
        _ => vec![],
    }
}

/// Other values of a key than the one that is taken.
pub(super) fn alternatives(key: &Key, taken: &Value) -> Vec<Value> {
    if key.path == "model.expert_load" {
        return vec![Value::Table([("power_law".to_owned(), Value::Float(NATURAL_LOAD))].into_iter().collect())];
    }
    if key.path == "topology.power_limit" {
        let own = taken.as_str().and_then(|own| Power::parse(own).ok());
        return own.map(|own| Value::from(Power(LIMITED * own.0).to_string())).into_iter().collect();
    }
    if key.path == "attention.backend" {
        // What other releases of PyTorch take, or a switch of Transformer Engine's; the rest is history, or a library of its own.
        let usual = [Backend::Flash2, Backend::Cudnn].map(Backend::name).into_iter();
        return usual.filter(|&other| taken.as_str() != Some(other)).map(Value::from).collect();
    }
    match (key.kind, taken) {
        (Kind::Flag, Value::Boolean(flag)) => vec![Value::Boolean(!flag)],
        (Kind::Count(_), Value::Integer(count)) => {
            vec![Value::Integer(if *count == 0 { 1 } else { count.saturating_mul(2) })]
        }
        (Kind::Choice(choices), Value::String(word)) => {
            let words = choices.iter().filter_map(|choice| match choice {
                Choice::Word(other) => Some(*other),
                Choice::With(..) => None,
            });
            words.filter(|other| other != word).map(Value::from).collect()
        }
        (Kind::Text, Value::String(word)) => {
            names(key.path).into_iter().filter(|other| other != word).map(Value::from).collect()
        }
        _ => vec![],
    }
}
