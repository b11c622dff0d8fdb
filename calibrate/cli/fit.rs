//! `calibrate fit POINTS --base PROFILE --out FILE`: a profile of measured points.

use std::fmt::Write as _;
use std::path::PathBuf;

use windtunnel::cost::Profile;
use windtunnel::report::profile as report;

use crate::fit::measured::{self, Fitted};
use crate::fit::residuals;
use crate::points;

/// Make a profile of measured points; what was not measured stays as it is in the base.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Points, as `calibrate cuda` writes them.
    points: PathBuf,
    /// The profile of the same chip that the points go into: a shipped one's name, or a .toml file.
    #[arg(long)]
    base: String,
    /// Where the new profile goes; its name is the file's. What was there is replaced at once or not at all.
    #[arg(long)]
    out: PathBuf,
}

/// Fits, writes, and reports.
pub fn run(args: &Args) -> Result<String, String> {
    let points = points::read(&args.points).map_err(|why| why.to_string())?;
    let (path, base_text) = Profile::text(&args.base).map_err(|why| why.to_string())?;
    let base = Profile::parse(&path, &base_text).map_err(|why| why.to_string())?;
    let name = match args.out.file_stem().and_then(|stem| stem.to_str()) {
        Some(name) if args.out.extension().is_some_and(|ending| ending == "toml") => name,
        _ => return Err(format!("--out {}: expected a file that ends in .toml", args.out.display())),
    };
    let shown = args.points.display().to_string();
    let fitted = measured::fit(&shown, &points, &base, &base_text, name).map_err(|why| why.to_string())?;
    Profile::save(&args.out, &fitted.text).map_err(|why| why.to_string())?;
    Ok(words(&fitted, points.points.len(), &args.out.display().to_string()))
}

fn words(fitted: &Fitted, points: usize, path: &str) -> String {
    let mut text = format!("{points} points; errors of each point left out of the fit that predicts it\n\n");
    text.push_str(&residuals(&fitted.residuals));
    let _ = writeln!(text, "\n{}", report::decisions(&fitted.decisions).trim_end());
    let _ = writeln!(text, "kept as in the base: {}", fitted.kept.join(", "));
    let unused: usize = fitted.left_out.values().sum();
    if unused > 0 {
        let _ = writeln!(text, "{unused} of the points are not used:\n{}", measured::reasons(&fitted.left_out));
    }
    for note in &fitted.notes {
        let _ = writeln!(text, "note: {note}");
    }
    let _ = writeln!(text, "wrote {path}");
    text
}
