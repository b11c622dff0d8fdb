//! Writes trace events as they come, one per line: no tree is built, however long the timeline.
//!
//! Times are integers throughout, so a picosecond is never lost to a float and the same run gives the same bytes.

use std::io::{self, Write};

use crate::units::Time;

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    /// Text, escaped as it is written.
    Text(&'a str),
    /// A whole number.
    Number(u128),
    /// A time, written in microseconds with six digits.
    Micros(Time),
    /// Further fields.
    Fields(&'a [Field<'a>]),
}

/// A name and its value.
pub(crate) type Field<'a> = (&'a str, Value<'a>);

/// A file under construction.
#[derive(Debug)]
pub(crate) struct Events<W> {
    out: W,
    any: bool,
}

impl<W: Write> Events<W> {
    /// Opens the file: fields about the whole, then the list of events.
    pub(crate) fn begin(mut out: W, about: &[Field<'_>]) -> io::Result<Self> {
        // Times are shown in nanoseconds, the finest unit that viewers know.
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"otherData\":")?;
        fields(&mut out, about)?;
        out.write_all(b",\"traceEvents\":[")?;
        Ok(Events { out, any: false })
    }

    /// Adds an event.
    pub(crate) fn event(&mut self, event: &[Field<'_>]) -> io::Result<()> {
        let separator: &[u8] = if std::mem::replace(&mut self.any, true) { b",\n" } else { b"\n" };
        self.out.write_all(separator)?;
        fields(&mut self.out, event)
    }

    /// Closes the file.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}

fn fields(out: &mut impl Write, fields: &[Field<'_>]) -> io::Result<()> {
    out.write_all(b"{")?;
    for (index, (name, value)) in fields.iter().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        text(out, name)?;
        out.write_all(b":")?;
        match *value {
            Value::Text(value) => text(out, value)?,
            Value::Number(value) => write!(out, "{value}")?,
            Value::Micros(Time(ps)) => write!(out, "{}.{:06}", ps / 1_000_000, ps % 1_000_000)?,
            Value::Fields(value) => self::fields(out, value)?,
        }
    }
    out.write_all(b"}")
}

fn text(out: &mut impl Write, text: &str) -> io::Result<()> {
    serde_json::to_writer(out, text).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_picoseconds_and_text_is_escaped() {
        let mut out = Vec::new();
        let (late, name) = (Time(9_007_199_254_740_993), "a \"b\"\n");
        fields(&mut out, &[("ts", Value::Micros(late)), ("name", Value::Text(name))]).expect("memory takes it");
        assert_eq!(String::from_utf8_lossy(&out), r#"{"ts":9007199254.740993,"name":"a \"b\"\n"}"#);
    }
}
