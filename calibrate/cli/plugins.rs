//! `calibrate plugins`: fetches XLA's compilers, and lists them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args as Arguments, Subcommand};

use crate::interrupt::Stop;
use crate::pjrt::cache;
use crate::pjrt::plugins::fetch::{INTERRUPTED, fetch};
use crate::pjrt::plugins::{Kind, RELEASES, Release};

/// Arguments of `calibrate plugins`.
#[derive(Debug, Arguments)]
#[command(after_help = super::help::PLUGINS)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fetch a plugin from PyPI by pip, check its hash, and keep its library.
    #[command(after_help = super::help::PLUGINS)]
    Fetch {
        /// For which devices.
        kind: Kind,
        /// Another version than the usual one: of libtpu any that PyPI has, as jax or torch_xla pin it.
        #[arg(long)]
        version: Option<String>,
        /// A wheel that is here already.
        #[arg(long)]
        wheel: Option<PathBuf>,
    },
    /// List the plugins and versions that were tried, and all that are here.
    #[command(after_help = super::help::PLUGINS)]
    List,
}

/// Exit code of an interrupt.
const STOPPED: u8 = 130;

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    match &args.command {
        Command::List => super::finish(list()),
        Command::Fetch { kind, version, wheel } => {
            let done = get(*kind, version.as_deref(), wheel.as_deref());
            let stopped = done.as_ref().is_err_and(|why| why.ends_with(INTERRUPTED));
            let code = super::finish(done);
            if stopped { ExitCode::from(STOPPED) } else { code }
        }
    }
}

/// The longest that a fetch may take.
const DAY: Duration = Duration::from_secs(86_400);

fn get(kind: Kind, version: Option<&str>, wheel: Option<&std::path::Path>) -> Result<String, String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("the plugins that are known are for Linux on x86_64".to_owned());
    }
    let release = Release::find(kind, version)?;
    let cache = cache::folder()?;
    let place = release.place(&cache);
    let licence = format!("licence: {}\n", release.licence.1);
    if place.is_file() {
        return Ok(format!("{release} is here: {}\n{licence}", place.display()));
    }
    let stop = Stop::listen(Instant::now() + DAY).map_err(|why| format!("cannot listen for an interrupt: {why}"))?;
    let place = fetch(&release, wheel, &cache, &stop)?;
    let full = std::fs::read_to_string(place.with_file_name("LICENSE"));
    let full = full.map(|text| text.trim().lines().map(|line| format!("  {}\n", line.trim())).collect::<String>());
    Ok(format!("{release}: {}\n{licence}{}", place.display(), full.unwrap_or_default()))
}

fn list() -> Result<String, String> {
    let cache = cache::folder()?;
    let line = |release: &Release| {
        let place = release.place(&cache);
        let here = match std::fs::metadata(&place) {
            Ok(file) => format!("{} ({} MB)", place.display(), file.len() / 1_000_000),
            Err(_) => format!("not here: windtunnel calibrate plugins fetch {}", remedy(release)),
        };
        format!(
            "{:4} {:20} {here}\n     licence: {}\n",
            release.kind.to_string(),
            release.to_string(),
            release.licence.1
        )
    };
    Ok(RELEASES.iter().cloned().chain(Release::others(&cache)).map(|release| line(&release)).collect())
}

fn remedy(release: &Release) -> String {
    let usual = Release::find(release.kind, None).is_ok_and(|usual| usual.version == release.version);
    if usual { release.kind.to_string() } else { format!("{} --version {}", release.kind, release.version) }
}
