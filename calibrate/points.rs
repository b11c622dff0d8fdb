//! What a calibrator writes while it measures: one JSON object a line, a machine first, then points and what
//! could not be measured.
//!
//! A file of points is only ever appended to, line by line, so an interrupt loses at most the point in the making. Fits
//! (`fit/`) turn points into the sections of a profile; points that others published go the same way. A file may hold
//! several machine lines, one for each time that measuring was resumed; a point belongs to the last one above it.

pub mod sizes;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The machine that the points below were measured on.
    Machine(Machine),
    /// One measurement.
    Point(Point),
    /// What was to be measured and could not be.
    Skipped(Skipped),
    /// What a compiler says of something that nobody ran.
    Compiled(Compiled),
}

impl Line {
    /// As it stands in the file, with its end.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("a line has no keys but strings") + "\n"
    }
}

/// The machine, its software, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The chip, as its driver names it.
    pub chip: String,
    /// Processors (SMs).
    pub processors: u32,
    /// Compute capability, as `9.0`.
    pub capability: String,
    /// Memory \[B\].
    pub memory: u64,
    /// Peak memory bandwidth by the driver's clock and bus width \[B/s\].
    pub memory_bandwidth: f64,
    /// The board's power limit \[W\].
    pub power_limit: Option<f64>,
    /// Highest processor clock \[MHz\].
    pub clock: Option<f64>,
    /// GPUs that took part.
    pub gpus: u32,
    /// Versions by component: `driver`, `cuda`, `cublas`, `cudnn`, `nccl`, `nvrtc`.
    pub versions: BTreeMap<String, String>,
    /// When measuring began, UTC, ISO 8601.
    pub date: String,
    /// The calibrator's version and commit.
    pub tool: String,
    /// Who measured: `measured` for this program, else where it was published.
    pub source: String,
    /// Who else used the device when measuring began (`--busy-ok`): the points are of shared processors and links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disturbed: Option<String>,
}

impl Machine {
    /// Of a log or a table, which says little of the machine: the rest is zero or empty. `by` is the importing command.
    pub fn published(chip: &str, gpus: u64, versions: BTreeMap<String, String>, by: &str, source: &str) -> Machine {
        Machine {
            chip: chip.to_owned(),
            processors: 0,
            capability: String::new(),
            memory: 0,
            memory_bandwidth: 0.0,
            power_limit: None,
            clock: None,
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            versions,
            date: String::new(),
            tool: format!("windtunnel-calibrate {} {by}", env!("CARGO_PKG_VERSION")),
            source: source.to_owned(),
            disturbed: None,
        }
    }

    /// A machine for tests.
    #[cfg(test)]
    pub fn example() -> Machine {
        Machine {
            processors: 132,
            capability: "9.0".to_owned(),
            memory: 141 << 30,
            memory_bandwidth: 4.8e12,
            power_limit: Some(700.0),
            clock: Some(1980.0),
            date: "2026-01-02T03:04:05Z".to_owned(),
            tool: "a test".to_owned(),
            ..Machine::published("a chip", 1, [("driver".to_owned(), "580.1".to_owned())].into(), "", "measured")
        }
    }
}

/// One measurement: what, at which clocks, how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// What was measured.
    pub what: What,
    /// At which clocks.
    pub regime: Regime,
    /// Median time \[µs\].
    pub median: f64,
    /// 10th percentile \[µs\].
    pub p10: f64,
    /// 90th percentile \[µs\].
    pub p90: f64,
    /// Timed repetitions, outliers among them.
    pub repeats: u32,
    /// Repetitions beyond five median absolute deviations of the median; kept in the figures.
    pub outliers: u32,
    /// The board while it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board: Option<Board>,
    /// Which algorithm or kernel a library chose, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
}

impl Point {
    /// Of a log or a table that gives one time \[µs\]: the median and both percentiles are that time.
    pub fn published(what: What, us: f64, repeats: u32) -> Point {
        Point {
            what,
            regime: Regime::Burst,
            median: us,
            p10: us,
            p90: us,
            repeats,
            outliers: 0,
            board: None,
            algorithm: None,
        }
    }
}

/// What was to be measured and could not be; it is tried again when measuring is resumed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// What was to be measured.
    pub what: What,
    /// At which clocks.
    pub regime: Regime,
    /// Why it could not be.
    pub why: String,
}

/// What a compiler says of something that nobody ran: facts, which hold, and an estimate, which is no measurement. No fit
/// takes it for one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compiled {
    /// What was compiled.
    pub what: What,
    /// For which slice, as `v6e:4x4`.
    pub slice: String,
    /// Memory of a device for arguments, exact \[B\].
    pub argument: u64,
    /// For results, exact \[B\].
    pub output: u64,
    /// In between, exact \[B\].
    pub temp: u64,
    /// Matrix products of a device, exact \[FLOP\].
    pub flops: u64,
    /// How often a step runs each kind of collective, exact.
    pub collectives: BTreeMap<String, u64>,
    /// The compiler's estimate of the fusions' time \[cycles\], where it makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_cycles: Option<u64>,
}

/// Clocks of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Regime {
    /// Boost clocks: short, with pauses.
    Burst,
    /// After the board has been at its power limit for long.
    Sustained,
}

/// NVML's readings beside a point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Board {
    /// Mean power \[W\].
    pub power: f64,
    /// Processor clock \[MHz\].
    pub clock: f64,
    /// Memory clock \[MHz\].
    pub memory_clock: f64,
    /// Temperature \[°C\].
    pub temperature: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum What {
    /// `C[m,n] = A[m,k]·B[k,n]` through cuBLASLt's heuristic.
    Matmul {
        /// Rows of the output.
        m: u64,
        /// Columns of the output.
        n: u64,
        /// Length of the dot products.
        k: u64,
        /// `bf16`, `fp8_tensor`, `fp8_row`, `fp8_block`, `tf32`, `fp32` or `int8`.
        dtype: String,
        /// `forward`, `data_gradient`, `weight_gradient`, or `weight_gradient_fp32` (adds into an fp32 main gradient).
        layout: String,
    },
    /// One matmul for each expert, of the same shape.
    GroupedMatmul {
        /// Experts.
        groups: u64,
        /// Rows of each expert's output.
        m: u64,
        /// Columns.
        n: u64,
        /// Length of the dot products.
        k: u64,
        /// As of [`What::Matmul`].
        dtype: String,
    },
    /// Fused attention.
    Attention {
        /// Whose kernels: `cudnn`, `flash2`, `flash3`, or what `xla` makes of products and a softmax.
        backend: String,
        /// Backward or forward.
        backward: bool,
        /// Sequences (B).
        batch: u64,
        /// Query heads (N).
        heads: u64,
        /// Key-value heads (K).
        kv_heads: u64,
        /// Query length (S).
        queries: u64,
        /// Key length.
        keys: u64,
        /// Dimension of a query's and a key's head (H).
        head_dim: u64,
        /// Dimension of a value's head.
        value_dim: u64,
        /// Causal mask.
        causal: bool,
        /// Sliding window, in keys; none: all.
        window: Option<u64>,
        /// `bf16`, `fp16` or `fp8`.
        dtype: String,
    },
    /// A kernel bounded by memory.
    Memory {
        /// The simulator's family: `elementwise`, `norm`, `norm_backward`, `softmax`, `gather`, `scatter`, `foreach`,
        /// `copy` or `complex`.
        family: String,
        /// The kernel within it, as `add_2r1w` or `adamw`.
        kernel: String,
        /// Bytes read.
        read: u64,
        /// Bytes written.
        written: u64,
    },
    /// A copy between device and pinned host memory.
    HostCopy {
        /// Bytes.
        bytes: u64,
        /// Device to host, or host to device.
        to_host: bool,
    },
    /// What the host or the device pays for a call that does nothing: `launch`, `launch_rate`, `event_record`,
    /// `stream_wait`, `graph_launch`, `graph_node`, `kernel`, `hop`.
    Overhead {
        /// The call.
        call: String,
    },
    /// A kernel while another holds part of the device; the time is the slowed one's.
    Overlap {
        /// The kernel that is slowed.
        slowed: Box<What>,
        /// `copy` (a share of memory bandwidth) or `spin` (processors held).
        beside: String,
        /// Processors that the other holds.
        processors: u32,
        /// Bytes a second that the other moves.
        bandwidth: u64,
    },
    /// A collective, of NCCL or XLA.
    Collective {
        /// `all_gather`, `reduce_scatter`, `all_reduce`, `all_to_all`, `send_recv`, `broadcast`, `reduce`.
        kind: String,
        /// Ranks.
        ranks: u64,
        /// Nodes.
        nodes: u64,
        /// The whole buffer, as nccl-tests counts it \[B\].
        bytes: u64,
        /// In place.
        in_place: bool,
        /// Element type, as nccl-tests names it.
        dtype: String,
    },
}

/// Why a file of points, or a log that becomes one, could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file could not be read.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: String,
        /// The system's reason.
        why: std::io::Error,
    },
    /// A line is not what it should be.
    #[error("{path}:{line}: {why}")]
    Line {
        /// The file.
        path: String,
        /// Its line, from 1.
        line: usize,
        /// What is wrong with it, and what to try.
        why: String,
    },
}

/// Points with the machine that each belongs to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Points {
    /// Machines, in the file's order.
    pub machines: Vec<Machine>,
    /// Points, each with its machine's place.
    pub points: Vec<(usize, Point)>,
    /// What could not be measured, and why.
    pub skipped: Vec<Skipped>,
    /// What compilers said.
    pub compiled: Vec<Compiled>,
    /// The last line, from 1, where an interrupt left it half-written; nothing of it counts.
    pub half: Option<usize>,
}

/// Reads a file of points.
pub fn read(path: &Path) -> Result<Points, FileError> {
    let name = path.display().to_string();
    let bytes = windtunnel::files::bytes(path).map_err(|why| FileError::File { path: name.clone(), why })?;
    parse(&name, &bytes)
}

/// Understands the bytes of a file of points; `path` is for messages only. A last line that breaks off is an interrupted
/// write: it is left out and remembered. One that is whole but for its end counts, unless zeros follow: a file system that lost
/// power pads what it did not come to write, and nothing says how much of the last line that is.
pub fn parse(path: &str, bytes: impl AsRef<[u8]>) -> Result<Points, FileError> {
    let mut points = Points::default();
    let mut bytes = bytes.as_ref();
    if bytes.ends_with(b"\0") {
        let whole = bytes.iter().rposition(|byte| !matches!(byte, b'\0')).map_or(0, |last| last + 1);
        let lines = bytes[..whole].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        bytes = &bytes[..lines];
        points.half = Some(1 + bytes.iter().filter(|byte| **byte == b'\n').count());
    }
    for (at, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let bad = |why: String| FileError::Line { path: path.to_owned(), line: at + 1, why };
        if line.trim_ascii().is_empty() {
            continue;
        }
        let read = match serde_json::from_slice(line) {
            Err(why) if why.is_eof() && breaks_off(line) => {
                points.half = Some(at + 1);
                continue;
            }
            read => read.map_err(|why| bad(why.to_string()))?,
        };
        match read {
            Line::Machine(machine) => points.machines.push(machine),
            Line::Skipped(skipped) => points.skipped.push(skipped),
            Line::Compiled(compiled) => points.compiled.push(compiled),
            Line::Point(point) => {
                let [low, middle, high] = [point.p10, point.median, point.p90];
                if !(low > 0.0 && low <= middle && middle <= high && high.is_finite()) {
                    return Err(bad(format!("p10 {low}, median {middle} and p90 {high} do not rise from above zero")));
                }
                let Some(machine) = points.machines.len().checked_sub(1) else {
                    return Err(bad("a point before any machine: the first line says what was measured on".to_owned()));
                };
                points.points.push((machine, point));
            }
        }
    }
    Ok(points)
}

/// Whether a line without its end begins as a line of points does.
fn breaks_off(line: &[u8]) -> bool {
    let heads: [&[u8]; 4] = [br#"{"machine":"#, br#"{"point":"#, br#"{"skipped":"#, br#"{"compiled":"#];
    !line.ends_with(b"\n") && heads.iter().any(|head| line.starts_with(head) || head.starts_with(line))
}
