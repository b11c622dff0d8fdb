//! Writes the profiles that `windtunnel` predicts from: by measuring a chip, or by importing what others published.
//!
//! This is the one crate that may touch an accelerator. It meets the simulator in files: a profile written here is
//! read there. `import published` builds the shipped profiles; run twice, it writes the same bytes.

mod check;
mod cli;
mod cuda;
mod fit;
mod import;
mod interrupt;
mod journal;
mod pjrt;
mod plan;
mod points;
pub mod readers;
#[allow(dead_code, reason = "a vocabulary, of which not every word is in use")]
mod stablehlo;
mod stamp;
mod statistics;
mod step;
mod xla;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures what kernels and collectives cost, and writes profiles.
#[derive(Debug, Parser)]
#[command(name = "windtunnel-calibrate", version, after_help = cli::help::CALIBRATE)]
struct Cli {
    /// Show no progress and no notes on standard error. Errors stay.
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build profiles from measurements that others made.
    #[command(after_help = cli::help::IMPORT)]
    Import {
        #[command(subcommand)]
        source: Source,
    },
    /// Make a profile of measured points.
    Fit(cli::fit::Args),
    /// Say what is worth measuring, from every scenario and receipt.
    Plan(cli::plan::Args),
    /// Predict every matmul of a profile from the others.
    Residuals(cli::residuals::Args),
    /// Measure the CUDA devices of this machine.
    Cuda(cuda::Arguments),
    /// Measure a TPU through XLA, or ask its compiler about one that is not here.
    Xla(Box<xla::Arguments>),
    /// Fetch XLA's compilers and list them.
    Plugins(cli::plugins::Args),
    /// Compile a scenario's training step, and hold what the compiler says against the prediction.
    CompileCheck(check::Arguments),
    /// Hold a plugin for another command.
    #[command(hide = true)]
    XlaWorker,
}

#[derive(Debug, Subcommand)]
enum Source {
    /// Public tables of kernel and collective times (a folder of CSV files).
    #[command(after_help = cli::help::IMPORT_PUBLISHED)]
    Published {
        /// The folder with the tables.
        #[arg(long)]
        from: PathBuf,
        /// Where the profiles go.
        #[arg(long, default_value = "sim/cost/profiles")]
        out: PathBuf,
        /// Also write the held-out points that the tests check the profiles against.
        #[arg(long)]
        held_out: Option<PathBuf>,
    },
    /// What nccl-tests printed, of any version, or wrote with -J, into a file of points.
    NcclTests(import::asked::NcclTests),
    /// Tables in the schema of the published ones, into a file of points.
    ///
    /// Rows that a table doubts are left out and counted: those whose `quality` says unverified, suspect, bad, anomalous,
    /// mis-tuned, exploratory or one iteration, or that a framework timed (torch-level, framework-level), and those of sites
    /// that the tables' README warns of. Logs, documents and statements of NCCL's maintainers count.
    Csv(import::asked::Csv),
}

/// The command; what it ends with is the program's exit code.
pub fn run() -> ExitCode {
    windtunnel::files::take_size_limits_as_errors();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(said) if said.use_stderr() => {
            windtunnel::files::complain(said.render().to_string().trim_end());
            return ExitCode::from(2);
        }
        Err(said) => return cli::said(&said.render().to_string(), 0),
    };
    windtunnel::bug::report_panics(std::env::args(), std::env::var_os("RUST_BACKTRACE"));
    if cli.quiet {
        windtunnel::files::be_quiet();
    }
    match cli.command {
        Command::Import { source: Source::Published { from, out, held_out } } => {
            match import::published(&from, &out, held_out.as_deref()) {
                Ok(report) => cli::said(&report, 0),
                Err(why) => cli::failed(&why, 2),
            }
        }
        Command::Import { source: Source::NcclTests(asked) } => asked.run(),
        Command::Import { source: Source::Csv(asked) } => asked.run(),
        Command::Fit(args) => cli::finish(cli::fit::run(&args)),
        Command::Plan(args) => cli::plan::run(&args),
        Command::Residuals(args) => cli::finish(cli::residuals::run(&args)),
        Command::Cuda(arguments) => cuda::run(&arguments),
        Command::Xla(arguments) => xla::run(&arguments),
        Command::Plugins(args) => cli::plugins::run(&args),
        Command::CompileCheck(arguments) => check::run(&arguments),
        Command::XlaWorker => cli::finish(pjrt::worker::serve().map(|()| String::new())),
    }
}
