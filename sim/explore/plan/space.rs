//! What may vary in a plan, framework by framework: keys of a scenario and the values that a search tries.
//!
//! An axis is a key with a function that lists its values for a machine, a model and what was chosen before it. A plan takes one value of
//! every axis. Values that cannot work are left out where that follows from a division; the scenario's own checks refuse the rest. To add
//! a key to a framework's space: a row in its table. A request opens any other key with `vary`, and closes one with `set`.

mod megatron;
mod torch;
mod xla;
mod zero;

use toml::Value;

use super::request::Request;
use super::site::Site;
use crate::scenario::Runtime;

/// A key with values that a request gives; none stands for its default.
type Varied = (&'static str, Vec<Option<Value>>);

/// Keys of a scenario with the values that a plan gives them.
pub type Keys = Vec<(&'static str, Value)>;

/// A key, and the values that a search tries.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub key: &'static str,
    /// None stands for the key's default.
    pub values: fn(&At<'_>) -> Vec<Option<Value>>,
}

/// Where a search stands when it asks an axis for its values.
pub(super) struct At<'a> {
    pub request: &'a Request,
    pub site: &'a Site,
    pub keys: &'a Keys,
}

/// A framework that plans are searched for.
pub(super) struct Space {
    pub runtime: &'static str,
    pub axes: &'static [Axis],
}

const SPACES: [Space; 4] = [
    Space { runtime: "megatron", axes: megatron::AXES },
    Space { runtime: "fsdp2", axes: torch::AXES },
    Space { runtime: "deepspeed-zero", axes: zero::AXES },
    Space { runtime: "xla", axes: xla::AXES },
];

/// Those that are searched where a request names none, of the frameworks that run on a machine.
pub(super) const DEFAULT: [&str; 3] = ["megatron", "fsdp2", "xla"];

/// The space of a framework.
pub(super) fn of(runtime: &str) -> Option<&'static Space> {
    SPACES.iter().find(|space| space.runtime == runtime)
}

/// The frameworks that have one.
pub(super) fn frameworks() -> impl Iterator<Item = &'static str> {
    SPACES.iter().map(|space| space.runtime)
}

/// All plans of a framework on a machine, in the order of its axes, the last fastest.
pub(super) fn plans(request: &Request, site: &Site, runtime: Runtime) -> Vec<Keys> {
    let Some(space) = of(runtime.written()) else { return vec![] };
    let mut found = vec![];
    let own = space.axes.iter().copied().filter(|axis| !request.fixes(axis.key));
    let axes: Vec<Axis> = own.collect();
    let more: Vec<&Varied> = (request.vary.iter())
        .filter(|(key, _)| axes.iter().all(|axis| axis.key != *key) && request.is_read(key, runtime))
        .collect();
    let mut keys: Keys = vec![];
    descend((request, site), (&axes, &more), &mut keys, &mut found);
    found
}

fn descend(
    (request, site): (&Request, &Site),
    (axes, more): (&[Axis], &[&Varied]),
    keys: &mut Keys,
    found: &mut Vec<Keys>,
) {
    let (key, values, axes, more) = match (axes, more) {
        ([axis, axes @ ..], more) => {
            let values = match request.vary.iter().find(|(key, _)| *key == axis.key) {
                Some((_, values)) => values.clone(),
                None => (axis.values)(&At { request, site, keys }),
            };
            (axis.key, values, axes, more)
        }
        ([], [(key, values), more @ ..]) => (*key, values.clone(), axes, more),
        ([], []) => return found.push(keys.clone()),
    };
    for value in values {
        match value {
            Some(value) => {
                keys.push((key, value));
                descend((request, site), (axes, more), keys, found);
                keys.pop();
            }
            None => descend((request, site), (axes, more), keys, found),
        }
    }
}

impl At<'_> {
    /// The number that a key was given, here or by the request; 1 where it was given none.
    pub fn count(&self, key: &str) -> u64 {
        let chosen = self.keys.iter().find(|(known, _)| *known == key).map(|(_, value)| value);
        let number = chosen.or_else(|| self.request.fixed(key)).and_then(Value::as_integer);
        number.and_then(|number| u64::try_from(number).ok()).filter(|&number| number > 0).unwrap_or(1)
    }

    /// Chips that some axes of the mesh leave to the others; none where they do not divide them.
    pub fn left(&self, axes: &[&str]) -> Option<u64> {
        let taken: u64 = axes.iter().map(|axis| self.count(axis)).product();
        self.site.chips.is_multiple_of(taken).then(|| self.site.chips / taken)
    }
}

/// A value for a plan to have.
fn some(value: impl Into<Value>) -> Option<Value> {
    Some(value.into())
}

/// Counts as values.
fn counts(counts: impl IntoIterator<Item = u64>) -> Vec<Option<Value>> {
    counts.into_iter().map(|count| some(i64::try_from(count).unwrap_or(i64::MAX))).collect()
}

/// Powers of two from 1 to `most`.
fn powers(most: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(1_u64), |power| power.checked_mul(2)).take_while(move |&power| power <= most)
}

/// Divisors of a number, ascending.
fn divisors(of: u64) -> Vec<u64> {
    let small: Vec<u64> = (1..).take_while(|by| by * by <= of).filter(|&by| of.is_multiple_of(by)).collect();
    let mut all: Vec<u64> = small.iter().copied().chain(small.iter().map(|&by| of / by)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A setting that every plan has.
const ON: fn(&At<'_>) -> Vec<Option<Value>> = |_| vec![some(true)];

/// Tensor-parallel ranks: powers of two inside a node that divide the heads and the chips.
fn tensor(at: &At<'_>) -> Vec<Option<Value>> {
    let heads = at.request.model.mixer().heads();
    let most = if at.request.limits.tp_inside_node { at.site.per_node } else { at.site.chips };
    counts(powers(most).filter(|&ranks| at.site.chips.is_multiple_of(ranks) && heads.is_multiple_of(ranks)))
}

/// The fewest tokens of a sequence that a context-parallel rank is given.
pub(super) const FEWEST: u64 = 4_096;
/// The most context-parallel ranks that are tried.
const MOST_CONTEXT: u64 = 32;

/// Context-parallel ranks: powers of two that leave each at least [`FEWEST`] tokens.
fn context(at: &At<'_>) -> Vec<Option<Value>> {
    let Some(left) = at.left(&["mesh.tp"]) else { return vec![] };
    let sequence = at.request.sequence;
    let fits = |ranks: &u64| {
        left.is_multiple_of(*ranks) && sequence.is_multiple_of(2 * ranks) && (*ranks == 1 || sequence / ranks >= FEWEST)
    };
    counts(powers(MOST_CONTEXT).filter(fits))
}

/// The largest micro-batch that is tried, in sequences.
const MOST_MICRO: u64 = 16;

/// Sequences of a micro-batch: powers of two that divide what a replica is given.
fn micro(at: &At<'_>, model: &[&str]) -> Vec<Option<Value>> {
    let Some(replicas) = at.left(model) else { return vec![] };
    let all = at.request.sequences;
    counts(powers(MOST_MICRO).filter(|&micro| all.is_multiple_of(replicas * micro)))
}
