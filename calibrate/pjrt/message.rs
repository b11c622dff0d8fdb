//! What is asked of the process that holds a plugin, and what it answers; an answer is also what the cache keeps.
//!
//! Each is one line of JSON; after a request's line comes the program, after an answer's the compiled one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::buffers::Buffers;
use super::ffi::Setting;
use super::memory::MemoryStats;

/// What an answer's line begins with: plugins print, too.
pub const MARK: &[u8] = b"windtunnel-compiled ";

/// A program to compile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The plugin's file.
    pub plugin: PathBuf,
    /// The topology's name and options; none to compile for the devices that are here.
    pub topology: Option<(String, Vec<(String, Setting)>)>,
    /// Options of the devices' client.
    pub client: Vec<(String, Setting)>,
    /// Compile options, encoded.
    pub options: Vec<u8>,
    /// Flags that the process was started with, in a variable that the plugin reads.
    pub flags: BTreeMap<String, String>,
    /// The program's format, as PJRT calls it.
    pub format: String,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Answer {
    /// It compiles.
    Compiled(Facts),
    /// The compiler says no.
    Refused {
        /// The kind of error, as `absl::StatusCode`.
        code: i32,
        /// The function that was called.
        call: String,
        /// The compiler's words.
        message: String,
        /// How long it took to say so \[s\].
        seconds: f64,
        /// What would lie in memory at the peak, which whoever started the process reads and adds.
        account: Option<Buffers>,
    },
    /// The plugin cannot be used.
    Unusable(String),
}

/// What a compiler says of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// What it needs of a device's memory.
    pub memory: MemoryStats,
    /// The compiler's own estimate of costs, by its names.
    pub cost: Vec<(String, f64)>,
    /// How long it took \[s\].
    pub seconds: f64,
    /// Which compiler, in its words.
    pub compiler: String,
    /// The format of the compiled program.
    pub format: String,
    /// Bytes of the compiled program, which follow.
    pub bytes: usize,
    /// What lies in memory at the peak, which whoever started the process reads and adds.
    pub account: Option<Buffers>,
}

/// An answer as it is sent and kept.
pub fn framed(answer: &Answer, program: &[u8]) -> Vec<u8> {
    let mut bytes = MARK.to_vec();
    bytes.extend(serde_json::to_vec(answer).expect("an answer has no keys but strings"));
    bytes.push(b'\n');
    bytes.extend(program);
    bytes
}

/// Reads an answer; none if it is not whole.
pub fn unframed(bytes: &[u8]) -> Option<(Answer, &[u8])> {
    let at = bytes.windows(MARK.len()).position(|window| window == MARK)? + MARK.len();
    let end = at + bytes[at..].iter().position(|byte| *byte == b'\n')?;
    let answer = serde_json::from_slice(&bytes[at..end]).ok()?;
    let rest = &bytes[end + 1..];
    match &answer {
        Answer::Compiled(facts) => Some(rest.get(..facts.bytes)?).map(|program| (answer.clone(), program)),
        Answer::Refused { .. } | Answer::Unusable(_) => Some((answer, &[])),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_among_what_a_plugin_prints_and_a_half_one_is_none() {
        let answer = Answer::Refused {
            code: 8,
            call: "Compile".into(),
            message: "too\nlarge".into(),
            seconds: 1.5,
            account: None,
        };
        let mut bytes = b"I1121 plugin says hello\n".to_vec();
        bytes.extend(framed(&answer, b""));
        assert_eq!(unframed(&bytes).unwrap().0, answer);
        let whole = framed(&answer, b"");
        assert!(unframed(&whole[..whole.len() - 1]).is_none());
        assert!(unframed(b"").is_none());
    }
}
