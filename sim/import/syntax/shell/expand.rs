//! Variables of a script, and words with their values put in.

use std::collections::BTreeMap;

use super::lex::{self, Piece, Raw};
use super::word::Word;
use crate::import::syntax::DEEPEST;

/// The longest value of a variable \[B\].
const LONGEST: usize = 1 << 20;
/// Bytes that all values and words of a script may come to: a variable in which another stands thousands of times makes megabytes of a line.
const EXPANDED: usize = 8 << 20;
/// What a word takes beside its text \[B\].
const WORD: usize = size_of::<Word>();

/// Variables and their values.
#[derive(Debug, Default)]
pub struct Variables {
    values: BTreeMap<String, Vec<Word>>,
    /// Bytes of all that was put in so far.
    expanded: usize,
}

fn within(bytes: usize) -> Result<(), String> {
    match bytes > EXPANDED {
        true => Err(format!("with its variables put in the script becomes longer than {EXPANDED} bytes")),
        false => Ok(()),
    }
}

/// Words as they come out, and what they take.
#[derive(Default)]
struct Out {
    words: Vec<Word>,
    bytes: usize,
}

impl Out {
    fn push(&mut self, word: Word) {
        self.bytes += word.text.len() + WORD;
        self.words.push(word);
    }
}

impl Variables {
    /// Whether a variable has a value.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Variables of one word that is known.
    pub fn single(&self) -> BTreeMap<String, Word> {
        let one = self.values.iter().filter_map(|(name, value)| match value.as_slice() {
            [word] if !word.open => Some((name.clone(), word.clone())),
            _ => None,
        });
        one.collect()
    }

    /// Sets a variable, or adds to it.
    pub fn set(&mut self, name: &str, value: Vec<Word>, append: bool) -> Result<(), String> {
        let slot = self.values.entry(name.to_owned()).or_default();
        if !append {
            slot.clear();
        }
        slot.extend(value);
        let length: usize = slot.iter().map(|word| word.text.len() + 1).sum();
        match length > LONGEST {
            true => Err(format!("the variable {name} becomes longer than {LONGEST} bytes")),
            false => Ok(()),
        }
    }

    /// Words with values put in; text of an assignment is split at its lines and spaces too, which a value is where it is used.
    pub fn words(&mut self, raw: &[Raw], assigned: bool) -> Result<Vec<Word>, String> {
        let out = self.put_in(raw, assigned)?;
        self.expanded += out.bytes;
        within(self.expanded)?;
        Ok(out.words)
    }

    fn put_in(&self, raw: &[Raw], assigned: bool) -> Result<Out, String> {
        let mut out = Out::default();
        for word in raw {
            self.word(word, assigned, &mut out)?;
        }
        Ok(out)
    }

    fn word(&self, raw: &Raw, assigned: bool, out: &mut Out) -> Result<(), String> {
        let mut now = Word { text: String::new(), line: raw.line, open: false };
        let mut begun = false;
        for piece in &raw.pieces {
            match piece {
                Piece::Text { text, line, quoted } => {
                    if assigned {
                        self.split(text, *line, &mut now, &mut begun, out);
                    } else {
                        if !begun {
                            now.line = *line;
                        }
                        now.text.push_str(text);
                        begun |= *quoted || !text.is_empty();
                    }
                }
                Piece::Variable { name, default, quoted } => {
                    let value = match (self.values.get(name), default) {
                        (Some(value), _) => Some(value.clone()),
                        (None, Some(default)) => Some(self.default(default)?),
                        (None, None) => None,
                    };
                    match value {
                        None => {
                            now.unknown();
                            begun = true;
                        }
                        Some(value) if *quoted && !assigned => {
                            let text: Vec<&str> = value.iter().map(|word| word.text.as_str()).collect();
                            now.open |= value.iter().any(|word| word.open);
                            now.text.push_str(&text.join(" "));
                            begun = true;
                        }
                        Some(value) => {
                            for (at, word) in value.iter().enumerate() {
                                if at > 0 {
                                    out.push(std::mem::replace(&mut now, word.clone()));
                                } else {
                                    if !begun {
                                        now.line = word.line;
                                    }
                                    now.text.push_str(&word.text);
                                    now.open |= word.open;
                                }
                                begun = true;
                            }
                        }
                    }
                }
                Piece::Sum(sum) => {
                    match self.sum(sum) {
                        Some(value) => now.text.push_str(&value.to_string()),
                        None => now.unknown(),
                    }
                    begun = true;
                }
                Piece::Open => {
                    now.unknown();
                    begun = true;
                }
            }
            if now.text.len() > LONGEST {
                return Err(format!("a word becomes longer than {LONGEST} bytes"));
            }
            within(now.text.len() + out.bytes)?;
        }
        if begun {
            out.push(now);
        }
        Ok(())
    }

    /// Adds text to a word, which ends where the text has a space.
    fn split(&self, text: &str, line: usize, now: &mut Word, begun: &mut bool, out: &mut Out) {
        for c in text.chars() {
            if c.is_whitespace() {
                if *begun {
                    out.push(std::mem::replace(now, Word { text: String::new(), line, open: false }));
                }
                *begun = false;
            } else {
                if !*begun {
                    now.line = line;
                }
                now.text.push(c);
                *begun = true;
            }
        }
    }

    /// The words of a default, which may name variables itself.
    fn default(&self, text: &str) -> Result<Vec<Word>, String> {
        let items = lex::items(text).map_err(|(_, problem)| problem)?;
        let mut out = vec![];
        for item in items {
            if let lex::Item::Command(words) = item {
                out.extend(self.put_in(&words, true)?.words);
            }
        }
        Ok(out)
    }

    /// The value of a sum of whole numbers and variables.
    fn sum(&self, text: &str) -> Option<i64> {
        let mut sum = Sum { text: text.as_bytes(), at: 0, depth: 0, variables: self };
        let value = sum.terms()?;
        sum.skip();
        (sum.at == sum.text.len()).then_some(value)
    }
}

/// A sum that is being read.
struct Sum<'s> {
    text: &'s [u8],
    at: usize,
    depth: usize,
    variables: &'s Variables,
}

impl Sum<'_> {
    fn skip(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn take(&mut self, any: &[u8]) -> Option<u8> {
        self.skip();
        let next = *self.text.get(self.at)?;
        any.contains(&next).then(|| {
            self.at += 1;
            next
        })
    }

    fn terms(&mut self) -> Option<i64> {
        let mut value = self.factors()?;
        while let Some(sign) = self.take(b"+-") {
            let next = self.factors()?;
            value = if sign == b'+' { value.checked_add(next)? } else { value.checked_sub(next)? };
        }
        Some(value)
    }

    fn factors(&mut self) -> Option<i64> {
        let mut value = self.atom()?;
        while let Some(sign) = self.take(b"*/%") {
            let next = self.atom()?;
            value = match sign {
                b'*' => value.checked_mul(next)?,
                b'/' => value.checked_div(next)?,
                _ => value.checked_rem(next)?,
            };
        }
        Some(value)
    }

    fn atom(&mut self) -> Option<i64> {
        if self.take(b"(").is_some() {
            self.depth += 1;
            if self.depth > DEEPEST {
                return None;
            }
            let value = self.terms()?;
            self.take(b")")?;
            self.depth -= 1;
            return Some(value);
        }
        let _ = self.take(b"$");
        let braced = self.take(b"{").is_some();
        self.skip();
        let start = self.at;
        while self.text.get(self.at).is_some_and(|c| c.is_ascii_alphanumeric() || *c == b'_') {
            self.at += 1;
        }
        let word = std::str::from_utf8(self.text.get(start..self.at)?).ok()?.to_owned();
        if braced {
            self.take(b"}")?;
        }
        if let Ok(number) = word.parse() {
            return Some(number);
        }
        match self.variables.values.get(&word)?.as_slice() {
            [one] if !one.open => one.text.parse().ok(),
            _ => None,
        }
    }
}
