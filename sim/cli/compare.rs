//! `windtunnel compare A B`: what two scenarios differ in, and what each difference does.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{Failure, Json, Outcome, Written, help, output, read, width};
use windtunnel::explore::compare::{Fold, html, json, text};
use windtunnel::explore::{Side, compare};
use windtunnel::files;
use windtunnel::receipt::table::Tables;
use windtunnel::receipt::{self, Case};
use windtunnel::scenario::Scenario;

#[derive(Debug, clap::Args)]
#[command(after_help = help::COMPARE)]
pub struct Args {
    /// The scenario to start from, or a receipt: FILE.jsonl#ID.
    a: PathBuf,
    /// The scenario to arrive at, or a receipt.
    b: PathBuf,
    /// Write out every key of a long row, every value, and every default of both frameworks.
    #[arg(long)]
    all: bool,
    /// Write the comparison to this file: one HTML page that loads nothing (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the comparison as JSON to this file (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let (json, page) = (Json::open(args.json.as_ref())?, output(args.html.as_ref())?);
    let (a, b) = (Source::read(&args.a)?, Source::read(&args.b)?);
    let side = |source: &Source| Side::read(&source.name, &source.file, &source.text).map_err(Failure::input);
    let bar = files::spinner("comparing");
    let answer = compare(&side(&a)?, &side(&b)?).map_err(Failure::input)?;
    let measured = a.measured()? + &b.measured()?;
    bar.finish_and_clear();
    let mut written = Written::default();
    if let Some(file) = page {
        written.write(file, &html::page(&answer), ": open it in a browser");
    }
    let fold = if args.all { Fold::Nothing } else { Fold::Long };
    json.finish_with(written, || text::report(&answer, width(), fold) + &measured, || json::report(&answer))?;
    Ok(ExitCode::SUCCESS)
}

/// One side's text, and what errors call it.
struct Source {
    name: String,
    file: String,
    text: String,
}

impl Source {
    /// A scenario's file, or the scenario that a receipt is mapped to.
    fn read(path: &Path) -> Result<Source, Failure> {
        let written = path.display().to_string();
        if written.ends_with(".jsonl") {
            return Err(Failure::input(format!("{written} holds many receipts: name one, {written}#ID")));
        }
        let Some((file, id)) = written.rsplit_once('#').filter(|(file, _)| file.ends_with(".jsonl")) else {
            let (file, text) = read(path)?;
            return Ok(Source { name: file.clone(), file, text });
        };
        let files = receipt::check::read(&[PathBuf::from(file)]).map_err(Failure::input)?;
        let entry = receipt::check::find(&files, id).map_err(Failure::input)?;
        let refused =
            |why: receipt::Reason| Failure { message: format!("{id} cannot be mapped: {}", why.words()), code: 1 };
        let mapped = receipt::map::map(entry, &Tables::shipped()).map_err(refused)?;
        Ok(Source { name: id.to_owned(), file: id.to_owned(), text: mapped.text })
    }

    /// What the run measured beside what is predicted for it, if it has been run: what the attribution leaves open.
    fn measured(&self) -> Result<String, Failure> {
        let scenario = Scenario::parse(&self.file, &self.text).map_err(Failure::input)?;
        if scenario.measured.is_none() {
            return Ok(String::new());
        }
        let case = Case::new(&self.name, &self.text, scenario, vec![]);
        let answer = case.fly(false).map_err(Failure::input)?;
        Ok(format!("\nMeasured: {}", receipt::text::row(&case, &answer)))
    }
}
