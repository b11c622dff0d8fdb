//! Ceilings of one scenario side by side, under other machines, other policies of recomputing, with and without offload.
//!
//! A variant is the scenario with one thing changed; everything else stays as written, `batch.micro` and the mesh among
//! it. A machine with other nodes is rented in as many as make the same number of chips, or in part. What is no scenario keeps its
//! row, with the reason. To compare along another line: an entry in [`ALONG`].

pub mod html;
pub mod json;
pub mod text;

use rayon::prelude::*;
use toml::Value;

use super::ceiling::{Ceiling, Options, ceiling};
use super::point::Point;
use super::tick::Tick;
use crate::hardware::{HardwareError, Size, Topology, registry};
use crate::near::did_you_mean;
use crate::scenario::relative;
use crate::scenario::{Draft, Rerun, Runtime, Scenario, ScenarioError, reason};

/// What is asked for, as `--compare` writes it.
#[derive(Debug, thiserror::Error)]
pub enum VariantError {
    /// Nothing of this name can be varied.
    #[error("--compare cannot vary {along:?}{because}; write one of: {known}")]
    Along {
        /// As written.
        along: String,
        /// Why, where it is a thing that exists elsewhere.
        because: &'static str,
        /// What can be varied.
        known: String,
    },
    /// Not a value of it.
    #[error(
        "--compare {along}: there is no {value:?}{hint}; write some of: {known}, separated by commas (numbers are free)"
    )]
    Value {
        /// What is varied.
        along: &'static str,
        /// As written.
        value: String,
        /// Which of them is near, in words.
        hint: String,
        /// What there is.
        known: String,
    },
    /// A machine that there is not, or whose file is broken.
    #[error(transparent)]
    Topology(#[from] Box<HardwareError>),
    /// The scenario itself.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// A scenario with one thing changed, or why it is none.
struct Variant {
    name: String,
    draft: Result<Draft, String>,
    note: Option<String>,
}

/// Something that can be varied.
struct Along {
    /// As `--compare` writes it.
    name: &'static str,
    /// Values tried where none are named.
    all: fn(Runtime) -> Vec<String>,
    vary: fn(&Draft, &Scenario, &str) -> Result<Option<Variant>, VariantError>,
}

const ALONG: [Along; 3] = [
    Along { name: "topology", all: topologies, vary: topology },
    Along { name: "recompute", all: |runtime| owned(runtime.recompute().values), vary: recompute },
    Along { name: "offload", all: |_| owned(&["false", "true"]), vary: offload },
];

/// What people ask for that is not varied yet.
const NOT_YET: [(&str, &str); 4] = [
    ("cp", ": it is not varied yet; write mesh.cp in the file"),
    ("tp", ": it is not varied yet; write mesh.tp in the file"),
    ("pp", ": it is not varied yet; write mesh.pp in the file"),
    ("ep", ": it is not varied yet; write mesh.ep in the file"),
];

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
    /// The longest length that every variant with a ceiling holds \[tokens\]: their lowest ceiling.
    pub common: Option<u64>,
    /// A row for each value.
    pub rows: Vec<Row>,
}

/// Finds the ceiling of each variant that `what` (`recompute=none,full`) asks for.
pub fn ceilings(draft: &Draft, what: &str, options: Options, tick: &Tick<'_>) -> Result<Ceilings, VariantError> {
    let scenario = draft.scenario()?;
    let (asked, values) = what.split_once('=').unwrap_or((what, ""));
    let along =
        ALONG.iter().find(|along| along.name == asked.trim()).ok_or_else(|| unknown(asked.trim(), scenario.runtime))?;
    let values: Vec<String> = match values.trim() {
        "" => (along.all)(scenario.runtime),
        values => values.split(',').map(|value| value.trim().to_owned()).collect(),
    };
    let variant = |value: &String| {
        (along.vary)(draft, &scenario, value)?.ok_or_else(|| {
            let all = (along.all)(scenario.runtime);
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
    Ok(Ceilings { along: along.name, common, rows })
}

fn owned(values: &[&str]) -> Vec<String> {
    values.iter().map(|&value| value.to_owned()).collect()
}

fn unknown(asked: &str, runtime: Runtime) -> VariantError {
    let because = NOT_YET.iter().find(|(name, _)| *name == asked).map_or("", |&(_, because)| because);
    let known = ALONG.map(|along| format!("{}={}", along.name, (along.all)(runtime).join(","))).join(", or ");
    VariantError::Along { along: asked.to_owned(), because, known }
}

/// Keeps what is a scenario, and says of the rest why it is none.
fn checked(name: &str, draft: Draft, note: Option<String>) -> Variant {
    let draft = match draft.scenario() {
        Ok(_) => Ok(draft),
        Err(error) => Err(reason(&error)),
    };
    Variant { name: name.to_owned(), note: note.filter(|_| draft.is_ok()), draft }
}

fn topologies(_: Runtime) -> Vec<String> {
    registry().into_iter().map(|listed| listed.name.to_owned()).collect()
}

/// Another machine with as many chips: whole nodes of it, or part of one. Its own profile of costs, for a profile belongs
/// to one machine.
fn topology(draft: &Draft, scenario: &Scenario, name: &str) -> Result<Option<Variant>, VariantError> {
    let mut draft = draft.clone();
    let machine = Topology::load(&relative(&scenario.file, name), &Size::Smallest).map_err(Box::new)?;
    draft.set("topology.name", name);
    if machine.name == scenario.topology.name {
        return Ok(Some(checked(name, draft, None)));
    }
    let mut notes = vec![];
    if draft.get("topology.profile").is_some() {
        draft.remove("topology.profile");
        notes.push("its own profile of costs".to_owned());
    }
    let (chips, per_node) = (scenario.topology.chips(), machine.node.chips);
    for size in ["nodes", "slice", "chips"] {
        draft.remove(&format!("topology.{size}"));
    }
    if chips.is_multiple_of(per_node) {
        let nodes = chips / per_node;
        draft.set("topology.nodes", i64::from(nodes));
        if nodes != scenario.topology.nodes {
            notes.push(format!("{nodes} nodes, for the same {chips} chips"));
        }
    } else if chips < per_node {
        draft.set("topology.chips", i64::from(chips));
        notes.push(format!("{chips} chips of a node of {per_node}"));
    } else {
        let reason = format!("{chips} chips are no whole number of its nodes of {per_node}");
        return Ok(Some(Variant { name: name.to_owned(), draft: Err(reason), note: None }));
    }
    Ok(Some(checked(name, draft, (!notes.is_empty()).then(|| notes.join("; ")))))
}

/// Something else that runs again in backward, as the runtime writes it.
fn recompute(draft: &Draft, scenario: &Scenario, value: &str) -> Result<Option<Variant>, VariantError> {
    let mut draft = draft.clone();
    let Rerun { key, values, beside } = scenario.runtime.recompute();
    let (kind, number) = value.split_once('=').map_or((value, None), |(kind, number)| (kind, Some(number)));
    let alike = |known: &&str| match known.split_once('=') {
        Some((name, _)) => name == kind && number.is_some(),
        None => *known == value,
    };
    let written = match (values.iter().find(|known| alike(known)), number.map(str::parse::<i64>)) {
        (None, _) | (_, Some(Err(_))) => return Ok(None),
        (_, Some(Ok(number))) => Value::Table(toml::Table::from_iter([(kind.to_owned(), number.into())])),
        (_, None) => value.parse().map_or_else(|_| Value::from(value), Value::Boolean),
    };
    draft.set(key, written);
    let without: Vec<&str> = beside.iter().copied().filter(|key| draft.get(key).is_some()).collect();
    without.iter().for_each(|key| draft.remove(key));
    let note = (!without.is_empty()).then(|| format!("without {}", without.join(", ")));
    Ok(Some(checked(value, draft, note)))
}

/// `CPUOffloadPolicy`: parameters, gradients and optimizer state on the host.
fn offload(draft: &Draft, _: &Scenario, value: &str) -> Result<Option<Variant>, VariantError> {
    let mut draft = draft.clone();
    let Ok(on) = value.parse::<bool>() else { return Ok(None) };
    draft.set("fsdp.cpu_offload", on);
    Ok(Some(checked(value, draft, None)))
}
