//! Damaged configurations: cut, with bytes changed, nested without end. Each is read, or refused with its file's name; none panics.

use proptest::prelude::*;
use windtunnel::import::{IMPORTERS, Machine, Request, import, recognise};

use super::{Line, lines};

/// Imports a damaged text; an error names the file.
fn read(line: &Line, text: &str) {
    if let Err(error) = line.import(text) {
        let name = line.config.rsplit('/').next().unwrap();
        assert!(
            error.contains(name) || error.contains("the command line") || error.contains("such as: "),
            "{}: {error}",
            line.config
        );
    }
    let _ = recognise(&line.config, text);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_configuration_that_is_cut_is_read_or_refused(at in any::<prop::sample::Index>(), cut in any::<prop::sample::Index>()) {
        let lines = lines();
        let line = &lines[at.index(lines.len())];
        let text = line.text();
        let mut end = cut.index(text.len() + 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        read(line, &text[..end]);
    }

    #[test]
    fn a_configuration_with_other_bytes_is_read_or_refused(
        at in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let lines = lines();
        let line = &lines[at.index(lines.len())];
        let mut bytes = line.text().into_bytes();
        for (place, byte) in flips {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        read(line, &String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_number_of_any_size_is_read_or_refused(at in any::<prop::sample::Index>(), which in any::<prop::sample::Index>(), with in any::<i64>()) {
        let lines = lines();
        let line = &lines[at.index(lines.len())];
        let text = line.text();
        let starts: Vec<usize> = text.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).collect();
        prop_assume!(!starts.is_empty());
        let start = starts[which.index(starts.len())];
        let end = start + text[start..].find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len() - start);
        read(line, &format!("{}{with}{}", &text[..start], &text[end..]));
    }
}

#[test]
fn what_is_no_configuration_is_refused_by_every_importer() {
    let deep = [("[", 60_000), ("{\"a\":", 60_000), ("a: {", 60_000), ("(", 60_000), ("- ", 60_000), ("$((", 60_000)];
    let mut texts: Vec<String> = deep.iter().map(|(part, times)| part.repeat(*times)).collect();
    texts.extend(
        [
            "",
            "\u{0}\u{1}\u{2}",
            "a: &a [*a]",
            "&a a: *a",
            "a: &x {b: *x}\nc: *x",
            "<<: *x",
            "!!python/object:os.system x",
            "a: !!binary aGk=",
        ]
        .map(str::to_owned),
    );
    // An anchor that doubles what it names, thirty times.
    let bomb: String = (1..30)
        .fold("a0: &a0 [x, x]\n".to_owned(), |all, at| format!("{all}a{at}: &a{at} [*a{}, *a{}]\n", at - 1, at - 1));
    texts.push(bomb);
    let machine = Machine { on: Some("h100-sxm-80gb".to_owned()), nodes: Some(1), ..Machine::default() };
    for importer in IMPORTERS {
        for text in &texts {
            let request = Request { file: "a.cfg", text, machine: machine.clone(), ..Request::default() };
            // No key at all is a configuration of torchtitan's: its defaults.
            if let Err(error) = import(importer, &request) {
                let error = error.to_string();
                assert!(error.contains("a.cfg") || error.contains("--slice"), "{}: {error}", importer.name);
            } else {
                assert!(text.is_empty(), "{}: {text:.40}", importer.name);
            }
        }
    }
}
