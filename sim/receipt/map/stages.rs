//! Layers of each stage of a pipeline, where a row says or implies that stages differ.
//!
//! ```text
//! Et*4|(t*4|)*14tmL     a layout of Megatron-Core: E embedding, t layer, m module for a second token, L loss, | between stages
//! 126 layers, 64 stages embedding and loss count as a layer each: 1, 2, 2, …, 2, 1
//! M-M-|M*-M            a pattern of a hybrid stack: a letter a layer, | between stages
//! 61 layers, 16 stages  neither divides: stages of 4, and what is left in the last
//! ```

use toml::Value as Key;

use super::Reason;
use super::keys::Gathered;
use crate::model::huggingface::shipped;
use crate::receipt::row::Row;
use crate::receipt::table::word;

/// What a rule says of layers of each virtual stage: no key of a scenario, the number of stages follows from it.
const LAYERS_EACH: &str = "pipeline.layers_per_virtual_stage";

/// More stages than this are no pipeline that ran.
const MOST: usize = 4096;

/// Writes `pipeline.layers` where stages differ; what rules say comes first.
pub(super) fn uneven(row: &Row, value: &serde_json::Value, keys: &mut Gathered) -> Result<(), Reason> {
    let number =
        |keys: &Gathered, key: &str| keys.get(key).and_then(Key::as_integer).and_then(|n| u64::try_from(n).ok());
    let Some(ranks) = number(keys, "mesh.pp").filter(|ranks| *ranks > 1 && keys.get("pipeline.layers").is_none())
    else {
        return Ok(());
    };
    if let Some(pattern) = keys.get("model.config.hybrid_layer_pattern").and_then(Key::as_str).map(str::to_owned)
        && pattern.contains('|')
    {
        let layers: Vec<u64> = pattern.split('|').map(|stage| stage.chars().count() as u64).collect();
        let stages = layers.len() as u64;
        if !stages.is_multiple_of(ranks) {
            return Err(Reason::Uncovered(format!("a pattern of {stages} stages over {ranks} ranks: {pattern:?}")));
        }
        if stages > ranks {
            keys.stated("pipeline.virtual_stages", Key::Integer((stages / ranks) as i64));
        }
        keys.stated("pipeline.layers", list(layers));
        return Ok(());
    }
    let each = keys.take(LAYERS_EACH).as_ref().and_then(Key::as_integer).and_then(|each| u64::try_from(each).ok());
    let stated = row.parallel.pp_layout.clone().or_else(|| word(value, "switches.recipe.config.pp_layout"));
    if let Some(text) = stated {
        let layers = layout(&text)
            .ok_or_else(|| Reason::Uncovered(format!("a layout of stages that is not understood: {text:?}")))?;
        let each = u64::try_from(layers.len()).unwrap_or(0);
        if each == 0 || !each.is_multiple_of(ranks) {
            return Err(Reason::Uncovered(format!("a layout of {each} stages over {ranks} ranks: {text:?}")));
        }
        if each > ranks {
            keys.stated("pipeline.virtual_stages", Key::Integer((each / ranks) as i64));
        }
        keys.stated("pipeline.layers", list(layers));
        return Ok(());
    }
    let named = || keys.get("model.name").and_then(Key::as_str).and_then(|name| shipped::named(name).ok());
    let own = number(keys, "model.layers").or_else(|| number(keys, "model.config.num_layers"));
    let Some(layers) = own.or_else(|| named().map(|model| model.layers.count())) else {
        return Ok(());
    };
    if let Some(each) = each.and_then(|each| each.checked_mul(ranks)).filter(|each| *each > 0) {
        let all = [layers, layers + 2].into_iter().find(|all| all.is_multiple_of(each));
        let stages = all
            .ok_or_else(|| Reason::Uncovered(format!("{layers} layers do not divide into rounds of {each}")))?
            / each;
        keys.stated("pipeline.virtual_stages", Key::Integer(stages as i64));
    }
    // The stages of a V are two on each rank.
    let v = keys.get("pipeline.schedule").and_then(Key::as_str) == Some("ZBVZeroBubble");
    let stages = ranks.saturating_mul(number(keys, "pipeline.virtual_stages").unwrap_or(if v { 2 } else { 1 }));
    if stages as usize > MOST || layers.is_multiple_of(stages) {
        return Ok(());
    }
    const ENDS: &str = "layers alone do not divide over the stages: embedding and loss count as a layer each, as with \
                        account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split";
    const REST: &str = "layers do not divide over the stages: as many on each, and what is left on the last";
    let (split, source) = ends(layers, stages).map_or_else(|| (rest(layers, stages), REST), |split| (split, ENDS));
    keys.put("pipeline.layers", list(split), Some(source.to_owned()));
    Ok(())
}

fn list(layers: Vec<u64>) -> Key {
    Key::Array(layers.into_iter().map(|count| Key::Integer(count as i64)).collect())
}

/// Stages of which the first has one layer fewer, for the embedding, and the last one, for the loss.
fn ends(layers: u64, stages: u64) -> Option<Vec<u64>> {
    let all = layers + 2;
    let each = all.is_multiple_of(stages).then(|| all / stages)?;
    let mut split = vec![each; usize::try_from(stages).ok()?];
    *split.first_mut()? -= 1;
    *split.last_mut()? -= 1;
    Some(split)
}

/// Stages of as many layers each, and what is left on the last.
fn rest(layers: u64, stages: u64) -> Vec<u64> {
    let each = layers.div_ceil(stages);
    let mut left = layers;
    (0..stages)
        .map(|_| {
            let here = each.min(left);
            left -= here;
            here
        })
        .collect()
}

/// Layers of each stage of a layout.
fn layout(text: &str) -> Option<Vec<u64>> {
    let flat = expanded(&text.chars().filter(|c| !c.is_whitespace() && *c != ',').collect::<Vec<_>>())?;
    let stages = flat.split(|c| *c == '|').map(|stage| stage.iter().filter(|c| **c == 't').count() as u64);
    Some(stages.collect())
}

/// A layout without brackets and counts.
fn expanded(text: &[char]) -> Option<Vec<char>> {
    let mut out: Vec<char> = vec![];
    let mut at = 0;
    while at < text.len() {
        let (part, next) = match text[at] {
            '(' => {
                let end = at + text[at..].iter().position(|c| *c == ')')?;
                (expanded(&text[at + 1..end])?, end + 1)
            }
            c if "EtmL|".contains(c) => (vec![c], at + 1),
            _ => return None,
        };
        at = next;
        let mut times = 1;
        if text.get(at) == Some(&'*') {
            let digits: String = text[at + 1..].iter().take_while(|c| c.is_ascii_digit()).collect();
            times = digits.parse().ok().filter(|times| *times <= MOST)?;
            at += 1 + digits.len();
        }
        for _ in 0..times {
            out.extend(&part);
            if out.len() > 16 * MOST {
                return None;
            }
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_says_how_many_layers_a_stage_has() {
        let sixteen = layout("Et*4|(t*4|)*14tmL").expect("a layout");
        assert_eq!((sixteen.len(), sixteen[0], sixteen[14], sixteen[15]), (16, 4, 4, 1));
        let thirty_two = layout("Et|(tt|)*30mL").expect("a layout");
        assert_eq!((thirty_two.len(), thirty_two[0], thirty_two[1], thirty_two[31]), (32, 1, 2, 0));
        assert_eq!(layout("Et*3|(tt|)*6tmL").map(|stages| stages.iter().sum()), Some(16));
        for bad in ["Ex|L", "E(t", "t*99999999", "(t*4000|)*4000"] {
            assert_eq!(layout(bad), None, "{bad}");
        }
    }

    #[test]
    fn embedding_and_loss_count_as_layers_where_that_divides() {
        assert_eq!(ends(30, 16), Some([vec![1], vec![2; 14], vec![1]].concat()));
        assert_eq!(ends(30, 32), Some([vec![0], vec![1; 30], vec![0]].concat()));
        assert_eq!(ends(106, 12), Some([vec![8], vec![9; 10], vec![8]].concat()));
        assert_eq!(ends(61, 16), None);
        assert_eq!(rest(61, 16), [vec![4; 15], vec![1]].concat());
        assert_eq!(rest(78, 12), [vec![7; 11], vec![1]].concat());
    }
}
