//! Which stage runs which blocks (`models/base.py`, `build_model`).
//!
//! A block costs 4·D² + 3·D·F, the head D·V, all else nothing. A stage takes what comes until the sum so far is past its
//! share of the whole; so the first stages have more than the last, which has the head.

use crate::model::ModelConfig;

/// Blocks of each of `stages`; none if the last is left without the head.
pub fn placement(model: &ModelConfig, stages: u32) -> Option<Vec<u64>> {
    let block = 4 * model.heads() * model.head_dim() * model.width + 3 * model.feed_forward_width() * model.width;
    let all = (model.layers.count() * block + model.vocab * model.width) as f64;
    let threshold = |stage: usize| all * ((stage + 1) as f64 / f64::from(stages));
    let mut layers = vec![0; stages as usize];
    let mut stage = 0;
    for layer in 1..=model.layers.count() {
        *layers.get_mut(stage)? += 1;
        if (layer * block) as f64 > threshold(stage) {
            stage += 1;
        }
    }
    (stage + 1 == stages as usize).then_some(layers)
}

#[cfg(test)]
mod tests {
    use super::placement;
    use crate::model::huggingface::shipped;
    use crate::model::{FeedForward, Mixer};

    /// Stages of a Llama of these sizes with 131,072 words.
    fn of((layers, width, ffn): (u64, u64, u64), stages: u32) -> Vec<u64> {
        let mut model = shipped::named("llama-3-8b").expect("a shipped model");
        (model.width, model.vocab) = (width, 131_072);
        model.layers.resize(layers);
        model.layers.edit(|layer| {
            if let (Mixer::Attention(attention), FeedForward::Dense(dense)) =
                (&mut layer.mixer, &mut layer.feed_forward)
            {
                (attention.head_dim, dense.width) = (width / attention.heads, ffn);
            }
        });
        placement(&model, stages).expect("a placement")
    }

    #[test]
    fn the_last_stage_has_the_head_and_so_fewer_blocks() {
        assert_eq!(of((16, 2048, 8192), 2), [11, 5]);
        assert_eq!(of((32, 4096, 14_336), 4), [9, 9, 8, 6]);
        assert_eq!(of((80, 8192, 28_672), 4), [21, 20, 20, 19]);
    }
}
