//! Hugging Face's `config.json`, and what is counted of the model it describes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use windtunnel::model::huggingface;

fuzz_target!(|text: &str| {
    if let Ok(model) = huggingface::parse(text, "config.json") {
        let _ = (model.params(), model.norms_per_block(), model.attention_width(), model.expert_blocks());
        let _ = (0..model.layers.min(64)).map(|layer| (model.window(layer), model.experts_in(layer).is_some())).count();
    }
});
