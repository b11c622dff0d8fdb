//! What a program would hold of a device's memory, from the compiler's own account of its buffers (`xla_dump_to`): it is there
//! seconds after the compiler began, minutes before the program is, and names what is live at the peak.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

/// What a compiled step holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffers {
    /// Parameters, optimizer states, the batch \[B\].
    pub argument: u64,
    /// The most of HBM that is live at one time, arguments and outputs included \[B\].
    pub peak: u64,
    /// The most that is live at one time in HBM and VMEM together \[B\]: what a runtime's statistics call peak. A small step lies in
    /// VMEM for the most part.
    pub with_vmem: u64,
    /// What it needs of the memory, gaps between addresses included \[B\]: what is held against a chip's memory.
    pub total: u64,
    /// The instruction at which most is live.
    pub at: String,
    /// What is live there besides arguments and takes a hundredth of the peak or more, the largest first.
    pub live: Vec<Live>,
    /// How long it took to find out \[s\].
    pub seconds: f64,
}

/// A buffer that is live at the peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Live {
    /// Its size \[B\].
    pub bytes: u64,
    /// The shape of what lies there, as `bf16[8,2048,4096]`.
    pub shape: String,
    /// The instruction that writes it.
    pub from: String,
    /// The last that reads it.
    pub to: String,
    /// What of the program it came from, where the compiler says.
    pub operator: Option<String>,
}

/// Endings of the account's files, in the order in which they are written.
const BEGINS: &str = "before_optimizations.txt";
const LIVES: &str = "after_optimizations-live-range.txt";
const PLACES: &str = "after_optimizations-buffer-assignment.txt";
const MODULE: &str = "after_optimizations.txt";
const REPORT: &str = "after_optimizations-memory-usage-report.txt";

/// How names of folders begin; the process follows.
const PREFIX: &str = "windtunnel-buffers-";

/// How long a compiler that has given its account has left to say that the program does not fit.
const GRACE: Duration = Duration::from_secs(3);

/// A folder that a compiler writes its account to, gone with this.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// A new one among temporary files, where folders of processes that were killed are removed.
    ///
    /// # Errors
    /// The file system's.
    pub fn new() -> std::io::Result<Self> {
        let temporary = std::env::temp_dir();
        for path in std::fs::read_dir(&temporary)?.flatten().map(|entry| entry.path()) {
            let process = path.file_name().and_then(|name| name.to_str()?.strip_prefix(PREFIX)?.split('-').next());
            let ended = |process: &str| cfg!(target_os = "linux") && !Path::new("/proc").join(process).exists();
            if process.is_some_and(ended) {
                let _ = std::fs::remove_dir_all(&path);
            }
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        let path = temporary.join(format!("{PREFIX}{}-{now}", std::process::id()));
        // What is there already is somebody else's.
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Says, asked again and again, whether the account was complete a while ago.
    pub fn complete(&self) -> impl FnMut() -> bool {
        let (folder, mut since) = (self.0.clone(), None);
        move || {
            if since.is_none() && file(&folder, REPORT, SystemTime::UNIX_EPOCH).is_some() {
                since = Some(Instant::now());
            }
            since.is_some_and(|since| since.elapsed() > GRACE)
        }
    }

    /// Reads the account; none if there is none.
    ///
    /// # Errors
    /// It is not as this program knows it.
    pub fn read(&self, seconds: f64) -> Option<Result<Buffers, String>> {
        written(&self.0, SystemTime::UNIX_EPOCH, seconds)
    }
}

/// Reads the account that a compiler wrote to somebody's `folder` after `since`; none if there is none.
///
/// # Errors
/// It is not as this program knows it.
pub fn written(folder: &Path, since: SystemTime, seconds: f64) -> Option<Result<Buffers, String>> {
    let text = |ending: &str| std::fs::read_to_string(file(folder, ending, since)?).ok();
    let [lives, places, module, report] = [LIVES, PLACES, MODULE, REPORT].map(text);
    let unknown = || "the compiler's account of its buffers is not as this program knows it".to_owned();
    Some(read(&lives?, &places?, &module?, &report?, seconds).ok_or_else(unknown))
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever empties the folder of temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The account's file of an ending. Some compilers give accounts of parts of the program, too: the whole is numbered first.
fn file(folder: &Path, ending: &str, since: SystemTime) -> Option<PathBuf> {
    let new = |path: &PathBuf| path.metadata().and_then(|file| file.modified()).is_ok_and(|at| at >= since);
    let begins = files(folder).into_iter().filter(new);
    let first = begins.filter_map(|path| Some(path.to_str()?.strip_suffix(BEGINS)?.to_owned())).min()?;
    Some(PathBuf::from(first + ending)).filter(new)
}

/// All files in a folder and its folders.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// A value that has a place in memory.
struct Value {
    bytes: u64,
    memory: Memory,
    /// The allocation, and where in it.
    place: (usize, u64),
    shape: String,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Hbm,
    Vmem,
}

impl Memory {
    /// By the compiler's number of it; others than these hold counters and flags, or are the host's.
    fn of(number: &str) -> Option<Self> {
        match number {
            "0" => Some(Self::Hbm),
            "1" => Some(Self::Vmem),
            _ => None,
        }
    }
}

fn read(lives: &str, places: &str, module: &str, report: &str, seconds: f64) -> Option<Buffers> {
    let (order, lives) = lifetimes(lives);
    let (values, argument, output) = placed(places);
    // Lifetime and place of all that has both; values of one place may follow each other, or be the same.
    let all: Vec<(&str, (usize, usize), &Value)> =
        lives.iter().filter_map(|(name, life)| Some((*name, *life, values.get(*name)?))).collect();
    let live = |time: usize| all.iter().filter(move |(_, (from, to), _)| (*from..=*to).contains(&time));
    let hbm = |value: &Value| value.memory == Memory::Hbm;
    let used = |time: usize, counts: &dyn Fn(&Value) -> bool| {
        let counted = live(time).filter(|(_, _, value)| counts(value));
        let mut ranges: Vec<((usize, u64), u64)> = counted.map(|(_, _, value)| (value.place, value.bytes)).collect();
        ranges.sort_unstable();
        let (mut sum, mut end) = (0, (0, 0));
        for ((allocation, from), bytes) in ranges {
            let free = if end.0 == allocation { from.max(end.1) } else { from };
            sum += (from + bytes).saturating_sub(free);
            end = (allocation, free.max(from + bytes));
        }
        sum
    };
    // It grows only where something begins, and by little where that is small.
    let large = all.iter().map(|(_, _, value)| value.bytes).max()? / 10_000;
    let begins = all.iter().filter(|(_, _, value)| value.bytes >= large).map(|(_, (from, _), _)| *from);
    let mut times: Vec<usize> = begins.collect();
    times.sort_unstable();
    times.dedup();
    let held = argument + output;
    let with_vmem = held + times.iter().map(|time| used(*time, &|_| true)).max()?;
    let (time, most) = times
        .into_iter()
        .map(|time| (time, used(time, &hbm)))
        .max_by_key(|(time, used)| (*used, std::cmp::Reverse(*time)))?;
    let name = |time: usize| (*order.get(&time).unwrap_or(&"")).to_owned();
    let operators = operators(module);
    let mut shown: Vec<((usize, u64), Live)> = vec![];
    for (named, (from, to), value) in
        live(time).filter(|(_, _, value)| hbm(value) && value.bytes >= (held + most) / 100)
    {
        let operator = operators.get(named.split('{').next()?).map(|&operator| operator.to_owned());
        let one = Live { bytes: value.bytes, shape: value.shape.clone(), from: name(*from), to: name(*to), operator };
        if !shown.iter().any(|(place, _)| *place == value.place) {
            shown.push((value.place, one));
        }
    }
    let mut live: Vec<Live> = shown.into_iter().map(|(_, live)| live).collect();
    live.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.from.cmp(&other.from)));
    let total = report.split("Total bytes: ").nth(1)?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some(Buffers { argument, peak: held + most, with_vmem, total, at: name(time), live, seconds })
}

/// A value's name, and when it is first written and last read.
type Lives<'t> = BTreeMap<&'t str, (usize, usize)>;

/// The order of instructions, and when values live: `    12:fusion.3` and `    fusion.3{0}:12-40` in two sections.
fn lifetimes(text: &str) -> (BTreeMap<usize, &str>, Lives<'_>) {
    let (mut order, mut lives, mut section) = (BTreeMap::new(), BTreeMap::new(), "");
    for line in text.lines().map(str::trim) {
        if line.ends_with(':') || line.starts_with("Live ranges at") {
            section = line;
        } else if section == "InstructionSequence:" {
            let pair = line.split_once(':').and_then(|(time, name)| Some((time.parse().ok()?, name)));
            order.extend(pair);
        } else if section == "BufferLiveRange:" {
            let life = line.rsplit_once(':').and_then(|(name, life)| {
                let (from, to) = life.split_once('-')?;
                Some((name, (from.parse().ok()?, to.parse().ok()?)))
            });
            lives.extend(life);
        }
    }
    (order, lives)
}

/// What lies in HBM or VMEM and is neither argument nor output, by name, and bytes of arguments and of outputs in places of their own.
/// The runtime makes room for outputs before the program begins, so they are held as long as arguments are.
///
/// ` value: <7 fusion.3{0} @0> (size=512,offset=1024): f32[128]{0}` below `allocation 1: size 1536, …`.
fn placed(text: &str) -> (BTreeMap<String, Value>, u64, u64) {
    let (mut values, mut arguments, mut outputs, mut allocation) = (BTreeMap::new(), 0, 0, 0);
    let mut held = false;
    for line in text.lines() {
        if let Some((size, rest)) = line.strip_prefix("allocation ").and_then(|line| {
            let (_, line) = line.split_once(": size ")?;
            line.split_once(',')
        }) {
            allocation += 1;
            let (argument, output) = (rest.contains("parameter"), rest.contains("maybe-live-out"));
            held = argument || output;
            // Other memories than HBM have colours.
            let bytes = if rest.starts_with(" color ") { 0 } else { size.parse().unwrap_or(0) };
            match (argument, output) {
                (true, _) => arguments += bytes,
                (false, true) => outputs += bytes,
                (false, false) => {}
            }
        } else if let (false, Some(value)) = (held, line.strip_prefix(" value: <")) {
            values.extend(valued(value, allocation));
        }
    }
    (values, arguments, outputs)
}

fn valued(line: &str, allocation: usize) -> Option<(String, Value)> {
    let (name, rest) = line.split_once("> (size=")?;
    let (name, memory) = name.rsplit_once(" @")?;
    let (_, name) = name.split_once(' ')?;
    let name = name.strip_suffix(" (phi)").unwrap_or(name);
    let (bytes, rest) = rest.split_once(",offset=")?;
    let (offset, shape) = rest.split_once("): ")?;
    let shape = shape.split('{').next()?.to_owned();
    let name = if name.contains('{') { name.to_owned() } else { format!("{name}{{}}") };
    Some((
        name,
        Value {
            bytes: bytes.parse().ok()?,
            memory: Memory::of(memory)?,
            place: (allocation, offset.parse().ok()?),
            shape,
        },
    ))
}

/// What of the program an instruction came from: `%fusion.3 = … metadata={op_name="dot.59" …}`.
fn operators(module: &str) -> BTreeMap<&str, &str> {
    let one = |line: &'_ str| -> Option<(usize, usize, usize, usize)> {
        let name = line.find('%')? + 1;
        let end = name + line[name..].find(" = ")?;
        let operator = line.find("op_name=\"")? + "op_name=\"".len();
        Some((name, end, operator, operator + line[operator..].find('"')?))
    };
    module
        .lines()
        .filter_map(|line| one(line).map(|(name, end, from, to)| (&line[name..end], &line[from..to])))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_one_place_count_once_and_the_peak_is_where_most_is_live() {
        let lives = "HloLiveRange (max 4):\n  InstructionSequence:\n    0:param.1\n    1:dot.1\n    2:add.1\n    3:copy.1\n  \
                     BufferLiveRange:\n    dot.1{}:1-2\n    add.1{}:2-3\n    fusion.2{1}:2-3\n    small.1{}:0-3\n    far.1{}:0-3\n  \
                     Live ranges at 2 (peak):\n    dot.1{}: 9 bytes\n";
        let places = "BufferAssignment:\nallocation 0: size 1000, parameter 0, shape |f32[250]| at ShapeIndex {}:\n \
                      value: <1 param.1 @0> (size=1000,offset=0): f32[250]{0}\nallocation 1: size 5000, preallocated-temp:\n \
                      value: <2 dot.1 @0> (size=2000,offset=0): bf16[1000]{0}\n value: <3 add.1 (phi) @0> (size=2000,offset=0): bf16[1000]{0}\n \
                      value: <4 fusion.2{1} @0> (size=1500,offset=3000): f32[375]{0}\n\
                      allocation 2: size 9000, color 1, preallocated-temp:\n value: <5 small.1 @1> (size=9000,offset=0): s8[9000]{0}\n\
                      allocation 4: size 300, maybe-live-out:\n value: <7 add.9 @0> (size=300,offset=0): f32[75]{0}\n\
                      allocation 3: size 90000, color 5, preallocated-temp:\n value: <6 far.1 @5> (size=90000,offset=0): s8[90000]{0}\n";
        let module = "  %add.1 = bf16[1000] add(%a, %b), metadata={op_name=\"layers/add\" id=7}\n";
        let report = "Memory Space: default (color=0)\nTotal bytes: 5500 (5.4KiB)\n";
        let found = read(lives, places, module, report, 1.0).map(|found| {
            let live: Vec<_> =
                found.live.iter().map(|live| (live.bytes, live.shape.as_str(), live.to.as_str())).collect();
            (found.argument, [found.peak, found.with_vmem, found.total], found.at.clone(), format!("{live:?}"))
        });
        let live = r#"[(2000, "bf16[1000]", "copy.1"), (1500, "f32[375]", "copy.1")]"#;
        assert_eq!(found, Some((1000, [4800, 13800, 5500], "add.1".to_owned(), live.to_owned())));
        assert_eq!(operators(module).get("add.1"), Some(&"layers/add"));
        assert_eq!(read("", "", "", "", 0.0), None);
    }
}
