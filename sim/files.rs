//! Files and the terminal: what is read has a limit, what is written is whole or not there, what is printed is plain text.

mod answers;
mod claims;
mod input;
mod journal;
mod output;
mod progress;
mod terminal;

#[cfg(test)]
pub(crate) mod page_tests;

pub use answers::{Answers, digest};
pub use claims::{end_early_when_interrupted, is_asked_to_end};
pub use input::{LONGEST, all, bytes, open, text};
pub use journal::{Journal, Place};
pub use output::{Output, STANDARD, WriteError, take_size_limits_as_errors};
pub use progress::{bar, be_quiet, is_quiet, note, spinner};
pub use terminal::{complain, one_line, plain, print, print_json};
