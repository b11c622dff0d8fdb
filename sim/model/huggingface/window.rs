//! Which blocks see a sliding window: `layer_types` read as "one block in every N sees everything".

use serde_json::Value;

use super::ModelError;
use super::keys::Keys;

/// Where windows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// No block slides.
    Nowhere,
    /// Every block slides, but for one in `n`; 0: every one slides.
    AllButEvery(u64),
}

/// The pattern that `layer_types` writes out; none if it is absent.
pub(super) fn layer_types(keys: &Keys<'_>, layers: u64) -> Result<Option<Pattern>, ModelError> {
    let Some(types) = keys.words("layer_types")? else { return Ok(None) };
    let wrong = |expected: String| Err(keys.wrong("layer_types", &Value::Array(Vec::new()), expected));
    if types.len() as u64 != layers {
        return wrong(format!("{layers} entries, one for each block, not {}", types.len()));
    }
    if let Some(other) = types.iter().find(|&&t| t != "full_attention" && t != "sliding_attention") {
        return wrong(format!("\"full_attention\" or \"sliding_attention\" for each block, not {other:?}"));
    }
    let full = |layer: usize| types.get(layer) == Some(&"full_attention");
    let Some(first) = (0..types.len()).find(|&layer| full(layer)) else { return Ok(Some(Pattern::AllButEvery(0))) };
    if (0..types.len()).all(full) {
        return Ok(Some(Pattern::Nowhere));
    }
    let every = first + 1;
    if (0..types.len()).all(|layer| full(layer) == (layer + 1).is_multiple_of(every)) {
        return Ok(Some(Pattern::AllButEvery(every as u64)));
    }
    wrong("a repeating pattern in which the last of every N blocks, and no other, has full attention".into())
}

/// Sets the window and the pattern as a [`Decoder`](super::decoder::Decoder) holds them.
pub(super) fn place(window: Option<u64>, pattern: Pattern) -> (Option<u64>, u64) {
    match (window, pattern) {
        (None, _) | (_, Pattern::Nowhere) => (None, 0),
        (window, Pattern::AllButEvery(every)) => (window, every),
    }
}
