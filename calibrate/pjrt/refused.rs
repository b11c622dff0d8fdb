//! Why a compiler makes no program.

use super::buffers::Buffers;
use super::child::{self, Lost};
use super::error::Code;

/// Why there is no compiled program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CompileError {
    /// It does not fit into a device's memory: an answer, too.
    #[error("{message}")]
    OutOfMemory {
        /// What it would need \[B\], where the compiler says so.
        needed: Option<u64>,
        /// What there is \[B\], where the compiler says so.
        limit: Option<u64>,
        /// The compiler's words.
        message: String,
        /// How long it took to find out \[s\].
        seconds: f64,
        /// What would lie in memory at the peak, where the compiler gives an account of it.
        account: Option<Box<Buffers>>,
    },
    /// The compiler says no for another reason.
    #[error("{call}: {code}: {message}")]
    Refused {
        /// The function that was called.
        call: String,
        /// The kind of error.
        code: Code,
        /// The compiler's words.
        message: String,
    },
    /// The compiler has no flags of these names.
    #[error("the compiler has no flag {}: leave it out, or try another version (`windtunnel calibrate plugins list`)", .0.join(", "))]
    Lacks(Vec<String>),
    /// The plugin cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The plugin died, or was too slow.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Input(String),
    /// Somebody asked to stop.
    #[error("interrupted: the compiler was ended, and nothing is kept of it")]
    Interrupted,
}

impl CompileError {
    /// The flags that this version of the compiler does not have, where that is why it refuses: libtpu reads all flags before
    /// anything else and names each that it does not know, other compilers name the first.
    pub fn lacking_options(&self) -> Vec<String> {
        match self {
            Self::Lacks(names) => names.clone(),
            Self::Refused { message, .. } => named_after(message, "No such compile option:"),
            _ => vec![],
        }
    }

    /// The flag that the compiler asks to be set otherwise, with the value it asks for, where that is why it refuses: such as an
    /// optimisation that is on by a group of flags, and not for this chip.
    pub fn asks_for(&self) -> Option<(String, String)> {
        let Self::Refused { message, .. } = self else { return None };
        let (_, after) = message.split_once("disable it with ")?;
        let flag = after.split_whitespace().next()?.trim_start_matches('-').trim_end_matches(['.', ',']);
        flag.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    }
}

/// Why a process gave no answer: libtpu ends it where it does not know a flag.
pub(super) fn ended(status: Option<std::process::ExitStatus>, said: String) -> CompileError {
    let unknown = named_after(&said, "Unknown command line flag");
    if unknown.is_empty() { child::died(status, said).into() } else { CompileError::Lacks(unknown) }
}

/// Names of flags, each behind the same words.
fn named_after(said: &str, words: &str) -> Vec<String> {
    let name = |after: &str| -> Option<String> {
        let after = after.trim_start().trim_start_matches(['\'', '"', '`', '-']);
        let name = after.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next()?;
        (!name.is_empty()).then(|| name.to_owned())
    };
    said.split(words).skip(1).filter_map(name).collect()
}
