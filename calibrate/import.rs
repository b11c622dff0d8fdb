//! Builds the shipped profiles from published tables: reads, fits, cross-validates, writes.
//!
//! A file in `import/` reads the tables of one section and has `fit/` make the section of them. The tables' README says
//! what each is worth; a held-out set of matmuls (one
//! grid cell in 29, chosen by a hash of its shape) is kept from the profiles for the tests.

pub mod asked;
mod attention;
mod batched;
mod charts;
mod chips;
mod clock;
mod collectives;
pub(crate) mod csv_points;
mod cublas;
mod deepep;
mod event;
mod grouped;
mod host;
mod hybridep;
mod imported;
mod kernels;
mod matmul;
mod memory;
pub(crate) mod nccl_tests;
#[cfg(test)]
mod steps;
mod streams;
mod strided;
pub(crate) mod tables;
mod tpu;
pub mod trace;

pub use imported::Imported;

use std::fmt::Write as _;
use std::path::Path;

use windtunnel::cost::Profile;
use windtunnel::files::{self, Output};

use chips::{CHIPS, ChipSpec};
use tables::Tables;

use crate::fit::{self, Residual, Section, evidence};

/// Why an import failed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file could not be read or written.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: String,
        /// The system's reason.
        why: std::io::Error,
    },
    /// A file could not be written.
    #[error(transparent)]
    Output(#[from] windtunnel::files::WriteError),
    /// A table is not what it should be.
    #[error("{path}: {why}")]
    Table {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// What was written is not a profile.
    #[error("the profile written is not readable: {0}")]
    Profile(#[from] windtunnel::cost::ProfileError),
    /// What was written is no file of points.
    #[error("the points written are not readable: {0}")]
    Points(#[from] crate::points::FileError),
}

/// Builds all profiles from the tables in `from`; returns a report of residuals.
pub fn published(from: &Path, out: &Path, held_out: Option<&Path>) -> Result<String, ImportError> {
    let bar = files::bar(Some(CHIPS.len() as u64 * 6), "{bar:30} {pos}/{len}, {eta} left, {msg}");
    let tables = Tables::new(from);
    let mut report = String::new();
    let place = |name: &str| Output::open_in_new(&out.join(format!("{name}.toml")));
    let gpus: Vec<Output> = CHIPS.iter().map(|chip| place(chip.name)).collect::<Result<_, _>>()?;
    let tpus: Vec<Output> = tpu::TPUS.iter().map(|chip| place(chip.name)).collect::<Result<_, _>>()?;
    if let Some(folder) = held_out {
        matmul::try_out(folder)?;
    }
    for (chip, output) in CHIPS.iter().zip(gpus) {
        let step = |what: &str| {
            bar.set_message(format!("{} {what}", chip.name));
            bar.inc(1);
        };
        step("memory");
        let memory = memory::section(&tables, chip)?;
        step("matmul");
        let matmul = matmul::section(&tables, chip, held_out)?;
        step("clock");
        let clock = clock::section(&tables, chip)?;
        step("attention");
        let attention = attention::section(&tables, chip, held_out)?;
        step("collectives");
        let collectives = collectives::section(&tables, chip)?;
        step("write");
        let releases = Section { text: cublas::section(&tables, chip)?, residuals: Vec::new() };
        let batched = Section { text: batched::section(chip), residuals: Vec::new() };
        let mut sections = vec![matmul, releases, batched, streams::section(chip)];
        sections.extend(grouped::section(&tables, chip, held_out)?);
        sections.extend([clock, attention, memory, host::section(chip), event::section(chip)?, collectives]);
        sections.extend(deepep::section(&tables, chip)?);
        sections.extend(hybridep::section(chip));
        let mut text = head(chip);
        for section in &sections {
            text.push('\n');
            text.push_str(&section.text);
            report_on(&mut report, chip.name, &section.residuals);
        }
        Profile::save(output, &text)?;
    }
    for (chip, output) in tpu::TPUS.iter().zip(tpus) {
        bar.set_message(chip.name);
        let profile = tpu::profile(&tables, chip)?;
        Profile::save(output, &profile.text)?;
        report_on(&mut report, chip.name, &profile.residuals);
    }
    bar.finish_and_clear();
    Ok(report)
}

fn report_on(report: &mut String, name: &str, residuals: &[Residual]) {
    for r in residuals {
        let (median, p90) = (100.0 * r.median, 100.0 * r.p90);
        let _ = writeln!(
            report,
            "{name:22} {:34} {:6} points  median {median:5.1} %  p90 {p90:5.1} %",
            r.section, r.points
        );
    }
}

fn head(chip: &ChipSpec) -> String {
    format!(
        "# {summary}\n# Written by `windtunnel-calibrate import published`; do not edit, run it again.\n\
         # Every section names its source and the error to expect; what this project measured is marked \"measured\".\n\n\
         format = 1\nname = \"{name}\"\nsummary = \"{summary}\"\n\n\
         [machine]\nchip = \"{chip}\"\nprocessors = {sms}\nmemory_bandwidth = \"{bw} GB/s\"\nmemory = \"{memory}\"\nl2 = \"{l2}\"\n\
         power_limit = \"{power} W\"\nclock = \"{clock} MHz\"\nsoftware = \"{software}\"\nsource = \"{source}\"\n",
        summary = chip.summary,
        name = chip.name,
        chip = chip.chip,
        sms = chip.processors,
        bw = chip.bandwidth,
        memory = chip.memory,
        l2 = chip.l2,
        power = chip.power,
        clock = chip.clock,
        software = chip.software,
        source = chip.source,
    )
}
