//! The table `[model]` as understood: a shipped model or a config, and what the run changes in it.

use std::path::Path;

use toml::Spanned;

use super::error::ScenarioError;
use super::machine::relative;
use super::understood::{MOST_SEQUENCE, Reader};
use super::written;
use crate::hardware::registry::edits;
use crate::model::huggingface::ModelError;
use crate::model::{ModelConfig, Position, huggingface};

/// A model that ships with the program, or the names that come near.
fn shipped(reader: &Reader<'_>, name: &Spanned<String>) -> Result<Result<ModelConfig, ModelError>, ScenarioError> {
    let asked = name.get_ref();
    if huggingface::shipped(asked).is_some() {
        return Ok(huggingface::shipped::named(asked));
    }
    let problem = format!("no model is named {asked:?}");
    let mut near: Vec<&str> = huggingface::shipped::names().collect();
    near.sort_by_key(|known| edits(asked, known));
    let near: Vec<String> = near.into_iter().take(3).map(|known| format!("{known:?}")).collect();
    let remedy = format!(
        "the nearest are {}; all are in scenarios/models/, and huggingface = \"path/config.json\" reads your own",
        near.join(", ")
    );
    Err(reader.plan(name, problem, remedy))
}

/// The model of a scenario, with what the run changes in it.
pub(super) fn model(reader: &mut Reader<'_>, written: &Spanned<written::Model>) -> Result<ModelConfig, ScenarioError> {
    let at = written.get_ref();
    let (named, loaded) = match (&at.name, &at.huggingface) {
        (Some(name), None) => (name, shipped(reader, name)?),
        (None, Some(path)) => (path, huggingface::load(Path::new(&relative(reader.file, path.get_ref())))),
        _ => {
            let problem = "a model is named or read from a Hugging Face config, exactly one of the two";
            let remedy = "write name = \"llama-3.1-8b\" or huggingface = \"path/config.json\"";
            return Err(reader.plan(written, problem, remedy));
        }
    };
    let mut model =
        loaded.map_err(|problem| ScenarioError::Model { problem: Box::new(problem), place: reader.place(named) })?;
    if let Some(layers) = &at.layers {
        model.layers = reader.count("model.layers", layers, 1, 10_000)?;
    }
    if let Some(tied) = at.tied_head {
        model.tied_head = tied;
    }
    if let Some(at) = &at.positions {
        let rows = reader.count("model.positions", at, 1, MOST_SEQUENCE)?;
        match &mut model.position {
            Position::Learned { positions } => *positions = rows,
            _ => {
                let problem = format!("{} has no table of learned positions", model.name);
                return Err(reader.plan(at, problem, "remove model.positions"));
            }
        }
    }
    let notes: Vec<String> = model.notes.iter().map(|note| format!("model: {note}")).collect();
    reader.assumptions.extend(notes);
    Ok(model)
}
