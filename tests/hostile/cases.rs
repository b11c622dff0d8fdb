//! Numbered cases: plans of every runtime with one key that is hostile, or with several that somebody might well write.

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use toml::{Table, Value};

use crate::every_key::{keys, keys::Key, plans};
use crate::followed;
use crate::make::FILE;

/// Values that no key expects: numbers that are none or beyond any use, words that are no name, other types.
const HOSTILE: &[&str] = &[
    "-1",
    "0",
    "1",
    "3",
    "7",
    "64",
    "65536",
    "2147483647",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "nan",
    "inf",
    "-inf",
    "-0.0",
    "0.3",
    "1e-320",
    "1e300",
    "1e19",
    "true",
    "false",
    "''",
    "' '",
    "'zzz'",
    "\"\\u001b[31mred\\u202e\"",
    "'../../../etc/passwd'",
    "'/dev/null'",
    "'1e999 GB'",
    "'-1 GB'",
    "'NaN'",
    "[]",
    "[1]",
    "[[]]",
    "[-1, 2]",
    "{}",
    "{ every = 0 }",
    "{ zzz = 1 }",
    "1979-05-27",
];

/// Remedies that are followed before a case is left as it is.
const MENDED: usize = 6;

/// What cases are made of.
pub struct Ground {
    plans: Vec<Table>,
    /// A plan of each runtime.
    first: Vec<usize>,
    keys: Vec<Key>,
}

impl Ground {
    pub fn new() -> Ground {
        let plans: Vec<Table> = plans::plans().iter().map(|plan| plan.parse().unwrap()).collect();
        let runtime = |plan: &Table| plan["runtime"].as_str().unwrap().to_owned();
        let mut first: Vec<usize> = vec![];
        for (at, plan) in plans.iter().enumerate() {
            if !first.iter().any(|&known| runtime(&plans[known]) == runtime(plan)) {
                first.push(at);
            }
        }
        Ground { plans, first, keys: keys::all() }
    }

    /// Cases of one key, which come first: every key under every runtime.
    pub fn singles(&self) -> u64 {
        (self.first.len() * self.keys.len()) as u64
    }

    /// The file of a case.
    pub fn case(&self, seed: u64, number: u64) -> String {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        let mut draw = Draw(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
        if number < self.singles() {
            let (plan, key) = (number as usize / self.keys.len(), number as usize % self.keys.len());
            return self.with(&self.plans[self.first[plan]], &self.keys[key], &mut draw, 2).to_string();
        }
        let mut plan = draw.of(&self.plans).clone();
        for _ in 0..2 + draw.below(2) {
            plan = self.with(&plan, draw.of(&self.keys), &mut draw, 12);
        }
        self.repaired(plan.to_string(), &mut draw)
    }

    /// The plan with a value of a key: of one in so many, one that nobody expects.
    fn with(&self, plan: &Table, key: &Key, draw: &mut Draw, one_in: usize) -> Table {
        let value = match draw.below(one_in) {
            0 => value(HOSTILE[draw.below(HOSTILE.len())]),
            _ => draw.of(&key.values).clone(),
        };
        // A key inside something that is no table is left alone.
        let tables: Vec<&str> = key.name.split('.').collect();
        let blocked = (1..tables.len())
            .any(|end| keys::get(plan, &tables[..end].join(".")).is_some_and(|value| !value.is_table()));
        if blocked { plan.clone() } else { keys::set(plan, &key.name, value) }
    }

    /// What becomes of a refused file when somebody follows its remedies.
    fn repaired(&self, mut text: String, draw: &mut Draw) -> String {
        for _ in 0..MENDED {
            let ways = followed::mended(FILE, &text);
            if ways.is_empty() {
                break;
            }
            text = draw.of(&ways).clone();
        }
        text
    }
}

fn value(text: &str) -> Value {
    let table: Table = format!("v = {text}").parse().unwrap_or_else(|why| panic!("{text}: {why}"));
    table["v"].clone()
}

struct Draw(TestRng);

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        (self.0.next_u64() % count as u64) as usize
    }

    fn of<'t, T>(&mut self, list: &'t [T]) -> &'t T {
        &list[self.below(list.len())]
    }
}
