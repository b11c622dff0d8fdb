//! Paths that a scenario names.

use std::path::{Path, PathBuf};

/// A path as written, relative to the scenario's folder if it is one that exists there; a shipped name as it is.
pub(crate) fn relative(file: &str, name: &str) -> String {
    let beside: PathBuf = Path::new(file).parent().map_or_else(|| name.into(), |folder| folder.join(name));
    if beside.is_file() { beside.display().to_string() } else { name.to_owned() }
}
