//! A page of a report: how wide it is, what wraps, and which words have a colour.

use std::fmt::{self, Write};

use anstyle::{AnsiColor, Style};

use super::super::verdict::{Mood, Verdict};

/// Columns where nobody says otherwise: a file, a pipe, a script.
pub const WIDTH: usize = 100;
/// The narrowest page that tables are made for.
const NARROWEST: usize = 60;
/// Columns before what a label is about.
const INDENT: usize = 16;

/// A page that is being written.
pub(crate) struct Page {
    text: String,
    width: usize,
    colour: bool,
}

impl Page {
    pub(crate) fn new(width: usize, colour: bool) -> Page {
        Page { text: String::new(), width: width.max(NARROWEST), colour }
    }

    pub(crate) fn text(self) -> String {
        self.text
    }

    /// Columns.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    fn styled(&self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    /// The first line.
    pub(crate) fn title(&mut self, text: &str) -> fmt::Result {
        let title = self.styled(Style::new().bold(), text);
        writeln!(self.text, "{title}")
    }

    /// The head of a section.
    pub(crate) fn heading(&mut self, text: &str) -> fmt::Result {
        let heading = self.styled(Style::new().bold(), text);
        writeln!(self.text, "\n{heading}")
    }

    /// The verdict, its first sentence in a colour.
    pub(in super::super) fn verdict(&mut self, verdict: &Verdict) -> fmt::Result {
        let Verdict { mood, first, rest } = verdict;
        let colour = match mood {
            Mood::Good => AnsiColor::Green,
            Mood::Doubtful => AnsiColor::Yellow,
            Mood::Bad => AnsiColor::Red,
        };
        let wrapped = textwrap::fill(&format!("{first} {rest}"), self.options("", ""));
        // Words are coloured when lines are known: codes take no columns.
        let style = Style::new().bold().fg_color(Some(colour.into()));
        let painted = match wrapped.strip_prefix(first.as_str()) {
            Some(rest) => self.styled(style, first) + rest,
            None => wrapped,
        };
        writeln!(self.text, "\n{painted}")
    }

    /// A label and what is said of it; further lines stand below the first.
    pub(crate) fn line(&mut self, label: &str, text: &str) -> fmt::Result {
        let first = format!("  {label:<width$}", width = INDENT - 2);
        let below = " ".repeat(INDENT);
        let wrapped = textwrap::fill(text, self.options(&first, &below));
        writeln!(self.text, "{wrapped}")
    }

    /// A sentence under a heading.
    pub(crate) fn sentence(&mut self, text: &str) -> fmt::Result {
        let wrapped = textwrap::fill(text, self.options("  ", "  "));
        writeln!(self.text, "{wrapped}")
    }

    /// Text from the first column on.
    pub(crate) fn paragraph(&mut self, text: &str) -> fmt::Result {
        let wrapped = textwrap::fill(text, self.options("", ""));
        writeln!(self.text, "{wrapped}")
    }

    /// An item of a list, whose further lines are indented.
    pub(crate) fn item(&mut self, text: &str) -> fmt::Result {
        let wrapped = textwrap::fill(text, self.options("  ", "      "));
        writeln!(self.text, "{wrapped}")
    }

    /// Lines as they are, such as a table's.
    pub(crate) fn lines(&mut self, text: &str) -> fmt::Result {
        writeln!(self.text, "{text}")
    }

    /// An empty line.
    pub(crate) fn gap(&mut self) -> fmt::Result {
        writeln!(self.text)
    }

    fn options<'a>(&self, first: &'a str, below: &'a str) -> textwrap::Options<'a> {
        textwrap::Options::new(self.width).initial_indent(first).subsequent_indent(below).break_words(false)
    }
}
