//! A row of a table, put together from one line or several.
//!
//! nccl-tests prints a row in three writes (what is sent, then each body when it has been timed), so NCCL's own messages
//! can stand between them and even touch a figure (`-1node7:311:311 [0] NCCL INFO …`).

use super::columns::{Column, Columns};

/// One size.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its line, from 1.
    pub line: usize,
    /// The whole buffer \[B\].
    pub bytes: u64,
    /// Elements, of each rank or in all.
    pub count: u64,
    /// Element type.
    pub dtype: &'static str,
    /// Whether elements are reduced, where the row says.
    pub reduces: bool,
    /// The root, where there is one.
    pub root: Option<u64>,
    /// Figures out of place and in place.
    pub bodies: [Option<Body>; 2],
}

/// Figures of one way of running.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Body {
    /// Mean time of a call \[µs\].
    pub time: Figure,
    /// Size over time \[GB/s\].
    pub algbw: Figure,
    /// What links carry \[GB/s\].
    pub busbw: Figure,
    /// Wrong elements; none where nothing was checked.
    pub wrong: Option<f64>,
}

/// A figure as printed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    /// Its value.
    pub value: f64,
    /// Half of its last digit's place.
    pub half: f64,
}

/// Element types, by all the names they have had, and their bytes.
const DTYPES: [(&str, u64); 18] = [
    ("char", 1),
    ("int8", 1),
    ("uint8", 1),
    ("int", 4),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("half", 2),
    ("float", 4),
    ("double", 8),
    ("bfloat16", 2),
    ("f8e4m3", 1),
    ("f8e5m2", 1),
    ("fp8_e4m3", 1),
    ("fp8_e5m2", 1),
    ("fp8_e4m3fn", 1),
    ("bf16", 2),
];

/// An element type by one of the names it has had.
pub fn element_type(name: &str) -> Option<&'static str> {
    DTYPES.iter().find(|(known, _)| *known == name).map(|(known, _)| *known)
}

/// Columns between what is sent and figures in place alone, where figures out of place were not taken.
const BLANK_BODY: usize = 24;

impl Row {
    /// Bytes of one element.
    pub fn element(&self) -> u64 {
        DTYPES.iter().find(|(name, _)| *name == self.dtype).map_or(1, |(_, bytes)| *bytes)
    }
}

/// A row whose figures are not all there yet.
#[derive(Clone, Debug)]
pub struct Pending {
    row: Row,
    figures: Vec<Option<Figure>>,
    wanted: usize,
    in_place_only: bool,
    noisy: bool,
}

/// What became of a pending row.
#[derive(Debug)]
pub enum Next {
    /// It is whole.
    Whole(Row),
    /// It goes on.
    Pending(Pending),
}

/// Words of a line with the column each begins at.
fn words(text: &str) -> Vec<(usize, &str)> {
    text.split_whitespace().map(|word| (word.as_ptr() as usize - text.as_ptr() as usize, word)).collect()
}

/// Where a row begins among a line's words: two whole numbers and an element type.
fn beginning(words: &[(usize, &str)]) -> Option<(usize, u64, u64, &'static str)> {
    words.windows(3).enumerate().find_map(|(at, three)| {
        let dtype = element_type(three[2].1)?;
        Some((at, three[0].1.parse().ok()?, three[1].1.parse().ok()?, dtype))
    })
}

/// Whether a row begins on this line.
pub fn begins(text: &str) -> bool {
    beginning(&words(text)).is_some()
}

/// What is wrong with a line of a table that ends as rows do and does not begin as they do; none for anything else. A
/// row's times and bandwidths have decimals, which NCCL's messages about ranks and channels do not.
pub fn garbled(text: &str) -> Option<String> {
    /// Figures of the shortest row: time, two bandwidths, and what was wrong.
    const FIGURES: usize = 4;
    if text.trim_start().starts_with('#') {
        return None;
    }
    // The time of day may follow.
    let day = |word: &&str| !(word.contains(':') || word.matches('-').count() == 2);
    let words: Vec<&str> = text.split_whitespace().filter(day).collect();
    let figure = |word: &&&str| **word == "N/A" || word.parse::<f64>().is_ok();
    let figures = words.iter().rev().take_while(figure).count();
    let decimals = words[words.len() - figures..].iter().filter(|word| word.contains('.')).count();
    // Between what is sent and the figures stand at least size, count and type.
    if figures < FIGURES || decimals < 2 {
        return None;
    }
    let dtype = words.iter().position(|word| element_type(word).is_some());
    let numbers = dtype.map_or(&words[..0], |at| &words[at.saturating_sub(2)..at]);
    Some(match (dtype, numbers.iter().find(|word| word.parse::<u64>().is_err())) {
        (Some(_), Some(word)) => format!("`{word}` stands where a size or a count should: is the log damaged here?"),
        _ => "the line has the figures of a row but does not begin with size, count and element type: is the log damaged \
              here?"
            .to_owned(),
    })
}

/// Begins a row.
pub fn begin(line: usize, text: &str, columns: &Columns) -> Result<Next, String> {
    let words = words(text);
    let Some((at, bytes, count, dtype)) = beginning(&words) else {
        return Err("no row begins here".to_owned());
    };
    let mut rest = &words[at + 3..];
    let mut row = Row { line, bytes, count, dtype, reduces: false, root: None, bodies: [None, None] };
    if columns.redop
        && let Some(&(_, word)) = rest.first()
        && word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word != "N/A"
    {
        row.reduces = word != "none";
        rest = &rest[1..];
    }
    let mut noisy = false;
    if columns.root {
        let Some(&(_, word)) = rest.first() else {
            return Err("the row stops before its root: is the line cut?".to_owned());
        };
        let (root, more) = number(word);
        let root: i64 = root.parse().map_err(|_| format!("`{word}` is no root: expected a rank, or -1 for none"))?;
        if root < -1 || !touches(more) {
            return Err(format!("`{word}` is no root: expected a rank, or -1 for none"));
        }
        noisy = !more.is_empty();
        row.root = u64::try_from(root).ok();
        rest = &rest[1..];
    }
    let end = words.get(words.len() - rest.len() - 1).map_or(0, |(at, word)| at + word.len());
    let gap = rest.first().map_or(0, |(at, _)| at - end);
    let pending = Pending {
        row,
        figures: Vec::new(),
        wanted: columns.bodies.iter().map(Vec::len).sum(),
        in_place_only: columns.bodies.len() == 2 && gap > BLANK_BODY,
        noisy,
    };
    if noisy { Ok(Next::Pending(pending)) } else { pending.take(rest, columns) }
}

impl Pending {
    /// Its line.
    pub fn line(&self) -> usize {
        self.row.line
    }

    /// Goes on with another line; one that does not begin with a figure is noise.
    pub fn go_on(self, text: &str, columns: &Columns) -> Result<Next, String> {
        let words = words(text);
        let figure = |word: &str| word == "N/A" || (number(word).1.is_empty() && !number(word).0.is_empty());
        // A label or tag may stand before the figures.
        let label = |word: &str| word.ends_with(':') || word.ends_with('>');
        let rest = match words.first() {
            Some((_, word)) if label(word) => &words[1..],
            _ => &words[..],
        };
        let goes_on = rest.first().is_some_and(|(_, word)| figure(word)) && rest.len() >= 3;
        if goes_on { self.take(rest, columns) } else { Ok(Next::Pending(self)) }
    }

    /// Takes figures until the row is whole or something else stands there.
    fn take(mut self, words: &[(usize, &str)], columns: &Columns) -> Result<Next, String> {
        let wanted = if self.in_place_only { self.wanted / 2 } else { self.wanted };
        for &(_, word) in words {
            if self.figures.len() == wanted {
                let extra = word.parse::<f64>().is_ok() && !columns.timestamp && !self.noisy;
                if extra {
                    return Err(format!(
                        "the row has more figures than its heading has columns: `{word}` is one too many"
                    ));
                }
                break;
            }
            if word == "N/A" {
                self.figures.push(None);
                continue;
            }
            let starred = word.ends_with('*');
            let (digits, more) = number(word.trim_end_matches('*'));
            if digits.is_empty() {
                // NaN and infinity are what a bandwidth of no bytes or of no time prints as.
                match word.trim_start_matches(['-', '+']) {
                    "nan" | "inf" => {
                        self.figures.push(None);
                        continue;
                    }
                    _ => {
                        self.noisy = true;
                        break;
                    }
                }
            }
            let value: f64 = digits.parse().map_err(|_| format!("`{word}` is no number"))?;
            if !touches(more) {
                return Err(format!("`{word}` is no number: where does it end?"));
            }
            let value = if starred { f64::INFINITY } else { value };
            self.figures.push(Some(Figure { value, half: 0.5 * place(digits) }));
            if !more.is_empty() {
                self.noisy = true;
                break;
            }
        }
        if self.figures.len() < wanted {
            return Ok(Next::Pending(self));
        }
        self.whole(columns).map(Next::Whole)
    }

    /// The row as far as it goes, for a file that ends inside it.
    pub fn cut(self, columns: &Columns) -> Option<Row> {
        let row = self.whole(columns).ok()?;
        row.bodies.iter().any(Option::is_some).then_some(row)
    }

    /// Bodies that are all there.
    fn whole(mut self, columns: &Columns) -> Result<Row, String> {
        let first = usize::from(self.in_place_only);
        let mut figures = self.figures.iter();
        for (at, body) in columns.bodies.iter().enumerate().skip(first) {
            let mut read = Body::default();
            for column in body {
                let Some(figure) = figures.next() else { return Ok(self.row) };
                let required = || figure.ok_or_else(|| "a row without a time: is it cut?".to_owned());
                match column {
                    Column::Time => {
                        let time = required()?;
                        let micros = columns.unit.micros();
                        read.time = Figure { value: time.value * micros, half: time.half * micros };
                    }
                    Column::Algbw => read.algbw = figure.unwrap_or_default(),
                    Column::Busbw => read.busbw = figure.unwrap_or_default(),
                    Column::Wrong => read.wrong = figure.map(|f| f.value),
                    Column::Deviation => {
                        // A deviation is rounding unless the program itself marks it.
                        read.wrong = figure.map(|f| if f.value.is_finite() { 0.0 } else { f.value });
                    }
                    Column::Iteration => {}
                }
            }
            self.row.bodies[at] = Some(read);
        }
        Ok(self.row)
    }
}

/// The number that a word begins with, and what follows it.
fn number(word: &str) -> (&str, &str) {
    let bytes = word.as_bytes();
    let digits = |mut at: usize| {
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        at
    };
    let sign = usize::from(bytes.first() == Some(&b'-'));
    let mut end = digits(sign);
    if end == sign {
        return ("", word);
    }
    if bytes.get(end) == Some(&b'.') {
        end = digits(end + 1);
    }
    if matches!(bytes.get(end), Some(b'e')) && matches!(bytes.get(end + 1), Some(b'+' | b'-')) {
        let after = digits(end + 2);
        end = if after > end + 2 { after } else { end };
    }
    word.split_at(end)
}

/// Whether what follows a number is a message that touches it, rather than more of a number.
fn touches(more: &str) -> bool {
    more.is_empty() || more.starts_with(|c: char| c.is_ascii_alphabetic() || c == '[' || c == '<')
}

/// The place of a number's last digit.
fn place(digits: &str) -> f64 {
    let (mantissa, exponent) = digits.split_once('e').unwrap_or((digits, "0"));
    let decimals = mantissa.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let exponent: i32 = exponent.trim_start_matches('+').parse().unwrap_or(0);
    libm::pow(10.0, f64::from(exponent - i32::try_from(decimals).unwrap_or(0)))
}
