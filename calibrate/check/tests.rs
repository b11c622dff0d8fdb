//! Flags that a version of the compiler does not have are left out, and said to be.

use std::cell::RefCell;

use windtunnel::scenario::Scenario;

use super::*;
use crate::pjrt::error::Code;

const FLAGS: [&str; 3] = ["xla_old", "xla_gone", "xla_new"];

fn question() -> Question {
    let text = include_str!("../../scenarios/two-narrow-blocks-4xv6e.toml");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios/two-narrow-blocks-4xv6e.toml");
    // Any file: nothing is loaded here.
    let plugin = Plugin::named(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), Path::new("")).expect("a file");
    let flags = FLAGS.map(|name| (name.to_owned(), "true".to_owned())).into();
    Question {
        scenario: Scenario::parse(file, text).expect("shipped"),
        program: "emitted".to_owned(),
        target: Target { plugin, slice: None, partitions: 4, flags },
        dropped: vec![],
        set: vec![],
        stand_ins: true,
    }
}

/// A compiler that has some flags, and names the first that it does not have.
fn compiler<'c>(
    has: &'c [&str],
    asked: &'c RefCell<Vec<usize>>,
) -> impl Fn(&Target) -> Result<Compiler, CompileError> + 'c {
    |target| {
        asked.borrow_mut().push(target.flags.len());
        match target.flags.keys().find(|name| !has.contains(&name.as_str())) {
            Some(name) => Err(CompileError::Refused {
                call: "PJRT_Compile".to_owned(),
                code: Code(3),
                message: format!("No such compile option: {name}"),
            }),
            None => Ok(Compiler::OutOfMemory {
                needed: None,
                limit: None,
                message: String::new(),
                seconds: 0.0,
                account: None,
            }),
        }
    }
}

#[test]
fn flags_that_the_compiler_does_not_have_are_left_out_one_after_the_other() {
    let (mut question, asked) = (question(), RefCell::new(vec![]));
    assert!(with_its_flags(&mut question, &[], compiler(&["xla_new"], &asked)).is_ok());
    assert_eq!(question.dropped, ["xla_gone", "xla_old"]);
    assert_eq!(question.target.flags.keys().collect::<Vec<_>>(), ["xla_new"]);
    assert_eq!(*asked.borrow(), [3, 2, 1]);
}

#[test]
fn a_flag_that_the_compiler_wants_otherwise_is_set_once() {
    let mut question = question();
    let asked = RefCell::new(0);
    let wants = |target: &Target| {
        *asked.borrow_mut() += 1;
        match target.flags["xla_new"].as_str() {
            "false" => Ok(Compiler::OutOfMemory {
                needed: None,
                limit: None,
                message: String::new(),
                seconds: 0.0,
                account: None,
            }),
            _ => Err(CompileError::Refused {
                call: "PJRT_Compile".to_owned(),
                code: Code(9),
                message: "it is enabled. Please disable it with xla_new=false ".to_owned(),
            }),
        }
    };
    assert!(with_its_flags(&mut question, &[], wants).is_ok());
    assert_eq!((question.set, *asked.borrow()), (vec!["xla_new=false".to_owned()], 2));
}

#[test]
fn a_flag_that_the_user_gave_is_refused_where_the_compiler_does_not_have_it() {
    let (mut question, asked) = (question(), RefCell::new(vec![]));
    let refused = with_its_flags(&mut question, &["xla_gone"], compiler(&["xla_new", "xla_old"], &asked));
    let said = refused.map(|_| ()).expect_err("the user's").to_string();
    assert!(said.contains("--flag xla_gone") && said.contains("has no such flag"), "{said}");
    assert!(question.dropped.is_empty());
}
