//! A key that two sides do not agree on.

use toml::Value;

use super::side::Keys;
use crate::scenario::keys::{self, Group};

/// A key that the two sides do not agree on; a side may not have it at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// `table.key`.
    pub key: String,
    /// Its value in A.
    pub from: Option<Value>,
    /// Its value in B.
    pub to: Option<Value>,
}

impl Difference {
    /// The group that it belongs to.
    pub fn group(&self) -> Group {
        keys::group(&self.key)
    }

    fn apply(&self, keys: &mut Keys) {
        match &self.to {
            Some(value) => keys.insert(self.key.clone(), value.clone()),
            None => keys.remove(&self.key),
        };
    }
}

/// The keys with differences applied.
pub(super) fn applied(keys: &Keys, differences: &[Difference]) -> Keys {
    let mut keys = keys.clone();
    for difference in differences {
        difference.apply(&mut keys);
    }
    keys
}

/// What differs, in the order in which it is applied.
pub(super) fn differences(start: &Keys, end: &Keys) -> Vec<Difference> {
    let mut keys: Vec<&String> = start.keys().chain(end.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let difference = |key: &String| {
        let (from, to) = (start.get(key).cloned(), end.get(key).cloned());
        (from != to).then(|| Difference { key: key.clone(), from, to })
    };
    let mut list: Vec<_> = keys.into_iter().filter_map(difference).collect();
    list.sort_by_key(Difference::group);
    list
}
