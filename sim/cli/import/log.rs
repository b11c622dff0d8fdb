//! `windtunnel import log FILE`: what a run's log says it measured.

use std::path::PathBuf;
use std::process::ExitCode;

use super::super::{Failure, Outcome, Written, output, print, read_named};
use windtunnel::log;
use windtunnel::scenario::Scenario;

#[derive(Debug, clap::Args)]
#[command(after_help = super::super::help::IMPORT_LOG)]
pub struct Args {
    /// The log, as the framework wrote it.
    file: PathBuf,
    /// The run's scenario: it is written with what the log says, as a receipt. Without it, the [measured] table alone.
    #[arg(long, value_name = "SCENARIO")]
    scenario: Option<PathBuf>,
    /// Write to this file instead of printing.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let out = output(args.out.as_ref())?;
    let (file, text) = read_named(&args.file, "log")?;
    let run = log::read(&file, &text).map_err(Failure::input)?;
    let scenario = args.scenario.as_ref().map(|path| read_named(path, "scenario")).transpose()?;
    let receipt = match &scenario {
        None => run.measured(&file, None).map_err(Failure::input)?,
        Some((name, text)) => {
            let scenario = Scenario::parse(name, text).map_err(Failure::input)?;
            if scenario.measured.is_some() {
                let message = format!("{name} has a [measured] table: remove it, or name a scenario without one");
                return Err(Failure::input(message));
            }
            let measured =
                run.measured(&file, Some(scenario.job.tokens() / scenario.job.seq().max(1))).map_err(Failure::input)?;
            let receipt = format!("{}\n\n{measured}", text.trim_end());
            // What is written can be checked: a receipt that is refused is no answer.
            Scenario::parse(name, &receipt).map_err(Failure::input)?;
            receipt
        }
    };
    match out {
        None => print(&receipt)?,
        Some(file) => {
            let hint = if scenario.is_some() {
                format!(": windtunnel check {}", file.path().display())
            } else {
                String::new()
            };
            let mut written = Written::default();
            written.write(file, &receipt, &hint);
            written.report("")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
