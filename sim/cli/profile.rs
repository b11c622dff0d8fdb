//! `windtunnel profile …`: what costs are predicted from, and what it rests on.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;

use super::{Failure, Outcome, print};
use windtunnel::cost::profile::FORMAT;
use windtunnel::cost::sections::{Section, Sections};
use windtunnel::cost::{Basis, Profile};
use windtunnel::report::profile as report;

/// Profiles: what kernels and collectives cost on a machine. A profile is a shipped one's name or a .toml file.
#[derive(Debug, clap::Args)]
#[command(after_help = super::help::PROFILE)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the shipped profiles.
    #[command(after_help = super::help::PROFILE)]
    List,
    /// Show the machine, and what each section rests on.
    #[command(after_help = super::help::PROFILE)]
    Show {
        /// A profile.
        profile: String,
    },
    /// Show what two profiles say differently.
    #[command(after_help = super::help::PROFILE)]
    Compare {
        /// A profile.
        a: String,
        /// Another.
        b: String,
    },
    /// Put a profile's sections into another's, where their evidence is as strong or stronger: measured beats published.
    #[command(after_help = super::help::PROFILE_MERGE)]
    Merge {
        /// The profile whose sections are replaced.
        base: String,
        /// The profile whose sections are taken.
        newcomer: String,
        /// Where the result goes, a .toml file; its name is the file's.
        #[arg(long)]
        out: PathBuf,
    },
    /// Make a profile of measured points (starts windtunnel-calibrate).
    #[command(disable_help_flag = true)]
    Fit(super::calibrate::Args),
    /// Predict every matmul of a profile from the others, to see how far the model is off (starts windtunnel-calibrate).
    #[command(disable_help_flag = true)]
    Residuals(super::calibrate::Args),
}

pub fn run(args: &Args) -> Outcome {
    match &args.what {
        What::List => {
            for name in Profile::names() {
                let (profile, _) = open(name)?;
                print(&format!("{name:24} {}\n", profile.summary))?;
            }
        }
        What::Show { profile } => {
            let (profile, sections) = open(profile)?;
            print(&report::show(&profile, &sections))?;
        }
        What::Compare { a, b } => {
            let (a, b) = (open(a)?, open(b)?);
            print(&report::compare((&a.0, &a.1), (&b.0, &b.1)))?;
        }
        What::Merge { base, newcomer, out } => merge(base, newcomer, out)?,
        What::Fit(args) => return super::calibrate::start("fit", args),
        What::Residuals(args) => return super::calibrate::start("residuals", args),
    }
    Ok(ExitCode::SUCCESS)
}

fn open(name: &str) -> Result<(Profile, Sections), Failure> {
    let (path, text) = Profile::text(name).map_err(Failure::input)?;
    Ok((Profile::parse(&path, &text).map_err(Failure::input)?, Sections::of(&text)))
}

fn merge(base: &str, newcomer: &str, out: &Path) -> Result<(), Failure> {
    let (output, name) = Profile::output(out).map_err(Failure::input)?;
    let ((own, mut sections), (other, theirs)) = (open(base)?, open(newcomer)?);
    let (a, b) = (&own.machine, &other.machine);
    if a.processors != b.processors || a.memory_bandwidth != b.memory_bandwidth {
        return Err(Failure::input(format!(
            "{} is of {} ({} processors, {:.0} GB/s) but {} of {} ({} processors, {:.0} GB/s): merge profiles of one chip",
            own.name,
            a.chip,
            a.processors,
            a.memory_bandwidth.0 / 1e9,
            other.name,
            b.chip,
            b.processors,
            b.memory_bandwidth.0 / 1e9
        )));
    }
    let decisions = sections.merge(&theirs);
    sections.head = head(&name, &own, &other);
    let measured = |name: &str| theirs.get(name).and_then(Section::basis) == Some(Basis::Measured);
    // What was measured goes with the machine it was measured on.
    if decisions.iter().any(|decision| decision.taken && measured(&decision.name))
        && let Some(machine) = theirs.get("machine")
    {
        sections.put(machine.clone());
    }
    Profile::save(output, &sections.text()).map_err(Failure::input)?;
    print(&report::decisions(&decisions))?;
    print(&format!("wrote {}\n", out.display()))?;
    Ok(())
}

/// What a merged profile says about itself.
fn head(name: &str, base: &Profile, newcomer: &Profile) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let (a, b) = (&base.name, &newcomer.name);
    let summary =
        format!("{}: a merge of {a} and {b}, of each section the one with the stronger evidence", base.machine.chip);
    format!(
        "# {}\n# Written by `windtunnel profile merge`; do not edit, merge again. Every section names its source.\n\n\
         format = {FORMAT}\nname = {}\nsummary = {}\n\n",
        summary.replace(['\n', '\r'], " "),
        quoted(name),
        quoted(&summary)
    )
}
