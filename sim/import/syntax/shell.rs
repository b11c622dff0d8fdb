//! Launch scripts: variables that are plainly assigned are put in, and the words of each command come out with their lines.
//!
//! Nothing is run. Of `$(…)`, functions and tests nothing is known: a word that needs one is marked as open. Of branches the first
//! assignment holds.

mod expand;
mod lex;
mod word;

use std::collections::BTreeMap;

use super::MOST;
use crate::import::error::ImportError;
use expand::Variables;
use lex::Item;
pub use word::{UNKNOWN, Word};

/// A value in place of what only a shell knows.
pub const OPEN: &str = "(only the shell knows)";

/// A script's commands, each a list of words, and what was not evaluated.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Commands in order.
    pub commands: Vec<Vec<Word>>,
    /// Variables of one word that is known.
    pub values: BTreeMap<String, Word>,
    /// Variables that a branch assigns, too: the script's conditions are not evaluated.
    pub branches: Vec<String>,
}

fn syntax(file: &str, line: usize, problem: impl Into<String>) -> ImportError {
    let remedy = "write the arguments alone into a file, one or more a line: --num-layers 32 …".to_owned();
    ImportError::Syntax { place: format!("{file}:{line}"), problem: problem.into(), remedy }
}

/// The commands of a script.
pub fn read(file: &str, text: &str) -> Result<Script, ImportError> {
    let items = lex::items(text).map_err(|(line, problem)| syntax(file, line, problem))?;
    let mut variables = Variables::default();
    let mut script = Script::default();
    let (mut depth, mut total) = (0usize, 0usize);
    for item in items {
        match item {
            Item::Opens => depth += 1,
            Item::Closes => depth = depth.saturating_sub(1),
            Item::Assign { name, append, words, quoted, line } => {
                let value = variables.words(&words, quoted);
                let value = value.map_err(|problem| syntax(file, line, problem))?;
                if depth > 0 && !append && variables.has(&name) {
                    script.branches.push(name);
                    continue;
                }
                if depth > 0 {
                    script.branches.push(name.clone());
                }
                variables.set(&name, value, append).map_err(|problem| syntax(file, line, problem))?;
            }
            Item::Command(words) => {
                let line = words.first().map_or(1, |word| word.line);
                let words = variables.words(&words, false).map_err(|problem| syntax(file, line, problem))?;
                total += words.len();
                if total > MOST {
                    return Err(syntax(file, line, format!("the script has more than {MOST} words")));
                }
                script.commands.push(words);
            }
        }
    }
    script.values = variables.single();
    script.branches.sort();
    script.branches.dedup();
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of the last command, those that are open with a question mark behind them.
    fn last(text: &str) -> String {
        let script = read("a.sh", text).expect("it is read");
        let words = script.commands.last().expect("there is a command").iter();
        words.map(|word| format!("{}{}", word.text, if word.open { "?" } else { "" })).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn variables_and_arrays_are_put_in_where_they_are_plainly_assigned() {
        let text = "TP=8\nexport PP=${PP:-4}\nARGS=(\n  --tp $TP # tensor\n  --pp ${PP}\n)\npython a.py \"${ARGS[@]}\" \\\n --name \"a b\"\n";
        assert_eq!(last(text), "python|a.py|--tp|8|--pp|4|--name|a b");
    }

    #[test]
    fn text_of_several_words_is_split_unless_it_is_quoted() {
        assert_eq!(last("A=\"--x 1 \\\n --y 2\"\nA+=\" --z\"\nrun $A '$A'"), "run|--x|1|--y|2|--z|$A");
    }

    #[test]
    fn sums_are_computed_and_what_only_a_shell_knows_is_open() {
        assert_eq!(last("N=4\nW=$((8 * (N + 1)))\nrun $W $(hostname) $1 ${2:-7} $UNSET"), "run|40|$?|$?|7|$?");
    }

    #[test]
    fn the_first_assignment_holds_where_a_branch_assigns_too() {
        let text = "X=1\nif [ -z \"$X\" ]; then\n  X=2\n  Y=3\nfi\nrun $X $Y > log 2>&1";
        assert_eq!(last(text), "run|1|3");
        assert_eq!(read("a.sh", text).expect("it is read").branches, ["X", "Y"]);
    }

    #[test]
    fn a_word_keeps_the_line_on_which_it_is_written() {
        let script = read("a.sh", "A=\"--x 1\n --y 2\"\n\nrun $A").expect("it is read");
        let lines: Vec<usize> = script.commands[0].iter().map(|word| word.line).collect();
        assert_eq!(lines, [4, 1, 1, 2, 2]);
    }

    #[test]
    fn quotes_that_never_end_and_variables_that_grow_without_end_are_errors() {
        for (text, place) in
            [("a \"b", "a.sh:1"), ("x=(a b\n", "a.sh:1"), ("\na ${b", "a.sh:2"), ("echo $((1+\n", "a.sh:1")]
        {
            let error = read("a.sh", text).expect_err(text).to_string();
            assert!(error.starts_with(place), "{text:?}: {error}");
        }
        let bomb = format!("A=xxxxxxxxxxxxxxxx\n{}", "A=$A$A$A$A$A$A$A$A\n".repeat(12));
        let error = read("a.sh", &bomb).expect_err("it grows").to_string();
        assert!(error.contains("longer than"), "{error}");
    }

    #[test]
    fn what_a_script_becomes_is_bounded_however_it_is_split() {
        // Each value is short of what a variable may have; a command names it a hundred times.
        let line = format!("A=\"{}\"\n", "x".repeat(1_000_000));
        let uses = |how: &str| format!("{line}{}", format!("run {how}\n").repeat(100));
        let copies: String = (0..100).map(|at| format!("B{at}=\"$A\"\n")).collect();
        for (text, why) in [
            (uses("\"$A\""), "the script becomes longer"),
            (uses("$A"), "the script becomes longer"),
            (format!("{line}{copies}"), "the script becomes longer"),
        ] {
            let error = read("a.sh", &text).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
