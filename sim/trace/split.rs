//! JSON of any length, cut into the values of its outermost object and the events of its longest list, which are parsed one by one.
//!
//! serde_json reads a whole document, or values between white space. A trace is one object around millions of events, so this file
//! finds where each event ends, and leaves its content to serde_json. An event is never longer than [`LONGEST`].

use std::io::Read;

use super::error::{CUT, Stop};

/// The longest event or value that is held \[B\].
const LONGEST: usize = 64 << 20;
/// How much is read at a time \[B\].
const CHUNK: usize = 1 << 20;
/// What to try where the content is no JSON.
pub(super) const NO_JSON: &str = "Some versions of the profiler write names without escaping them: remove the event, or profile with a newer release";

/// What becomes of the parts of a document.
pub(super) trait Parts {
    /// Whether the value of a key of the outermost object is wanted.
    fn wants(&mut self, key: &str) -> bool;
    /// A wanted value of the outermost object.
    fn value(&mut self, key: &str, json: &[u8]) -> Result<(), serde_json::Error>;
    /// An element of `traceEvents`, or of an outermost list.
    fn event(&mut self, json: &[u8]) -> Result<(), serde_json::Error>;
}

/// Reads a document to its end.
pub(super) fn split(from: impl Read, parts: &mut impl Parts) -> Result<(), Stop> {
    let mut text = Text { from, buffer: vec![], at: 0, before: 0, lines: 0, is_over: false };
    match text.token()? {
        Some(b'[') => text.list(parts)?,
        Some(b'{') => text.object(parts)?,
        Some(_) => return Err(text.broken("expected { or [, the begin of a trace")),
        None => return Err(text.cut("before its first event")),
    }
    match text.token()? {
        None => Ok(()),
        Some(_) => Err(text.broken("expected the end of the file after the trace's last bracket")),
    }
}

struct Text<R> {
    from: R,
    buffer: Vec<u8>,
    /// Where the next byte stands in the buffer.
    at: usize,
    /// Bytes before the buffer.
    before: u64,
    /// Line breaks before the buffer.
    lines: u64,
    is_over: bool,
}

impl<R: Read> Text<R> {
    /// Reads more behind what is held from `keep` on; false at the end. What is before `keep` goes, and `keep` becomes zero.
    fn more(&mut self, keep: usize) -> Result<bool, Stop> {
        self.lines += breaks(&self.buffer[..keep]);
        self.before += keep as u64;
        self.buffer.drain(..keep);
        self.at -= keep;
        if self.is_over {
            return Ok(false);
        }
        let start = self.buffer.len();
        let read = self.from.by_ref().take(CHUNK as u64).read_to_end(&mut self.buffer)?;
        self.is_over = read == 0;
        Ok(self.buffer.len() > start)
    }

    /// The next byte that is no white space, without taking it.
    fn token(&mut self) -> Result<Option<u8>, Stop> {
        loop {
            while let Some(&byte) = self.buffer.get(self.at) {
                if !byte.is_ascii_whitespace() {
                    return Ok(Some(byte));
                }
                self.at += 1;
            }
            if !self.more(self.at)? {
                return Ok(None);
            }
        }
    }

    /// Takes the next byte that is no white space, which must be one of these.
    fn take(&mut self, one_of: &[u8], what: &str) -> Result<u8, Stop> {
        match self.token()? {
            Some(byte) if one_of.contains(&byte) => {
                self.at += 1;
                Ok(byte)
            }
            Some(_) => Err(self.broken(what)),
            None => Err(self.cut("inside the trace")),
        }
    }

    fn object(&mut self, parts: &mut impl Parts) -> Result<(), Stop> {
        self.take(b"{", "expected {")?;
        if self.token()? == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.token()? != Some(b'"') {
                return Err(self.broken("expected a key in quotes"));
            }
            let length = self.find_end(true)?;
            let key: String = match serde_json::from_slice(self.value(length)) {
                Ok(key) => key,
                Err(error) => return Err(self.inside(&error, length)),
            };
            self.at += length;
            self.take(b":", "expected : after a key")?;
            if key == "traceEvents" && self.token()? == Some(b'[') {
                self.list(parts)?;
            } else if parts.wants(&key) {
                self.token()?;
                let length = self.find_end(true)?;
                if let Err(error) = parts.value(&key, self.value(length)) {
                    return Err(self.inside(&error, length));
                }
                self.at += length;
            } else {
                self.token()?;
                let length = self.find_end(false)?;
                self.at += length;
            }
            if self.take(b",}", "expected , or } after a value")? == b'}' {
                return Ok(());
            }
        }
    }

    fn list(&mut self, parts: &mut impl Parts) -> Result<(), Stop> {
        self.take(b"[", "expected [")?;
        if self.token()? == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            match self.token()? {
                Some(b'{') => {}
                Some(_) => return Err(self.broken("expected an event, which begins with {")),
                None => return Err(self.cut("after an event")),
            }
            let length = self.find_end(true)?;
            if let Err(error) = parts.event(self.value(length)) {
                return Err(self.inside(&error, length));
            }
            self.at += length;
            if self.take(b",]", "expected , or ] after an event")? == b']' {
                return Ok(());
            }
        }
    }

    fn value(&self, length: usize) -> &[u8] {
        &self.buffer[self.at..self.at + length]
    }

    /// The length of the value that begins here. One that is not kept may be longer than what is held: then what is left of it is.
    fn find_end(&mut self, keep: bool) -> Result<usize, Stop> {
        let start = self.before + self.at as u64;
        let mut scan = Scan::default();
        let mut from = self.at;
        loop {
            if let Some(end) = scan.end(&self.buffer[from..]) {
                return Ok(from + end - self.at);
            }
            from = self.buffer.len();
            if !keep {
                self.at = from;
            } else if from - self.at > LONGEST {
                let what = format!("this value is longer than {} MiB, the most that is held", LONGEST >> 20);
                return Err(Stop::Broken { place: self.place(), what, remedy: NO_JSON });
            }
            from -= self.at;
            if !self.more(self.at)? {
                // A number may end with the file.
                if scan.is_scalar() {
                    return Ok(from);
                }
                let end = self.before + self.buffer.len() as u64;
                let what = format!("the file ends at byte {end}, inside the value that begins at byte {start}");
                return Err(Stop::Broken { place: self.place(), what, remedy: CUT });
            }
        }
    }

    /// The line of the next byte. It counts what is held, so it is asked for errors alone.
    fn line(&self) -> u64 {
        self.lines + breaks(&self.buffer[..self.at.min(self.buffer.len())]) + 1
    }

    fn place(&self) -> String {
        place(self.before + self.at as u64, self.line())
    }

    fn broken(&self, what: &str) -> Stop {
        let rest = &self.buffer[self.at.min(self.buffer.len())..];
        let what = match rest.is_empty() {
            true => format!("{what}, found the end of the file"),
            false => format!("{what}, found {:?}", String::from_utf8_lossy(&rest[..rest.len().min(24)])),
        };
        Stop::Broken { place: self.place(), what, remedy: NO_JSON }
    }

    fn cut(&self, what: &str) -> Stop {
        Stop::Broken { place: self.place(), what: format!("the file ends {what}"), remedy: CUT }
    }

    /// An error of serde_json's inside the value that begins here: its line and column become those of the file.
    fn inside(&self, error: &serde_json::Error, length: usize) -> Stop {
        let value = self.value(length);
        let line_start = match error.line().checked_sub(2) {
            None => 0,
            Some(line) => memchr::memchr_iter(b'\n', value).nth(line).map_or(0, |at| at + 1),
        };
        let offset = (line_start + error.column().saturating_sub(1)).min(length);
        let byte = self.before + (self.at + offset) as u64;
        let text = error.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        let begin = &value[..value.len().min(80)];
        let what =
            format!("{what}, in {}", String::from_utf8_lossy(begin).split_whitespace().collect::<Vec<_>>().join(" "));
        Stop::Broken { place: place(byte, self.line() + error.line().saturating_sub(1) as u64), what, remedy: NO_JSON }
    }
}

fn place(byte: u64, line: u64) -> String {
    format!("byte {byte} (line {line})")
}

fn breaks(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', text).count() as u64
}

/// Where a value ends, over several pieces of text.
#[derive(Default)]
struct Scan {
    depth: u64,
    in_string: bool,
    is_escaped: bool,
    in_scalar: bool,
}

impl Scan {
    /// The end of the value in this piece, if it is there.
    fn end(&mut self, text: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < text.len() {
            if self.in_string {
                if std::mem::take(&mut self.is_escaped) {
                    at += 1;
                    continue;
                }
                at += memchr::memchr2(b'"', b'\\', &text[at..])?;
                self.is_escaped = text[at] == b'\\';
                self.in_string = self.is_escaped;
                at += 1;
                if !self.in_string && self.depth == 0 {
                    return Some(at);
                }
                continue;
            }
            match text[at] {
                b'"' => self.in_string = true,
                b'{' | b'[' if !self.in_scalar => self.depth += 1,
                b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' if self.in_scalar => return Some(at),
                b'}' | b']' if self.depth <= 1 => return Some(at + usize::from(self.depth == 1)),
                b'}' | b']' => self.depth -= 1,
                _ if self.depth == 0 => self.in_scalar = true,
                _ => {}
            }
            at += 1;
        }
        None
    }

    fn is_scalar(&self) -> bool {
        self.in_scalar && !self.in_string
    }
}
