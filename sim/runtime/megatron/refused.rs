//! Keys that several refusals hang on, and what to write instead.

/// The key of matmuls in fp8.
pub const FP8: &str = "megatron.fp8";

/// What to write where sizes or modules are not for fp8.
pub(super) const FP8_SIZES: &str =
    "write another megatron.fp8 or remove it, or take sizes of which each rank's part is a multiple of 128";

/// The key of modules that predict tokens further ahead.
pub(super) const MULTI_TOKEN: &str = "megatron.mtp_num_layers";

/// What to write where those are refused.
pub(super) const WITHOUT_MULTI_TOKEN: &str = "write megatron.mtp_num_layers = 0 to train without it";
