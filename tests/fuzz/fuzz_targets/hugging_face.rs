//! Hugging Face's `config.json`, and what is counted of the model it describes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use windtunnel::model::huggingface;

fuzz_target!(|text: &str| {
    if let Ok(model) = huggingface::parse(text, "config.json") {
        let params = model.params();
        assert!(params.total > 0 && params.active <= params.total, "{params:?}");
        let _ = model.layers.iter().take(64).map(|layer| (layer.window(), layer.mixer.score_width())).count();
    }
});
