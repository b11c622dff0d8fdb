//! When keys go unread, and why.

use crate::hardware::Topology;
use crate::scenario::entry::Runtime;

/// What a rule looks at: the runtime and the machine, and the job as its framework understood it.
pub(super) struct Seen<'p, J> {
    pub runtime: Runtime,
    pub topology: &'p Topology,
    pub job: &'p J,
}

/// Keys that go unread together, when, and why.
pub(super) struct Rule<J>(pub &'static [&'static str], pub fn(&Seen<'_, J>) -> bool, pub &'static str);

/// Why the load of experts changes nothing.
pub(super) const ALL_EXPERTS: &str =
    "every rank has all experts, and grouped matmuls are costed by all their rows, whoever they are for";
