//! A key with the values that a search tries, what it sees of the plan so far, and values that several frameworks share.

use toml::Value;

use crate::explore::plan::request::Request;
use crate::explore::plan::site::Site;

/// Keys of a scenario with the values that a plan gives them.
pub type Keys = Vec<(&'static str, Value)>;

/// A key, and the values that a search tries.
#[derive(Clone, Copy)]
pub(in crate::explore::plan) struct Axis {
    pub key: &'static str,
    /// None stands for the key's default.
    pub values: fn(&At<'_>) -> Vec<Option<Value>>,
}

/// Where a search stands when it asks an axis for its values.
pub(in crate::explore::plan) struct At<'a> {
    pub request: &'a Request,
    pub site: &'a Site,
    pub keys: &'a Keys,
}

impl At<'_> {
    /// The number that a key was given, here or by the request; 1 where it was given none.
    pub fn count(&self, key: &str) -> u64 {
        let chosen = self.keys.iter().find(|(known, _)| *known == key).map(|(_, value)| value);
        let number = chosen.or_else(|| self.request.fixed(key)).and_then(Value::as_integer);
        number.and_then(|number| u64::try_from(number).ok()).filter(|&number| number > 0).unwrap_or(1)
    }

    /// A number that the request gives every plan. The scenario's own checks refuse one that is out of range.
    pub fn given(&self, key: &str, most: u64) -> Option<u64> {
        let number = self.request.fixed(key).and_then(Value::as_integer);
        number.and_then(|number| u64::try_from(number).ok()).filter(|&number| number > 0 && number <= most)
    }

    /// Layers of the model, as many as the request says if it does.
    pub fn layers(&self) -> u64 {
        self.given("model.layers", MOST_LAYERS).unwrap_or_else(|| self.request.model.layers.count())
    }

    /// Query heads of the model, as many as the request says if it does.
    pub fn heads(&self) -> u64 {
        self.given("model.heads", u64::MAX).unwrap_or_else(|| self.request.model.mixer().heads())
    }

    /// Chips that some axes of the mesh leave to the others; none where they do not divide them.
    pub fn left(&self, axes: &[&str]) -> Option<u64> {
        let taken: u64 = axes.iter().map(|axis| self.count(axis)).product();
        self.site.ranks.is_multiple_of(taken).then(|| self.site.ranks / taken)
    }
}

/// The most layers that a request may set.
pub(super) const MOST_LAYERS: u64 = 1_024;

/// A value for a plan to have.
pub(super) fn some(value: impl Into<Value>) -> Option<Value> {
    Some(value.into())
}

/// Counts as values.
pub(super) fn counts(counts: impl IntoIterator<Item = u64>) -> Vec<Option<Value>> {
    counts.into_iter().map(|count| some(i64::try_from(count).unwrap_or(i64::MAX))).collect()
}

/// Powers of two from 1 to `most`.
pub(super) fn powers(most: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(1_u64), |power| power.checked_mul(2)).take_while(move |&power| power <= most)
}

/// Divisors of a number, ascending.
pub(super) fn divisors(of: u64) -> Vec<u64> {
    let small: Vec<u64> = (1..).take_while(|by| by * by <= of).filter(|&by| of.is_multiple_of(by)).collect();
    let mut all: Vec<u64> = small.iter().copied().chain(small.iter().map(|&by| of / by)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A setting that every plan has.
pub(super) const ON: fn(&At<'_>) -> Vec<Option<Value>> = |_| vec![some(true)];

/// Tensor-parallel ranks: powers of two inside a node that divide the heads and the chips.
pub(super) fn tensor(at: &At<'_>) -> Vec<Option<Value>> {
    let heads = at.heads();
    let most = if at.request.limits.tp_inside_node { at.site.per_node } else { at.site.ranks };
    counts(powers(most).filter(|&ranks| at.site.ranks.is_multiple_of(ranks) && heads.is_multiple_of(ranks)))
}

/// The fewest tokens of a sequence that a context-parallel rank is given.
pub(super) const FEWEST: u64 = 4_096;
/// The most context-parallel ranks that are tried.
pub(super) const MOST_CONTEXT: u64 = 32;

/// Context-parallel ranks: powers of two that leave each at least [`FEWEST`] tokens.
pub(super) fn context(at: &At<'_>) -> Vec<Option<Value>> {
    let Some(left) = at.left(&["mesh.tp"]) else { return vec![] };
    let sequence = at.request.sequence;
    let fits = |ranks: &u64| {
        left.is_multiple_of(*ranks) && sequence.is_multiple_of(2 * ranks) && (*ranks == 1 || sequence / ranks >= FEWEST)
    };
    counts(powers(MOST_CONTEXT).filter(fits))
}

/// The largest micro-batch that is tried, in sequences.
pub(super) const MOST_MICRO: u64 = 16;

/// Sequences of a micro-batch: powers of two that divide what a replica is given.
pub(super) fn micro(at: &At<'_>, model: &[&str]) -> Vec<Option<Value>> {
    let Some(replicas) = at.left(model) else { return vec![] };
    let all = at.request.sequences;
    counts(powers(MOST_MICRO).filter(|&micro| all.is_multiple_of(replicas * micro)))
}
