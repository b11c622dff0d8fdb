//! A script's text as assignments and commands, whose words still have variables in them.

use std::iter::Peekable;
use std::str::CharIndices;

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text as it is, with its line.
    Text { text: String, line: usize, quoted: bool },
    /// `$NAME`, `${NAME}`, `${NAME:-default}`.
    Variable { name: String, default: Option<String>, quoted: bool },
    /// `$((…))`.
    Sum(String),
    /// What only a shell knows.
    Open,
}

/// A word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Raw {
    pub pieces: Vec<Piece>,
    pub line: usize,
}

/// A part of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// `NAME=word`, `NAME=( words )`, and the same with `+=`.
    Assign { name: String, append: bool, words: Vec<Raw>, quoted: bool, line: usize },
    /// A command.
    Command(Vec<Raw>),
    /// A branch or a loop begins.
    Opens,
    /// A branch or a loop ends.
    Closes,
}

/// Where it is, and what is wrong.
type Wrong = (usize, String);

struct Lexer<'t> {
    text: &'t str,
    chars: Peekable<CharIndices<'t>>,
    line: usize,
    /// Ends of documents that follow the line.
    here: Vec<String>,
}

/// Items of a script.
pub fn items(text: &str) -> Result<Vec<Item>, Wrong> {
    let mut lexer = Lexer { text, chars: text.char_indices().peekable(), line: 1, here: vec![] };
    let mut out = vec![];
    let mut words: Vec<Raw> = vec![];
    while lexer.chars.peek().is_some() {
        match lexer.next_word(&mut out)? {
            Some(word) => words.push(word),
            None => statement(&mut out, std::mem::take(&mut words)),
        }
    }
    statement(&mut out, words);
    Ok(out)
}

const OPENS: [&str; 6] = ["if", "for", "while", "until", "case", "select"];
const CLOSES: [&str; 3] = ["fi", "done", "esac"];
const INNER: [&str; 6] = ["then", "else", "elif", "do", "{", "}"];
const BEFORE: [&str; 5] = ["export", "declare", "local", "readonly", "typeset"];

/// A statement's words as items: keywords, assignments, and else a command.
fn statement(out: &mut Vec<Item>, words: Vec<Raw>) {
    let mut words = words;
    while let Some(first) = words.first().and_then(Raw::literal) {
        let first = first.to_owned();
        if OPENS.contains(&first.as_str()) {
            out.push(Item::Opens);
            // Words of the condition are a command like any other.
        } else if CLOSES.contains(&first.as_str()) {
            out.push(Item::Closes);
        } else if !INNER.contains(&first.as_str()) {
            break;
        }
        words.remove(0);
    }
    let exports = words.first().and_then(Raw::literal).is_some_and(|first| BEFORE.contains(&first));
    let skipped = usize::from(exports);
    let split: Vec<Option<(String, bool, Raw)>> = words.iter().skip(skipped).map(Raw::assignment).collect();
    let leading = split.iter().take_while(|split| split.is_some()).count();
    // `A=1 command` gives the command a variable; nothing of it is lost if the script has it, too.
    for (name, append, value) in split.into_iter().take(leading).flatten() {
        let line = value.line;
        out.push(Item::Assign { name, append, words: vec![value], quoted: true, line });
    }
    let rest: Vec<Raw> = words.into_iter().skip(skipped + leading).collect();
    if !rest.is_empty() && !exports {
        out.push(Item::Command(rest));
    }
}

impl Raw {
    /// The word, if it is text alone without quotes.
    fn literal(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [Piece::Text { text, quoted: false, .. }] => Some(text),
            _ => None,
        }
    }

    /// The word as `NAME=value` or `NAME+=value`.
    fn assignment(&self) -> Option<(String, bool, Raw)> {
        let [Piece::Text { text, line, quoted: false }, rest @ ..] = self.pieces.as_slice() else { return None };
        let (name, value) = text.split_once('=')?;
        let (name, append) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
        if !is_name(name) {
            return None;
        }
        let first = Piece::Text { text: value.to_owned(), line: *line, quoted: false };
        let pieces = std::iter::once(first).chain(rest.iter().cloned()).collect();
        Some((name.to_owned(), append, Raw { pieces, line: self.line }))
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Lexer<'_> {
    fn next(&mut self) -> Option<char> {
        let (_, c) = self.chars.next()?;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|(_, c)| *c)
    }

    fn at(&mut self) -> usize {
        self.chars.peek().map_or(self.text.len(), |(at, _)| *at)
    }

    fn rest(&mut self) -> &str {
        let at = self.at();
        &self.text[at..]
    }

    /// Bodies of documents that begin after this line.
    fn documents(&mut self) {
        for end in std::mem::take(&mut self.here) {
            loop {
                let line: String = std::iter::from_fn(|| self.next().filter(|c| *c != '\n')).collect();
                if line.trim() == end || self.peek().is_none() {
                    break;
                }
            }
        }
    }

    /// The next word; none at the end of a statement.
    fn next_word(&mut self, out: &mut Vec<Item>) -> Result<Option<Raw>, Wrong> {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\r' => drop(self.next()),
                '\\' if self.rest().starts_with("\\\n") || self.rest().starts_with("\\\r\n") => {
                    while self.next().is_some_and(|c| c != '\n') {}
                }
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                '\n' => {
                    self.next();
                    self.documents();
                    return Ok(None);
                }
                ';' | '&' | '|' | '(' | ')' => {
                    self.next();
                    return Ok(None);
                }
                '<' if self.rest().starts_with("<<") && !self.rest().starts_with("<<<") => {
                    self.next();
                    self.next();
                    let end: String =
                        self.rest().trim_start_matches(['-', ' ']).split_whitespace().next().unwrap_or("").to_owned();
                    let end = end.trim_matches(['\'', '"']).to_owned();
                    self.here.push(end);
                    return Ok(None);
                }
                '<' | '>' => {
                    while self.peek().is_some_and(|c| matches!(c, '<' | '>' | '&' | ' ')) {
                        self.next();
                    }
                    // The file, or the other stream, is no word of the command.
                    if self.peek().is_some_and(|c| !matches!(c, '\n' | ';' | '|' | '(' | ')')) {
                        self.word(out)?;
                    }
                }
                _ => return self.word(out),
            }
        }
        Ok(None)
    }

    fn word(&mut self, out: &mut Vec<Item>) -> Result<Option<Raw>, Wrong> {
        let mut word = Raw { pieces: vec![], line: self.line };
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | ')' | '<' => break,
                // `2>&1`: the number goes with the arrow.
                '>' => {
                    let number = word.literal().is_some_and(|text| text.chars().all(|c| c.is_ascii_digit()));
                    if number {
                        word.pieces.clear();
                    }
                    break;
                }
                '(' => {
                    let assigned = word.assignment().filter(|(_, _, value)| value.literal() == Some(""));
                    let line = word.line;
                    self.next();
                    let Some((name, append, _)) = assigned else { return Ok(Some(word)) };
                    let words = self.array(line)?;
                    out.push(Item::Assign { name, append, words, quoted: false, line });
                    return Ok(None);
                }
                '\\' => {
                    self.next();
                    match self.next() {
                        Some('\n') | None => {}
                        Some(c) => self.text(&mut word, c, true),
                    }
                }
                '\'' => self.single(&mut word)?,
                '"' => self.double(&mut word)?,
                '$' => {
                    let piece = self.dollar(false)?;
                    word.pieces.push(piece);
                }
                '`' => {
                    self.next();
                    let line = self.line;
                    if !std::iter::from_fn(|| self.next()).any(|c| c == '`') {
                        return Err((line, "a ` is never closed".to_owned()));
                    }
                    word.pieces.push(Piece::Open);
                }
                c => {
                    self.next();
                    self.text(&mut word, c, false);
                }
            }
        }
        Ok((!word.pieces.is_empty()).then_some(word))
    }

    /// Adds a character to a word.
    fn text(&self, word: &mut Raw, c: char, quoted: bool) {
        match word.pieces.last_mut() {
            // Quoted text has a piece for each of its lines.
            Some(Piece::Text { text, line, quoted: same }) if *same == quoted && (!quoted || *line == self.line) => {
                text.push(c);
            }
            _ => word.pieces.push(Piece::Text { text: c.to_string(), line: self.line, quoted }),
        }
    }

    fn single(&mut self, word: &mut Raw) -> Result<(), Wrong> {
        let line = self.line;
        self.next();
        word.pieces.push(Piece::Text { text: String::new(), line, quoted: true });
        loop {
            match self.next() {
                Some('\'') => return Ok(()),
                Some(c) => self.text(word, c, true),
                None => return Err((line, "a ' is never closed".to_owned())),
            }
        }
    }

    fn double(&mut self, word: &mut Raw) -> Result<(), Wrong> {
        let line = self.line;
        self.next();
        word.pieces.push(Piece::Text { text: String::new(), line, quoted: true });
        loop {
            match self.peek() {
                None => return Err((line, "a \" is never closed".to_owned())),
                Some('"') => {
                    self.next();
                    return Ok(());
                }
                Some('\\') => {
                    self.next();
                    match self.next() {
                        Some('\n') => self.text(word, ' ', true),
                        Some(c @ ('"' | '\\' | '$' | '`')) => self.text(word, c, true),
                        Some(c) => {
                            self.text(word, '\\', true);
                            self.text(word, c, true);
                        }
                        None => {}
                    }
                }
                Some('$') => {
                    let piece = self.dollar(true)?;
                    word.pieces.push(piece);
                }
                Some(c) => {
                    self.next();
                    self.text(word, c, true);
                }
            }
        }
    }

    /// Text up to the bracket that closes one that is open.
    fn within(&mut self, open: char, close: char) -> Result<String, Wrong> {
        let line = self.line;
        let (mut depth, mut text) = (1, String::new());
        while let Some(c) = self.next() {
            depth += i32::from(c == open) - i32::from(c == close);
            if depth == 0 {
                return Ok(text);
            }
            text.push(c);
        }
        Err((line, format!("a {open} is never closed")))
    }

    fn dollar(&mut self, quoted: bool) -> Result<Piece, Wrong> {
        self.next();
        match self.peek() {
            Some('(') => {
                self.next();
                let inner = self.within('(', ')')?;
                let sum = inner.strip_prefix('(').and_then(|inner| inner.strip_suffix(')'));
                Ok(sum.map_or(Piece::Open, |sum| Piece::Sum(sum.to_owned())))
            }
            Some('{') => {
                self.next();
                let inner = self.within('{', '}')?;
                Ok(braces(&inner, quoted))
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let mut name = String::new();
                while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    name.push(c);
                    self.next();
                }
                Ok(Piece::Variable { name, default: None, quoted })
            }
            Some(c) if c.is_ascii_digit() || "@*#?!$-".contains(c) => {
                self.next();
                Ok(Piece::Open)
            }
            Some(_) | None => Ok(Piece::Text { text: "$".to_owned(), line: self.line, quoted }),
        }
    }

    /// The words between the brackets of an array.
    fn array(&mut self, line: usize) -> Result<Vec<Raw>, Wrong> {
        let mut words = vec![];
        let mut inner = vec![];
        loop {
            match self.peek() {
                None => return Err((line, "a ( is never closed".to_owned())),
                Some(')') => {
                    self.next();
                    return Ok(words);
                }
                Some('\n') => drop(self.next()),
                Some(_) => words.extend(self.next_word_in(&mut inner)?),
            }
        }
    }

    /// The next word of an array; none before its end or the end of a line.
    fn next_word_in(&mut self, inner: &mut Vec<Item>) -> Result<Option<Raw>, Wrong> {
        while self.peek().is_some_and(|c| matches!(c, ' ' | '\t' | '\r')) {
            self.next();
        }
        match self.peek() {
            Some(')' | '\n') | None => Ok(None),
            _ => self.next_word(inner),
        }
    }
}

/// What stands in `${…}`.
fn braces(inner: &str, quoted: bool) -> Piece {
    if inner.matches("${").count() > crate::import::syntax::DEEPEST {
        return Piece::Open;
    }
    let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len());
    let (name, rest) = inner.split_at(end);
    if !is_name(name) {
        let default = rest.strip_prefix(":-").or(rest.strip_prefix('-')).map(str::to_owned);
        // `${1:-8}`: an argument of the script, which nobody gives.
        return match default {
            Some(default) => Piece::Variable { name: String::new(), default: Some(default), quoted },
            None => Piece::Open,
        };
    }
    let rest = rest.strip_prefix("[@]").or(rest.strip_prefix("[*]")).map_or((rest, false), |rest| (rest, true));
    let (rest, array) = rest;
    let default = [":-", ":=", "-", "="].iter().find_map(|mark| rest.strip_prefix(mark)).map(str::to_owned);
    match rest.is_empty() || default.is_some() {
        true => Piece::Variable { name: name.to_owned(), default, quoted: quoted && !array },
        false => Piece::Open,
    }
}
