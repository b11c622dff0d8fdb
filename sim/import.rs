//! Configurations of training frameworks, read into scenarios whose every key says where it comes from.
//!
//! A configuration and its overrides become [`Settings`]: a flat map of the framework's own keys, each with its place. An importer asks
//! for the settings that matter and puts scenario keys into an [`Imported`], each with a [`Why`]: the source key, or the framework's
//! default and where that is written. What nobody asks for is idle, not modelled or unknown, as the framework's table
//! (`tables/*.toml`) says. One writer prints all of it as a scenario that `windtunnel run` accepts.
//!
//! To add an importer: a file with an [`Importer`], its table in `tables/`, and a line in [`IMPORTERS`].

mod accelerate;
#[cfg(test)]
mod against;
mod axolotl;
mod bridge;
mod deepspeed;
mod error;
mod hf;
mod imported;
mod importer;
mod machine;
mod maxtext;
mod megatron;
mod nanotron;
mod nemo;
mod nobody;
mod plugin;
mod settings;
mod syntax;
mod table;
#[cfg(test)]
mod tests;
mod torchtitan;
mod torchtune;
mod whose;
mod why;
mod write;

pub use error::ImportError;
pub use imported::Imported;
pub use importer::{Importer, Machine, Request, Tables};
pub use settings::Settings;
pub use why::Why;

use crate::budget;
use crate::near::did_you_mean;

/// The registry.
pub const IMPORTERS: &[Importer] = &[
    torchtitan::IMPORTER,
    hf::IMPORTER,
    megatron::IMPORTER,
    deepspeed::IMPORTER,
    nanotron::IMPORTER,
    maxtext::IMPORTER,
    accelerate::IMPORTER,
    torchtune::IMPORTER,
    axolotl::IMPORTER,
    nemo::IMPORTER,
];

/// Names of all importers.
pub fn names() -> impl Iterator<Item = &'static str> {
    IMPORTERS.iter().map(|importer| importer.name)
}

/// The importer of that name.
pub fn find(name: &str) -> Result<&'static Importer, ImportError> {
    IMPORTERS.iter().find(|importer| importer.name == name).ok_or_else(|| ImportError::Framework {
        name: name.to_owned(),
        near: did_you_mean(name, names()),
        known: names().collect::<Vec<_>>().join(", "),
    })
}

/// The importer whose configuration `text` is; none for a scenario, and for TOML of no framework, which may have been meant as one.
///
/// # Errors
/// The text is anything else, too long, or may be of several frameworks.
pub fn recognise(file: &str, text: &str) -> Result<Option<&'static Importer>, ImportError> {
    if syntax::is_scenario(text) {
        return Ok(None);
    }
    short(file, text)?;
    let found: Vec<&Importer> = IMPORTERS.iter().filter(|importer| (importer.sniff)(text)).collect();
    match found.as_slice() {
        [] if file.ends_with(".toml") || syntax::is_like_a_scenario(text) => Ok(None),
        [] => Err(nobody::nobody(file, text, IMPORTERS)),
        [one] => Ok(Some(one)),
        several => Err(ImportError::Ambiguous {
            file: file.to_owned(),
            names: several.iter().map(|importer| importer.name).collect::<Vec<_>>().join(", "),
            first: several[0].name,
        }),
    }
}

/// Reads a configuration.
pub fn import(importer: &Importer, request: &Request<'_>) -> Result<Imported, ImportError> {
    short(request.file, request.text)?;
    (importer.read)(request)
}

/// A configuration is what people write: what is longer is something else.
fn short(file: &str, text: &str) -> Result<(), ImportError> {
    let most = budget::CONFIGURATION;
    match text.len() > most {
        true => Err(ImportError::Syntax {
            place: file.to_owned(),
            problem: format!("longer than {} MiB, so it is no configuration that was written by hand", most >> 20),
            remedy: "give the file that the framework is started with".to_owned(),
        }),
        false => Ok(()),
    }
}
