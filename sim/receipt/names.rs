//! Names of models in the spellings that people use, matched to the shipped models.
//!
//! A name becomes words: letters, and numbers with their unit (`LLAMA3.1_405B` is `llama 3.1 405b`). A shipped model fits if its
//! words, or those of one of its aliases (`models.toml`), are the name's; or if the name leaves out nothing but a version and no
//! other model fits. What says how a model was tuned, and who published it, is left out on both sides.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::model::huggingface::shipped;
use crate::tables;

/// The models under names other than their own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Aliases {
    /// Shipped name, its aliases.
    alias: BTreeMap<String, Vec<String>>,
}

/// What a name fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// One shipped model.
    One(&'static str),
    /// Several, and the name does not say which.
    Several(Vec<&'static str>),
    /// None.
    Unknown,
}

/// Words that say nothing about a model's sizes: publishers, tuning, licences.
const IDLE: [&str; 22] = [
    "meta",
    "hf",
    "instruct",
    "chat",
    "base",
    "it",
    "pretrain",
    "pretraining",
    "training",
    "synth",
    "mcore",
    "model",
    "the",
    "like",
    "style",
    "dense",
    "moe",
    "ft",
    "sft",
    "finetune",
    "tokendrop",
    "dropless",
];

/// Each shipped model's words, under its name and its aliases.
static KNOWN: LazyLock<Vec<(&'static str, Vec<String>)>> = LazyLock::new(|| {
    let aliases: Aliases =
        tables::read(include_str!("models.toml")).unwrap_or_else(|error| panic!("models.toml: {error}"));
    let named = |name: &'static str| {
        let others = aliases.alias.get(name).map(Vec::as_slice).unwrap_or_default();
        std::iter::once(words(name))
            .chain(others.iter().map(|alias| words(alias)))
            .map(move |words| (name, words))
            .collect::<Vec<_>>()
    };
    shipped::names().flat_map(named).collect()
});

/// The shipped model that a name means; a framework's own version of it comes first, whose name begins with `own`.
pub fn model_of(own: Option<&str>, name: &str) -> Fit {
    match own.map(|own| model(&format!("{own}{name}"))) {
        Some(Fit::One(found)) => Fit::One(found),
        _ => model(name),
    }
}

/// The shipped model that a name means.
pub fn model(name: &str) -> Fit {
    let asked = words(name);
    if asked.is_empty() {
        return Fit::Unknown;
    }
    let those = |fits: &dyn Fn(&[String]) -> bool| {
        let mut names: Vec<&'static str> =
            KNOWN.iter().filter(|(_, words)| fits(words)).map(|(name, _)| *name).collect();
        names.dedup();
        names
    };
    let exact = those(&|known| known == asked);
    let found = if exact.is_empty() && sized(&asked) { those(&|known| shortened(&asked, known)) } else { exact };
    match found[..] {
        [] => Fit::Unknown,
        [one] => Fit::One(one),
        _ => Fit::Several(found),
    }
}

/// Whether a name says how large the model is: without a size it is a family's.
fn sized(words: &[String]) -> bool {
    words.iter().any(|word| size(word))
}

/// A number with a unit: `405b`, `350m`.
fn size(word: &str) -> bool {
    let digits = word.trim_end_matches(['b', 'm', 't']);
    digits.len() + 1 == word.len() && digits.parse::<f64>().is_ok()
}

/// Whether `asked` is `known` without a version.
fn shortened(asked: &[String], known: &[String]) -> bool {
    let version = |word: &String| word == "v" || word.parse::<f64>().is_ok();
    known.len() > asked.len() && known.iter().filter(|word| !version(word)).eq(asked.iter())
}

/// A name's words.
pub fn words(name: &str) -> Vec<String> {
    // What stands in brackets is a gloss; what stands before a slash is who published it.
    let plain = name.split(['(', ',']).next().unwrap_or(name);
    let plain = plain.rsplit('/').next().unwrap_or(plain).to_lowercase();
    let mut words: Vec<String> = vec![];
    for part in plain.split(|c: char| !(c.is_alphanumeric() || c == '.')) {
        let part = part.trim_matches('.');
        let mut word = String::new();
        let chars: Vec<char> = part.chars().collect();
        for (at, &c) in chars.iter().enumerate() {
            let before = at.checked_sub(1).map(|at| chars[at]);
            let starts = c.is_ascii_digit() && before.is_some_and(char::is_alphabetic);
            // A unit belongs to its number; any other letter begins a word.
            let unit = c.is_alphabetic() && chars.get(at + 1).is_none_or(|next| !next.is_alphabetic());
            let leaves = c.is_alphabetic() && before.is_some_and(|c| c.is_ascii_digit()) && !unit;
            if (starts || leaves) && !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            word.push(c);
        }
        if !word.is_empty() {
            words.push(word);
        }
    }
    // "2-node" is about the machine.
    while let Some(at) = words.iter().position(|word| word.starts_with("node")) {
        let count = at.checked_sub(1).filter(|&at| words[at].parse::<u32>().is_ok());
        words.drain(count.unwrap_or(at)..=at);
    }
    words.retain(|word| !IDLE.contains(&word.as_str()) && !released(word));
    joined(words)
}

/// A month in digits, such as `2507`.
fn released(word: &str) -> bool {
    word.len() == 4
        && word.chars().all(|c| c.is_ascii_digit())
        && (2301..=2912).contains(&word.parse::<u32>().unwrap_or(0))
}

/// Words with versions that were written with a dash joined: `3 1 8b` is `3.1 8b`; and `405.0b` as `405b`.
fn joined(words: Vec<String>) -> Vec<String> {
    let digit = |word: &String| word.len() == 1 && word.chars().all(|c| c.is_ascii_digit());
    let mut out: Vec<String> = vec![];
    for word in words {
        match out.last_mut() {
            Some(last) if digit(last) && digit(&word) => *last = format!("{last}.{word}"),
            _ => out.push(if size(&word) { word.replace(".0", "") } else { word }),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_known_under_the_spellings_that_people_use() {
        for (spelling, shipped) in [
            ("llama-3.1-8b", "llama-3.1-8b"),
            ("Llama-3.1-8B", "llama-3.1-8b"),
            ("Llama 3.1 8B", "llama-3.1-8b"),
            ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
            ("meta-llama/Llama-3-1-8B", "llama-3.1-8b"),
            ("llama3_1_8b", "llama-3.1-8b"),
            ("LLAMA3.1_405B", "llama-3.1-405b"),
            ("LLAMA3-405B", "llama-3.1-405b"),
            ("LLAMA3_70B", "llama-3-70b"),
            ("Llama3 70B 2-node", "llama-3-70b"),
            ("ft_llama3 8b", "llama-3-8b"),
            ("LLAMA2-13B", "llama-2-13b"),
            ("Llama-2 7B", "llama-2-7b"),
            ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
            ("nemotron 340b", "nemotron-4-340b"),
            ("Nemotron-4-340B-Base", "nemotron-4-340b"),
            ("nemotron 15b", "nemotron-4-15b"),
            ("Nemotron-22B", "nemotron-3-22b"),
            ("GPT3-175B", "gpt3-175b-nemo"),
            ("gpt3-175b", "gpt3-175b-nemo"),
            ("nemo_megatron 175b", "gpt3-175b-nemo"),
            ("GPT OSS 120B", "gpt-oss-120b"),
            ("openai/gpt-oss-20b", "gpt-oss-20b"),
            ("Qwen3_30B_a3B (tokendrop)", "qwen3-30b-a3b"),
            ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
            ("Qwen3 MoE 30B", "qwen3-30b-a3b"),
            ("Qwen3_235B_a22B", "qwen3-235b-a22b"),
            ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"),
            ("Qwen2.5 7B", "qwen2.5-7b"),
            ("Qwen2.5 32B 2-node", "qwen2.5-32b"),
            ("DeepSeekV3 (w/o MTP)", "deepseek-v3"),
            ("DeepSeek V3 671B", "deepseek-v3"),
            ("deepseek_v3 671b", "deepseek-v3"),
            ("Mixtral 8x7B", "mixtral-8x7b"),
            ("mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"),
            ("MPT-1b", "llm-foundry-mpt-1b"),
            ("TinyLlama 1.1B", "tinyllama-1.1b"),
            ("tiny-llama", "tinyllama-1.1b"),
            ("EleutherAI/gpt-neox-20b", "gpt-neox-20b"),
            ("google/gemma-2-9b-it", "gemma-2-9b"),
            ("InternLM 7B", "internlm-7b"),
            ("GPT-2 1558M", "gpt2-1558m-padded"),
            ("gpt2-xl", "gpt2-xl"),
        ] {
            assert_eq!(model(spelling), Fit::One(shipped), "{spelling}: {:?}", words(spelling));
        }
    }

    #[test]
    fn a_name_that_fits_two_models_is_told_and_a_stranger_is_none() {
        assert_eq!(model("mistral 7b"), Fit::Several(vec!["mistral-7b-v0.1", "mistral-7b-v0.2"]));
        assert_eq!(model_of(Some("llm-foundry-"), "MPT-7b"), Fit::One("llm-foundry-mpt-7b"));
        assert_eq!(model_of(None, "MPT-7b"), Fit::One("mpt-7b"));
        assert_eq!(model_of(Some("llm-foundry-"), "MPT-30b-instruct"), Fit::One("llm-foundry-mpt-30b"));
    }

    #[test]
    fn what_no_shipped_model_is_called_is_unknown() {
        for stranger in [
            "",
            "a model",
            "llama",
            "Nemotron",
            "Llama-like 1.34B",
            "GPT 52B",
            "custom MoE 10T",
            "grok1 314b",
            "qwen",
            "7b",
            "(x)",
        ] {
            assert_eq!(model(stranger), Fit::Unknown, "{stranger}: {:?}", words(stranger));
        }
    }

    #[test]
    fn every_alias_is_of_a_shipped_model_and_of_one_alone() {
        let aliases: Aliases = tables::read(include_str!("models.toml")).expect("it ships");
        for name in aliases.alias.keys() {
            assert!(shipped::shipped(name).is_some(), "{name}");
        }
        for (name, words) in KNOWN.iter() {
            let same: Vec<_> = KNOWN.iter().filter(|(_, other)| other == words).map(|(name, _)| *name).collect();
            assert!(same.iter().all(|other| other == name), "{words:?} are {same:?}");
        }
    }
}
