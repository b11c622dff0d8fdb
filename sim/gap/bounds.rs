//! Bounds on how far a measured step may be from its prediction: `--fail-above step=5%,matmul=10%`.

use super::parts::Gap;
use super::side::Class;
use crate::near::did_you_mean;

/// The name of the bound on the whole step.
const STEP: &str = "step";

/// A bound: a class, or none for the step; and by which share it may be longer or shorter than predicted.
pub type Bound = (Option<Class>, f64);

/// Reads bounds.
pub fn parse(text: &str) -> Result<Vec<Bound>, String> {
    text.split(',').map(|bound| one(bound.trim())).collect()
}

fn one(text: &str) -> Result<Bound, String> {
    let names = || std::iter::once(STEP).chain(Class::ALL.iter().map(|class| class.name()));
    let Some((name, share)) = text.split_once('=') else {
        return Err(format!("--fail-above: {text:?} is no bound: write name=5%, such as matmul=5%"));
    };
    let class = Class::ALL.iter().find(|class| class.name() == name);
    if class.is_none() && name != STEP {
        let (hint, list) = (did_you_mean(name, names()), names().collect::<Vec<_>>().join(", "));
        return Err(format!("--fail-above: a trace has no {name:?}{hint}: write one of {list}"));
    }
    let number = match share.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => share.trim().parse::<f64>(),
    };
    match number {
        Ok(share) if share.is_finite() && share >= 0.0 => Ok((class.copied(), share)),
        _ => Err(format!("--fail-above: {share:?} is no share: write {name}=5% or {name}=0.05")),
    }
}

/// Bounds that a gap breaks, a sentence each. What neither side has, or only one, cannot keep to a bound.
pub fn broken(bounds: &[Bound], gap: &Gap) -> Vec<String> {
    let classes = gap.classes();
    let broken = bounds.iter().filter_map(|&(class, bound)| {
        let (name, ratio) = match class {
            None => (STEP, Some(gap.measured.0 as f64 / gap.predicted.0.max(1) as f64)),
            Some(class) => {
                let sum = classes.iter().find(|(known, _)| *known == class);
                (class.name(), sum.and_then(|(_, sum)| sum.ratio()))
            }
        };
        match ratio {
            None => {
                Some(format!("{name}: there is nothing that prediction and trace both have, so the bound cannot hold"))
            }
            Some(ratio) if (ratio - 1.0).abs() > bound => {
                let percent = 100.0 * bound;
                Some(format!("{name}: {ratio:.3} of the prediction, the bound is {percent} % either way"))
            }
            Some(_) => None,
        }
    });
    broken.collect()
}
