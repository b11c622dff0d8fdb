//! Compiles a program for a slice that need not be here, or for the devices of a plugin: in a process of its own, with a
//! time limit, and remembered.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::buffers::{Buffers, Folder, written};
use super::cache::Cache;
use super::child;
use super::error::Code;
use super::hlo::remat::{self, Again};
use super::hlo::{self, Module, collectives, flops};
use super::memory::MemoryStats;
use super::message::{Answer, Facts, Request, unframed};
use super::options::Options;
use super::plugins::Plugin;
pub use super::refused::CompileError;
use super::refused::ended;
use super::slice::Slice;
use super::source::Source;
use crate::interrupt::Stop;

/// Where XLA writes what it makes, its account of buffers among it.
const DUMP: &str = "xla_dump_to";

/// Flags of a compiler by name, without dashes.
pub type Flags = BTreeMap<String, String>;

/// What to compile for, and how.
#[derive(Clone, Debug)]
pub struct Target {
    /// The compiler.
    pub plugin: Plugin,
    /// The slice, or several of it; none for the devices that the plugin finds on this machine.
    pub slice: Option<Slice>,
    /// Devices that the program is partitioned over: as many as its mesh has.
    pub partitions: u32,
    /// The compiler's flags.
    pub flags: Flags,
}

/// Where and how compilers are run.
#[derive(Clone)]
pub struct Setup {
    /// This program, whose `xla-worker` holds the plugin.
    pub worker: PathBuf,
    /// How long a compilation may take.
    pub limit: Duration,
    /// Where answers are kept; none to ask again each time.
    pub cache: Option<Cache>,
    /// Whether somebody asked to stop: the compiler is ended, and its folder removed.
    pub stop: Stop,
}

impl Setup {
    /// This program, so much time for a compilation, and the user's cache; listens for interrupts from now on.
    ///
    /// # Errors
    /// No place for a cache, no way to listen, or the program does not know where it is.
    pub fn usual(limit: Duration) -> Result<Self, CompileError> {
        let worker = std::env::current_exe().map_err(|why| CompileError::Input(why.to_string()))?;
        let folder = super::cache::folder().map_err(CompileError::Input)?;
        let stop = Stop::listen(Instant::now() + limit)
            .map_err(|why| CompileError::Input(format!("cannot listen for an interrupt: {why}")))?;
        Ok(Self { worker, limit, cache: Some(Cache::within(&folder)), stop })
    }
}

/// What the compiler made of a program.
#[derive(Clone, Debug, Serialize)]
pub struct Compiled {
    /// What it needs of each device's memory: exact.
    pub memory: MemoryStats,
    /// Matrix products of one device in one step: exact, but for calls whose insides are not seen.
    pub flops: flops::Flops,
    /// Collectives of one step: exact.
    pub collectives: Vec<collectives::Collective>,
    /// The compiler's estimates of fusions' times, added up over a step \[cycles\]; none where it makes none. A prior for
    /// matmuls, and 2 to 10 times off on what memory bounds.
    pub estimated_cycles: Option<u64>,
    /// The compiler's own cost analysis, by its names. Loops count one turn.
    pub cost: BTreeMap<String, f64>,
    /// How long compiling took, when it was compiled \[s\].
    pub compile_seconds: f64,
    /// The plugin and its version.
    pub plugin: String,
    /// Which compiler, in its own words.
    pub compiler: String,
    /// Whether the answer was kept from before.
    pub cached: bool,
    /// What lies in memory at the peak, where the compiler gives an account of it.
    pub account: Option<Buffers>,
    /// What the compiler computes again for want of memory.
    pub again: Again,
    /// The program as it will run.
    #[serde(skip)]
    pub program: Module,
}

impl Compiled {
    /// The most of HBM at one time \[B\], by the account of buffers where there is one: the runtime's statistics count VMEM, too, and
    /// where activations are copied to the host they give more than the chip has for steps that fit (libtpu 0.0.42.1).
    pub fn peak(&self) -> u64 {
        self.account.as_ref().map_or(self.memory.peak, |account| account.peak)
    }

    /// The most at one time in HBM and VMEM together \[B\].
    pub fn with_vmem(&self) -> u64 {
        self.account.as_ref().map_or(self.memory.peak, |account| account.with_vmem)
    }
}

/// Compiles StableHLO, as text, to the end: only then is it known what a step needs. Compilers for slices write down what lies
/// in memory as they go, and start over where that is too much; their last account is part of the answer.
///
/// # Errors
/// See [`CompileError`]. Nothing is left running, and nothing half-written.
pub fn compile(program: &Source, target: &Target, setup: &Setup) -> Result<Compiled, CompileError> {
    let asked = request(program, target, None)?;
    let key = key(b"4", &asked, program, target);
    let kept = setup.cache.as_ref().and_then(|cache| cache.get(&key));
    if let Some((answer, compiled)) = kept.as_deref().and_then(unframed) {
        return understood(answer, compiled, target, true);
    }
    // Who wants the dump gets it, and the account is read from there.
    let theirs = target.flags.get(DUMP).map(Path::new);
    let folder = (target.slice.is_some() && theirs.is_none()).then(account_folder).transpose()?;
    let asked = request(program, target, folder.as_ref())?;
    let (environment, input) = (environment(target), input(&asked, program));
    let (began, since) = (Instant::now(), SystemTime::now());
    let until = (setup.limit, || setup.stop.asked());
    let (out, status, said) = child::run(&setup.worker, &["xla-worker"], &environment, input, until)?;
    if status.is_none() {
        return Err(CompileError::Interrupted);
    }
    let (mut answer, compiled) = unframed(&out).ok_or_else(|| ended(status, said))?;
    let seconds = began.elapsed().as_secs_f64();
    let account = match theirs.filter(|_| target.slice.is_some()) {
        Some(theirs) => written(theirs, since, seconds),
        None => folder.and_then(|folder| folder.read(seconds)),
    }
    .and_then(Result::ok);
    match &mut answer {
        Answer::Compiled(facts) => facts.account = account,
        Answer::Refused { account: place, .. } => *place = account,
        Answer::Unusable(_) => {}
    }
    if let Some(cache) = setup.cache.as_ref().filter(|_| lasting(&answer)) {
        // An answer that cannot be kept is still an answer.
        let _ = cache.put(&key, &super::message::framed(&answer, compiled));
    }
    understood(answer, compiled, target, false)
}

fn account_folder() -> Result<Folder, CompileError> {
    Folder::new().map_err(|why| CompileError::Input(format!("no folder for the compiler's account: {why}")))
}

/// What a program would hold of a device's memory by the compiler's first account. The compiler is ended once it has given it, long
/// before it is done: what it makes of a step that is too large at first is not known yet.
///
/// # Errors
/// See [`CompileError`]; that the program does not fit is one of them, where the compiler says so.
pub fn buffers(program: &Source, target: &Target, setup: &Setup) -> Result<Buffers, CompileError> {
    let key = key(b"buffers 3", &request(program, target, None)?, program, target);
    let kept = setup.cache.as_ref().and_then(|cache| cache.get(&key));
    if let Some(held) = kept.and_then(|kept| serde_json::from_slice::<Held>(&kept).ok()) {
        return held.said();
    }
    let folder = account_folder()?;
    let (environment, input) = (environment(target), input(&request(program, target, Some(&folder))?, program));
    let began = Instant::now();
    let mut complete = folder.complete();
    let until = (setup.limit, || setup.stop.asked() || complete());
    let (out, status, said) = child::run(&setup.worker, &["xla-worker"], &environment, input, until)?;
    if setup.stop.asked() {
        return Err(CompileError::Interrupted);
    }
    let account = folder.read(began.elapsed().as_secs_f64());
    let held = match unframed(&out).map(|(answer, _)| facts(answer)).transpose() {
        Err(CompileError::OutOfMemory { message, seconds, .. }) => Held::Refused { message, seconds },
        Err(other) => return Err(other),
        Ok(answer) => match (account, answer) {
            (Some(account), _) => Held::Buffers(account.map_err(CompileError::Unusable)?),
            // It was ended here, or has compiled the step.
            (None, answer) if answer.is_some() || status.is_none() => {
                return Err(CompileError::Unusable("the compiler gives no account of its buffers".to_owned()));
            }
            (None, _) => return Err(ended(status, said)),
        },
    };
    if let Some(cache) = &setup.cache {
        let bytes = serde_json::to_vec(&held).expect("an answer has no keys but strings");
        let _ = cache.put(&key, &bytes);
    }
    held.said()
}

/// What is kept of an account.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Held {
    /// It is placed.
    Buffers(Buffers),
    /// It does not fit.
    Refused { message: String, seconds: f64 },
}

impl Held {
    fn said(self) -> Result<Buffers, CompileError> {
        match self {
            Self::Buffers(buffers) => Ok(buffers),
            Self::Refused { message, seconds } => {
                let (needed, limit) = sizes(&message);
                Err(CompileError::OutOfMemory { needed, limit, message, seconds, account: None })
            }
        }
    }
}

/// What the process that holds the plugin is asked; an account goes to `folder`.
fn request(program: &Source, target: &Target, folder: Option<&Folder>) -> Result<Request, CompileError> {
    fits(target)?;
    let devices = match &target.slice {
        Some(slice) => slice.devices(),
        None => (0..i64::from(target.partitions)).collect(),
    };
    let shardy = program.shardy();
    let (in_variable, mut flags) = target.flags_by_way();
    flags.extend(folder.map(|folder| (DUMP.to_owned(), folder.path().display().to_string())));
    Ok(Request {
        plugin: target.plugin.path.clone(),
        topology: target.slice.as_ref().map(|slice| (slice.name(), slice.settings())),
        client: target.plugin.client_settings(target.partitions),
        options: Options { devices, shardy, results_left: !shardy && program.leaves_results(), flags: &flags }.encode(),
        flags: in_variable,
        format: program.format().to_owned(),
    })
}

impl Target {
    /// Flags that go into `LIBTPU_INIT_ARGS`, as users set them, since libtpu has flags that no compile option reaches; and those
    /// that are compile options: all of another compiler's, and what is dumped, which users set in `XLA_FLAGS`.
    fn flags_by_way(&self) -> (Flags, Flags) {
        let tpu = self.slice.is_some() || self.plugin.kind == Some(super::plugins::Kind::Tpu);
        self.flags.clone().into_iter().partition(|(name, _)| tpu && !name.starts_with("xla_dump_"))
    }
}

/// A request as JSON.
fn json(request: &Request) -> Vec<u8> {
    serde_json::to_vec(request).expect("a request has no keys but strings")
}

/// What an answer is kept under: it depends on the plugin, not on where that lies.
fn key(kind: &[u8], request: &Request, program: &Source, target: &Target) -> String {
    let asked = json(&Request { plugin: PathBuf::new(), ..request.clone() });
    Cache::key(&[kind, target.plugin.identity().as_bytes(), &asked, program.bytes()])
}

/// A request as it is sent.
fn input(request: &Request, program: &Source) -> Vec<u8> {
    let mut input = json(request);
    input.push(b'\n');
    input.extend(program.bytes());
    input
}

/// A mesh that is not the slice's is found before the compiler is bothered.
fn fits(target: &Target) -> Result<(), CompileError> {
    if let (None, Some(why)) = (&target.slice, target.plugin.no_device()) {
        return Err(CompileError::Unusable(why.to_owned()));
    }
    let devices = target.slice.as_ref().map(Slice::ranks);
    match devices {
        Some(devices) if devices != target.partitions => Err(CompileError::Input(format!(
            "the program is partitioned over {} devices but the slice has {devices} devices",
            target.partitions
        ))),
        _ => Ok(()),
    }
}

/// Whether an answer would be the same again.
fn lasting(answer: &Answer) -> bool {
    match answer {
        Answer::Compiled(_) => true,
        Answer::Refused { code, .. } => Code(*code) == Code::RESOURCE_EXHAUSTED,
        Answer::Unusable(_) => false,
    }
}

/// What a plugin may see of the environment. Without a TPU, libtpu would ask a metadata server for minutes, refuse a second
/// process, and look for other hosts; and it reads variables of common names.
fn environment(target: &Target) -> Vec<(OsString, OsString)> {
    let kept = ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"];
    let mut all: Vec<(OsString, OsString)> =
        kept.iter().filter_map(|name| Some(((*name).into(), std::env::var_os(name)?))).collect();
    let mut set = |name: &str, value: &str| all.push((name.into(), value.into()));
    let (in_variable, _) = target.flags_by_way();
    if !in_variable.is_empty() {
        let flags: Vec<String> = in_variable.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        set("LIBTPU_INIT_ARGS", &flags.join(" "));
    }
    if let Some(slice) = &target.slice {
        set("TPU_SKIP_MDS_QUERY", "1");
        set("ALLOW_MULTIPLE_LIBTPU_LOAD", "1");
        set("TPU_WORKER_HOSTNAMES", "localhost");
        set("TPU_WORKER_ID", "0");
        set("TPU_ACCELERATOR_TYPE", &slice.accelerator());
        set("TPU_LOG_DIR", "disabled");
        set("TPU_MIN_LOG_LEVEL", "3");
    }
    all
}

fn understood(answer: Answer, compiled: &[u8], target: &Target, cached: bool) -> Result<Compiled, CompileError> {
    made(facts(answer)?, compiled, target, cached)
}

/// What a compiler says of a program, if it takes it.
fn facts(answer: Answer) -> Result<Facts, CompileError> {
    match answer {
        Answer::Compiled(facts) => Ok(facts),
        Answer::Refused { code, message, seconds, account, .. } if Code(code) == Code::RESOURCE_EXHAUSTED => {
            let (needed, limit) = sizes(&message);
            Err(CompileError::OutOfMemory { needed, limit, message, seconds, account: account.map(Box::new) })
        }
        Answer::Refused { code, call, message, .. } => Err(CompileError::Refused { call, code: Code(code), message }),
        Answer::Unusable(why) => Err(CompileError::Unusable(why)),
    }
}

fn made(facts: Facts, compiled: &[u8], target: &Target, cached: bool) -> Result<Compiled, CompileError> {
    let program = hlo::read(compiled, &facts.format).map_err(|why| CompileError::Unusable(why.to_string()))?;
    Ok(Compiled {
        memory: facts.memory,
        flops: flops::flops(&program),
        collectives: collectives::collectives(&program, u64::from(target.partitions)),
        estimated_cycles: hlo::cycles::cycles(&program),
        cost: facts.cost.into_iter().collect(),
        compile_seconds: facts.seconds,
        plugin: target.plugin.to_string(),
        compiler: facts.compiler,
        cached,
        account: facts.account,
        again: remat::again(&program),
        program,
    })
}

/// What was needed and what there is: the first two sizes in the compiler's words, as `requires 83.50G, exceeds 31.24G`.
fn sizes(message: &str) -> (Option<u64>, Option<u64>) {
    let mut sizes = message.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).filter_map(size);
    match (sizes.next(), sizes.next()) {
        (Some(needed), Some(limit)) => (Some(needed), Some(limit)),
        _ => (None, None),
    }
}

/// XLA's `31.25G`, binary, to two digits.
fn size(word: &str) -> Option<u64> {
    let shift = match word.chars().last()? {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => return None,
    };
    let number: f64 = word[..word.len() - 1].parse().ok()?;
    Some((number * (1_u64 << shift) as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_that_a_compiler_does_not_have_is_read_from_its_words() {
        let refused = |message: &str| CompileError::Refused {
            call: "PJRT_Compile".to_owned(),
            code: Code(3),
            message: message.to_owned(),
        };
        for message in
            ["No such compile option: xla_sc_disjoint_spmem", "Bad: No such compile option: 'xla_sc_disjoint_spmem'."]
        {
            assert_eq!(refused(message).lacking_options(), ["xla_sc_disjoint_spmem"]);
        }
        assert!(refused("something else").lacking_options().is_empty());
        let said =
            "\n  ERROR: Unknown command line flag 'xla_old'\n  ERROR: Unknown command line flag 'xla_gone'".to_owned();
        assert_eq!(ended(None, said).lacking_options(), ["xla_old", "xla_gone"]);
        let asks = "Continuation fusion for AllGather is enabled on platform ghostlite. Please disable it with xla_a_fusion=false ";
        assert_eq!(refused(asks).asks_for(), Some(("xla_a_fusion".to_owned(), "false".to_owned())));
        assert!(refused(asks).lacking_options().is_empty() && refused("something else").asks_for().is_none());
    }

    #[test]
    fn what_was_needed_is_read_from_the_compiler_s_words() {
        let expected = (Some(81 << 29), Some(125 << 28));
        for said in [
            "Ran out of memory in memory space hbm. Used 40.50G of 31.25G hbm. Exceeded hbm capacity by 9.25G.",
            "E1000: CompileTimeHbmOom: the total memory required for HLO temporaries (40.50G) exceeds available HBM (31.25G).",
        ] {
            assert_eq!(sizes(said), expected, "{said}");
        }
        assert_eq!(sizes("something else"), (None, None));
        assert_eq!(sizes("Used many of few. RUNNING 3 KG"), (None, None));
    }
}
