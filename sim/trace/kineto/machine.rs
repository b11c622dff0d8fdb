//! What the outermost object of a Kineto file says of machine, job and profiler, before or after the events.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::draft::Draft;
use super::super::parts::Device;
use super::event::plain;

/// Values of the outermost object, as far as they were met.
#[derive(Debug, Default)]
pub(super) struct Top {
    devices: Vec<WrittenDevice>,
    job: Option<Job>,
    base: Option<i64>,
    versions: Vec<(&'static str, String)>,
    records_shapes: bool,
    unknown: Vec<String>,
    /// Names of threads by process and thread.
    pub threads: Vec<((i64, i64), String)>,
}

/// Versions of software: the key, what it is, and whether it is a number such as 12060.
const VERSIONS: [(&str, &str, bool); 6] = [
    ("cuda_runtime_version", "CUDA runtime", true),
    ("cuda_driver_version", "CUDA driver", true),
    ("cupti_version", "CUPTI", false),
    ("hip_runtime_version", "HIP runtime", false),
    ("hip_driver_version", "HIP driver", false),
    ("roctracer_version", "roctracer", false),
];

/// Keys that were not read and are listed.
const LISTED: usize = 20;

/// Keys that say nothing of what is read here.
const SKIPPED: [&str; 11] = [
    "schemaVersion",
    "record_shapes",
    "with_flops",
    "with_modules",
    "with_stack",
    "profile_memory",
    "trace_id",
    "traceName",
    "displayTimeUnit",
    "metadata",
    "INFO",
];

#[derive(Debug, Deserialize)]
struct WrittenDevice {
    id: Option<u32>,
    name: Option<String>,
    #[serde(rename = "totalGlobalMem")]
    memory: Option<u64>,
    #[serde(rename = "numSms")]
    sms: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Job {
    rank: Option<i64>,
    world_size: Option<i64>,
    nccl_version: Option<Box<RawValue>>,
    pg_config: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
struct WrittenGroup {
    pg_name: Option<Box<RawValue>>,
    pg_desc: Option<String>,
    pg_size: Option<u32>,
    ranks: Option<Box<RawValue>>,
}

impl Top {
    pub(super) fn wants(&mut self, key: &str) -> bool {
        let is_read = ["deviceProperties", "distributedInfo", "baseTimeNanoseconds", "record_shapes"].contains(&key)
            || VERSIONS.iter().any(|&(known, ..)| known == key);
        if !is_read && !SKIPPED.contains(&key) && self.unknown.len() < 1000 {
            self.unknown.push(key.to_owned());
        }
        is_read
    }

    pub(super) fn value(&mut self, key: &str, json: &[u8]) -> Result<(), serde_json::Error> {
        match key {
            "deviceProperties" => self.devices = serde_json::from_slice(json)?,
            "distributedInfo" => self.job = Some(serde_json::from_slice(json)?),
            "baseTimeNanoseconds" => self.base = Some(serde_json::from_slice(json)?),
            "record_shapes" => self.records_shapes = serde_json::from_slice::<&RawValue>(json)?.get() != "0",
            _ => {
                let value: &RawValue = serde_json::from_slice(json)?;
                if let Some(&(_, what, is_number)) = VERSIONS.iter().find(|&&(known, ..)| known == key) {
                    self.versions.push((what, version(plain(value), is_number)));
                }
            }
        }
        Ok(())
    }

    /// Writes it all into the draft.
    pub(super) fn describe(self, draft: &mut Draft) {
        let number = |value: Option<i64>| value.and_then(|value| u32::try_from(value).ok());
        for (at, device) in self.devices.into_iter().enumerate() {
            let WrittenDevice { id, name, memory, sms } = device;
            draft.trace.machine.devices.push(Device { number: id.unwrap_or(at as u32), name, sms, memory });
        }
        let versions = self.versions.into_iter().map(|(what, version)| (what.to_owned(), version));
        draft.trace.machine.versions.extend(versions);
        for ((pid, tid), name) in self.threads {
            if let Some(id) = draft.known_thread(pid, tid) {
                draft.trace.threads[id.at()].name = Some(name);
            }
        }
        // Old files count from 1970 without a base of their own; others begin anywhere.
        draft.trace.epoch = match self.base {
            Some(base) => Some(i128::from(base)),
            None => is_since_1970(draft).then_some(0),
        };
        if let Some(job) = self.job {
            draft.trace.rank = number(job.rank);
            draft.trace.world = number(job.world_size);
            if let Some(nccl) = job.nccl_version {
                draft.trace.machine.versions.push(("NCCL".to_owned(), plain(&nccl).to_owned()));
            }
            if let Some(groups) = job.pg_config {
                groups_of(draft, &groups);
            }
        }
        if draft.trace.machine.devices.is_empty() {
            draft.note("the file does not say which GPU it is about".to_owned());
        }
        if draft.trace.rank.is_none() {
            draft.note("the file does not say which rank it is about".to_owned());
        }
        if !self.unknown.is_empty() {
            let more = self.unknown.len().saturating_sub(LISTED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let listed = &self.unknown[..self.unknown.len().min(LISTED)];
            draft.note(format!("keys of the file that were not read: {}{more}", listed.join(", ")));
        }
    }
}

/// 10^17 ns are three years: a time after 1973 counts from 1970.
fn is_since_1970(draft: &Draft) -> bool {
    let first = draft.kernels.iter().map(|kernel| kernel.kernel.start).min();
    first.is_some_and(|first| first > super::super::draft::ZERO + 100_000_000_000_000_000)
}

/// 12060 is CUDA 12.6.
fn version(text: &str, is_number: bool) -> String {
    match text.parse::<u32>() {
        Ok(number) if is_number && number >= 1000 => format!("{}.{}", number / 1000, number % 1000 / 10),
        _ => text.to_owned(),
    }
}

fn groups_of(draft: &mut Draft, text: &RawValue) {
    let Ok(groups) = serde_json::from_str::<Vec<WrittenGroup>>(text.get()) else {
        draft.note("pg_config is no list of process groups as PyTorch writes it, and was not read".to_owned());
        return;
    };
    for written in groups {
        let Some(name) = written.pg_name else { continue };
        let id = draft.group(plain(&name));
        let group = &mut draft.trace.groups[id.at()];
        group.purpose = group.purpose.take().or(written.pg_desc.filter(|text| !text.is_empty()));
        group.size = group.size.or(written.pg_size);
        if group.ranks.is_empty() {
            // A list, or a list in a string.
            let ranks = written.ranks.as_deref().map_or("", plain);
            group.ranks = serde_json::from_str(ranks).unwrap_or_default();
        }
    }
}
