//! What a line of a log is, whatever stands before it.
//!
//! nccl-tests' own lines begin with `#`, but for some of the first version's and for those that a page's author stripped
//! of it. Tags, labels and quotation marks come before. So a line is known by what it must hold.

use super::columns::Columns;
use super::kind::Kind;

/// A line, understood.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// `# nccl-tests version … nccl-library=22807`: the library's version.
    Version(Option<String>),
    /// `# Collective test starting: …`.
    Starting(Kind),
    /// `# nThread … nGpus … iters: …`.
    Parameters(Parameters),
    /// `# Using devices`.
    Devices,
    /// `#  Rank  0 … on host device  0 [0x07] name`.
    Rank(Rank),
    /// The heading of a table.
    Heading(Columns),
    /// The heading's second line: the unit of time.
    Units(String),
    /// `# Blocking Enabled …`.
    Blocking,
    /// `# Out of bounds values : 0 OK`.
    OutOfBounds(u64),
    /// `NCCL version 2.28.7+cuda13.0`: NCCL's and CUDA's.
    Nccl(String, Option<String>),
    /// Anything else.
    Other,
}

/// How a run was asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// GPUs of one process.
    pub per_process: Option<u64>,
    /// Timed repetitions.
    pub iterations: Option<u32>,
    /// Whether launches were replayed from a CUDA graph.
    pub graph: bool,
}

/// One rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Rank {
    /// Its number.
    pub rank: u64,
    /// Its communicator, where ranks are split.
    pub group: Option<u64>,
    /// Its host.
    pub host: String,
    /// Its chip.
    pub chip: String,
}

impl Line {
    /// Understands a line; a heading with a column that no version printed is a mistake.
    pub fn of(text: &str) -> Result<Line, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        if let Some((_, rest)) = text.split_once("nccl-tests version ") {
            return Ok(Line::Version(
                after(rest, "nccl-library=").and_then(|code| code.parse().ok()).and_then(version),
            ));
        }
        if let Some((_, program)) = text.split_once("Collective test starting:") {
            let unknown = || format!("`{}` is no program of nccl-tests that is known here", program.trim());
            return Kind::program(program).map(Line::Starting).ok_or_else(unknown);
        }
        if text.contains("nThread") && text.contains("nGpus") && text.contains("minBytes") {
            return Ok(Line::Parameters(parameters(text)));
        }
        if let Some((_, rest)) = text.split_once("Out of bounds values") {
            let count = rest.trim_start().strip_prefix(':').and_then(|rest| rest.split_whitespace().next());
            return Ok(count.and_then(|count| count.parse().ok()).map_or(Line::Other, Line::OutOfBounds));
        }
        if let Some(rest) = after(text, "NCCL version ") {
            let (nccl, cuda) =
                rest.split_once("+cuda").map_or((rest, None), |(nccl, cuda)| (nccl, Some(cuda.to_owned())));
            let plain = nccl.starts_with(|c: char| c.is_ascii_digit());
            return Ok(if plain { Line::Nccl(nccl.to_owned(), cuda) } else { Line::Other });
        }
        let from = |mark: &[&str]| words.windows(mark.len()).position(|some| some == mark).map(|at| &words[at..]);
        if words.contains(&"time") || words.contains(&"cputime") {
            if let Some(heading) = from(&["size", "count", "type"]).or_else(|| from(&["bytes", "N", "type"])) {
                return Columns::of(heading).map(Line::Heading);
            }
        } else if let Some(units) = from(&["(B)", "(elements)"]) {
            return Ok(units.get(2).map_or(Line::Other, |time| Line::Units((*time).to_owned())));
        } else if from(&["Using", "devices"]).is_some() {
            return Ok(Line::Devices);
        } else if from(&["Blocking", "Enabled:"]).is_some() {
            return Ok(Line::Blocking);
        } else if let Some(listed) = from(&["Rank"]) {
            return Ok(rank(listed).map_or(Line::Other, Line::Rank));
        }
        Ok(Line::Other)
    }
}

/// The word right after a mark.
fn after<'t>(text: &'t str, mark: &str) -> Option<&'t str> {
    text.split_once(mark).and_then(|(_, rest)| rest.split_whitespace().next())
}

/// NCCL's version from its code: `2708` is 2.7.8, from 2.9 on `22807` is 2.28.7.
pub fn version(code: u32) -> Option<String> {
    let (thousand, hundred) = if code < 10_000 { (1000, 100) } else { (10_000, 100) };
    (code >= 1000).then(|| format!("{}.{}.{}", code / thousand, code % thousand / hundred, code % hundred))
}

/// Some programs that descend from nccl-tests print `nGpus:` with a colon.
fn parameters(text: &str) -> Parameters {
    let words: Vec<&str> = text.split_whitespace().map(|word| word.trim_end_matches(':')).collect();
    let number = |names: &[&str]| -> Option<u64> {
        let at = words.iter().position(|word| names.contains(&word.trim_start_matches('#')))?;
        words.get(at + 1)?.parse().ok()
    };
    // "warmup iters: 5 iters: 20 agg iters: 1": the one with no word of its own before it.
    let plain = words
        .iter()
        .enumerate()
        .position(|(at, &word)| word == "iters" && at > 0 && !["warmup", "agg"].contains(&words[at - 1]));
    let iterations = plain.and_then(|at| words.get(at + 1)).and_then(|word| word.parse().ok());
    let per_process =
        number(&["nThread", "nThreads"]).zip(number(&["nGpus"])).map(|(threads, gpus)| threads.saturating_mul(gpus));
    Parameters { per_process, iterations, graph: number(&["graph"]).is_some_and(|launches| launches > 0) }
}

fn rank(words: &[&str]) -> Option<Rank> {
    let number = |name: &str| -> Option<u64> {
        let at = words.iter().position(|&word| word == name)?;
        words.get(at + 1)?.parse().ok()
    };
    let host = words.iter().position(|&word| word == "on").and_then(|at| words.get(at + 1))?;
    let device = words.iter().position(|&word| word == "device")?;
    // The bus id in brackets may itself be padded.
    let end = words.iter().enumerate().skip(device).position(|(_, word)| word.ends_with(']'))? + device;
    Some(Rank {
        rank: number("Rank")?,
        group: number("Group"),
        host: (*host).to_owned(),
        chip: words.get(end + 1..)?.join(" "),
    })
}
