//! `calibrate residuals PROFILE`: how far the matmul model is off on points it was not given.

use windtunnel::cost::Profile;
use windtunnel::cost::matmul::Matmul;

use crate::fit::matmul::{Points, Spec};
use crate::fit::trial::leave_one_out;
use crate::fit::{Residual, residuals};

/// Predict every matmul of a profile from the others, beside a wave-quantised roofline and a constant efficiency.
#[derive(Debug, clap::Args)]
#[command(after_help = super::help::RESIDUALS)]
pub struct Args {
    /// A shipped profile's name, or a .toml file.
    profile: String,
}

/// Tries every table of matmuls, and lists what the other sections state.
pub fn run(args: &Args) -> Result<String, String> {
    let profile = Profile::find(&args.profile).map_err(|why| why.to_string())?;
    let mut rows: Vec<Residual> = vec![];
    for (name, matmul, size) in [
        ("bf16", &profile.bf16, 2.0),
        ("fp8", &profile.fp8, 1.0),
        ("tf32", &profile.tf32, 4.0),
        ("fp32", &profile.fp32, 4.0),
    ] {
        rows.extend(tried(&profile, name, matmul, size)?);
    }
    if rows.is_empty() {
        return Err(format!("{} has no table of matmuls and no points to leave out", profile.name));
    }
    Ok(format!("{}: relative errors on points that were left out\n\n{}", profile.name, residuals(&rows)))
}

fn tried(profile: &Profile, name: &str, matmul: &Matmul, size: f64) -> Result<Vec<Residual>, String> {
    let mut rows = vec![];
    let table: Points = matmul.table().into_iter().collect();
    if !table.is_empty() {
        let bandwidth = profile.machine.memory_bandwidth.0 / 1e9;
        let spec = Spec {
            processors: profile.machine.processors,
            peak: matmul.peak().0 / 1e12,
            size,
            measured_bandwidth: bandwidth,
            own_bandwidth: bandwidth,
        };
        rows.extend(leave_one_out(&table, &spec)?.residuals(&format!("matmul {name} table")));
    }
    let measured = matmul.measured();
    if !measured.is_empty() {
        let errors = crate::fit::measured::left_out(matmul, &measured);
        rows.push(Residual::of(format!("matmul {name} points: each left out"), measured.len(), &errors));
    }
    Ok(rows)
}
