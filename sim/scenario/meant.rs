//! What a scenario's name could have meant, where no file has it: a shipped model, a machine, a sample.

use std::io::{Error, ErrorKind};
use std::path::Path;

use super::error::ScenarioError;
use super::samples::SAMPLES;
use crate::hardware::registry::registry;
use crate::model::huggingface::shipped;
use crate::near::nearest;

impl ScenarioError {
    /// A scenario's file cannot be read; of one that is not there, what its name could have meant.
    pub fn unreadable(path: &Path, error: &Error) -> ScenarioError {
        let meant = if error.kind() == ErrorKind::NotFound { meant(path) } else { String::new() };
        ScenarioError::Unreadable { path: path.display().to_string(), reason: format!("{error}{meant}") }
    }
}

/// What the name of a file that is not there may have meant: empty, or a remedy that begins with a semicolon.
fn meant(path: &Path) -> String {
    let last = path.file_name().and_then(|name| name.to_str());
    let (Some(name), Some(last)) = (path.to_str(), last) else { return String::new() };
    // Names have dots in them: `llama-3.1-8b` has no ending.
    let stem = [".toml", ".json", ".yaml", ".yml"].iter().find_map(|end| last.strip_suffix(end)).unwrap_or(last);
    let machines = registry();
    let machine = machines.iter().map(|listed| listed.name).find(|machine| *machine == stem);
    if shipped::shipped(name).is_some() {
        return format!("; {name} is a shipped model: windtunnel run {name} --on h100-sxm-80gb:1 runs it");
    }
    if let Some(machine) = machine {
        return format!("; {machine} is a machine: windtunnel run llama-3.1-8b --on {machine}:1 runs a model on it");
    }
    let sample = nearest(stem, SAMPLES.iter().map(|sample| sample.name));
    let model = nearest(stem, shipped::names());
    match (sample, model) {
        (Some(sample), Some(model)) => {
            format!(
                "; did you mean the sample {sample:?} or the model {model:?}? (windtunnel new --list, windtunnel models)"
            )
        }
        (Some(sample), None) => format!("; did you mean the sample {sample:?}? (windtunnel new --list shows all)"),
        (None, Some(model)) => format!("; did you mean the model {model:?}? (windtunnel models shows all)"),
        (None, None) => "; windtunnel new --list shows samples, windtunnel models shows models".to_owned(),
    }
}
