//! What XLA's TPU compiler makes of a training step (`oracles/xla_steps.json`, by `oracles/xla_step.py`): bytes of arguments,
//! and the most that is live.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use windtunnel::program::{Collective, Instr};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Scenario, predict};

#[derive(Deserialize)]
struct Step {
    name: String,
    case: Case,
    argument: u64,
    peak: u64,
    #[serde(default)]
    collectives: Vec<Ran>,
    #[serde(default)]
    matmul_flops: Option<f64>,
}

#[derive(Deserialize)]
struct Case {
    d: u64,
    ff: u64,
    h: u64,
    kv: u64,
    vocab: u64,
    layers: u64,
    batch: u64,
    seq: u64,
    mesh: [u64; 2],
    topo: String,
    remat: String,
    attention: String,
    #[serde(default)]
    clip: bool,
    #[serde(default)]
    iota: bool,
    #[serde(default)]
    loss: String,
}

fn steps() -> Vec<Step> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/xla_steps.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

impl Case {
    /// The scenario of the same step.
    fn scenario(&self) -> Scenario {
        let tensors = |list: &str, keep: &str| list.split(',').map(|name| format!("{name} = {keep:?}\n")).collect();
        let (policy, kept): (&str, String) = match self.remat.split_once(':') {
            None if self.remat == "dots" => ("minimal", String::new()),
            None => (&self.remat, String::new()),
            Some(("names", list)) => ("custom", tensors(list, "device")),
            Some((_, list)) => ("custom", tensors(list, "offload")),
        };
        let attention = if self.attention == "splash" { "flash" } else { "dot_product" };
        let text = format!(
            "runtime = \"xla\"\n[topology]\nname = \"tpu-v6e\"\nslice = \"{}\"\n\
             [model]\nname = \"llama-3.1-8b\"\nlayers = {}\nhidden = {}\nheads = {}\nkv_heads = {}\nffn = {}\nvocab = {}\n\
             [mesh]\nfsdp = {}\ntensor = {}\n[batch]\nsequence = {}\nmicro = {}\n\
             [xla]\nremat_policy = \"{policy}\"\nattention = \"{attention}\"\ngradient_clipping = {}\nuse_iota_embed = {}\n\
             targets = \"{}\"\nflags = []\n{kept}",
            self.topo.trim_start_matches("v6e:"),
            self.layers,
            self.d,
            self.h,
            self.kv,
            self.ff,
            self.vocab,
            self.mesh[0],
            self.mesh[1],
            self.seq,
            self.batch / self.mesh[0],
            self.clip,
            self.iota,
            if self.loss == "maxtext" { "one_hot" } else { "indexed" },
        );
        Scenario::parse("case.toml", &text).unwrap()
    }
}

/// The error of each step's `figure`, relative, with the step's name.
fn errors(figure: impl Fn(&Step) -> (u64, u64)) -> Vec<(f64, String)> {
    let error = |step: &Step| {
        let (ours, theirs) = figure(step);
        (ours as f64 / theirs as f64 - 1.0, step.name.clone())
    };
    let mut list: Vec<_> = steps().iter().map(error).collect();
    list.sort_by(|one, other| one.0.abs().total_cmp(&other.0.abs()));
    list
}

fn memory(step: &Step) -> windtunnel::memory::MemoryReport {
    let settings = Settings { remedies: false, ..Settings::default() };
    predict(&step.case.scenario(), settings).unwrap().memory.report
}

#[test]
fn arguments_are_the_compilers_to_a_fifth_of_a_percent() {
    for (error, name) in errors(|step| {
        let program = step.case.scenario().job.compile().classes.remove(0);
        (program.buffers.iter().take(3).map(|buffer| buffer.bytes.0).sum(), step.argument)
    }) {
        assert!(error.abs() <= 0.002, "{name}: {:+.3} %", error * 100.0);
    }
}

#[test]
fn the_peak_is_the_compilers_within_five_percent_in_the_median_and_ten_at_worst() {
    let errors = errors(|step| (memory(step).peak_allocated.0, step.peak));
    let median = errors[errors.len() / 2].0.abs();
    let (worst, name) = errors.last().unwrap();
    assert!(median <= 0.05, "median {:.1} %: {errors:?}", median * 100.0);
    assert!(worst.abs() <= 0.1, "{name}: {:+.1} %", worst * 100.0);
}

/// A collective of a compiled step, as often as a step runs it.
#[derive(Clone, Deserialize)]
struct Ran {
    kind: String,
    bytes: u64,
    count: u64,
}

/// How often each thing is exchanged: what (weights and their gradients, sums over the tensor axis, swaps), by its whole
/// bytes. Below a megabyte only norms' gradients, the loss and words' numbers are sent, which are left out on both sides.
type Exchanged = BTreeMap<(&'static str, u64), u64>;

const LEAST: u64 = 1 << 20;

fn ours(step: &Step) -> Exchanged {
    let mut all = Exchanged::new();
    let program = step.case.scenario().job.compile().classes.remove(0);
    for instr in &program.step {
        if let Instr::Collective { comm, .. } = instr {
            let comm = program.comm(*comm);
            let over_tensor = program.groups[comm.group.0 as usize].name == "tensor";
            let what = match comm.kind {
                _ if over_tensor => "sums over tensor",
                Collective::AllToAll => "swaps",
                _ => "weights",
            };
            *all.entry((what, comm.bytes.0)).or_default() += 1;
        }
    }
    all.into_iter().filter(|((_, bytes), _)| *bytes >= LEAST).collect()
}

/// The compiler's, and how often each shard of a weight is sent to a neighbour: an exchange in windows is a chain of those.
fn theirs(step: &Step) -> (Exchanged, BTreeMap<u64, u64>) {
    let (mut all, mut permutes) = (Exchanged::new(), BTreeMap::new());
    let shards = step.case.mesh[0];
    for ran in &step.collectives {
        let what = match ran.kind.as_str() {
            "all-gather" | "reduce-scatter" => "weights",
            "all-reduce" if step.case.mesh[1] == 1 => "weights",
            "all-reduce" => "sums over tensor",
            "all-to-all" => "swaps",
            "collective-permute" => {
                *permutes.entry(ran.bytes * shards).or_default() += ran.count;
                continue;
            }
            kind => panic!("{}: a {kind}", step.name),
        };
        *all.entry((what, ran.bytes)).or_default() += ran.count;
    }
    all.retain(|(_, bytes), _| *bytes >= LEAST);
    permutes.retain(|bytes, _| *bytes >= LEAST);
    (all, permutes)
}

#[test]
fn collectives_are_the_compilers() {
    for step in steps().iter().filter(|step| !step.collectives.is_empty()) {
        let (ours, (mut theirs, permutes)) = (ours(step), theirs(step));
        let shards = step.case.mesh[0];
        for (bytes, sent) in permutes {
            // A chain over n shards is n − 1 permutes where it is unrolled, n + 1 in a loop.
            let whole = theirs.entry(("weights", bytes)).or_default();
            let windows = ours.get(&("weights", bytes)).copied().unwrap_or_default().saturating_sub(*whole);
            let chains = windows * (shards - 1)..=windows * (shards + 1);
            assert!(chains.contains(&sent), "{}: {sent} permutes of {bytes} B / {shards}, {chains:?} expected", step.name);
            *whole += windows;
        }
        println!("{}\n ours   {ours:?}\n theirs {theirs:?}", step.name);
    }
}
