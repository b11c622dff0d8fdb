//! Ceilings of one scenario side by side, under other machines, other policies of recomputing, with and without offload, and on
//! other meshes.
//!
//! A variant is the scenario with one thing changed; everything else stays as written. The sequences of a step of the whole job stay
//! in every row ([`Fixed`](super::fixed::Fixed)). A machine with other nodes is rented in as many as make the same number of chips, or in
//! part. Where an axis of the mesh grows, data-parallel ranks and micro-batches give way ([`axis`]). What is no scenario keeps its row,
//! with the reason. To compare along another line: an arm in [`along`].

mod axis;
mod error;
pub mod html;
pub mod json;
mod machine;
mod policy;
mod replicas;
pub mod text;
mod variant;

pub use error::VariantError;
use rayon::prelude::*;
use variant::Variant;

use super::ceiling::{Ceiling, Options, ceiling};
use super::point::Point;
use super::tick::Tick;
use crate::near::did_you_mean;
use crate::scenario::{Draft, Scenario, reason};

/// Makes a variant of a value; none if it is no value.
type Vary<'s> = Box<dyn Fn(&str) -> Result<Option<Variant>, VariantError> + 's>;

/// Something that can be varied.
struct Along<'s> {
    /// As `--compare` writes it.
    name: &'static str,
    /// Whether data-parallel ranks and micro-batches follow from it.
    tiles: bool,
    /// Values tried where none are named.
    all: Box<dyn Fn() -> Vec<String> + 's>,
    vary: Vary<'s>,
}

/// What is varied under such a name.
fn along<'s>(asked: &str, draft: &'s Draft, scenario: &'s Scenario) -> Result<Along<'s>, VariantError> {
    let recomputes = scenario.runtime.recompute().values;
    Ok(match asked {
        "topology" => Along {
            name: "topology",
            tiles: false,
            all: Box::new(machine::topologies),
            vary: Box::new(|value| machine::topology(draft, scenario, value)),
        },
        "recompute" => Along {
            name: "recompute",
            tiles: false,
            all: Box::new(|| owned(recomputes)),
            vary: Box::new(|value| policy::recompute(draft, scenario, value)),
        },
        "offload" => Along {
            name: "offload",
            tiles: false,
            all: Box::new(|| owned(&["false", "true"])),
            vary: Box::new(|value| policy::offload(draft, scenario, value)),
        },
        _ => {
            let axis = axis::find(asked, scenario).unwrap_or_else(|| Err(String::new()));
            let axis = axis.map_err(|because| unknown(asked, because, scenario))?;
            Along {
                name: axis.name(scenario.runtime),
                tiles: axis.tiles(scenario.runtime),
                all: Box::new(|| axis.values(draft, scenario)),
                vary: Box::new(|value| Ok(axis.vary(draft, scenario, value))),
            }
        }
    })
}

/// A variant's ceiling.
#[derive(Clone, Debug)]
pub struct Row {
    /// The value varied, as written.
    pub name: String,
    /// Its ceiling, or why it is no scenario.
    pub ceiling: Result<Ceiling, String>,
    /// The same variant at the common length.
    pub common: Option<Point>,
    /// What else had to change.
    pub note: Option<String>,
}

/// Ceilings side by side.
#[derive(Clone, Debug)]
pub struct Ceilings {
    /// What is varied.
    pub along: &'static str,
    /// Whether data-parallel ranks and micro-batches follow from it, as they do from most axes of the mesh.
    pub tiles: bool,
    /// The longest length that every variant with a ceiling holds \[tokens\]: their lowest ceiling.
    pub common: Option<u64>,
    /// A row for each value.
    pub rows: Vec<Row>,
}

/// Finds the ceiling of each variant that `what` (`recompute=none,full`) asks for.
pub fn ceilings(draft: &Draft, what: &str, options: Options, tick: &Tick<'_>) -> Result<Ceilings, VariantError> {
    let scenario = draft.scenario()?;
    let (asked, values) = what.split_once('=').unwrap_or((what, ""));
    let along = along(asked.trim(), draft, &scenario)?;
    let values: Vec<String> = match values.trim() {
        "" => (along.all)(),
        values => values.split(',').map(|value| value.trim().to_owned()).collect(),
    };
    let variant = |value: &String| {
        (along.vary)(value)?.ok_or_else(|| {
            let all = (along.all)();
            let hint = did_you_mean(value, all.iter().map(String::as_str));
            VariantError::Value { along: along.name, value: value.clone(), hint, known: all.join(", ") }
        })
    };
    let variants = values.iter().map(variant).collect::<Result<Vec<_>, _>>()?;
    let climb = |variant: Variant| {
        let found = variant.draft.and_then(|draft| {
            let found = ceiling(&draft, options, tick).map_err(|error| reason(&error))?;
            Ok((draft, found))
        });
        (variant.name, variant.note, found)
    };
    let found: Vec<_> = variants.into_par_iter().map(climb).collect();
    let longest = |ceiling: &Ceiling| ceiling.longest.as_ref().map(|point| point.sequence);
    let common = found.iter().filter_map(|(_, _, found)| longest(&found.as_ref().ok()?.1)).min();
    let at_common = |(name, note, found): (String, Option<String>, Result<(Draft, Ceiling), String>)| {
        let fits = |(draft, ceiling): &(Draft, Ceiling)| match common {
            Some(length) if ceiling.longest.is_some() => {
                let known = ceiling.ladder.iter().find(|point| point.sequence == length);
                known.cloned().or_else(|| Point::fly(draft, length).ok())
            }
            _ => None,
        };
        let common = found.as_ref().ok().and_then(fits);
        Row { name, note, common, ceiling: found.map(|(_, ceiling)| ceiling) }
    };
    let rows = found.into_par_iter().map(at_common).collect();
    Ok(Ceilings { along: along.name, tiles: along.tiles, common, rows })
}

fn owned(values: &[&str]) -> Vec<String> {
    values.iter().map(|&value| value.to_owned()).collect()
}

fn unknown(asked: &str, because: String, scenario: &Scenario) -> VariantError {
    let named = [
        format!("topology={}", machine::topologies().join(",")),
        format!("recompute={}", scenario.runtime.recompute().values.join(",")),
        "offload=false,true".to_owned(),
    ];
    let axes = axis::names(scenario).into_iter().map(|axis| format!("{axis}=1,2,4"));
    let known = named.into_iter().chain(axes).collect::<Vec<_>>().join(", or ");
    VariantError::Along { along: asked.to_owned(), because, known }
}
