//! Variants that recompute other things in backward, or keep states on the host.

use toml::Value;

use super::error::VariantError;
use super::variant::{Variant, checked};
use crate::scenario::{Draft, Rerun, Scenario};

/// Something else that runs again in backward, as the runtime writes it.
pub(super) fn recompute(draft: &Draft, scenario: &Scenario, value: &str) -> Result<Option<Variant>, VariantError> {
    let mut draft = draft.clone();
    let Rerun { key, values, beside } = scenario.runtime.recompute();
    let (kind, number) = value.split_once('=').map_or((value, None), |(kind, number)| (kind, Some(number)));
    let alike = |known: &&str| match known.split_once('=') {
        Some((name, _)) => name == kind && number.is_some(),
        None => *known == value,
    };
    let written = match (values.iter().find(|known| alike(known)), number.map(str::parse::<i64>)) {
        (None, _) | (_, Some(Err(_))) => return Ok(None),
        (_, Some(Ok(number))) => Value::Table(toml::Table::from_iter([(kind.to_owned(), number.into())])),
        (_, None) => value.parse().map_or_else(|_| Value::from(value), Value::Boolean),
    };
    draft.set(key, written);
    let without: Vec<&str> = beside.iter().copied().filter(|key| draft.get(key).is_some()).collect();
    without.iter().for_each(|key| draft.remove(key));
    let note = (!without.is_empty()).then(|| format!("without {}", without.join(", ")));
    Ok(Some(checked(value, draft, note)))
}

/// `CPUOffloadPolicy`: parameters, gradients and optimizer state on the host.
pub(super) fn offload(draft: &Draft, _: &Scenario, value: &str) -> Result<Option<Variant>, VariantError> {
    let mut draft = draft.clone();
    let Ok(on) = value.parse::<bool>() else { return Ok(None) };
    draft.set("fsdp.cpu_offload", on);
    Ok(Some(checked(value, draft, None)))
}
