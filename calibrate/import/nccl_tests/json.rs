//! What nccl-tests writes with `-J FILE`, since 2025: one JSON object for one run.
//!
//! ```text
//! version args env nccl_version start_time end_time
//! config   nthreads ngpus … iterations graph blocking_collectives devices
//! results  size count type redop root  out_of_place in_place  …_per_iter
//! out_of_bounds average_bus_bandwidth errors
//! ```
//!
//! Versions 1 (October 2025), 2 (per-iteration times, June 2026) and 3 (skipped iterations) of `src/util.cu` are known.
//! Its figures have six decimals. Of each process only the first rank stands among the devices, so a device stands for as
//! many ranks as a process drives. A run that died leaves a whole object with what it had got to.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::Mistake;
use super::kind::Kind;
use super::line::{Parameters, Rank, version};
use super::row::{Body, Figure, Row, element_type};
use super::run::Run;

/// Versions of the format that are known.
const KNOWN: std::ops::RangeInclusive<u32> = 1..=3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    args: Vec<String>,
    nccl_version: u32,
    config: Option<Config>,
    #[serde(default)]
    results: Option<Vec<Size>>,
    out_of_bounds: Option<OutOfBounds>,
    #[serde(default)]
    errors: Option<Vec<String>>,
    // Whose home and passwords these are is nobody's business here.
    #[serde(rename = "env")]
    _env: Option<Value>,
    #[serde(rename = "start_time")]
    _start_time: Option<Value>,
    #[serde(rename = "end_time")]
    _end_time: Option<Value>,
    #[serde(rename = "average_bus_bandwidth", alias = "average_bus_bandwidith")]
    _average: Option<Value>,
}

/// Of what is set, that which says what the times are. The rest (sizes, warm-up, checks) may be anything.
#[derive(Deserialize)]
struct Config {
    nthreads: u64,
    ngpus: u64,
    iterations: u32,
    graph: u32,
    blocking_collectives: String,
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    rank: u64,
    group: u64,
    hostname: String,
    device_info: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Size {
    size: u64,
    count: u64,
    #[serde(rename = "type")]
    dtype: String,
    redop: String,
    root: String,
    out_of_place: Option<Figures>,
    in_place: Option<Figures>,
    #[serde(rename = "out_of_place_per_iter")]
    _out_of_place_per_iter: Option<Value>,
    #[serde(rename = "in_place_per_iter")]
    _in_place_per_iter: Option<Value>,
    #[serde(rename = "actual_iterations")]
    _actual_iterations: Option<Value>,
    #[serde(rename = "experiment_name")]
    _experiment_name: Option<Value>,
}

/// A figure is a number, or `"nan"`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Figures {
    time: Option<Value>,
    cpu_time: Option<Value>,
    alg_bw: Option<Value>,
    bus_bw: Option<Value>,
    nwrong: Option<Value>,
}

#[derive(Deserialize)]
struct OutOfBounds {
    count: u64,
}

/// Whether a text is meant to be JSON.
pub fn is(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// The run of a file that `-J` wrote, and what NCCL complained of.
pub fn run(text: &str) -> Result<(Run, Vec<String>), Mistake> {
    let document: Document = serde_json::from_str(text).map_err(|why| {
        let what = "not what nccl-tests writes with -J (an object with version, args, config and results)";
        (why.line().max(1), format!("{what}: {why}"))
    })?;
    let bad = |why: String| (1, why);
    if !KNOWN.contains(&document.version) {
        return Err(bad(format!(
            "version {} of nccl-tests' JSON is not known here, {} to {} are: give the printed log instead",
            document.version,
            KNOWN.start(),
            KNOWN.end()
        )));
    }
    let Some(config) = document.config else {
        return Err(bad("the run ended before it said how it was configured: it measured nothing".to_owned()));
    };
    if config.blocking_collectives == "true" {
        return Err(bad(super::run::BLOCKING.to_owned()));
    }
    super::run::in_bounds(document.out_of_bounds.map_or(0, |outside| outside.count)).map_err(bad)?;
    let mut rows = vec![];
    for size in document.results.unwrap_or_default() {
        let bytes = size.size;
        let row = size.row().map_err(|why| bad(format!("{why}, for {bytes} bytes")))?;
        super::run::right(&row)?;
        rows.push(row);
    }
    let per_process = config.nthreads.saturating_mul(config.ngpus).max(1);
    let run = Run {
        line: 1,
        named: document.args.first().and_then(|program| Kind::program(program)),
        parameters: Some(Parameters {
            per_process: Some(per_process),
            iterations: Some(config.iterations),
            graph: config.graph > 0,
        }),
        ranks: ranks(&config.devices, per_process).map_err(bad)?,
        versions: version(document.nccl_version)
            .map(|nccl| ("nccl".to_owned(), nccl))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        rows,
        ..Run::default()
    };
    let said = document.errors.unwrap_or_default().into_iter().filter(|error| !error.trim().is_empty());
    Ok((run, said.collect()))
}

/// The most ranks that a run is believed to have: ten times the largest machine there is.
const MOST_RANKS: u64 = 1 << 20;

/// All ranks, of devices that are each the first of its process or, where numbers say so, each a rank.
fn ranks(devices: &[Device], per_process: u64) -> Result<Vec<Rank>, String> {
    let firsts = devices.iter().all(|device| device.rank.is_multiple_of(per_process));
    let each = if firsts { per_process } else { 1 };
    let all = each.saturating_mul(devices.len() as u64);
    if all > MOST_RANKS {
        return Err(format!(
            "{} processes of {each} ranks each (nthreads x ngpus) are more than {MOST_RANKS} ranks: check config",
            devices.len()
        ));
    }
    let of = |device: &Device, next: u64| Rank {
        rank: device.rank.saturating_add(next),
        group: Some(device.group),
        host: device.hostname.clone(),
        chip: device.device_info.trim().to_owned(),
    };
    Ok(devices.iter().flat_map(|device| (0..each).map(move |next| of(device, next))).collect())
}

impl Size {
    fn row(self) -> Result<Row, String> {
        let dtype = element_type(&self.dtype).ok_or_else(|| format!("`{}` is no element type", self.dtype))?;
        let root: i64 = self.root.trim().parse().map_err(|_| format!("`{}` is no root", self.root))?;
        let bodies = [self.out_of_place, self.in_place].map(|figures| figures.map(Figures::body).transpose());
        let [out_of_place, in_place] = bodies;
        Ok(Row {
            line: 1,
            bytes: self.size,
            count: self.count,
            dtype,
            reduces: self.redop != "none",
            root: u64::try_from(root).ok(),
            bodies: [out_of_place?, in_place?],
        })
    }
}

impl Figures {
    fn body(self) -> Result<Body, String> {
        if self.cpu_time.is_some() {
            return Err(super::columns::CPU_TIME.to_owned());
        }
        let figure = |name: &str, value: Option<Value>| match value {
            Some(Value::Number(number)) => {
                number.as_f64().map(|value| Some(Figure { value, half: 0.5e-6 })).ok_or_else(|| format!("no {name}"))
            }
            Some(Value::String(text)) if text == "nan" => Ok(None),
            None | Some(Value::Null) => Ok(None),
            Some(other) => Err(format!("{name} is {other}: expected a number")),
        };
        let time = figure("time", self.time)?.ok_or("a size without a time")?;
        let (algbw, busbw) = (figure("alg_bw", self.alg_bw)?, figure("bus_bw", self.bus_bw)?);
        let wrong = figure("nwrong", self.nwrong)?.map(|figure| figure.value);
        Ok(Body { time, algbw: algbw.unwrap_or_default(), busbw: busbw.unwrap_or_default(), wrong })
    }
}

#[cfg(test)]
#[path = "json/tests.rs"]
mod tests;
