//! Spans of wall-clock time from seconds to years, as people write them: `30 min`, `54 d`.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};

use super::{UnitError, scaled};

/// A span of wall-clock time \[s\]. A [`Time`](super::Time) counts picoseconds and ends after 106 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Span(pub f64);

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3_600.0;
const DAY: f64 = 86_400.0;

/// What may be written, with the seconds of each.
const TABLE: &[(&str, f64)] = &[
    ("s", 1.0),
    ("min", MINUTE),
    ("h", HOUR),
    ("d", DAY),
    ("w", 7.0 * DAY),
    ("hours", HOUR),
    ("days", DAY),
    ("weeks", 7.0 * DAY),
];

/// A hundred years: no training is longer.
const MOST: f64 = 36_525.0 * DAY;

impl Span {
    /// Reads `"30 min"` or `"54d"`.
    pub fn parse(text: &str) -> Result<Span, UnitError> {
        let seconds = scaled(text, TABLE, "30 min")?;
        if seconds > MOST {
            return Err(UnitError::OutOfRange { text: text.to_owned(), expected: "at most 100 years" });
        }
        Ok(Span(seconds))
    }

    /// The same span in days.
    pub fn days(self) -> f64 {
        self.0 / DAY
    }
}

/// Three significant digits, in the largest unit that leaves more than one of it.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scale, unit) = match self.0 {
            seconds if seconds > 0.0 && seconds < 1.0 => (1e-3, "ms"),
            seconds if seconds < 2.0 * MINUTE => (1.0, "s"),
            seconds if seconds < 2.0 * HOUR => (MINUTE, "min"),
            seconds if seconds < 2.0 * DAY => (HOUR, "h"),
            _ => (DAY, "d"),
        };
        let value = self.0 / scale;
        let digits = match value {
            value if value >= 100.0 || value == 0.0 => 0,
            value if value >= 10.0 => 1,
            _ => 2,
        };
        write!(f, "{value:.digits$} {unit}")
    }
}

impl<'de> de::Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time with its unit, such as \"30 min\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                Span::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_shown_as_people_write_them() {
        for (text, seconds, shown) in [
            ("30 min", 1_800.0, "30.0 min"),
            ("54d", 54.0 * DAY, "54.0 d"),
            ("2 weeks", 14.0 * DAY, "14.0 d"),
            ("90 s", 90.0, "90.0 s"),
            ("3.1h", 11_160.0, "3.10 h"),
            ("0 s", 0.0, "0 s"),
            ("0.0047 s", 0.0047, "4.70 ms"),
        ] {
            let span = Span::parse(text).expect(text);
            assert!((span.0 - seconds).abs() < 1e-9, "{text}: {}", span.0);
            assert_eq!(span.to_string(), shown);
        }
        let error = Span::parse("5 ms").expect_err("not a span").to_string();
        assert!(error.contains("expected one of s, min, h, d, w"), "{error}");
        assert!(Span::parse("200 years").is_err() && Span::parse("1e9 d").is_err() && Span::parse("-3 h").is_err());
    }
}
