//! The terminal: text that a file or a user brings along cannot move the cursor, change colours or turn the direction of reading.

use std::fmt::Write as _;
use std::io::{self, Write as _};

/// Whether a terminal would do something with a character rather than show it: C0 and C1 controls, and Unicode's controls of
/// direction (Unicode Standard Annex 9).
fn acts(c: char) -> bool {
    let direction =
        matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    direction || c.is_control() && !matches!(c, '\n' | '\t')
}

/// A text whose acting characters are written out, as `\u{1b}`.
pub fn plain(text: &str) -> String {
    escaped(text, |out, c| _ = write!(out, "{}", c.escape_unicode()))
}

fn escaped(text: &str, escape: impl Fn(&mut String, char)) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) { escape(&mut out, c) } else { out.push(c) }
    }
    out
}

fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints a text to standard output.
pub fn print(text: &str) -> io::Result<()> {
    put(&plain(text))
}

/// Prints JSON to standard output. What acts on a terminal can only be within strings, which have an escape of their own.
pub fn print_json(text: &str) -> io::Result<()> {
    put(&escaped(text, |out, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }))
}

/// Prints a line to standard error. Where that fails there is nobody left to tell.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{}", plain(line));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_overrides_of_direction_are_written_out() {
        assert_eq!(plain("a\u{1b}[31mb\u{202e}c\u{9b}d\re\n\tf"), "a\\u{1b}[31mb\\u{202e}c\\u{9b}d\\u{d}e\n\tf");
        assert_eq!(plain("Größe · 8 × H100 → 中文"), "Größe · 8 × H100 → 中文");
    }
}
