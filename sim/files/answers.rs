//! A file of answers by question: what was asked of this very program before is not worked out again.
//!
//! Each answer is a line that is there whole or not at all, so that whatever ends the program keeps all that it had. Another build of the
//! program might answer otherwise, so it begins anew.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write};
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::journal::{Journal, Place};
use super::output::WriteError;

/// The file's first line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    /// The build that answered, by what its executable holds.
    answers_of_windtunnel: String,
}

/// An answer.
#[derive(Serialize, Deserialize)]
struct Line {
    asked: String,
    said: String,
}

/// Answers that are known, and the file to which new ones go.
#[derive(Debug)]
pub struct Answers {
    known: BTreeMap<String, String>,
    /// Questions that it had an answer to.
    found: AtomicUsize,
    /// The first failure to write ends the writing, not the work.
    journal: Mutex<(Journal, Option<WriteError>)>,
}

impl Answers {
    /// Opens a file of answers, or makes it. One that is something else is left as it is.
    pub fn open(path: &Path) -> Result<Answers, WriteError> {
        let failed = |why| WriteError { path: path.to_owned(), why };
        let head = Head { answers_of_windtunnel: build().map_err(failed)? };
        let (mut journal, held) = Place::take(path)?.open()?;
        let mut lines = held.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let first = lines.next().unwrap_or(&held);
        let mut known = BTreeMap::new();
        match serde_json::from_slice::<Head>(first) {
            Ok(there) if there == head => {
                let mut whole = first.len();
                for line in lines {
                    let Ok(Line { asked, said }) = serde_json::from_slice(line) else { break };
                    whole += line.len();
                    known.insert(asked, said);
                }
                // A machine that lost its power may have left half a line.
                if whole < held.len() {
                    journal.cut(whole as u64)?;
                }
            }
            Err(_) if !held.is_empty() => {
                return Err(failed(io::Error::other("it holds no answers of windtunnel: name another file")));
            }
            _ => {
                journal.cut(0)?;
                journal.append(&written(&head))?;
            }
        }
        Ok(Answers { known, found: AtomicUsize::new(0), journal: Mutex::new((journal, None)) })
    }

    /// What was said to a question.
    pub fn get<T: for<'a> Deserialize<'a>>(&self, asked: &str) -> Option<T> {
        let said = serde_json::from_str(self.known.get(asked)?).ok();
        self.found.fetch_add(usize::from(said.is_some()), Ordering::Relaxed);
        said
    }

    /// How many questions it had an answer to.
    pub fn found(&self) -> usize {
        self.found.load(Ordering::Relaxed)
    }

    /// Writes an answer down.
    pub fn keep<T: Serialize>(&self, asked: &str, said: &T) {
        let line = written(&Line { asked: asked.to_owned(), said: written(said) });
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        if journal.1.is_none() {
            journal.1 = journal.0.append(&line).err();
        }
    }

    /// Ends the writing; an error if something could not be written.
    pub fn finish(self) -> Result<(), WriteError> {
        let (journal, failure) = self.journal.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or_else(|| journal.finish(), Err)
    }
}

/// A value in sixteen digits, the same in every run of this build: for questions that are long.
pub fn digest(value: &impl Debug) -> String {
    struct Hash(DefaultHasher);
    impl Write for Hash {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut hash = Hash(DefaultHasher::new());
    write!(hash, "{value:?}").expect("a hash takes all that is written");
    format!("{:016x}", hash.0.finish())
}

/// Something of ours as a line of JSON.
fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("it has no keys but text")
}

/// This build of the program, by its executable: a hash, which tells builds apart and keeps no secret.
fn build() -> io::Result<String> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(std::env::current_exe()?)?);
    let (mut hash, mut part) = (DefaultHasher::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut part)? {
            0 => return Ok(format!("{} {:016x}", env!("CARGO_PKG_VERSION"), hash.finish())),
            read => hash.write(&part[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_answer_is_there_when_it_is_asked_again() {
        let folder = tempfile::tempdir().expect("it works");
        let path = folder.path().join("answers.jsonl");
        let answers = Answers::open(&path).expect("it works");
        assert_eq!(answers.get::<u32>("how many?"), None);
        answers.keep("how many?", &7);
        answers.keep("what for?", &Some("a test"));
        answers.finish().expect("it works");
        // Half a line, as a lost machine leaves one.
        let whole = fs::read_to_string(&path).expect("it works");
        fs::write(&path, format!("{whole}{{\"asked\":\"and")).expect("it works");
        let answers = Answers::open(&path).expect("it works");
        assert_eq!(answers.get("how many?"), Some(7));
        assert_eq!(answers.get("what for?"), Some(Some("a test".to_owned())));
        assert_eq!((answers.get::<u32>("why?"), answers.found()), (None, 2));
        answers.finish().expect("it works");
        assert_eq!(fs::read_to_string(&path).expect("it works"), whole);
    }

    #[test]
    fn another_build_s_answers_do_not_count_and_other_files_are_left_alone() {
        let folder = tempfile::tempdir().expect("it works");
        let path = folder.path().join("answers.jsonl");
        fs::write(&path, "{\"answers_of_windtunnel\":\"0.1.0 00\"}\n{\"asked\":\"how many?\",\"said\":\"7\"}\n")
            .expect("it works");
        let answers = Answers::open(&path).expect("it works");
        assert_eq!(answers.get::<u32>("how many?"), None);
        answers.finish().expect("it works");
        assert_eq!(fs::read_to_string(&path).expect("it works").lines().count(), 1);
        for other in ["a note\n", "half", "{\"name\": \"a receipt\"}\n"] {
            fs::write(&path, other).expect("it works");
            let why = Answers::open(&path).expect_err("it is no file of answers").to_string();
            assert!(why.contains("no answers of windtunnel"), "{why}");
            assert_eq!(fs::read_to_string(&path).expect("it works"), other);
        }
    }
}
