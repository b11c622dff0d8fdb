//! A word of a command, once values of variables are put in.

/// What stands in a word's text where only a shell knows.
pub const UNKNOWN: char = '$';

/// A word of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Its text.
    pub text: String,
    /// The line on which it is written, from 1.
    pub line: usize,
    /// Whether a part of it is not known.
    pub open: bool,
}

impl Word {
    /// Adds a part that only a shell knows.
    pub fn unknown(&mut self) {
        self.text.push(UNKNOWN);
        self.open = true;
    }
}
