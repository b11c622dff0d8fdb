//! `windtunnel why SCENARIO`: what a step's time goes to, and what helps against each cause.

use std::path::PathBuf;
use std::process::ExitCode;

use super::named::Named;
use super::run::colour;
use super::{Failure, Json, Outcome, Written, width};
use windtunnel::explore::why;
use windtunnel::files;
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings;

#[derive(Debug, clap::Args)]
#[command(after_help = super::help::WHY)]
pub struct Args {
    #[command(flatten)]
    named: Named,
    /// Write the causes as JSON to this file (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let json = Json::open(args.json.as_ref())?;
    let scenario = args.named.load()?;
    let bar = files::spinner("simulating");
    let answer = predict(&scenario, Settings::default()).map_err(Failure::input)?;
    let causes = why::why(&scenario, &answer, &|| bar.tick());
    bar.finish_and_clear();
    let text = || why::text(&scenario, &causes, (width(), colour()));
    json.finish_with(Written::default(), text, || why::json(&scenario, &causes))?;
    Ok(ExitCode::SUCCESS)
}
