//! The subcommands that turn what others measured into points.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use windtunnel::files;

use super::imported::new_file;
use super::nccl_tests::{self, Kind, Known};
use super::{Imported, csv_points};

/// Exit code of a file that cannot be used.
const BAD_INPUT: u8 = 2;

/// `import nccl-tests`.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::cli::help::IMPORT_NCCL_TESTS)]
pub struct NcclTests {
    /// Logs.
    #[arg(required = true)]
    logs: Vec<PathBuf>,
    /// The file of points to write; without it, points are printed.
    #[arg(long)]
    out: Option<PathBuf>,
    /// The collective, where logs do not say: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `send_recv`,
    /// `broadcast` or `reduce`.
    #[arg(long, value_parser = |name: &str| Kind::named(name).ok_or("no collective of nccl-tests"))]
    collective: Option<Kind>,
    /// Ranks, where logs do not say.
    #[arg(long)]
    ranks: Option<u64>,
    /// Nodes, where logs do not say, or where several hosts that they list are containers of one node.
    #[arg(long)]
    nodes: Option<u64>,
    /// Where the logs were published, as `repository@commit:path`.
    #[arg(long)]
    source: Option<String>,
}

/// `import csv`.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::cli::help::IMPORT_CSV)]
pub struct Csv {
    /// Tables, plain or gzipped.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The file of points to write; without it, points are printed.
    #[arg(long)]
    out: Option<PathBuf>,
    /// The chip, for tables without a column that says it.
    #[arg(long)]
    chip: Option<String>,
}

impl NcclTests {
    /// Reads the logs and writes the points.
    pub fn run(self) -> ExitCode {
        let NcclTests { logs, out, collective, ranks, nodes, source } = self;
        finish(out, || nccl_tests::import(&logs, &Known { collective, ranks, nodes, source }))
    }
}

impl Csv {
    /// Reads the tables and writes the points.
    pub fn run(self) -> ExitCode {
        finish(self.out, || csv_points::import(&self.files, self.chip.as_deref()))
    }
}

/// Prints or writes points, or says all that is wrong.
fn finish<E: Display>(out: Option<PathBuf>, import: impl FnOnce() -> Result<Imported, Vec<E>>) -> ExitCode {
    let out = match out.map(|out| new_file(&out)).transpose() {
        Ok(out) => out,
        Err(why) => return crate::cli::failed(&why, BAD_INPUT),
    };
    let imported = match import() {
        Ok(imported) => imported,
        Err(errors) => {
            for why in errors {
                files::complain(&format!("error: {why}"));
            }
            return ExitCode::from(BAD_INPUT);
        }
    };
    for remark in &imported.remarks {
        files::note(&format!("note: {remark}"));
    }
    let Some(out) = out else {
        files::note(&format!("{} points", imported.points));
        return crate::cli::said_json(&imported.text, 0);
    };
    match imported.write(out) {
        Ok(()) => {
            files::note(&format!("{} points", imported.points));
            ExitCode::SUCCESS
        }
        Err(why) => crate::cli::failed(&why, BAD_INPUT),
    }
}
