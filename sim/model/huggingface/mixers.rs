//! What architectures with Mamba-2 mixers have in common: sizes that go together, and lists of layers by letters or words.

use serde_json::Value;

use super::ModelError;
use super::keys::Keys;
use super::limits::WIDTH;
use crate::model::Mamba2;

/// Sizes of a mixer, as each architecture's own keys name them.
pub(super) type Sizes = Mamba2;

/// Keys of mixers that cost a training step nothing: initial values, limits of dt, types of caches.
const HARMLESS: [&str; 20] = [
    "expand",
    "mamba_expand",
    "time_step_rank",
    "time_step_min",
    "time_step_max",
    "time_step_floor",
    "time_step_limit",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "hidden_act",
    "mamba_hidden_act",
    "mamba_ssm_cache_dtype",
    "use_mamba_kernels",
    "num_logits_to_keep",
    "rms_norm",
    "norm_before_gate",
    "layer_norm_epsilon",
    "norm_eps",
    "ssm_cache_dtype",
    "mamba_ssm_dtype",
];

/// Refuses a mixer, or experts, whose parts together are wider than any model is.
pub(super) fn believed(keys: &Keys<'_>, sizes: &[(&str, u64, u64)]) -> Result<(), ModelError> {
    for &(what, count, each) in sizes {
        let size = count.saturating_mul(each);
        if size > WIDTH.most {
            return Err(ModelError::Misfit {
                file: keys.file(),
                left: format!("{what}, {size} wide together,"),
                right: format!("the largest width believed, {},", WIDTH.most),
                rule: "the first must not exceed the second",
                remedy: "check how many there are, and how wide each is",
            });
        }
    }
    Ok(())
}

/// Asks for what costs nothing.
pub(super) fn harmless(keys: &Keys<'_>) {
    HARMLESS.iter().for_each(|key| keys.ask(key));
}

/// A mixer whose sizes go together, in a model so wide. `expand`, where it is written, must say the same as heads do.
pub(super) fn mamba(keys: &Keys<'_>, width: u64, sizes: Sizes) -> Result<Mamba2, ModelError> {
    let misfit = |left: String, right: String, rule, remedy| {
        Err(ModelError::Misfit { file: keys.file(), left, right, rule, remedy })
    };
    if !sizes.heads.is_multiple_of(sizes.groups) {
        let (left, right) = (format!("{} heads of the mixer", sizes.heads), format!("{} groups", sizes.groups));
        return misfit(left, right, "the first must be a multiple of the second", "check the mixer's heads and groups");
    }
    let state = sizes.groups.saturating_mul(sizes.state);
    for (what, size) in [("all heads of the mixer", sizes.heads.saturating_mul(sizes.head_dim)), ("all groups", state)]
    {
        if size > WIDTH.most {
            let (left, right) =
                (format!("{what}, {size} wide,"), format!("the largest width believed, {},", WIDTH.most));
            return misfit(left, right, "the first must not exceed the second", "check the sizes of the mixer");
        }
    }
    for key in ["expand", "mamba_expand"] {
        if let Some(expand) = keys.number(key)?
            && expand * width as f64 != sizes.inner() as f64
            && !keys.given("mamba_head_dim")
        {
            let expected =
                format!("{}, which is what heads of the mixer take of the width", sizes.inner() as f64 / width as f64);
            return Err(keys.wrong(key, &Value::from(expand), expected));
        }
    }
    Ok(sizes)
}
