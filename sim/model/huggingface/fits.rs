//! Checks what no single key can: that heads share out among key-value heads, and that all heads together are sane.

use super::ModelError;
use super::decoder::Decoder;
use super::keys::Keys;
use super::limits::WIDTH;

/// Refuses sizes that do not go together.
pub(super) fn check(keys: &Keys<'_>, model: &Decoder) -> Result<(), ModelError> {
    if !model.heads.is_multiple_of(model.kv_heads) {
        return Err(ModelError::Misfit {
            file: keys.file(),
            left: format!("{} query heads", model.heads),
            right: format!("{} key-value heads", model.kv_heads),
            rule: "the first must be a multiple of the second",
            remedy: "check \"num_key_value_heads\"",
        });
    }
    let all = model.heads.saturating_mul(model.head_dim);
    let experts = model.experts.as_ref();
    let routed = experts.map_or(0, |experts| experts.count.saturating_mul(experts.width) / 8);
    let shared = experts.map_or(0, |experts| experts.shared);
    for (what, size) in [
        ("all heads together", all),
        ("the feed-forward", model.ffn),
        ("an eighth of all experts together", routed),
        ("all shared experts together", shared),
    ] {
        if size > WIDTH.most {
            return Err(ModelError::Misfit {
                file: keys.file(),
                left: format!("{what}, {size} wide,"),
                right: format!("the largest width believed, {},", WIDTH.most),
                rule: "the first must not exceed the second",
                remedy: "check the sizes of heads, feed-forward and experts",
            });
        }
    }
    Ok(())
}
