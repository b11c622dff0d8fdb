//! The model that a configuration trains: a file, a shipped model, or the name that a hub has for one.

use std::path::Path;

use super::error::ImportError;
use super::hf;
use super::imported::Imported;
use super::importer::Request;
use super::why::{Found, Why};
use crate::model::ModelConfig;
use crate::model::huggingface::shipped;
use crate::near::did_you_mean;

/// Ends of names on a hub that say nothing of a model's sizes.
const ENDS: [&str; 10] = ["-hf", "-instruct", "-base", "-chat", "-it", "-bf16", "-v0.1", "-v0.2", "-v0.3", "-2507"];

/// Starts of names on a hub that shipped models lack.
const STARTS: [&str; 2] = ["meta-", "unsloth-"];

/// Models that are another one in every size.
const ALIKE: [(&str, &str); 4] = [
    ("llama-3.3-70b", "llama-3.1-70b"),
    ("mistral-7b", "mistral-7b-v0.2"),
    ("deepseek-v3-base", "deepseek-v3"),
    ("deepseek-r1", "deepseek-v3"),
];

/// The shipped model behind a name such as `meta-llama/Llama-3.1-8B-Instruct`.
pub fn hub(name: &str) -> Option<&'static str> {
    let short = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let known = |name: &str| {
        let alike = ALIKE.iter().find(|(other, _)| *other == name).map_or(name, |(_, shipped)| shipped);
        shipped::names().find(|shipped| *shipped == alike)
    };
    let mut rest = STARTS.iter().find_map(|start| short.strip_prefix(start)).unwrap_or(&short);
    loop {
        if let Some(found) = known(rest) {
            return Some(found);
        }
        rest = ENDS.iter().find_map(|end| rest.strip_suffix(end))?;
    }
}

/// Writes the model of `--model`, else of the name that the configuration has for it.
pub fn put(
    out: &mut Imported,
    request: &Request<'_>,
    named: Option<Found<String>>,
    key: &str,
) -> Result<ModelConfig, ImportError> {
    let remedy =
        "add --model config.json, the Hugging Face configuration of the model, or --model llama-3.1-8b, a shipped one";
    if let Some(path) = request.model {
        if shipped::names().any(|name| name == path) {
            out.put("model.name", path, Why::code("--model"));
            return shipped::named(path).map_err(|why| ImportError::Model(Box::new(why)));
        }
        let text = crate::files::text(Path::new(path)).map_err(|why| ImportError::Syntax {
            place: path.to_owned(),
            problem: format!("the model's configuration cannot be read: {why}{}", did_you_mean(path, shipped::names())),
            remedy: "write the path of a config.json, or the name of a shipped model behind --model".to_owned(),
        })?;
        let model = hf::model(&text, path)?;
        out.put("model.huggingface", path, Why::code("--model"));
        return Ok(model);
    }
    let Some(found) = named else {
        return Err(ImportError::Missing {
            file: request.file.to_owned(),
            key: key.to_owned(),
            expected: "the model, which the configuration does not name".to_owned(),
            remedy: remedy.to_owned(),
        });
    };
    let Some(name) = hub(&found.value) else {
        return Err(ImportError::Unsupported {
            place: request.file.to_owned(),
            what: format!("{key} = {:?}, which is no shipped model,", found.value),
            remedy: remedy.to_owned(),
        });
    };
    out.put("model.name", name, found.why);
    shipped::named(name).map_err(|why| ImportError::Model(Box::new(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_hub_are_found_whoever_publishes_them() {
        for (name, shipped) in [
            ("NousResearch/Meta-Llama-3.1-8B", "llama-3.1-8b"),
            ("meta-llama/Llama-3.2-3B-Instruct", "llama-3.2-3b"),
            ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
            ("mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1"),
            ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
            ("google/gemma-2-9b-it", "gemma-2-9b"),
            ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
            ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ] {
            assert_eq!(hub(name), Some(shipped), "{name}");
        }
        assert_eq!(hub("org/another-model"), None);
    }
}
