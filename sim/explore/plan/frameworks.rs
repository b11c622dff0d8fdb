//! Names of the frameworks that plans are searched for.

/// Those that have a space.
pub(super) const SEARCHED: [&str; 4] = ["megatron", "fsdp2", "deepspeed-zero", "xla"];

/// Those that are searched where a request names none, of the frameworks that run on a machine.
pub(super) const DEFAULT: [&str; 3] = ["megatron", "fsdp2", "xla"];
