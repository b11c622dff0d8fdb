//! `windtunnel models`: the models that ship with the program.

use std::process::ExitCode;

use super::{Failure, Outcome, print, width};
use windtunnel::model::ModelConfig;
use windtunnel::model::huggingface::shipped;
use windtunnel::report::text::table_within;

#[derive(Debug, clap::Args)]
#[command(after_help = super::help::MODELS)]
pub struct Args {
    /// Only models whose name contains this.
    name: Option<String>,
}

pub fn run(args: &Args) -> Outcome {
    let wanted = args.name.as_deref().unwrap_or_default().to_lowercase();
    let names: Vec<&str> = shipped::names().filter(|name| name.contains(&wanted)).collect();
    if names.is_empty() {
        return Err(Failure::input(format!(
            "no shipped model's name contains {wanted:?}: windtunnel models lists all"
        )));
    }
    let rows = names.into_iter().map(|name| {
        let model = shipped::named(name).map_err(Failure::input)?;
        let params = model.params();
        let billions = |count: u64| format!("{:.2} B", count as f64 / 1e9);
        let active = if model.experts().is_some() { billions(params.active) } else { String::new() };
        Ok(vec![name.to_owned(), billions(params.total), active, kind(&model).to_owned(), model.source])
    });
    let rows = rows.collect::<Result<Vec<_>, Failure>>()?;
    let header = ["name", "parameters", "active", "kind", "source"];
    print(&format!("{}\n", table_within(&header, rows, &[1, 2], width())))?;
    Ok(ExitCode::SUCCESS)
}

/// What the layers of a model are, in a word.
fn kind(model: &ModelConfig) -> &'static str {
    match (model.is_transformer(), model.experts().is_some()) {
        (true, false) => "dense",
        (true, true) => "experts",
        (false, false) => "hybrid",
        (false, true) => "hybrid, experts",
    }
}
