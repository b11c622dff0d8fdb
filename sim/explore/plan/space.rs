//! What may vary in a plan, framework by framework: keys of a scenario and the values that a search tries.
//!
//! An axis is a key with a function that lists its values for a machine, a model and what was chosen before it. A plan takes one value of
//! every axis. Values that cannot work are left out where that follows from a division; the scenario's own checks refuse the rest. To add
//! a key to a framework's space: a row in its table. A request opens any other key with `vary`, and closes one with `set`.

mod axis;
mod megatron;
mod torch;
mod xla;
mod zero;

pub use axis::Keys;
use axis::{At, Axis};

use super::request::{Request, Varied};
use super::site::Site;
use crate::scenario::Runtime;

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

/// All plans of a framework on a machine, in the order of its axes, the last fastest.
pub(super) fn plans(request: &Request, site: &Site, runtime: Runtime) -> Vec<Keys> {
    let Some(space) = SPACES.iter().find(|space| space.runtime == runtime.written()) else { return vec![] };
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

#[cfg(test)]
mod tests {
    use super::SPACES;
    use crate::explore::plan::frameworks::SEARCHED;

    #[test]
    fn every_framework_that_can_be_named_has_a_space() {
        assert_eq!(SPACES.map(|space| space.runtime), SEARCHED);
    }
}
