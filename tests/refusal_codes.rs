//! Names of what is not simulated: each is of one refusal, in letters that scripts can rely on, and none goes by accident.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a refusal's name stands behind in the source.
const NEW: &str = "Refusal::new(";

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// Names of all refusals in `sim/`, with how often each stands there.
fn codes() -> BTreeMap<String, u32> {
    let mut files = vec![];
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("sim"), &mut files);
    let mut codes = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for rest in text.split(NEW).skip(1) {
            let quoted =
                rest.trim_start().strip_prefix('"').unwrap_or_else(|| panic!("{}: {rest:.60}", file.display()));
            *codes.entry(quoted.split('"').next().unwrap().to_owned()).or_default() += 1;
        }
    }
    codes
}

#[test]
fn every_refusal_has_a_name_of_its_own_which_the_list_has() {
    let codes = codes();
    for (code, times) in &codes {
        assert_eq!(*times, 1, "{code} is the name of several refusals");
        let kebab = code
            .split('-')
            .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()));
        assert!(kebab, "{code}: write small letters and digits with dashes between");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refusal_codes.txt");
    let found = codes.keys().map(|code| format!("{code}\n")).collect::<String>();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let listed = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        listed, found,
        "a name that scripts may rely on has come or gone: UPDATE=1 writes tests/refusal_codes.txt"
    );
}
