//! `windtunnel profile …`: what costs are predicted from, and what it rests on.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::{Failure, Outcome, print};
use windtunnel::cost::Profile;
use windtunnel::cost::sections::Sections;
use windtunnel::report::profile as report;

/// Profiles: what kernels and collectives cost on a machine. A profile is a shipped one's name or a .toml file.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the shipped profiles.
    List,
    /// Show the machine, and what each section rests on.
    Show {
        /// A profile.
        profile: String,
    },
    /// Show what two profiles say differently.
    Compare {
        /// A profile.
        a: String,
        /// Another.
        b: String,
    },
    /// Put a profile's sections into another's, where their evidence is as strong or stronger: measured beats published.
    Merge {
        /// The profile whose sections are replaced.
        base: String,
        /// The profile whose sections are taken.
        newcomer: String,
        /// Where the result goes.
        #[arg(long)]
        out: PathBuf,
    },
    /// Make a profile of measured points (starts windtunnel-calibrate).
    #[command(disable_help_flag = true)]
    Fit(super::calibrate::Args),
    /// Hold a profile against measured points, each left out of its fit (starts windtunnel-calibrate).
    #[command(disable_help_flag = true)]
    Residuals(super::calibrate::Args),
}

pub fn run(args: &Args) -> Outcome {
    match &args.what {
        What::List => {
            for name in Profile::names() {
                let (profile, _) = open(name)?;
                print(&format!("{name:24} {}\n", profile.summary));
            }
        }
        What::Show { profile } => {
            let (profile, sections) = open(profile)?;
            print(&report::show(&profile, &sections));
        }
        What::Compare { a, b } => {
            let (a, b) = (open(a)?, open(b)?);
            print(&report::compare((&a.0, &a.1), (&b.0, &b.1)));
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

fn merge(base: &str, newcomer: &str, out: &std::path::Path) -> Result<(), Failure> {
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
    Profile::save(out, &sections.text()).map_err(Failure::input)?;
    print(&report::decisions(&decisions));
    print(&format!("wrote {}\n", out.display()));
    Ok(())
}
