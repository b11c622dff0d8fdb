//! Who steps the optimizer of what `fully_shard` or its predecessor has sharded.

use crate::plan::torch::fsdp::Version;
use crate::runtime::optimizer::Caller;

impl Version {
    /// Who steps the optimizer.
    pub fn caller(self) -> Caller {
        match self {
            Version::One(_) => Caller::Fsdp1,
            Version::Two => Caller::Fsdp2,
            Version::Unsharded => Caller::SingleDevice,
        }
    }
}
