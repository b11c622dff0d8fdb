//! `windtunnel plan`: which layout on which machine, how long and for how much.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use toml::{Table, Value};

use super::{Failure, Json, Outcome, Written, help, output, read, width};
use windtunnel::explore::plan::{self, Answer, Progress, Request};
use windtunnel::explore::values;
use windtunnel::files::{self, Answers, Output};
use windtunnel::units::{Span, Time};

#[derive(Debug, clap::Args)]
#[command(after_help = help::PLAN)]
pub struct Args {
    /// The request, a TOML file. Flags take its place, or that of its keys.
    request: Option<PathBuf>,
    /// The model: a shipped name, or the path of a Hugging Face config.json.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// A machine and its size: nodes (h200-sxm-141gb:16 or :16nodes), chips (h200-sxm-141gb:128gpus), or a slice of a TPU pod (tpu-v6e:16x16). May be given several times. Without
    /// a size, nodes in powers of two are tried, up to --chips.
    #[arg(long, value_name = "MACHINE:SIZE")]
    on: Vec<String>,
    /// The batch of a step: sequences (512), or tokens (4Mtok).
    #[arg(long, value_name = "SIZE")]
    global_batch: Option<String>,
    /// Tokens of a sequence.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(i64).range(1..))]
    sequence: Option<i64>,
    /// Tokens to train on, such as 2T.
    #[arg(long, value_name = "TOKENS")]
    tokens: Option<String>,
    /// Frameworks to consider, with commas between: megatron, fsdp2, deepspeed-zero, xla.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    framework: Vec<String>,
    /// A key of a scenario that every plan has, such as megatron.fp8="tensorwise". May be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// A key of a scenario with the values to try, such as mesh.cp=1,2, in place of the framework's own. May be given several times.
    #[arg(long, value_name = "KEY=A,B,…")]
    vary: Vec<String>,
    /// What a chip costs for an hour, such as 2.99 or "2.5 EUR", in place of the list price.
    #[arg(long, value_name = "PRICE")]
    price: Option<String>,
    /// A file of prices, in place of the shipped list prices.
    #[arg(long, value_name = "FILE")]
    prices: Option<String>,
    /// Memory that must stay free on every device, such as 4GiB.
    #[arg(long, value_name = "SIZE")]
    headroom: Option<String>,
    /// The most chips, where a machine has no size.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    chips: Option<i64>,
    /// The most days for the tokens to train on.
    #[arg(long, value_name = "DAYS")]
    days: Option<f64>,
    /// The most money for them, such as 2M.
    #[arg(long, value_name = "MONEY")]
    money: Option<String>,
    /// Count interruptions, checkpoints and restarts in days and money. --set failures.rates=… does so, too.
    #[arg(long)]
    interrupted: bool,
    /// How many plans to rank (default: 10).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    top: Option<i64>,
    /// Simulate every legal plan, which checks that none was skipped that could have been ranked.
    #[arg(long)]
    exhaustive: bool,
    /// The most time to search, such as 30s or "10 min". Then the answer is what was found so far, and says what is not decided; so does the first Ctrl-C.
    #[arg(long, value_name = "TIME", value_parser = Span::parse)]
    budget: Option<Span>,
    /// Keep what was simulated in this file, and go on from it: a search that was ended, or another of the same model and machine, does
    /// not simulate a plan again.
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Write plots and tables to this file: one HTML page that loads nothing (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each ranked plan as a scenario file into this folder.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Write the answer as JSON to this file (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let json_file = Json::open(args.json.as_ref())?;
    let html_file = output(args.html.as_ref())?;
    let request = request(args)?;
    let folder = args.out.as_ref().map(|folder| plans(folder, &request)).transpose()?;
    let bar = files::bar(None, "{msg} {pos}/{len} {wide_bar} {elapsed} ({eta} left)");
    let told = |progress: Progress| match progress {
        Progress::Plans(count) => {
            bar.reset();
            bar.set_message("plans looked at");
            bar.set_length(count as u64);
        }
        Progress::Looked => bar.inc(1),
        Progress::Simulated => {}
        Progress::Decided { decided, legal, best, possible } => {
            bar.set_message(so_far(best, possible));
            bar.set_length(legal as u64);
            bar.set_position(decided as u64);
        }
    };
    let end = args.budget.map(|budget| Instant::now() + Duration::from_secs_f64(budget.0));
    files::end_early_when_interrupted();
    let stop = || files::is_asked_to_end() || end.is_some_and(|end| Instant::now() >= end);
    let known = args.resume.as_deref().map(Answers::open).transpose().map_err(Failure::input)?;
    let answer = plan::plan_until(request, args.exhaustive, &told, (&stop, known.as_ref())).map_err(Failure::input)?;
    bar.finish_and_clear();
    if let Some((known, file)) = known.as_ref().zip(args.resume.as_ref()) {
        files::note(&format!("{} simulated plans were in {}", known.found(), file.display()));
    }
    let kept = known.map_or(Ok(()), Answers::finish);
    let mut written = Written::default();
    if let Some(file) = html_file {
        written.write(file, &plan::html::page(&answer), ": open it in a browser");
    }
    for (output, site, rank) in folder.into_iter().flatten() {
        if let Some(draft) = answer.draft(site, rank) {
            written.write(output, &draft.text(), "");
        }
    }
    json_file.finish_with(written, || plan::text::report(&answer, width()), || plan::json::report(&answer))?;
    // The answer stands, though it could not be kept.
    kept.map_err(Failure::input)?;
    Ok(match (files::is_asked_to_end() && answer.is_partial(), keeps_to_limits(&answer)) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(1),
    })
}

/// As a shell reports a program that an interrupt ended.
const INTERRUPTED: u8 = 130;

/// The best plan so far, and how much faster one that is not decided may be.
fn so_far(best: Option<Time>, possible: Option<Time>) -> String {
    match (best, possible) {
        (Some(best), Some(possible)) if possible < best => {
            let faster = 100.0 * (best.seconds() / possible.seconds() - 1.0);
            format!("best {best} a step, another at most {faster:.1} % faster; plans decided")
        }
        (Some(best), _) => format!("best {best} a step; plans decided"),
        (None, _) => "plans decided".to_owned(),
    }
}

fn keeps_to_limits(answer: &Answer) -> bool {
    answer.winner().is_some()
}

/// Files for the plans of each machine, before anything is computed: `h200-sxm-141gb-16-01.toml`.
fn plans(folder: &std::path::Path, request: &Request) -> Result<Vec<(Output, usize, usize)>, Failure> {
    let wrong = |why: std::io::Error| Failure::input(format!("cannot make the folder {}: {why}", folder.display()));
    std::fs::create_dir_all(folder).map_err(wrong)?;
    let mut outputs = vec![];
    for (place, site) in request.sites.iter().enumerate() {
        let size = site.size.1.as_str().map_or_else(|| site.size.1.to_string(), str::to_owned);
        for rank in 0..request.top {
            let path = folder.join(format!("{}-{size}-{:02}.toml", site.machine.name, rank + 1));
            outputs.push((Output::open(&path).map_err(Failure::input)?, place, rank));
        }
    }
    Ok(outputs)
}

/// The request's file with flags in place of its keys, or flags alone.
fn request(args: &Args) -> Result<Request, Failure> {
    let (file, mut keys) = match &args.request {
        Some(path) => {
            let (file, text) = read(path)?;
            // Read as it stands first, so that what is wrong in it is said with its place.
            let request = Request::parse(&file, &text).map_err(Failure::input)?;
            if no_flags(args) {
                return Ok(request);
            }
            let keys: Table = text.parse().map_err(Failure::input)?;
            (file, keys)
        }
        None => ("the flags".to_owned(), Table::new()),
    };
    flags(args, &mut keys)?;
    for (key, flag) in
        [("model", "--model"), ("sequence", "--sequence"), ("global_batch", "--global-batch"), ("machine", "--on")]
    {
        if !keys.contains_key(key) {
            let why = format!("{flag} is missing: a request names a model, a machine, a sequence and a global batch");
            return Err(Failure::input(why));
        }
    }
    Request::of(&file, keys).map_err(Failure::input)
}

fn no_flags(args: &Args) -> bool {
    let mut keys = Table::new();
    flags(args, &mut keys).is_ok() && keys.is_empty()
}

fn flags(args: &Args, keys: &mut Table) -> Result<(), Failure> {
    let texts = [("model", &args.model), ("tokens", &args.tokens), ("prices", &args.prices)];
    for (key, value) in texts {
        if let Some(value) = value {
            keys.insert(key.to_owned(), value.as_str().into());
        }
    }
    if let Some(batch) = &args.global_batch {
        let value = batch.parse::<i64>().map_or_else(|_| Value::from(batch.as_str()), Value::from);
        keys.insert("global_batch".to_owned(), value);
    }
    if let Some(sequence) = args.sequence {
        keys.insert("sequence".to_owned(), sequence.into());
    }
    if args.interrupted {
        keys.insert("interrupted".to_owned(), true.into());
    }
    if let Some(top) = args.top {
        keys.insert("top".to_owned(), top.into());
    }
    if !args.framework.is_empty() {
        keys.insert("frameworks".to_owned(), args.framework.clone().into());
    }
    if !args.on.is_empty() {
        let machines: Vec<Value> = args.on.iter().map(|on| Value::Table(machine(on, args.price.as_deref()))).collect();
        keys.insert("machine".to_owned(), machines.into());
    } else if args.price.is_some() {
        return Err(Failure::input("--price is of the machines that --on names: write the price into the request"));
    }
    let mut limits = keys.get("limits").and_then(Value::as_table).cloned().unwrap_or_default();
    let mut limit = |key: &str, value: Option<Value>| value.map(|value| limits.insert(key.to_owned(), value));
    limit("headroom", args.headroom.as_deref().map(Value::from));
    limit("chips", args.chips.map(Value::from));
    limit("days", args.days.map(Value::from));
    limit("money", args.money.as_deref().map(Value::from));
    if !limits.is_empty() {
        keys.insert("limits".to_owned(), limits.into());
    }
    for (name, assignments) in [("set", &args.set), ("vary", &args.vary)] {
        let mut table = keys.get(name).and_then(Value::as_table).cloned().unwrap_or_default();
        for assignment in assignments {
            let Some((key, value)) = assignment.split_once('=') else {
                return Err(Failure::input(format!("--{name} {assignment} has no value: write --{name} KEY=VALUE")));
            };
            let key = key.trim();
            let wrong = |why| Failure::input(format!("--{name} {assignment}: {why}"));
            let mut listed = values::listed(key, value).map_err(wrong)?.into_iter();
            let word = |value: Option<Value>| value.unwrap_or_else(|| "unset".into());
            let value = match (name, listed.len()) {
                ("set", 1) => word(listed.next().flatten()),
                ("set", _) => {
                    return Err(Failure::input(format!("--set {assignment} has several values: write --vary")));
                }
                _ => Value::Array(listed.map(word).collect()),
            };
            table.insert(key.to_owned(), value);
        }
        if !table.is_empty() {
            keys.insert(name.to_owned(), table.into());
        }
    }
    Ok(())
}

/// `h200-sxm-141gb:16`, `tpu-v6e:16x16`, or a machine alone.
fn machine(on: &str, price: Option<&str>) -> Table {
    let mut table = Table::new();
    let (name, size) = match on.rsplit_once(':') {
        Some((name, size)) => (name, Some(size)),
        None => (on, None),
    };
    table.insert("name".to_owned(), name.into());
    if let Some(size) = size {
        let value = size.parse::<i64>().map_or_else(|_| Value::from(size), Value::from);
        table.insert("size".to_owned(), value);
    }
    if let Some(price) = price {
        table.insert("price".to_owned(), price.into());
    }
    table
}
