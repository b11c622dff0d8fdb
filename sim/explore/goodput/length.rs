//! How long a training is, as people write it: `54d`, `2T-tokens`.

use crate::explore::quantity::Amount;
use crate::units::Span;

/// How long a training is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// So much wall-clock time \[s\].
    Wall(f64),
    /// So many tokens.
    Tokens(f64),
}

/// The most tokens that are trained on.
const MOST_TOKENS: f64 = 1e18;

impl Length {
    /// Reads `54d`, `3 weeks`, `2T-tokens`, `15.6e12 tokens`, or `2T`.
    pub fn parse(text: &str) -> Result<Length, String> {
        let wrong = || {
            format!(
                "{text:?} is no length of a training: write days such as 54d (also h, w), or tokens such as 2T-tokens"
            )
        };
        if let Ok(Span(seconds)) = Span::parse(text) {
            return if seconds > 0.0 { Ok(Length::Wall(seconds)) } else { Err(wrong()) };
        }
        let amount = Amount::read(&text.replace('-', " ")).filter(|amount| amount.tokens || amount.has_prefix());
        match amount.map(Amount::decimal) {
            Some(tokens) if (1.0..=MOST_TOKENS).contains(&tokens) => Ok(Length::Tokens(tokens)),
            Some(_) => Err(format!("{text:?} is out of range: expected 1 to 1e18 tokens")),
            None => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_people_write_them() {
        for (text, length) in [
            ("54d", Length::Wall(54.0 * 86_400.0)),
            ("36 h", Length::Wall(36.0 * 3_600.0)),
            ("2 weeks", Length::Wall(14.0 * 86_400.0)),
            ("2T-tokens", Length::Tokens(2e12)),
            ("15.6e12 tokens", Length::Tokens(15.6e12)),
            ("2T", Length::Tokens(2e12)),
        ] {
            assert_eq!(Length::parse(text), Ok(length), "{text}");
        }
        for wrong in ["54", "0 d", "-3d", "two weeks", "", "1e30 tokens", "5 ms"] {
            assert!(Length::parse(wrong).is_err(), "{wrong}");
        }
    }
}
