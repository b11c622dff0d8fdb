//! What XLA's TPU compiler makes of a training step (`oracles/xla_steps.json`, by `oracles/xla_step.py`): bytes of arguments,
//! and the most that is live.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use windtunnel::program::{Collective, Instr, Work};
use windtunnel::runtime::{Job, Parts, spmd};
use windtunnel::scenario::predict::{COMPILED, DeviceMemory, Settings};
use windtunnel::scenario::{Scenario, predict};
use windtunnel::units::Bytes;

#[derive(Deserialize)]
struct Step {
    name: String,
    case: Case,
    /// What the compiler said instead of compiling it.
    refused: Option<String>,
    #[serde(default)]
    argument: u64,
    #[serde(default)]
    peak: u64,
    #[serde(default)]
    collectives: Vec<Ran>,
    #[serde(default)]
    matmul_flops: Option<f64>,
}

#[derive(Clone, Deserialize)]
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
    scan: Option<bool>,
    #[serde(default)]
    tiling: u64,
    /// Experts; 0: none.
    #[serde(default)]
    experts: u64,
    /// Experts of each token.
    #[serde(default)]
    top_k: u64,
    /// Places of experts over tokens sent; none where rows are sorted.
    capacity: Option<f64>,
    /// Chips of the expert axis.
    expert: Option<u64>,
    /// Whether tokens are sent over it.
    #[serde(default)]
    sent: bool,
    /// Chips of the stage axis.
    stage: Option<u64>,
    /// Micro-batches of the pipeline.
    #[serde(default)]
    micro_batches: u64,
    /// How often they go around.
    #[serde(default)]
    repeats: u64,
    /// Blocks of a stage.
    per_stage: Option<u64>,
    /// Whether what is sent takes an iteration on its way.
    #[serde(default)]
    delay: bool,
    /// Whether weights are gathered once.
    #[serde(default)]
    once: bool,
    /// Whether chips with other tokens are replicas.
    #[serde(default)]
    replicas: bool,
}

impl Step {
    /// Bytes that a refused step needs, as the compiler says.
    fn needs(&self) -> Option<f64> {
        let (_, said) = self.refused.as_ref()?.split_once("HLO temporaries (")?;
        said.split_once("G)")?.0.parse().ok().map(|gib: f64| gib * f64::from(1 << 30))
    }
}

/// Those that were compiled.
fn steps() -> Vec<Step> {
    all().into_iter().filter(|step| step.refused.is_none()).collect()
}

fn all() -> Vec<Step> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/xla_steps.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

impl Case {
    /// Tokens of a chip.
    fn own_tokens(&self) -> u64 {
        self.sequences() * self.seq
    }

    /// Sequences of a chip.
    fn sequences(&self) -> u64 {
        self.batch / self.shards() / self.stage.unwrap_or(1)
    }

    /// Iterations of the pipeline's loop, with stages.
    fn iterations(&self) -> Option<u64> {
        let wasted = (self.stage? - 1) * if self.delay { 2 } else { 1 };
        Some(self.micro_batches * self.repeats + wasted)
    }

    /// Bytes of a chip's part of a micro-batch, with stages.
    fn part(&self) -> Option<u64> {
        self.stage.map(|_| 2 * self.batch / self.micro_batches / self.shards() * self.seq * self.d)
    }

    /// What the lane is told of a pipeline.
    fn pipeline(&self) -> String {
        if self.stage.is_none() {
            return String::new();
        }
        format!(
            "num_pipeline_microbatches = {}\nnum_pipeline_repeats = {}\nnum_layers_per_pipeline_stage = {}\n\
             pipeline_delay_activation_forwarding = {}\npipeline_fsdp_ag_once = {}\n",
            self.micro_batches,
            self.repeats,
            self.per_stage.unwrap_or(1),
            self.delay,
            self.once
        )
    }

    /// Chips that a weight of a block's first half lies on, and that have tokens of their own.
    fn shards(&self) -> u64 {
        self.mesh[0] * self.expert.unwrap_or(1)
    }

    /// The model's table.
    fn model(&self) -> String {
        match self.experts {
            8 => format!("huggingface = \"xla-mixtral.json\"\nlayers = {}\n", self.layers),
            _ => format!(
                "name = \"llama-3.1-8b\"\nlayers = {}\nhidden = {}\nheads = {}\nkv_heads = {}\nffn = {}\nvocab = {}\n",
                self.layers, self.d, self.h, self.kv, self.ff, self.vocab
            ),
        }
    }

    /// What the lane is told of experts.
    fn experts(&self) -> String {
        let exchange = if self.sent { "tokens" } else { "weights" };
        let exchange = self.expert.map(|_| format!("expert_exchange = \"{exchange}\"\n")).unwrap_or_default();
        self.capacity.map(|factor| format!("capacity_factor = {factor}\n{exchange}")).unwrap_or_default()
    }

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
             [model]\n{}[mesh]\npipeline = {}\ndata = {}\nfsdp = {}\nexpert = {}\ntensor = {}\n[batch]\nsequence = {}\nmicro = {}\n\
             [xla]\nremat_policy = \"{policy}\"\nattention = \"{attention}\"\ngradient_clipping = {}\nuse_iota_embed = {}\n\
             targets = \"{}\"\nscan_layers = {}\nnum_vocab_tiling = {}\nflags = []\n{}{}{kept}",
            self.topo.trim_start_matches("v6e:"),
            self.model(),
            self.stage.unwrap_or(1),
            if self.replicas { self.mesh[0] } else { 1 },
            if self.replicas { 1 } else { self.mesh[0] },
            self.expert.unwrap_or(1),
            self.mesh[1],
            self.seq,
            self.sequences(),
            self.clip,
            self.iota,
            if self.loss == "maxtext" { "one_hot" } else { "indexed" },
            self.scan.unwrap_or(true),
            self.tiling.max(1),
            self.experts(),
            self.pipeline(),
        );
        Scenario::parse("tests/oracles/case.toml", &text).unwrap()
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

fn memory(step: &Step) -> DeviceMemory {
    let settings = Settings { remedies: false, ..Settings::default() };
    predict(&step.case.scenario(), settings).unwrap().memory
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
fn the_peak_is_the_compilers_within_one_percent_in_the_median_and_what_we_say_of_it_at_worst() {
    let mut errors = errors(|step| (memory(step).report.peak_allocated.0, step.peak));
    // Of a small step a good part lies in fast memory, 128 MB of v6e, which is not modelled.
    let small: Vec<String> = steps().into_iter().filter(|step| step.peak < 512 << 20).map(|step| step.name).collect();
    errors.retain(|(_, name)| !small.contains(name));
    let median = errors[errors.len() / 2].0.abs();
    assert!(median <= 0.01, "median {:.1} %: {errors:?}", median * 100.0);
    let (worst, name) = errors.last().unwrap();
    assert!(worst.abs() <= COMPILED, "{name}: {:+.1} %", worst * 100.0);
}

#[test]
fn a_step_fits_where_the_compiler_finds_that_it_does() {
    let near = |step: &Step| {
        let memory = memory(step);
        let ran = step.refused.is_none();
        assert!(memory.fits == ran, "{}: {} B at the peak", step.name, memory.wanted.0);
        let share = memory.wanted.0 as f64 / LIMIT;
        (0.95..1.05).contains(&share).then_some(ran)
    };
    let near: Vec<bool> = all().iter().filter_map(near).collect();
    assert!(near.contains(&true) && near.contains(&false), "steps on both sides of the limit, near to it: {near:?}");
}

/// Whether something that reads logits comes after the loop back (`oracles/xla-late.json`).
#[derive(Deserialize)]
struct Late {
    name: String,
    case: Case,
    late: bool,
    peak: u64,
}

#[test]
fn what_the_loss_leaves_for_after_the_loop_back_is_not_forgotten() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/xla-late.json");
    let rows: Vec<Late> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for Late { name, case, late, peak } in &rows {
        let step = Step {
            name: name.clone(),
            case: case.clone(),
            refused: None,
            argument: 0,
            peak: *peak,
            collectives: vec![],
            matmul_flops: None,
        };
        let scenario = step.case.scenario();
        let Parts::Compiled(job) = scenario.job.parts() else { panic!("{name}: no compiled step") };
        assert_eq!(job.late_loss(), *late, "{name}");
        let error = memory(&step).wanted.0 as f64 / *peak as f64 - 1.0;
        // The head's gradient, whole, may be made before or after.
        assert!((-0.03..0.15).contains(&error), "{name}: {:+.1} %", error * 100.0);
    }
}

#[test]
fn what_a_refused_step_needs_is_what_the_compiler_says() {
    let refused: Vec<Step> = all().into_iter().filter(|step| step.refused.is_some()).collect();
    let error = |step: &Step| {
        let needs = step.needs().unwrap_or_else(|| panic!("{}: how much does it need?", step.name));
        (memory(step).wanted.0 as f64 / needs - 1.0, step.name.clone())
    };
    let mut errors: Vec<_> = refused.iter().map(error).collect();
    errors.sort_by(|one, other| one.0.abs().total_cmp(&other.0.abs()));
    // Far beyond the limit it reduces the head's gradient early in some steps and not in others (30 and 31 sequences, not 33).
    assert!(errors[errors.len() / 2].0.abs() <= 0.02, "{errors:?}");
    assert!(errors.iter().all(|(error, _)| error.abs() <= 0.07), "{errors:?}");
}

/// Bytes that libtpu 0.0.42.1 gives to a program on v6e (what it says when one has more).
const LIMIT: f64 = 33_550_237_184.0;

/// A collective of a compiled step, as often as a step runs it.
#[derive(Clone, Deserialize)]
struct Ran {
    kind: String,
    bytes: u64,
    count: u64,
    /// Ranks between neighbours of a group, where there are three axes.
    stride: Option<u64>,
    /// Pairs of a permute that is no ring of all chips.
    pairs: Option<u64>,
}

/// What a collective is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A weight is gathered.
    Gather,
    /// A weight's gradient is reduced.
    Reduce,
    /// Parts of a sum over the tensor axis.
    Sum,
    /// Rows of the embedding and their columns change places, or tokens are sent to experts and back.
    Swap,
    /// A part of something is sent to a neighbour.
    Permute,
    /// A micro-batch is sent to a neighbour of a pipeline.
    Pass,
}

/// Bytes and number of each kind's collectives, by the bytes of each; below a megabyte only norms' gradients, the loss and
/// words' numbers are sent, which are left out on both sides.
type Exchanged = BTreeMap<(What, u64), u64>;

const LEAST: u64 = 1 << 20;

fn ours(step: &Step) -> Exchanged {
    let mut all = Exchanged::new();
    let program = step.case.scenario().job.compile().classes.remove(0);
    for instr in &program.step {
        if let Instr::Collective { comm, .. } = instr {
            let comm = program.comm(*comm);
            let what = match comm.kind {
                _ if program.groups[comm.group.0 as usize].name == "tensor" => What::Sum,
                Collective::AllToAll => What::Swap,
                Collective::SendRecv => What::Pass,
                Collective::AllGather => What::Gather,
                _ => What::Reduce,
            };
            *all.entry((what, comm.bytes.0)).or_default() += 1;
        }
    }
    all.retain(|(_, bytes), _| *bytes >= LEAST);
    all
}

/// The compiler's, and how often a shard of each weight is sent to a neighbour: an exchange in windows is a chain of those.
fn theirs(step: &Step) -> (Exchanged, BTreeMap<u64, u64>) {
    let (mut all, mut permutes) = (Exchanged::new(), BTreeMap::new());
    let (shards, tensor) = (step.case.shards(), step.case.mesh[1]);
    for ran in &step.collectives {
        let what = match ran.kind.as_str() {
            "all-gather" => What::Gather,
            "reduce-scatter" => What::Reduce,
            "all-reduce" if tensor == 1 || ran.stride.is_some_and(|stride| stride > 1) => What::Reduce,
            "all-reduce" => What::Sum,
            "all-to-all" => What::Swap,
            "collective-permute" if step.case.part() == Some(ran.bytes) => What::Pass,
            // Tokens that change places for a loss in parts, or for micro-batches, go by an exchange and a shift.
            "collective-permute"
                if (step.case.tiling > 1 || step.case.stage.is_some())
                    && ran.bytes == 2 * step.case.own_tokens() * step.case.d =>
            {
                continue;
            }
            // The rest of a gradient that is padded to be reduced, from chip to chip.
            "collective-permute" if ran.pairs.is_some() => continue,
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

/// In a step, of a kind: what is simulated and what the compiler has in its place, the bytes of each and how many.
type Instead = (&'static str, What, (u64, u64), (u64, u64));

/// All that differ.
///
/// With three axes the partitioner dispatches otherwise, forward and again, and for the gradient of what is combined: it sends
/// the mask, of one byte a number where it is of zeros and ones, and gathers the tokens of the expert axis. Scores are
/// scattered in halves over the tensor axis, and their gradients gathered in two steps.
///
/// A chip's sequences become micro-batches by an exchange of pairs and a shift, or of two and a gather; one of four such changes of
/// places is a gather and a sum where the pipeline goes around. The head's gradient is padded to be reduced. With a tensor axis
/// too, words are looked up in half of a table that is laid out anew first, and what was found is gathered.
const OTHERWISE: [Instead; 15] = [
    ("pipe-l8-circular", What::Swap, (33_554_432, 1), (0, 0)),
    ("pipe-l8-circular", What::Gather, (0, 0), (67_108_864, 1)),
    ("pipe-l8-circular", What::Reduce, (0, 0), (134_217_728, 1)),
    ("pipe-l8-circular", What::Reduce, (131_072_000, 1), (135_168_000, 1)),
    ("pipe-l8-kept", What::Reduce, (131_072_000, 1), (135_168_000, 1)),
    ("pipe-l8-model2", What::Gather, (0, 0), (67_108_864, 2)),
    ("pipe-l8-model2", What::Permute, (0, 0), (65_536_000, 2)),
    ("pipe-l8-model2", What::Reduce, (65_536_000, 1), (66_560_000, 1)),
    ("pipe-l4-delay", What::Gather, (0, 0), (67_108_864, 1)),
    ("pipe-l4-delay", What::Reduce, (131_072_000, 1), (135_168_000, 1)),
    ("moe-l2-expert4-model2-sent", What::Swap, (167_772_160, 4), (83_886_080, 4)),
    ("moe-l2-expert4-model2-sent", What::Gather, (0, 0), (268_435_456, 6)),
    ("moe-l2-expert4-model2-sent", What::Gather, (2_097_152, 2), (1_048_576, 2)),
    ("moe-l2-expert4-model2-sent", What::Reduce, (2_097_152, 4), (1_048_576, 4)),
    ("moe-l2-expert4-model2-sent", What::Permute, (0, 0), (2_097_152, 6)),
];

#[test]
fn collectives_are_the_compilers_in_kind_number_and_bytes() {
    // Blocks that are written out share what they gather with their backward, which is not simulated; within a tenth of
    // the limit the compiler gathers again what it has no room to keep.
    let has_room = |step: &Step| step.case.scan.unwrap_or(true) && (step.peak as f64) < 0.9 * LIMIT;
    for step in steps().iter().filter(|step| !step.collectives.is_empty() && has_room(step)) {
        let ((mut ours, (mut theirs, mut permutes)), name, case) = ((ours(step), theirs(step)), &step.name, &step.case);
        for &(_, what, mine, compilers) in OTHERWISE.iter().filter(|(step, ..)| step == name) {
            let less = |left: Option<&mut u64>, count| *left.unwrap_or_else(|| panic!("{name}: {what:?}")) -= count;
            match what {
                _ if compilers.1 == 0 => {}
                What::Permute => less(permutes.get_mut(&compilers.0), compilers.1),
                _ => less(theirs.get_mut(&(what, compilers.0)), compilers.1),
            }
            if mine.1 > 0 {
                less(ours.get_mut(&(what, mine.0)), mine.1);
            }
        }
        theirs.retain(|_, count| *count > 0);
        permutes.retain(|_, count| *count > 0);
        let shards = case.shards();
        // With one sequence a chip the weights of queries and keys lie otherwise for their gradients, and are gathered again.
        // Before experts all four of attention are gathered again, as large by twos, for which the program shows no reason.
        let again = match case.experts {
            8 => 2 * case.layers,
            // In a pipeline they lie otherwise, too.
            _ if case.remat == "full" && case.iterations().is_some() => {
                2 * case.iterations().unwrap_or(0) * case.per_stage.unwrap_or(1)
            }
            _ if case.batch == shards && case.remat == "full" => case.layers,
            _ => 0,
        };
        let (query, key) = (2 * case.d * case.d / case.mesh[1], 2 * case.d * case.d / case.h * case.kv / case.mesh[1]);
        let (mut combined, mut parts) = (0, 0);
        for (&(what, bytes), &count) in &theirs {
            let more = if what == What::Gather && [query, key].contains(&bytes) { again } else { 0 };
            match ours.get_mut(&(what, bytes)) {
                Some(left) => {
                    let fewer =
                        || panic!("{name}: {count} times {what:?} of {bytes} B, and {more} more than {left} are due");
                    *left = (*left + more).checked_sub(count).unwrap_or_else(fewer);
                }
                // Words' numbers.
                None if what == What::Gather && bytes == 4 * case.batch * case.seq => {}
                None if what == What::Reduce => combined += count * bytes,
                None => panic!("{name}: {count} times {what:?} of {bytes} B"),
            }
        }
        for (bytes, sent) in permutes {
            // What is not whole in theirs is in windows: a chain over n shards is n − 1 permutes where it is unrolled, n + 1
            // in a loop.
            let mut take = |what| ours.remove(&(what, bytes)).unwrap_or_default();
            let windows = take(What::Gather) + take(What::Reduce);
            let chains = windows * (shards - 1)..=windows * (shards + 1);
            assert!(chains.contains(&sent), "{name}: {sent} permutes of {bytes} B / {shards}, {chains:?} expected");
        }
        for ((what, bytes), left) in ours.into_iter().filter(|(_, left)| *left > 0) {
            assert_eq!(what, What::Reduce, "{name}: {left} of {bytes} B are not the compiler's");
            parts += left * bytes;
        }
        // Reductions of small gradients are combined to one, norms' among them; those over the expert axis are padded.
        let more = parts / if case.expert > Some(1) { 800 } else { 1000 };
        assert!(parts <= combined && combined <= parts + more, "{name}: {parts} B left, {combined} B combined");
    }
}

#[test]
fn matmul_flops_are_the_compilers_to_a_thousandth() {
    for step in steps().iter().filter(|step| step.matmul_flops.is_some()) {
        // Near the limit it computes again what this says of a step that has no room at all.
        let short = step.name == "llama8b-wide-vocab-b20";
        let job = step.case.scenario().job;
        let job = match job.parts() {
            Parts::Compiled(compiled) if short => Job::of(spmd::Job { hbm: Bytes(0), ..compiled.clone() }),
            _ => job,
        };
        let program = job.compile().classes.remove(0);
        let matmul = |instr: &Instr| match instr {
            Instr::Launch { kernel, .. } => match program.kernel(*kernel).work {
                Work::Matmul { m, n, k, .. } => 2.0 * m as f64 * n as f64 * k as f64,
                _ => 0.0,
            },
            _ => 0.0,
        };
        // Sorted rows are multiplied by kernels that the compiler does not look into: three products, again, and six gradients.
        let (case, sorted) = (&step.case, step.case.experts > 0 && step.case.capacity.is_none());
        let rows = if sorted { case.own_tokens() * case.top_k } else { 0 };
        let kernels = 12.0 * 2.0 * (case.layers * rows * case.d * case.ff) as f64;
        let (ours, theirs) = (program.step.iter().map(matmul).sum::<f64>() - kernels, step.matmul_flops.unwrap());
        assert!((ours / theirs - 1.0).abs() < 0.001, "{}: {ours:e} FLOPs, and {theirs:e}", step.name);
    }
}
