//! Amounts of tokens as people write them: `4Mtok`, `2T`, `512` sequences.

/// What a letter multiplies by, as a decimal and as a binary prefix.
const PREFIXES: [(char, f64, f64); 4] =
    [('k', 1e3, 1024.0), ('m', 1e6, 1_048_576.0), ('b', 1e9, 1_073_741_824.0), ('t', 1e12, 1_099_511_627_776.0)];

/// Beyond all tokens that were ever written, and all money.
const MOST: f64 = 1e18;

/// An amount as written: its number, and its prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Amount {
    number: f64,
    prefix: Option<(f64, f64)>,
    /// Whether it says that it counts tokens.
    pub tokens: bool,
}

impl Amount {
    /// Reads `4Mtok`, `4M tokens`, `2T`, `15e12` or `512`.
    pub fn read(text: &str) -> Option<Amount> {
        let lower = text.trim().to_lowercase().replace([' ', '_', ','], "");
        let (number, tokens) = ["tokens", "token", "tok"]
            .iter()
            .find_map(|unit| lower.strip_suffix(unit))
            .map_or((lower.as_str(), false), |number| (number, true));
        let last = number.chars().last()?;
        let prefix = PREFIXES.iter().find(|(letter, ..)| *letter == last || (last == 'g' && *letter == 'b'));
        let number = if prefix.is_some() { &number[..number.len() - last.len_utf8()] } else { number };
        let number: f64 = number.parse().ok().filter(|number: &f64| *number > 0.0)?;
        let amount = Amount { number, prefix: prefix.map(|&(_, decimal, binary)| (decimal, binary)), tokens };
        (amount.decimal() <= MOST).then_some(amount)
    }

    /// Whether it has a letter behind its number.
    pub fn has_prefix(self) -> bool {
        self.prefix.is_some()
    }

    /// With a decimal prefix.
    pub fn decimal(self) -> f64 {
        self.number * self.prefix.map_or(1.0, |(decimal, _)| decimal)
    }

    /// With a binary prefix.
    pub fn binary(self) -> f64 {
        self.number * self.prefix.map_or(1.0, |(_, binary)| binary)
    }
}

/// A whole number, if it is one.
pub(super) fn whole(number: f64) -> Option<u64> {
    (number.fract() == 0.0 && (1.0..9.0e18).contains(&number)).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        for (text, decimal, tokens) in [
            ("4Mtok", 4e6, true),
            ("4 M tokens", 4e6, true),
            ("2T", 2e12, false),
            ("1.5B", 1.5e9, false),
            ("512", 512.0, false),
            ("4_194_304 tokens", 4_194_304.0, true),
            ("15e12", 15e12, false),
        ] {
            let amount = Amount::read(text).expect(text);
            assert_eq!((amount.decimal(), amount.tokens), (decimal, tokens), "{text}");
        }
        assert_eq!(Amount::read("4Mtok").map(Amount::binary), Some(4_194_304.0));
        for wrong in ["", "tok", "-4M", "four", "inf", "nan", "1e308", "4X"] {
            assert_eq!(Amount::read(wrong), None, "{wrong}");
        }
    }
}
