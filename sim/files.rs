//! Files and the terminal: what is read has a limit, what is written is whole or not there, what is printed is plain text.

mod input;
mod output;
mod terminal;

pub use input::{LONGEST, all, bytes, text};
pub use output::{Output, WriteError};
pub use terminal::{complain, one_line, plain, print, print_json};
