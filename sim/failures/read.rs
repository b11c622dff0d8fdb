//! A file of rates, as written and as understood: every number positive and sourced.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::error::FailuresError;
use super::rates::{Component, DAY, Rate, Rates};
use crate::files::one_line;
use crate::hardware::Place;
use crate::tables;

/// A number and where it comes from.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sourced {
    value: Spanned<f64>,
    /// A key of `[sources]`, or `assumed` or `derived` with the reason.
    source: Spanned<String>,
}

/// What a study watched.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Observed {
    chips: Sourced,
    days: Sourced,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    name: Spanned<String>,
    /// Interruptions that were counted while the study watched.
    count: Option<Sourced>,
    /// Failures of one part in a day.
    per_day: Option<Sourced>,
    /// Such parts for each chip.
    parts_per_chip: Option<Sourced>,
    /// Whether the job loses a node.
    #[serde(default)]
    takes_node: bool,
    /// Whether people planned it.
    #[serde(default)]
    planned: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    description: String,
    sources: BTreeMap<String, Spanned<String>>,
    observed: Option<Observed>,
    #[serde(default)]
    component: Vec<Spanned<Part>>,
}

/// Reads and checks a file.
pub(super) fn read(file: &str, text: &str) -> Result<Rates, FailuresError> {
    let mut numbers = Numbers { file, text, known: BTreeMap::new(), met: vec![] };
    let written: File = tables::read(text)
        .map_err(|error| numbers.place(error.message().trim_end(), error.span().unwrap_or(text.len()..text.len())))?;
    for (key, source) in &written.sources {
        let source = source.get_ref().trim();
        numbers.known.insert(key.clone(), source.to_owned());
    }
    if written.component.is_empty() {
        let problem = "the file has no [[component]]: write one with name and count, or per_day and parts_per_chip";
        return Err(numbers.place(problem, written.name.span()));
    }
    let observed = match &written.observed {
        Some(observed) => Some((
            numbers.take("observed.chips", &observed.chips)?,
            numbers.take("observed.days", &observed.days)? * DAY,
        )),
        None => None,
    };
    let mut components = vec![];
    for part in &written.component {
        components.push(component(part, observed, &mut numbers)?);
    }
    let name = one_line(written.name.get_ref());
    Ok(Rates { name, description: one_line(&written.description), components, sources: numbers.met })
}

/// One component; `observed` is what was watched, in chips and seconds.
fn component(
    at: &Spanned<Part>,
    observed: Option<(f64, f64)>,
    numbers: &mut Numbers<'_>,
) -> Result<Component, FailuresError> {
    let (part, name) = (at.get_ref(), one_line(at.get_ref().name.get_ref()));
    let wrong = |numbers: &Numbers<'_>, problem: String| numbers.place(&problem, part.name.span());
    let rate = match (&part.count, &part.per_day, &part.parts_per_chip) {
        (Some(count), None, None) => {
            let Some((chips, seconds)) = observed else {
                return Err(wrong(numbers, format!("{name} has a count, and [observed] says not on how many chips")));
            };
            let count = numbers.take(&format!("{name}: count"), count)?;
            if part.planned { Rate::Planned(count / seconds) } else { Rate::EachChip(count / seconds / chips) }
        }
        (None, Some(per_day), Some(parts)) if !part.planned => {
            let per_day = numbers.take(&format!("{name}: per_day"), per_day)?;
            Rate::EachChip(per_day * numbers.take(&format!("{name}: parts_per_chip"), parts)? / DAY)
        }
        (None, Some(per_day), None) if part.planned => {
            Rate::Planned(numbers.take(&format!("{name}: per_day"), per_day)? / DAY)
        }
        _ => {
            let problem = format!(
                "{name} has no rate that can be read: write count, or per_day with parts_per_chip; what is planned has \
                 no parts_per_chip"
            );
            return Err(wrong(numbers, problem));
        }
    };
    Ok(Component { name, rate, takes_node: part.takes_node })
}

/// Takes numbers out of the file, each with its source.
struct Numbers<'f> {
    file: &'f str,
    text: &'f str,
    known: BTreeMap<String, String>,
    met: Vec<String>,
}

impl Numbers<'_> {
    fn place(&self, problem: &str, span: Range<usize>) -> FailuresError {
        FailuresError::Written { problem: problem.to_owned(), place: Place::of(self.file, self.text, span) }
    }

    fn take(&mut self, name: &str, written: &Sourced) -> Result<f64, FailuresError> {
        let value = *written.value.get_ref();
        if !(1e-9..=1e9).contains(&value) {
            let problem = format!("{name} is {value}: expected a number from 1e-9 to 1e9");
            return Err(self.place(&problem, written.value.span()));
        }
        let key = written.source.get_ref().trim();
        let source = match self.known.get(key) {
            Some(source) => source.clone(),
            None if key.starts_with("assumed") || key.starts_with("derived") => key.to_owned(),
            None => {
                let known = self.known.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                let problem = format!(
                    "the source {key:?} of {name} is not listed under [sources] ({known}): add it there, or write \
                     \"assumed: why\" or \"derived: how\""
                );
                return Err(self.place(&problem, written.source.span()));
            }
        };
        if !self.met.contains(&source) {
            self.met.push(source);
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "name = \"mine\"\ndescription = \"ours\"\n[sources]\nlog = \"our log\"\n";

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let cases = [
            ("", "no [[component]]"),
            ("[[component]]\nname = \"GPU\"\ncount = { value = 3, source = \"log\" }\n", "[observed] says not"),
            ("[[component]]\nname = \"GPU\"\nper_day = { value = 3, source = \"log\" }\n", "no rate that can be read"),
            ("[[component]]\nname = \"GPU\"\ntakes_nodes = true\n", "unknown field"),
            (
                "[[component]]\nname = \"GPU\"\nplanned = true\nper_day = { value = -1, source = \"log\" }\n",
                "expected a number",
            ),
            (
                "[[component]]\nname = \"GPU\"\nplanned = true\nper_day = { value = 1, source = \"memory\" }\n",
                "not listed under [sources]",
            ),
        ];
        for (text, said) in cases {
            let error = read("mine.toml", &format!("{OWN}{text}")).expect_err(said).to_string();
            assert!(error.contains(said) && error.contains("--> mine.toml:"), "{error}");
        }
    }

    #[test]
    fn rates_of_ones_own_are_read() {
        let text = format!(
            "{OWN}[observed]\nchips = {{ value = 100, source = \"log\" }}\ndays = {{ value = 10, source = \"log\" }}\n\
             [[component]]\nname = \"GPU\"\ncount = {{ value = 5, source = \"log\" }}\ntakes_node = true\n"
        );
        let rates = read("mine.toml", &text).expect("well written");
        let [gpu] = &rates.components[..] else { panic!("{rates:?}") };
        assert!(gpu.takes_node && (gpu.rate.of_job(200) * DAY - 1.0).abs() < 1e-12, "{gpu:?}");
    }
}
