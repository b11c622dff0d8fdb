//! Whatever ends the program, the file of points stays whole.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use super::*;

fn machine() -> Machine {
    Machine::example()
}

fn point(call: &str) -> Point {
    Point::published(What::Overhead { call: call.to_owned() }, 2.0, 12)
}

/// A path of its own for a test.
fn path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("windtunnel-journal-{}-{name}.jsonl", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn a_resumed_file_knows_what_was_measured_and_says_the_machine_once() {
    let path = path("resumed");
    Journal::open(&path, &machine()).unwrap().add(point("launch")).unwrap();
    let later = Machine { date: "2026-01-02T00:00:00Z".to_owned(), ..machine() };
    let mut journal = Journal::open(&path, &later).unwrap();
    assert!(journal.knows(&point("launch").what, Regime::Burst));
    assert!(!journal.knows(&point("launch").what, Regime::Sustained));
    journal.add(point("event_record")).unwrap();
    drop(journal);
    let read = points::read(&path).unwrap();
    assert_eq!((read.machines.len(), read.points.len()), (1, 2));
}

#[test]
fn a_line_that_an_interrupt_cut_short_is_measured_again() {
    let path = path("cut");
    Journal::open(&path, &machine()).unwrap().add(point("launch")).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut cut = whole.clone();
    cut.extend_from_slice(br#"{"point":{"what":{"overhead":{"call":"graph"#);
    std::fs::write(&path, &cut).unwrap();
    let journal = Journal::open(&path, &machine()).unwrap();
    assert_eq!(journal.len(), 1);
    drop(journal);
    assert_eq!(std::fs::read(&path).unwrap(), whole);
}

#[test]
fn a_file_that_a_lost_file_system_padded_with_zeros_is_gone_on_with() {
    let path = path("padded");
    Journal::open(&path, &machine()).unwrap().add(point("launch")).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for torn in [&b""[..], br#"{"point":{"what":{"over"#, b"\n\n"] {
        let padded = [&whole, torn, &[0; 4096]].concat();
        std::fs::write(&path, &padded).unwrap();
        let mut journal = Journal::open(&path, &machine()).unwrap();
        assert_eq!(journal.len(), 1);
        journal.add(point("event_record")).unwrap();
        assert_eq!(points::read(&path).unwrap().points.len(), 2);
    }
}

#[test]
fn a_line_that_lacks_nothing_but_its_end_is_kept() {
    let path = path("end");
    Journal::open(&path, &machine()).unwrap().add(point("launch")).unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let mut journal = Journal::open(&path, &machine()).unwrap();
    assert!(journal.knows(&point("launch").what, Regime::Burst));
    journal.add(point("event_record")).unwrap();
    assert_eq!(points::read(&path).unwrap().points.len(), 2);
    assert!(std::fs::read(&path).unwrap().starts_with(&whole));
}

#[test]
fn what_was_measured_beside_others_is_measured_again_alone() {
    let path = path("beside");
    let shared = Machine { disturbed: Some("a trainer".to_owned()), ..machine() };
    Journal::open(&path, &shared).unwrap().add(point("launch")).unwrap();
    assert!(Journal::open(&path, &shared).unwrap().knows(&point("launch").what, Regime::Burst));
    assert!(!Journal::open(&path, &machine()).unwrap().knows(&point("launch").what, Regime::Burst));
}

#[test]
fn an_updated_driver_starts_a_new_machine_line() {
    let path = path("driver");
    Journal::open(&path, &machine()).unwrap().add(point("launch")).unwrap();
    let updated = Machine { versions: [("driver".to_owned(), "590.1".to_owned())].into(), ..machine() };
    Journal::open(&path, &updated).unwrap().add(point("event_record")).unwrap();
    let read = points::read(&path).unwrap();
    assert_eq!(read.points.iter().map(|(machine, _)| *machine).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn points_of_another_chip_or_power_limit_are_refused_and_left_alone() {
    let path = path("other");
    Journal::open(&path, &machine()).unwrap().add(point("launch")).unwrap();
    let before = std::fs::read(&path).unwrap();
    for other in [
        Machine { chip: "another".to_owned(), ..machine() },
        Machine { power_limit: Some(500.0), ..machine() },
        Machine { processors: 114, ..machine() },
    ] {
        let Err(Refused::Input(why)) = Journal::open(&path, &other).map(|_| ()) else { panic!("accepted") };
        assert!(why.contains("another machine"), "{why}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_file_that_is_something_else_is_not_touched() {
    let path = path("else");
    for text in ["[profile]\nname = 1\n", "no newline at all", "{\"machine\": 5}\n"] {
        std::fs::write(&path, text).unwrap();
        assert!(matches!(Journal::open(&path, &machine()).map(|_| ()), Err(Refused::Input(_))), "{text}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn two_programs_never_write_to_one_file() {
    let path = path("locked");
    let first = Journal::open(&path, &machine()).unwrap();
    assert!(matches!(Journal::open(&path, &machine()).map(|_| ()), Err(Refused::Busy(_))));
    drop(first);
    Journal::open(&path, &machine()).unwrap();
}

#[test]
fn a_file_longer_than_any_is_refused_before_it_fills_memory() {
    let path = path("long");
    std::fs::File::create(&path).unwrap().set_len(files::LONGEST + 1).unwrap();
    let refused = Journal::open(&path, &machine()).map(drop);
    let Err(Refused::Input(why)) = refused else { panic!("it is refused") };
    assert!(why.contains("longer than 256 MiB"), "{why}");
    std::fs::remove_file(path).unwrap();
}
