//! The library is what `sim/lib.rs` shows: few items, each with a comment. All other modules are hidden from its pages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Items that a user of the library may be shown.
const MOST: usize = 150;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// An item that the library shows: the path that it is taken from, and its name there.
struct Shown {
    path: Vec<String>,
    name: String,
}

/// What `sim/lib.rs` shows, and the modules that it has besides its layers.
struct Library {
    shown: Vec<Shown>,
    modules: Vec<String>,
    /// Layers that rustdoc shows.
    open: Vec<String>,
}

impl Library {
    fn read() -> Library {
        let text = fs::read_to_string(root().join("sim/lib.rs")).unwrap();
        let code: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
        let mut library = Library { shown: vec![], modules: vec![], open: vec![] };
        for (at, line) in code.iter().enumerate() {
            if let Some(name) = line.strip_prefix("pub mod ") {
                match name.strip_suffix(';') {
                    Some(layer) if !code[at - 1].contains("doc(hidden)") => library.open.push(layer.to_owned()),
                    Some(_) => {}
                    None => library.modules.push(name.trim_end_matches([' ', '{']).to_owned()),
                }
            }
        }
        for part in code.join(" ").split("pub use ").skip(1) {
            let tree = part.split(';').next().unwrap();
            let (path, names) = match tree.split_once('{') {
                Some((path, names)) => (path, names.trim_end_matches([' ', '}'])),
                None => tree.rsplit_once("::").unwrap(),
            };
            assert!(!names.contains(['{', '*']), "{tree}: name every item");
            let path: Vec<String> = path
                .split("::")
                .map(str::trim)
                .filter(|part| !part.is_empty() && *part != "crate")
                .map(str::to_owned)
                .collect();
            for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                let name = name.split(" as ").next().unwrap().to_owned();
                library.shown.push(Shown { path: path.clone(), name });
            }
        }
        library
    }
}

#[test]
fn the_library_shows_few_items() {
    let library = Library::read();
    assert!(library.open.is_empty(), "modules that are no part of the library are shown: {:?}", library.open);
    for Shown { path, name } in &library.shown {
        // `pub use scenario::predict` would show the module beside the function.
        let module = root().join("sim").join(path.join("/")).join(format!("{name}.rs"));
        assert!(!module.exists(), "{}::{name} is a module, too: name the item inside it", path.join("::"));
    }
    let count = library.shown.len() + library.modules.len();
    assert!(library.shown.len() > 50, "sim/lib.rs was not understood: {count} items");
    assert!(count <= MOST, "the library shows {count} items, more than {MOST}");
}

/// The source files of a layer.
fn sources(layer: &str) -> Vec<PathBuf> {
    let mut found = vec![root().join(format!("sim/{layer}.rs"))];
    let mut open = vec![root().join("sim").join(layer)];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found
}

/// Whether the item that a line defines has a comment: attributes may stand in between.
fn is_described(lines: &[&str], at: usize) -> bool {
    let mut above = lines[..at].iter().rev().map(|line| line.trim());
    above.find(|line| !line.starts_with("#[")).is_some_and(|line| line.starts_with("///"))
}

#[test]
fn every_item_of_the_library_is_described() {
    let kinds = ["struct", "enum", "fn", "trait", "type", "const"];
    let mut bare = BTreeSet::new();
    for Shown { path, name } in Library::read().shown {
        let starts: Vec<String> = kinds.iter().map(|kind| format!("pub {kind} {name}")).collect();
        let defines = |line: &str| {
            let rest = starts.iter().find_map(|start| line.strip_prefix(start.as_str()));
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
        };
        // A private file of the layer may have an item of the same name.
        let mut described = vec![];
        for file in sources(&path[0]) {
            let text = fs::read_to_string(&file).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            described.extend((0..lines.len()).filter(|&at| defines(lines[at])).map(|at| is_described(&lines, at)));
        }
        assert!(!described.is_empty(), "{}::{name} is defined nowhere", path.join("::"));
        if !described.contains(&true) {
            bare.insert(format!("{}::{name}", path.join("::")));
        }
    }
    assert!(bare.is_empty(), "without a comment: {bare:#?}");
}
