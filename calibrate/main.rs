//! Placeholder so the workspace builds; replaced by the importer's command line.
fn main() {}
