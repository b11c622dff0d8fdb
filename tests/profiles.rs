//! `windtunnel profile`: what a merged profile says about itself.

use crate::command::Folder;

/// A shipped profile whose layout somebody measured.
fn measured() -> String {
    let text = include_str!("../calibrate/profiles/h200-sxm-141gb.toml");
    let (head, rest) = text.split_once("[layout]\n").expect("a layout");
    let evidence = rest.find("evidence").expect("its evidence");
    let basis = rest[evidence..].replacen("basis = \"published\"", "basis = \"measured\"", 1);
    let source = head.find("source = ").expect("the machine's source");
    format!("{}source = \"timed here\"\n# {}[layout]\n{}{basis}", &head[..source], &head[source..], &rest[..evidence])
}

#[test]
fn a_merged_profile_says_that_it_is_one() {
    let folder = Folder::new("a_merged_profile_says_that_it_is_one");
    folder.write("own.toml", &measured());
    let merge = |out| ["profile", "merge", "h200-sxm-141gb", "own.toml", "--out", out];
    assert!(folder.refuses(&merge("merged.json")).contains("ends in .toml"));
    let output = folder.windtunnel(&merge("both.toml"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let merged = String::from_utf8(folder.read("both.toml")).expect("text");
    let head = merged.split("[machine]").next().expect("a head");
    assert!(head.contains("name = \"both\"") && head.contains("a merge of h200-sxm-141gb and"), "{head}");
    assert!(!head.contains("import published") && !head.contains("Nothing here was measured"), "{head}");
    assert!(merged.contains("source = \"timed here\""), "the machine goes with what was measured on it");
    assert!(folder.windtunnel(&["profile", "show", "both.toml"]).status.success());
    // What was only published leaves the machine as it is.
    let output = folder.windtunnel(&["profile", "merge", "own.toml", "h200-sxm-141gb", "--out", "back.toml"]);
    assert!(output.status.success());
    assert!(String::from_utf8(folder.read("back.toml")).expect("text").contains("source = \"timed here\""));
}
