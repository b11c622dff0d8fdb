//! The scenarios that ship with the program: every file of `scenarios/`, by its stem.
//!
//! The files are compiled in, so that a name works where there is no checkout. To add one: a file there, and its stem here.

/// A shipped scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The stem of its file.
    pub name: &'static str,
    /// The file.
    pub text: &'static str,
}

macro_rules! samples {
    ($($name:literal,)*) => {
        &[$(Sample { name: $name, text: include_str!(concat!("../../scenarios/", $name, ".toml")) }),*]
    };
}

/// All of them, in the order of their names.
pub const SAMPLES: &[Sample] = samples![
    "deepseek-v2-lite-torchtitan-8xh100",
    "gemma-2-9b-fused-loss-8xh200",
    "gpt2-xl-8xa100",
    "gpt3-175b-megatron-1024xa100",
    "internlm-7b-internevo-64xa100",
    "llama-8.9b-nanotron-8xh100",
    "llama2-7b-fsdp1-16xa100",
    "llama2-7b-maxtext-8xh100",
    "llama3.1-405b-torchtitan-3d-512xh100",
    "llama3.1-70b-float8-async-tp8-256xh100",
    "llama3.1-70b-fsdp2-256xh100",
    "llama3.1-70b-fsdp2-tp8-64xh100",
    "llama3.1-70b-stragglers-64xh100",
    "llama3.1-8b-compile-8xh100",
    "llama3.1-8b-deepspeed-zero2-offload-1xa100",
    "llama3.1-8b-deepspeed-zero3-8xh100",
    "llama3.1-8b-dpo-8xh100",
    "llama3.1-8b-fsdp2-8xh100",
    "llama3.1-8b-hsdp-64xh200",
    "llama3.1-8b-long-context-8xh200",
    "llama3.1-8b-maxtext-8xv6e",
    "llama3.1-8b-too-large-8xh100",
    "llama3.1-8b-torch-xla-8xv6e",
    "llama3.1-8b-torchtitan-0.3.0-8xh100",
    "mistral-7b-mixed-policies-16xb200",
    "qwen2.5-1.5b-ddp-8xh100",
    "qwen3-30b-a3b-64xh100",
    "qwen3-8b-accumulation-8xh200",
    "torchtitan-llama3.1-8b-measured-8xh100",
    "two-narrow-blocks-4xv6e",
];

impl Sample {
    /// What it is: the sentence that its file opens with.
    pub fn about(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default().trim_start_matches("# ")
    }
}

/// The sample of that name.
pub fn sample(name: &str) -> Option<&'static Sample> {
    SAMPLES.iter().find(|sample| sample.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn a_sample_is_understood_without_the_folder_it_ships_in() {
        for sample in SAMPLES {
            assert!(sample.about().len() > 20, "{}", sample.name);
            if let Err(error) = Scenario::parse("sample.toml", sample.text) {
                panic!("{}: {error}", sample.name);
            }
        }
    }
}
