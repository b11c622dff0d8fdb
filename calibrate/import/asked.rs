//! The subcommands that turn what others measured into points.

use std::path::PathBuf;
use std::process::ExitCode;

use windtunnel::files;

use super::nccl_tests::{self, Kind, Known};
use super::{Imported, csv_points};

/// Exit code of a file that cannot be used.
const BAD_INPUT: u8 = 2;

/// `import nccl-tests`.
#[derive(Debug, clap::Args)]
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
        finish(nccl_tests::import(&logs, &Known { collective, ranks, nodes, source }), out)
    }
}

impl Csv {
    /// Reads the tables and writes the points.
    pub fn run(self) -> ExitCode {
        finish(csv_points::import(&self.files, self.chip.as_deref()), self.out)
    }
}

/// Prints or writes points, or says all that is wrong.
fn finish<E: std::fmt::Display>(imported: Result<Imported, Vec<E>>, out: Option<PathBuf>) -> ExitCode {
    let imported = match imported {
        Ok(imported) => imported,
        Err(errors) => {
            for why in errors {
                files::complain(&format!("error: {why}"));
            }
            return ExitCode::from(BAD_INPUT);
        }
    };
    for remark in &imported.remarks {
        files::complain(&format!("note: {remark}"));
    }
    match out.map_or_else(|| imported.print(), |out| imported.create(&out)) {
        Ok(()) => {
            files::complain(&format!("{} points", imported.points));
            ExitCode::SUCCESS
        }
        Err(why) => {
            files::complain(&format!("error: {why}"));
            ExitCode::from(BAD_INPUT)
        }
    }
}
