//! Patterns in Megatron-LM's arguments: which layers have experts, and which stage has which layers.

use crate::import::error::ImportError;
use crate::import::settings::Settings;
use crate::import::why::Why;
use crate::model::huggingface::megatron::pattern as list;

/// The longest pattern.
const MOST: usize = 4096;

/// Layers without experts: the first ones, and all but one of so many.
pub struct Dense {
    pub first: i64,
    pub every: i64,
    pub why: Why,
}

/// Reads `moe_layer_freq`: a number, or a list such as `([0]*3+[1]*11)`.
pub fn dense_first(settings: &Settings<'_>, layers: i64) -> Result<Dense, ImportError> {
    let key = "moe_layer_freq";
    let none = || Dense { first: 0, every: 1, why: Why::code("all layers have experts") };
    let Some(found) = settings.value(key) else { return Ok(none()) };
    let expected = "a whole number, or a list such as ([0]*3+[1]*11): dense layers first, then layers with experts";
    let wrong = || settings.wrong(key, expected, "one of these");
    if let Some(every) = found.value.as_i64() {
        if every < 1 {
            return Err(wrong());
        }
        return Ok(Dense { first: 0, every, why: found.why });
    }
    let flags = match &found.value {
        serde_json::Value::String(text) => list::list(text),
        serde_json::Value::Array(values) => values.iter().map(serde_json::Value::as_i64).collect(),
        _ => None,
    };
    let flags = flags.ok_or_else(wrong)?;
    if flags.len() as i64 != layers {
        let expected = format!("a list of {layers} numbers, one for each layer");
        return Err(settings.wrong(key, &expected, "as many as --num-layers"));
    }
    let (first, every) = list::dense_first(&flags).ok_or_else(wrong)?;
    Ok(Dense { first: first as i64, every: every as i64, why: found.why })
}

/// Layers of each stage of a layout such as `Et*2|(tt|)*5t|tmL`: E the embedding, t a layer, m a module that predicts ahead, L the loss,
/// `|` between stages, and `*N` behind what is repeated. None if it is none.
pub fn layout(text: &str) -> Option<Vec<i64>> {
    // Shells and tests put backslashes before brackets and bars.
    let text: Vec<char> = text.chars().filter(|c| !matches!(c, '\\' | ',' | ' ' | '"' | '\'')).collect();
    let mut at = 0;
    let flat = parts(&text, &mut at, 0)?;
    let whole = at == text.len() && flat.iter().all(|c| "EtmL|".contains(*c));
    let stages = flat.split(|c| *c == '|').map(|stage| stage.iter().filter(|c| **c == 't').count() as i64);
    whole.then(|| stages.collect())
}

/// What stands up to a closing bracket, with repeats written out.
fn parts(text: &[char], at: &mut usize, depth: usize) -> Option<Vec<char>> {
    let mut out = vec![];
    while let Some(&c) = text.get(*at) {
        if c == ')' {
            return (depth > 0).then_some(out);
        }
        *at += 1;
        let mut part = vec![c];
        if c == '(' {
            if depth > 8 {
                return None;
            }
            part = parts(text, at, depth + 1)?;
            if text.get(*at) != Some(&')') {
                return None;
            }
            *at += 1;
        }
        let mut times = 1;
        if text.get(*at) == Some(&'*') {
            *at += 1;
            let digits: String = text.get(*at..)?.iter().take_while(|c| c.is_ascii_digit()).collect();
            *at += digits.len();
            times = digits.parse().ok()?;
        }
        if out.len().saturating_add(part.len().saturating_mul(times)) > MOST {
            return None;
        }
        for _ in 0..times {
            out.extend(&part);
        }
    }
    (depth == 0).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_says_how_many_layers_each_stage_has() {
        assert_eq!(layout("Et*2|(tt|)*5t|tmL"), Some(vec![2, 2, 2, 2, 2, 2, 1, 1]));
        assert_eq!(layout("Et*2\\\\|\\\\(tt\\\\|\\\\)*5t\\\\|tmL"), Some(vec![2, 2, 2, 2, 2, 2, 1, 1]));
        assert_eq!(layout("E|t*3|t*2L"), Some(vec![0, 3, 2]));
        let deep = "(".repeat(100);
        for wrong in ["E(t|", "Et)", "Ex|L", "t*", "t*99999999", "((((t*100)*100)*100)*100)*100", &deep] {
            assert_eq!(layout(wrong), None, "{wrong}");
        }
    }
}
