//! The rates that ship with the program, one line each, and the search for some by name or path.

use super::error::FailuresError;
use super::rates::Rates;
use super::read;
use crate::near::nearest;

/// Shipped rates.
struct Shipped {
    name: &'static str,
    text: &'static str,
}

macro_rules! shipped {
    ($($name:literal;)*) => {
        &[$(Shipped { name: $name, text: include_str!(concat!($name, ".toml")) }),*]
    };
}

const SHIPPED: &[Shipped] = shipped! {
    "llama3-h100";
    "opt-a100";
    "rsc1-a100";
    "rsc2-a100";
    "tpu-v4";
};

/// One entry of the list of shipped rates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name to ask for.
    pub name: &'static str,
    /// One line.
    pub description: String,
}

/// The shipped rates, in the order of the table.
pub fn registry() -> Vec<Listed> {
    let listed = |shipped: &Shipped| {
        let rates = read::read(shipped.name, shipped.text)
            .unwrap_or_else(|error| panic!("the shipped rates {} do not parse: {error}", shipped.name));
        Listed { name: shipped.name, description: rates.description }
    };
    SHIPPED.iter().map(listed).collect()
}

impl Rates {
    /// Shipped rates by name, or one's own by path.
    pub fn load(name_or_path: &str) -> Result<Rates, FailuresError> {
        load(name_or_path)
    }
}

/// Shipped rates by name, or one's own by path.
fn load(name_or_path: &str) -> Result<Rates, FailuresError> {
    let asked = name_or_path.trim();
    if let Some(shipped) = SHIPPED.iter().find(|shipped| shipped.name == asked) {
        return read::read(&format!("sim/failures/{}.toml", shipped.name), shipped.text);
    }
    let names = SHIPPED.iter().map(|shipped| shipped.name);
    if !(asked.ends_with(".toml") || asked.contains(['/', '\\'])) {
        let known = names.clone().collect::<Vec<_>>().join(", ");
        return Err(FailuresError::Unknown { name: asked.to_owned(), closest: nearest(asked, names), known });
    }
    match crate::files::text(asked.as_ref()) {
        Ok(text) => read::read(asked, &text),
        Err(error) => Err(FailuresError::Unreadable { path: asked.to_owned(), reason: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failures::rates::{DAY, Rate};

    /// Interruptions of a study's own job.
    fn count(name: &str, chips: u32, days: f64, planned: bool) -> f64 {
        let rates = load(name).expect("shipped");
        let of = |rate: Rate| matches!(rate, Rate::Planned(_)) == planned;
        let rates = rates.components.iter().filter(|component| of(component.rate));
        rates.map(|component| component.rate.of_job(chips) * days * DAY).sum()
    }

    #[test]
    fn every_study_gives_back_what_it_counted() {
        // Table 5 of the paper and the counts in its text.
        let llama = [false, true].map(|planned| count("llama3-h100", 16_384, 54.0, planned));
        assert!((llama[0] - 419.0).abs() < 1e-9 && (llama[1] - 47.0).abs() < 1e-9, "{llama:?}");
        // 35 manual and 70 automatic restarts in two months.
        assert!((count("opt-a100", 992, 60.0, false) - 105.0).abs() < 1e-9);
        // Failures of 1,000 nodes of eight in a day.
        assert!((count("rsc1-a100", 8_000, 1.0, false) - 6.50).abs() < 1e-9);
        assert!((count("rsc2-a100", 8_000, 1.0, false) - 2.34).abs() < 1e-9);
        // 0.08 % of 1,024 machines, 0.005 % of 8,192 cables and 0.04 % of 48 switches.
        let day = 1_024.0 * 0.0008 + 8_192.0 * 0.00005 + 48.0 * 0.0004;
        assert!((count("tpu-v4", 4_096, 1.0, false) - day).abs() < 1e-9);
    }

    #[test]
    fn the_mean_time_between_failures_is_the_one_that_the_study_projects() {
        // arXiv 2410.21680: 1.8 hours at 16,384 GPUs.
        let hours = 24.0 / count("rsc1-a100", 16_384, 1.0, false);
        assert!((hours - 1.8).abs() < 0.05, "{hours}");
    }

    #[test]
    fn shipped_files_have_the_names_that_they_are_asked_by() {
        for listed in registry() {
            let rates = load(listed.name).expect("shipped");
            assert_eq!(rates.name, listed.name);
            assert!(!rates.sources.is_empty() && !rates.components.is_empty());
        }
        let wrong = load("llama3").expect_err("no such rates").to_string();
        assert!(wrong.contains("did you mean \"llama3-h100\"?") && wrong.contains("tpu-v4"), "{wrong}");
    }
}
