//! A place in a file, and the caret that points at it.

use std::fmt;
use std::ops::Range;

/// A place in a file: prints as `--> file:line:column`, the line, and a caret under the column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name or path of the file.
    pub file: String,
    /// Byte of the file's text, from 0.
    pub at: usize,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line's text; of a long one what is around the column.
    pub text: String,
    /// Where in that text the column is, from 0.
    caret: usize,
}

/// Characters of a line that are shown before the column, and from it on.
const SHOWN: (usize, usize) = (80, 120);

impl Place {
    /// The place where the byte range `span` of `text` begins; past the end counts as the end.
    pub fn of(file: &str, text: &str, span: Range<usize>) -> Place {
        let mut start = span.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let (ahead, rest) = (&text[line_start..start], text[start..line_end].trim_end());
        let column = ahead.chars().count();
        let (cut, more) = (column.saturating_sub(SHOWN.0), rest.chars().nth(SHOWN.1).is_some());
        let mut shown = if cut > 0 { "…".to_owned() } else { String::new() };
        shown.extend(ahead.chars().skip(cut));
        let caret = shown.chars().count();
        shown.extend(rest.chars().take(SHOWN.1));
        shown.push_str(if more { "…" } else { "" });
        Place {
            file: file.to_owned(),
            at: start,
            line: before.matches('\n').count() + 1,
            column: column + 1,
            text: shown.trim_end().replace('\t', " "),
            caret,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        let indent = " ".repeat(self.caret);
        writeln!(f, "{gutter}--> {}:{}:{}", self.file, self.line, self.column)?;
        writeln!(f, "{number} | {}", self.text)?;
        write!(f, "{gutter} | {indent}^")
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn of_a_long_line_what_is_around_the_caret_is_shown() {
        let text = format!("a = 1\n{}x{}\nb = 2", "é".repeat(1 << 20), " y".repeat(1 << 20));
        let place = Place::of("t.toml", &text, text.find('x').expect("there")..text.len());
        assert_eq!((place.line, place.column), (2, (1 << 20) + 1));
        let shown = place.to_string();
        assert!(shown.len() < 1000, "{}", shown.len());
        let [_, line, caret] = shown.lines().collect::<Vec<_>>()[..] else { panic!("{shown}") };
        let at = caret.chars().position(|c| c == '^');
        assert_eq!(at, line.chars().position(|c| c == 'x'), "{shown}");
    }
}
