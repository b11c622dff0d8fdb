//! What a list of layers promises: kinds are distinct, a pattern goes on, and what layers share is asked of the model.

use proptest::prelude::*;

use super::{Attention, Dense, FeedForward, Layer, Layers, Mixer, Norms};
use crate::model::huggingface::shipped;
use crate::model::{Activation, Gating, ModelConfig, Norm, NormPlacement};

fn layer(window: Option<u64>) -> Layer {
    let mixer = Mixer::Attention(Attention { window, ..Attention::plain(8, 64) });
    let dense = Dense { width: 2048, gating: Gating::Gated(Activation::Silu), bias: false };
    let norms = Norms { kind: Norm::Rms, placement: NormPlacement::Pre };
    Layer { mixer, feed_forward: FeedForward::Dense(dense), norms }
}

fn model(name: &str) -> ModelConfig {
    shipped::named(name).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_window_in_every_second_layer_makes_two_kinds() {
    let layers = Layers::new(5, 0, 2, |place| layer((place % 2 == 1).then_some(128)));
    assert_eq!(layers.kinds(), [layer(None), layer(Some(128))]);
    assert_eq!(layers.ids().map(super::KindId::index).collect::<Vec<_>>(), [0, 1, 0, 1, 0]);
    assert_eq!(Layers::alike(layer(None), 5).kinds(), [layer(None)]);
}

#[test]
fn shipped_models_have_the_kinds_that_their_papers_describe() {
    // Gemma 2 (arXiv 2408.00118): local and global layers alternate; Gemma 3 (arXiv 2503.19786): five local ones for each global one;
    // DeepSeek-V3 (arXiv 2412.19437): three dense layers before 58 with experts; GPT-OSS (arXiv 2508.10925): windows alternate.
    for (name, kinds, first) in [
        ("llama-3.1-8b", 1, vec![0, 0]),
        ("mistral-7b-v0.1", 1, vec![0, 0]),
        ("gemma-2-9b", 2, vec![0, 1, 0, 1]),
        ("gemma-3-12b", 2, vec![0, 0, 0, 0, 0, 1, 0]),
        ("deepseek-v3", 2, vec![0, 0, 0, 1, 1]),
        ("gpt-oss-20b", 2, vec![0, 1, 0]),
    ] {
        let layers = model(name).layers;
        let list: Vec<usize> = layers.ids().map(super::KindId::index).take(first.len()).collect();
        assert_eq!((layers.kinds().len(), list), (kinds, first), "{name}");
    }
}

#[test]
fn fewer_layers_than_a_pattern_use_its_first_kinds() {
    let mut layers = model("deepseek-v3").layers;
    layers.resize(2);
    assert_eq!((layers.kinds().len(), layers.used().len()), (2, 1));
    layers.resize(100);
    assert_eq!((layers.used().len(), layers.iter().filter(|layer| layer.experts().is_some()).count()), (2, 97));
}

#[test]
fn a_layer_that_loses_its_window_is_of_the_kind_without_one() {
    let mut layers = model("gemma-2-9b").layers;
    layers.edit(|layer| layer.mixer = layer.mixer.with_window(None));
    assert_eq!(layers.kinds().len(), 1);
    assert!(layers.ids().all(|id| id.index() == 0) && layers.count() == 42);
}

#[test]
#[should_panic(expected = "differ in more than they may")]
fn kinds_with_other_heads_are_no_model_yet() {
    let heads = |place: u64| Mixer::Attention(Attention::plain(8 << place, 64));
    Layers::new(2, 2, 1, |place| Layer { mixer: heads(place.min(1)), ..layer(None) });
}

#[test]
fn parameters_are_sums_over_layers() {
    for name in shipped::names() {
        let model = model(name);
        let params = model.params();
        let layers: u64 = model.layers.iter().map(|layer| layer.params(model.width).0).sum();
        let ends = params.embedding + params.head + params.final_norm;
        assert_eq!(params.total, layers + ends + model.mtp_layers * params.ahead, "{name}");
    }
}

proptest! {
    #[test]
    fn a_list_is_what_the_function_of_the_place_says(count in 1_u64..60, first in 0_u64..6, windows in 1_u64..7) {
        let of = |place: u64| layer((place >= first && !(place + 1).is_multiple_of(windows)).then_some(64));
        let mut layers = Layers::new(count, first, windows, of);
        let kinds = layers.kinds().to_vec();
        prop_assert!((1..kinds.len()).all(|at| !kinds[..at].contains(&kinds[at])));
        for count in [count, 2 * count, 1] {
            layers.resize(count);
            prop_assert_eq!(layers.iter().count() as u64, count);
            prop_assert!((0..count).all(|place| *layers.at(place) == of(place)));
            prop_assert!(layers.iter().zip(layers.ids()).all(|(layer, id)| *layer == kinds[id.index()]));
            prop_assert_eq!(layers.last(), &of(count - 1));
            // Those that are used come first.
            let used: Vec<bool> = kinds.iter().map(|kind| layers.iter().any(|layer| layer == kind)).collect();
            prop_assert_eq!(used.iter().filter(|used| **used).count(), layers.used().len());
        }
    }
}
