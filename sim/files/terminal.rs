//! The terminal: text that a file or a user brings along cannot move the cursor, change colours or turn the direction of reading.

use std::fmt::Write as _;
use std::io::{self, Write as _};

/// Whether a terminal would do something with a character rather than show it: C0 and C1 controls, Unicode's controls of
/// direction (Unicode Standard Annex 9), its separators of lines, and what has no width at all.
fn acts(c: char) -> bool {
    let direction =
        matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let unseen = matches!(c, '\u{00ad}' | '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2064}' | '\u{feff}');
    direction || unseen || c.is_control() && !matches!(c, '\n' | '\t')
}

/// A text whose acting characters are written out, as `\u{1b}`.
pub fn plain(text: &str) -> String {
    escaped(text, |out, c| _ = write!(out, "{}", c.escape_unicode()))
}

/// The same of a text that has its place in a line, such as a name: whatever ends a line or leaves a gap in it is a space.
pub fn one_line(text: &str) -> String {
    let breaks = |c: char| matches!(c, '\n' | '\r' | '\t' | '\u{0b}' | '\u{0c}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    plain(&text.replace(breaks, " "))
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

/// Prints a line to standard error, or several. Where that fails there is nobody left to tell.
pub fn complain(text: &str) {
    let text: Vec<String> = text.split('\n').map(shortened).collect();
    let _ = writeln!(io::stderr(), "{}", plain(&text.join("\n")));
}

/// Characters of a line that are shown to somebody who reads it.
const LONGEST_LINE: usize = 4000;

/// A line, or so much of one as is read: what a file holds may be in it.
fn shortened(line: &str) -> String {
    match line.char_indices().nth(LONGEST_LINE) {
        None => line.to_owned(),
        Some((at, _)) => format!("{} … ({} more bytes)", &line[..at], line.len() - at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_overrides_of_direction_are_written_out() {
        assert_eq!(plain("a\u{1b}[31mb\u{202e}c\u{9b}d\re\n\tf"), "a\\u{1b}[31mb\\u{202e}c\\u{9b}d\\u{d}e\n\tf");
        assert_eq!(plain("Größe · 8 × H100 → 中文"), "Größe · 8 × H100 → 中文");
        assert_eq!(plain("a\u{200b}b\u{feff}c\u{2028}d"), "a\\u{200b}b\\u{feff}c\\u{2028}d");
    }

    #[test]
    fn a_line_without_end_is_cut() {
        assert_eq!(shortened("short"), "short");
        let said = shortened(&"é".repeat(1 << 20));
        assert!(said.chars().count() < LONGEST_LINE + 40 && said.ends_with("more bytes)"), "{}", said.len());
    }

    #[test]
    fn a_name_has_one_line() {
        assert_eq!(one_line("a\n  fits  yes\r\tb\u{2028}c\u{85}d"), "a   fits  yes  b c d");
        assert_eq!(one_line("a\u{1b}[2J"), "a\\u{1b}[2J");
    }
}
