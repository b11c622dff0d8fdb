//! A place in a file, and the caret that points at it.

use std::fmt;
use std::ops::Range;

/// A place in a file: prints as `--> file:line:column`, the line, and a caret under the column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name or path of the file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line's text.
    pub text: String,
}

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
        Place {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            text: text[line_start..line_end].trim_end().replace('\t', " "),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        let indent = " ".repeat(self.column - 1);
        writeln!(f, "{gutter}--> {}:{}:{}", self.file, self.line, self.column)?;
        writeln!(f, "{number} | {}", self.text)?;
        write!(f, "{gutter} | {indent}^")
    }
}
