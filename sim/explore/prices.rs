//! What a chip costs for an hour: shipped list prices, a file of one's own, or a price in the request.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::value::Datetime;

use crate::files::one_line;
use crate::hardware::{Topology, price};
use crate::tables;

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

/// The most prices of a file.
const MOST: usize = 10_000;

/// A file of prices.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    price: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    machine: Spanned<String>,
    per_chip_hour: Spanned<f64>,
    currency: Spanned<String>,
    date: Spanned<String>,
    source: Spanned<String>,
}

/// The prices of a file's text; a machine is called by its own name, whichever of its names the file has.
///
/// # Errors
/// The first that is none: its bytes in the text, and what was expected.
pub fn read(text: &str) -> Result<Vec<Price>, (String, Range<usize>)> {
    let written: Written =
        tables::read(text).map_err(|error| (error.message().to_owned(), error.span().unwrap_or(0..0)))?;
    if written.price.is_empty() {
        return Err(("the file has no [[price]]: write one for each machine".to_owned(), 0..0));
    }
    if written.price.len() > MOST {
        return Err((
            format!("the file has more than {MOST} prices: leave out those of machines that are not asked for"),
            0..0,
        ));
    }
    let mut prices: Vec<Price> = vec![];
    for row in written.price {
        let at = row.machine.span();
        let price = understood(row)?;
        if prices.iter().any(|known| known.machine == price.machine) {
            return Err((format!("{} has a price already: remove one of the two", price.machine), at));
        }
        prices.push(price);
    }
    Ok(prices)
}

fn understood(row: Row) -> Result<Price, (String, Range<usize>)> {
    let at = |written: &Spanned<String>, problem: String| Err((problem, written.span()));
    let Row { machine, per_chip_hour, currency, date, source } = row;
    if let Err(why) = price::sensible(*per_chip_hour.get_ref()) {
        return Err((format!("per_chip_hour is {}: {why}", per_chip_hour.get_ref()), per_chip_hour.span()));
    }
    if !is_currency(currency.get_ref()) {
        return at(&currency, format!("{:?} is no currency: write currency = \"USD\"", currency.get_ref()));
    }
    let day = date.get_ref().parse::<Datetime>().ok().filter(|day| day.date.is_some() && day.time.is_none());
    if day.is_none() {
        return at(&date, format!("{:?} is no day: write date = \"2026-11-01\"", date.get_ref()));
    }
    for (key, text) in [("machine", &machine), ("source", &source)] {
        if text.get_ref().trim().is_empty() {
            return at(text, format!("{key} is empty: say {}", if key == "source" { "who asks it" } else { "which" }));
        }
    }
    let name = machine.get_ref().trim();
    Ok(Price {
        machine: Topology::name_of(name).unwrap_or(name).to_owned(),
        per_chip_hour: *per_chip_hour.get_ref(),
        currency: currency.get_ref().trim().to_uppercase(),
        date: one_line(date.get_ref()),
        source: one_line(source.get_ref()),
    })
}

/// Whether a text is what stands for a currency.
fn is_currency(text: &str) -> bool {
    let text = text.trim();
    (1..=8).contains(&text.len()) && text.chars().all(|letter| letter.is_ascii_alphabetic())
}

/// The list prices that ship with the program.
pub fn shipped() -> Vec<Price> {
    read(include_str!("prices.toml")).unwrap_or_else(|(problem, _)| panic!("the shipped prices: {problem}"))
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
    let words: Vec<&str> = rest.split_whitespace().collect();
    let (number, currency) = match words[..] {
        [number] => (number, sign.unwrap_or("USD")),
        [number, currency] if is_currency(currency) && sign.is_none() => (number, currency),
        [currency, number] if is_currency(currency) && sign.is_none() => (number, currency),
        _ => return None,
    };
    let number: f64 = number.parse().ok().filter(|&number| price::sensible(number).is_ok())?;
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

    /// A file of one price, with a key's value replaced.
    fn file(key: &str, value: &str) -> String {
        let rows = [
            ("machine", "\"h100-sxm-80gb\""),
            ("per_chip_hour", "2.49"),
            ("currency", "\"usd\""),
            ("date", "\"2026-11-01\""),
            ("source", "\"our contract\""),
        ];
        let row =
            |(known, written): (&str, &str)| format!("{known} = {}\n", if known == key { value } else { written });
        format!("[[price]]\n{}", rows.map(row).concat())
    }

    #[test]
    fn a_file_of_prices_calls_machines_and_currencies_by_their_own_names() {
        let price = &read(&file("machine", "\"h200-sxm\"")).expect("an alias")[0];
        assert_eq!((price.machine.as_str(), price.currency.as_str()), ("h200-sxm-141gb", "USD"));
        assert_eq!(read(&file("machine", "\"mine\"")).expect("one's own")[0].machine, "mine");
    }

    #[test]
    fn what_no_chip_costs_no_day_and_no_currency_are_refused_at_their_place() {
        for (key, value) in [
            ("per_chip_hour", "-2.49"),
            ("per_chip_hour", "0"),
            ("per_chip_hour", "nan"),
            ("per_chip_hour", "inf"),
            ("per_chip_hour", "1e308"),
            ("per_chip_hour", "1e-300"),
            ("per_chip_hour", "\"2.49\""),
            ("currency", "\"\""),
            ("currency", "\"$\""),
            ("date", "\"2026-99-99\""),
            ("date", "\"2026-02-30\""),
            ("date", "\"last week\""),
            ("date", "\"2026-11-01T10:00:00Z\""),
            ("machine", "\" \""),
            ("source", "\"\""),
        ] {
            let text = file(key, value);
            let (problem, span) = read(&text).expect_err(value);
            assert_eq!(&text[span], value, "{problem}");
        }
        assert!(read("").is_err_and(|(problem, _)| problem.contains("no [[price]]")));
    }

    #[test]
    fn one_machine_has_one_price() {
        let twice = file("machine", "\"h200-sxm\"") + &file("machine", "\"h200-sxm-141gb\"");
        let (problem, span) = read(&twice).expect_err("two prices of one machine");
        assert_eq!((&twice[span], problem.contains("has a price already")), ("\"h200-sxm-141gb\"", true), "{problem}");
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
        for wrong in ["", "free", "-1", "$2 EUR", "1 2 3", "0", "nan", "1e308", "2 U$"] {
            assert_eq!(written(wrong), None, "{wrong}");
        }
    }
}
