//! `--list`: which libraries and devices are here, which sweeps they suffice for, and what the others lack.

use std::path::PathBuf;

use super::device::facts;
use super::error::Failure;
use super::library::{Libraries, Library};
use super::nvml::Monitor;
use super::sweep::Sweep;
use super::{machine, open};

/// The list. It opens no device.
pub fn list(folders: &[PathBuf]) -> Result<String, Failure> {
    let libraries = Libraries::look(folders).map_err(Failure::Input)?;
    let mut text = "libraries\n".to_owned();
    for library in Library::ALL {
        let state = match libraries.from(library) {
            Some(from) => format!("{:10} {from}", machine::version(&libraries, library).unwrap_or_default()),
            None => format!("missing: {}", library.remedy()),
        };
        text += &format!("  {:12} {state}\n", library.name());
    }
    text += "devices\n";
    let devices = open::driver(&libraries);
    match &devices {
        Ok(count) => (0..*count).for_each(|ordinal| text += &format!("  {ordinal}  {}\n", device(ordinal, &libraries))),
        Err(failure) => text += &format!("  none: {}\n", failure.to_string().replace('\n', "\n  ")),
    }
    text += "sweeps\n";
    let first = devices.ok().and_then(|_| facts(0).ok());
    for sweep in super::sweeps() {
        let state = match (obstacle(sweep.as_ref(), &libraries), &first) {
            (Some(failure), _) => format!("cannot run: {failure}"),
            (None, None) => "cannot run: no device".to_owned(),
            (None, Some(facts)) => {
                let machine = machine::machine(facts, &libraries, None, None);
                match sweep.lacks(&machine) {
                    Some(why) => format!("cannot run: {why}"),
                    None => format!("can run, {} points planned", sweep.plan(&machine).len()),
                }
            }
        };
        text += &format!("  {:12} {state}\n", sweep.name());
    }
    Ok(text)
}

fn device(ordinal: usize, libraries: &Libraries) -> String {
    let facts = match facts(ordinal) {
        Ok(facts) => facts,
        Err(error) => return error.to_string(),
    };
    let state = match Monitor::open(libraries, &facts.bus) {
        Ok(monitor) => monitor.others().map_or_else(|| "idle".to_owned(), |others| format!("busy: {others}")),
        Err(why) => format!("busy or not: unknown, {why}"),
    };
    let ((major, minor), memory) = (facts.capability, facts.memory as f64 / 1e9);
    format!("{}, {} processors, {memory:.0} GB, capability {major}.{minor}; {state}", facts.name, facts.processors)
}

/// What keeps a sweep from running here, as far as libraries go.
pub fn obstacle(sweep: &dyn Sweep, libraries: &Libraries) -> Option<Failure> {
    let missing = libraries.missing(sweep.needs());
    if let Some(library) = missing.first() {
        let names: Vec<&str> = missing.iter().map(|library| library.name()).collect();
        let text = format!("the sweep {} needs {}: {}", sweep.name(), names.join(" and "), library.remedy());
        return Some(Failure::MissingLibrary(text));
    }
    let too_new = sweep.needs().iter().find_map(|library| open::too_new(libraries, *library));
    too_new.map(Failure::DriverTooOld)
}
