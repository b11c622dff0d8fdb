//! `windtunnel ceiling SCENARIO`: the longest sequence that fits, and the way there.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::Value;

use super::{Failure, Json, Outcome, Written, calibrate, help, output, read, width};
use windtunnel::explore::ceiling::{self, Checked, Options, STEP};
use windtunnel::explore::{Ceiling, variants};
use windtunnel::files;
use windtunnel::scenario::Scenario;
use windtunnel::units::Bytes;

#[derive(Debug, clap::Args)]
#[command(after_help = help::CEILING)]
pub struct Args {
    /// The scenario file.
    scenario: PathBuf,
    /// Compare the ceilings of variants: topology=NAME,NAME… or recompute=none,every=2,selective_op,full (under other runtimes
    /// what their own key takes, such as none,core_attn,uniform=1) or offload=false,true, or an axis of the mesh: tp=1,2,4,8, and so
    /// cp, pp and ep (XLA: tensor, context, pipeline, expert), with as many sequences a step in every row. The name alone
    /// compares all there are.
    #[arg(long, value_name = "WHAT=A,B,…")]
    compare: Option<String>,
    /// Distance between the lengths tried, in tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = STEP, value_parser = clap::value_parser!(u64).range(1..))]
    step: u64,
    /// Longest length to try, in tokens (default: as long as the model goes).
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// Have XLA's compiler compile the step at the ceiling, at the next length, and where it disagrees at others, which takes
    /// minutes each; answers are kept (runtime = "xla"; by `windtunnel compile-check`).
    #[arg(long, conflicts_with = "compare")]
    compile_check: bool,
    /// How many lengths it compiles at most.
    #[arg(long, value_name = "N", default_value_t = 6, requires = "compile_check", value_parser = clap::value_parser!(u64).range(1..))]
    compilations: u64,
    /// The compiler: tpu, tpu@VERSION, or the file of a plugin.
    #[arg(long, default_value = "tpu", requires = "compile_check")]
    plugin: String,
    /// Write plots and tables to this file: one HTML page that loads nothing (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the answer as JSON to this file (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let (json_file, html_file) = (Json::open(args.json.as_ref())?, output(args.html.as_ref())?);
    let (file, text) = read(&args.scenario)?;
    let scenario = Scenario::proofread(&file, &text).map_err(Failure::input)?;
    let draft = &scenario.draft;
    let options = Options { step: args.step, max: args.max };
    let bar = files::bar(None, "{spinner} {pos} predictions, {elapsed}");
    let tick = || bar.inc(1);
    // What the compiler could not be asked is an error after what is known.
    let mut unheard = None;
    let (report, html, json) = match &args.compare {
        None => {
            let mut answer = ceiling::ceiling(draft, options, &tick).map_err(Failure::input)?;
            if args.compile_check && !answer.compiles {
                let why = "--compile-check asks XLA's compiler, and only runtime = \"xla\" compiles a whole step";
                return Err(Failure::input(why));
            }
            if args.compile_check {
                bar.finish_and_clear();
                unheard = check(args, &mut answer).err();
                answer.heard(draft).map_err(Failure::input)?;
            }
            let report = ceiling::text::report(&scenario, &answer, width());
            (report, ceiling::html::page(&scenario, &answer), ceiling::json::report(&scenario, &answer))
        }
        Some(what) => {
            let answer = variants::ceilings(draft, what, options, &tick).map_err(Failure::input)?;
            let report = variants::text::report(&scenario, &answer);
            (report, variants::html::page(&scenario, &answer), variants::json::report(&scenario, &answer))
        }
    };
    bar.finish_and_clear();
    let mut written = Written::default();
    if let Some(file) = html_file {
        written.write(file, &html, ": open it in a browser");
    }
    json_file.finish_with(written, || report, || json)?;
    unheard.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Asks the compiler about the edge. Its progress and its errors are on standard error.
fn check(args: &Args, answer: &mut Ceiling) -> Result<(), Failure> {
    for asked in 0..args.compilations {
        let Some(sequence) = answer.to_ask() else { break };
        files::note(&format!("length {} of at most {}: {sequence} tokens", asked + 1, args.compilations));
        let (scenario, length) = (args.scenario.display().to_string(), sequence.to_string());
        let asked = ["compile-check", &scenario, "--sequence", &length, "--plugin", &args.plugin, "--json", "-"]
            .map(str::to_owned);
        let (json, code) = calibrate::ask(&asked)?;
        let said: Value = serde_json::from_str(&json)
            .map_err(|_| Failure { message: format!("the compiler was not heard about {length} tokens"), code })?;
        let Some(fits) = said["fits"]["compiler"].as_bool() else {
            let why = "compiles for another machine's memory, which says nothing of a chip's: name a TPU's";
            return Err(Failure::input(format!("--plugin {}: {why}", args.plugin)));
        };
        let bytes = if fits { &said["memory"]["peak"]["compiler"] } else { &said["fits"]["needed"] };
        let compiler = said["plugin"].as_str().unwrap_or_default().to_owned();
        let seconds = said["compile_seconds"].as_f64().unwrap_or_default();
        let kept = if said["cached"].as_bool() == Some(true) { ", kept from an earlier run" } else { "" };
        let verdict = if fits { "fits" } else { "does not fit" };
        files::note(&format!("{sequence} tokens: {verdict}; {seconds:.0} s to compile{kept}"));
        answer.checked.push(Checked { sequence, compiler, fits, bytes: bytes.as_u64().map(Bytes) });
    }
    Ok(())
}
