//! `calibrate fit POINTS|TRACE… --base PROFILE --out FILE`: a profile of measured points, or of kernels in traces of training runs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;

use windtunnel::cost::Profile;
use windtunnel::report::profile as report;
use windtunnel::trace::Error as TraceError;

use crate::fit::measured::{self, Fitted};
use crate::fit::residuals;
use crate::import::trace::{self, Read};
use crate::points::{self, Points};

/// Make a profile of measured points; what was not measured stays as it is in the base.
#[derive(Debug, clap::Args)]
#[command(after_help = super::help::FIT)]
pub struct Args {
    /// Points, as `calibrate cuda` writes them (*.jsonl); or profilers' traces of a training run, one for each rank that was traced.
    #[arg(required = true)]
    points: Vec<PathBuf>,
    /// The profile of the same chip that the points go into: a shipped one's name, or a .toml file.
    #[arg(long)]
    base: String,
    /// Where the new profile goes; its name is the file's. What was there is replaced at once or not at all.
    #[arg(long)]
    out: PathBuf,
}

/// Fits, writes, and reports.
pub fn run(args: &Args) -> Result<String, String> {
    let (output, name) = Profile::output(&args.out).map_err(|why| why.to_string())?;
    let (path, base_text) = Profile::text(&args.base).map_err(|why| why.to_string())?;
    let base = Profile::parse(&path, &base_text).map_err(|why| why.to_string())?;
    let files: Vec<String> = args.points.iter().map(|path| path.display().to_string()).collect();
    let shown = files.join(", ");
    let Read { points, left_out } = read(&args.points, &base)?;
    if let Some(why) = nothing(&points, &left_out, &shown) {
        return Err(why);
    }
    let mut fitted = measured::fit(&shown, &points, &base, &base_text, &name).map_err(|why| why.to_string())?;
    left_out.into_iter().for_each(|(why, kernels)| *fitted.left_out.entry(why).or_default() += kernels);
    if let Some(why) = in_vain(&fitted, points.points.len(), &shown) {
        return Err(why);
    }
    Profile::save(output, &fitted.text).map_err(|why| why.to_string())?;
    Ok(words(&fitted, points.points.len(), &args.out.display().to_string()))
}

/// One file of points, or traces: their content tells which.
fn read(files: &[PathBuf], base: &Profile) -> Result<Read, String> {
    let mut traces = vec![];
    for path in files {
        match windtunnel::trace::read(path, &|_, _| ControlFlow::Continue(())) {
            Ok(read) => traces.push((path.display().to_string(), read)),
            Err(TraceError::Unknown { .. }) if files.len() == 1 => {
                let points = points::read(path).map_err(|why| why.to_string())?;
                return Ok(Read { points, left_out: BTreeMap::new() });
            }
            Err(why @ TraceError::Unknown { .. }) => {
                return Err(format!("{why}\nseveral files are traces of several ranks: fit each file of points alone"));
            }
            Err(why) => return Err(why.to_string()),
        }
    }
    Ok(trace::points(&traces, base))
}

/// Why traces make no points at all.
fn nothing(points: &Points, left_out: &BTreeMap<String, usize>, path: &str) -> Option<String> {
    (points.points.is_empty() && !left_out.is_empty()).then(|| {
        format!(
            "no kernel in {path} makes a point:\n{}\nprofile a step with torch.profiler.profile(record_shapes=True), without CUDA graphs",
            measured::reasons(left_out)
        )
    })
}

/// Why the base would only be written again, if no section of it is replaced.
fn in_vain(fitted: &Fitted, points: usize, path: &str) -> Option<String> {
    if fitted.decisions.iter().any(|decision| decision.taken) {
        return None;
    }
    let mut text = format!("the {points} points of {path} change no section of the base, so nothing is written\n");
    if !fitted.decisions.is_empty() {
        text.push_str(&report::decisions(&fitted.decisions));
    }
    if !fitted.left_out.is_empty() {
        let _ = writeln!(text, "not used:\n{}", measured::reasons(&fitted.left_out).trim_end());
    }
    for note in &fitted.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text.push_str("measure more of one family with `windtunnel calibrate cuda`, or choose the base of this chip");
    Some(text)
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

#[cfg(test)]
mod tests {
    use windtunnel::cost::sections::Decision;

    use super::*;

    #[test]
    fn traces_without_points_say_why_their_kernels_make_none() {
        let reasons = BTreeMap::from([("operators without shapes".to_owned(), 963)]);
        let why = nothing(&Points::default(), &reasons, "rank0.json").expect("there are no points");
        assert!(why.contains("963  operators without shapes") && why.contains("record_shapes"), "{why}");
        assert_eq!(nothing(&Points::default(), &BTreeMap::new(), "points.jsonl"), None);
    }

    #[test]
    fn points_that_replace_no_section_are_an_error_that_says_why_and_others_are_none() {
        let decision = |taken| Decision { name: "matmul.bf16".to_owned(), taken, why: "weaker".to_owned() };
        let fitted = |decisions: Vec<Decision>| Fitted {
            text: String::new(),
            residuals: vec![],
            decisions,
            kept: vec!["matmul.bf16".to_owned()],
            left_out: BTreeMap::from([("too few of the kind".to_owned(), 2)]),
            notes: vec![],
        };
        for decisions in [vec![], vec![decision(false)]] {
            let why = in_vain(&fitted(decisions), 2, "points.jsonl").expect("nothing is taken");
            assert!(why.starts_with("the 2 points of points.jsonl change no section of the base"), "{why}");
            assert!(why.contains("too few of the kind"), "{why}");
        }
        assert_eq!(in_vain(&fitted(vec![decision(false), decision(true)]), 2, "points.jsonl"), None);
    }
}
