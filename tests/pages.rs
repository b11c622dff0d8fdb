//! Pages of `docs/` that are generated: each says what the code says, or a test fails.

use std::fs;
use std::path::Path;

/// Fails where a page says something else than it should, unless `UPDATE` is set: then the page is written.
#[track_caller]
pub fn fresh(path: &str, text: &str, of: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, text).unwrap();
    }
    let shown = fs::read_to_string(&file).unwrap_or_default();
    assert!(shown == text, "{path} says something else than {of}: UPDATE=1 cargo test --test all writes it");
}
