//! What DeepSpeed's ZeRO keeps in the host's memory, or on its disks: `offload_optimizer` and `offload_param`.

use toml::{Spanned, Value};

use super::super::assumption::Written;
use super::super::error::ScenarioError;
use super::super::reader::Reader;
use super::super::written::{self, ZeroDevice};
use super::disks;
use crate::runtime::optimizer::{Asked, Caller, How, Optimizer, Row, rows};
use crate::runtime::zero::{Offload, Stage};
use crate::units::Finite;

/// Both tables.
pub(super) fn offload(reader: &mut Reader<'_>, table: &written::Zero, stage: Stage) -> Result<Offload, ScenarioError> {
    let optimizer = one(reader, table.offload_optimizer.as_ref())?;
    let parameters = one(reader, table.offload_param.as_ref())?;
    if let Some(at) = parameters {
        if stage < Stage::Three {
            let problem = "zero.offload_param is read under stage = 3 alone";
            return Err(reader.plan(at, problem, "remove the key, or write stage = 3"));
        }
        if optimizer.is_none() {
            let problem = "zero.offload_param with what is stepped on the device has no rules";
            return Err(reader.plan(at, problem, "write offload_optimizer.device = \"cpu\" too"));
        }
    }
    if let (Some(_), Some(at)) = (parameters, optimizer.and_then(|at| at.get_ref().ratio.as_ref()))
        && *at.get_ref() < 1.0
    {
        let problem = "groups stepped on the device whose parameters are on the host have no rules";
        return Err(reader.plan(at, problem, "remove the key, or offload_param"));
    }
    let ratio = match optimizer.and_then(|at| at.get_ref().ratio.as_ref()) {
        Some(at) if stage < Stage::Three => {
            let problem = "zero.offload_optimizer.ratio is read under stage = 3 alone";
            return Err(reader.plan(at, problem, "remove the key, or write stage = 3"));
        }
        Some(at) if !(0.0..=1.0).contains(at.get_ref()) => {
            let problem = format!("zero.offload_optimizer.ratio = {} is out of range: expected 0 to 1", at.get_ref());
            return Err(ScenarioError::Written { problem, place: reader.place(at) });
        }
        Some(at) => Finite::nearest(*at.get_ref()),
        None => Finite::nearest(1.0),
    };
    let states = optimizer.map(|at| disks::states(reader, at, stage)).transpose()?.flatten();
    let files = parameters.and_then(|at| disks::files(at.get_ref()));
    optimizer.map_or(Ok(()), |at| disks::has_folder(reader, at))?;
    parameters.map_or(Ok(()), |at| disks::has_folder(reader, at))?;
    let aio = disks::aio(reader, table, states.is_some() || files.is_some())?;
    assumed(reader, optimizer, stage == Stage::Three);
    assumed(reader, parameters, false);
    Ok(Offload { optimizer: optimizer.is_some(), ratio, parameters: parameters.is_some(), states, files, aio })
}

/// What a table leaves open, said as the whole table: so it can be written into the file.
fn assumed<T: disks::Table>(reader: &mut Reader<'_>, table: Option<&Spanned<T>>, has_ratio: bool) {
    let Some(table) = table.map(Spanned::get_ref) else { return };
    let mut left_open = table.pin_memory().is_none();
    let device = if table.is_disk() { "nvme" } else { "cpu" };
    let mut said: Vec<(&str, Value)> = vec![("device", device.into()), ("pin_memory", true.into())];
    if has_ratio {
        left_open |= table.ratio().is_none();
        said.push(("ratio", table.ratio().unwrap_or(1.0).into()));
    }
    let of_disks = table.keys();
    left_open |= table.is_disk() && of_disks.iter().any(|(_, written, default)| written.is_none() && default.is_some());
    for (name, written, default) in of_disks {
        let default = default.filter(|_| table.is_disk());
        said.extend(written.or(default).map(|value| (name, value)));
    }
    if left_open {
        let keys = said.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        reader.assume(&format!("zero.{}", T::NAME), (), Written::Keys(keys));
    }
}

/// One of them, if it names the host's memory.
fn one<'w, T: disks::Table>(
    reader: &mut Reader<'_>,
    table: Option<&'w Spanned<T>>,
) -> Result<Option<&'w Spanned<T>>, ScenarioError> {
    let key = T::NAME;
    // Without a device it stays where it is.
    let Some(table) = table else { return Ok(None) };
    let device = table.get_ref().device();
    let Some(device) = device.filter(|at| !matches!(at.get_ref(), ZeroDevice::None)) else {
        let own = table.get_ref();
        if own.pin_memory().is_some() || own.ratio().is_some() || own.keys().iter().any(|key| key.1.is_some()) {
            let problem = format!("zero.{key} says how what is offloaded lies, and nothing is: it has no device");
            return Err(reader.plan(table, problem, "write device = \"cpu\", or remove the other keys"));
        }
        return Ok(None);
    };
    if *device.get_ref() == ZeroDevice::None {
        return Ok(None);
    }
    match table.get_ref().pin_memory() {
        Some(at) if !*at.get_ref() => {
            let problem =
                format!("zero.{key}.pin_memory = false has no rules: profiles are of copies to pinned memory");
            return Err(reader.plan(at, problem, "write pin_memory = true, which is DeepSpeed's default"));
        }
        _ => {}
    }
    disks::fitting(reader, table.get_ref())?;
    Ok(Some(table))
}

/// The optimizer where what is stepped is on the host: DeepSpeedCPUAdam, and torch's AdamW for groups that are not.
pub(super) fn optimizer(reader: &mut Reader<'_>, written: &written::Optimizer) -> Result<Optimizer, ScenarioError> {
    let known = || rows(Caller::Zero).filter(|row| row.facts.on_host.contains(&Caller::Zero));
    let first = || known().next().expect("DeepSpeed steps one on the host: a test says so");
    let Row { make, .. } = match &written.name {
        None => {
            let first = first();
            reader.assume("optimizer.name", first, first.facts.name)
        }
        Some(at) => known().find(|row| row.facts.name == at.get_ref()).ok_or_else(|| {
            let problem = format!("{} on the host has no rules: DeepSpeedCPUAdam steps what is there", at.get_ref());
            reader.plan(at, problem, format!("write name = {:?}", first().facts.name))
        })?,
    };
    if let Some(at) = &written.implementation {
        let problem = "optimizer.implementation means nothing on the host: DeepSpeedCPUAdam steps what is there";
        return Err(reader.plan(at, problem, "remove the key"));
    }
    if let Some(at) = &written.step_on_device {
        let problem = "optimizer.step_on_device means nothing on the host";
        return Err(reader.plan(at, problem, "remove the key"));
    }
    let decays = written.weight_decay.as_ref().is_none_or(|at| *at.get_ref() != 0.0);
    Ok(make(&Asked { decays, ..Asked::plain(How::Foreach) }))
}
