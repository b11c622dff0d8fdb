//! What a chip costs for an hour: shipped list prices, a file of one's own, or a price in the request.

use serde::{Deserialize, Serialize};

use crate::hardware::Topology;
use crate::tables::{self, Unread};

/// A price of one chip for one hour.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The machine's name.
    pub machine: String,
    /// One chip for one hour, in the currency.
    pub per_chip_hour: f64,
    /// The currency, such as `USD`.
    pub currency: String,
    /// When it was published, `YYYY-MM-DD`.
    pub date: String,
    /// Who published it, where.
    pub source: String,
}

/// A file of prices.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    price: Vec<Price>,
}

/// The prices of a file's text; what is wrong is said in the parser's words.
pub(super) fn read(text: &str) -> Result<Vec<Price>, Unread> {
    tables::read::<Written>(text).map(|written| written.price)
}

/// The list prices that ship with the program.
pub fn shipped() -> Vec<Price> {
    read(include_str!("prices.toml")).unwrap_or_else(|error| panic!("the shipped prices do not parse: {error}"))
}

/// The price that the topology's own file has.
pub fn own(machine: &Topology) -> Option<Price> {
    let per_chip_hour = machine.usd_per_chip_hour?;
    let fact = machine.facts.iter().find(|fact| fact.name == "price.usd_per_chip_hour");
    let source = fact.map_or(String::new(), |fact| fact.source.clone());
    let (machine, currency, date) = (machine.name.clone(), "USD".to_owned(), String::new());
    Some(Price { machine, per_chip_hour, currency, date, source })
}

/// The price of a machine: its own file's, or the shipped list price.
pub fn of(machine: &Topology) -> Option<Price> {
    own(machine).or_else(|| shipped().into_iter().find(|price| price.machine == machine.name))
}

/// A price as a user writes it: `2.99`, `2.99 USD`, `$2.99`, `EUR 2.5`.
pub(super) fn written(text: &str) -> Option<(f64, String)> {
    let text = text.trim().trim_end_matches("/h").trim();
    let (sign, rest) = match text.strip_prefix('$') {
        Some(rest) => (Some("USD"), rest),
        None => match text.strip_prefix('€') {
            Some(rest) => (Some("EUR"), rest),
            None => (None, text),
        },
    };
    let is_word = |word: &&str| word.chars().all(|letter| letter.is_ascii_alphabetic());
    let words: Vec<&str> = rest.split_whitespace().collect();
    let (number, currency) = match words[..] {
        [number] => (number, sign.unwrap_or("USD")),
        [number, currency] if is_word(&currency) && sign.is_none() => (number, currency),
        [currency, number] if is_word(&currency) && sign.is_none() => (number, currency),
        _ => return None,
    };
    let number: f64 = number.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)?;
    Some((number, currency.to_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_price_is_of_a_shipped_machine_and_says_when_and_whence() {
        for price in shipped() {
            assert!(Topology::shipped(&price.machine).is_some(), "{}", price.machine);
            assert!(price.per_chip_hour > 0.0 && price.date.len() == 10 && !price.source.is_empty(), "{price:?}");
        }
    }

    #[test]
    fn a_price_is_read_as_people_write_it() {
        for (text, number, currency) in [
            ("2.99", 2.99, "USD"),
            ("$2.99/h", 2.99, "USD"),
            ("2.5 eur", 2.5, "EUR"),
            ("CHF 3", 3.0, "CHF"),
            ("€2", 2.0, "EUR"),
        ] {
            assert_eq!(written(text), Some((number, currency.to_owned())), "{text}");
        }
        for wrong in ["", "free", "-1", "$2 EUR", "1 2 3"] {
            assert_eq!(written(wrong), None, "{wrong}");
        }
    }
}
