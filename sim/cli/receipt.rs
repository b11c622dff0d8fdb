//! `windtunnel receipt to-scenario ID`, `windtunnel receipt defaults`: what receipts are mapped to, and by what.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use super::{Failure, Outcome, Written, output, print};
use windtunnel::receipt::map::map;
use windtunnel::receipt::read::Receipts;
use windtunnel::receipt::table::{Rule, Tables};
use windtunnel::scenario::Scenario;

#[derive(Debug, clap::Args)]
#[command(after_help = super::help::RECEIPT)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Write the scenario that a receipt is mapped to, with what it measured; edit it and fly it again.
    #[command(after_help = super::help::TO_SCENARIO)]
    ToScenario {
        /// The receipt's id.
        id: String,
        /// The file of receipts it is in.
        #[arg(long, value_name = "FILE", default_value = "tests/receipts/public.jsonl")]
        from: PathBuf,
        /// Write to this file instead of printing.
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
    /// Print the table of framework defaults: what is taken for a row that does not say.
    #[command(after_help = super::help::DEFAULTS)]
    Defaults {
        /// Only this framework's.
        framework: Option<String>,
    },
}

pub fn run(args: &Args) -> Outcome {
    match &args.what {
        What::ToScenario { id, from, to } => {
            let to = output(to.as_ref())?;
            let mut receipts = Receipts::default();
            receipts.add(from).map_err(Failure::input)?;
            let entry = receipts.find(id).map_err(Failure::input)?;
            let refused = |why: windtunnel::receipt::Reason| Failure {
                message: format!("{id} cannot be mapped: {}", why.words()),
                code: 1,
            };
            let mapped = map(entry, &Tables::shipped()).map_err(refused)?;
            // What is written can be run: a scenario that is refused is no answer.
            if let Err(why) = Scenario::parse(&format!("{id}.toml"), &mapped.text) {
                return Err(Failure { message: format!("{id} makes a scenario that is refused: {why}"), code: 1 });
            }
            match to {
                Some(file) => {
                    let mut written = Written::default();
                    written.write(file, &mapped.text, "");
                    written.report("")?;
                }
                None => print(&mapped.text)?,
            }
        }
        What::Defaults { framework } => {
            let tables = Tables::shipped();
            let names: Vec<&str> = tables.named().map(|(name, _)| name).collect();
            if let Some(wanted) = framework
                && !names.contains(&wanted.as_str())
            {
                return Err(Failure::input(format!("no table {wanted:?}: there are {}", names.join(", "))));
            }
            for (name, table) in
                tables.named().filter(|(name, _)| framework.as_deref().is_none_or(|wanted| wanted == *name))
            {
                let mut out = format!("{name}: {}\n", table.about);
                for rule in &table.rules {
                    let _ = writeln!(out, "  {}", line(rule));
                }
                for (field, why) in &table.ignore {
                    let _ = writeln!(out, "  {field} is passed over: {why}");
                }
                print(&(out + "\n"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn line(rule: &Rule) -> String {
    let when: Vec<String> =
        rule.when.iter().map(|(field, patterns)| format!("{field} is {}", patterns.list().join(" | "))).collect();
    let when = if when.is_empty() { "always".to_owned() } else { when.join(", ") };
    let what = match (&rule.outside, &rule.refuse) {
        (Some(why), _) => format!("outside: {why}"),
        (_, Some(why)) => format!("not covered: {why}"),
        _ => rule.set.to_string().trim().replace('\n', ", "),
    };
    let source = if rule.stated { "stated by the row" } else { &rule.source };
    if source.is_empty() { format!("{when}: {what}") } else { format!("{when}: {what}  ({source})") }
}
