//! How far a prediction may be from the compiler's answer.

use super::sides::{Compiler, Ours};

/// Arguments: a sum of shards, rounded up by the compiler.
pub const ARGUMENTS: f64 = 0.002;
/// The peak: an order of instructions that the compiler chooses.
pub const PEAK: f64 = 0.1;

/// Figures that are further apart than they may be.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// One sentence each.
    pub apart: Vec<String>,
}

/// Of ours over the compiler's, what it differs by; none where the compiler has none.
pub fn difference(compiler: f64, ours: f64) -> Option<f64> {
    (compiler > 0.0).then(|| ours / compiler - 1.0)
}

/// Holds a prediction against the compiler, with the exit code. Without a slice it compiled for this machine's processors:
/// its peak, and whether it fits, is then that of another chip.
pub fn verdict(compiler: &Compiler, ours: &Ours, for_slice: bool) -> (Verdict, u8) {
    let mut apart = vec![];
    match compiler.memory() {
        Some((argument, peak)) => {
            let mut held = vec![("arguments", argument, ours.arguments, ARGUMENTS)];
            if for_slice {
                held.push(("the peak", peak, ours.peak, PEAK));
            }
            for (what, theirs, own, most) in held {
                let by = difference(theirs as f64, own as f64).unwrap_or(0.0);
                if by.abs() > most {
                    let [by, most] = [by * 100.0, most * 100.0];
                    apart.push(format!("{what} is predicted {by:+.2} % off, and may be {most} %"));
                }
            }
            if for_slice && !ours.fits {
                apart.push("it fits, and is predicted not to".to_owned());
            }
        }
        None if ours.fits => apart.push("it does not fit, and is predicted to".to_owned()),
        None => {}
    }
    let code = match (apart.is_empty(), compiler) {
        (false, _) => super::APART,
        (true, Compiler::OutOfMemory { .. }) => super::OUT_OF_MEMORY,
        (true, _) => 0,
    };
    (Verdict { apart }, code)
}
