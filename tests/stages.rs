//! Pipelines of the SPMD lane: what a loop over micro-batches computes, sends and holds on every stage alike.

use windtunnel::program::{Category, Collective, Instr, Work};
use windtunnel::report;
use windtunnel::runtime::{Parts, spmd};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Prediction, Scenario, predict};
use windtunnel::units::Bytes;

use crate::{followed, make};

pub const BASE: &str = r#"
runtime = "xla"

[topology]
name = "tpu-v6e"
slice = "4x4"

[model]
name = "llama-3.1-8b"
layers = 8

[mesh]
pipeline = 4
fsdp = 4

[batch]
sequence = 4096
micro = 4

[xla]
remat_policy = "full"
num_pipeline_microbatches = 8
flags = []
"#;

/// Stages, micro-batches, and times that each goes around.
const STAGES: u64 = 4;
const MICRO_BATCHES: u64 = 8;
const REPEATS: u64 = 2;
/// Tokens that a stage computes at a time: two sequences, as each of four chips has four, in half as many parts as they are.
const TOKENS: u64 = 2 * 4096;
const WIDTH: u64 = 4096;
/// Numbers of a block's weights.
const BLOCK: u64 = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336;

fn with(changes: &[(&str, &str)]) -> String {
    make::replaced(BASE, changes)
}

fn read(changes: &[(&str, &str)]) -> Scenario {
    Scenario::parse("stages.toml", &with(changes)).unwrap()
}

fn fly(changes: &[(&str, &str)]) -> Prediction {
    predict(&read(changes), Settings { remedies: false, ..Settings::default() }).unwrap()
}

/// A change that adds a key of the lane's table.
fn key(line: &str) -> (&'static str, String) {
    ("flags = []", format!("flags = []\n{line}"))
}

fn job(changes: &[(&str, &str)]) -> spmd::XlaPlan {
    match read(changes).job.parts() {
        Parts::Compiled(job) => job.clone(),
        _ => panic!("of the SPMD lane"),
    }
}

/// FLOPs of the matmuls of a step of one chip.
fn matmuls(flown: &Prediction) -> u64 {
    let program = &flown.classes[0].program;
    let matmul = |instr: &Instr| match instr {
        Instr::Launch { kernel, .. } => match program.kernel(*kernel).work {
            Work::Matmul { m, n, k, .. } => 2 * m * n * k,
            _ => 0,
        },
        _ => 0,
    };
    program.step.iter().map(matmul).sum()
}

/// Bytes of a kind of collective over a group in a step of one chip.
fn exchanged(flown: &Prediction, kind: Collective, over: &str) -> u64 {
    let program = &flown.classes[0].program;
    let comms = program.step.iter().filter_map(|instr| match instr {
        Instr::Collective { comm, .. } => Some(program.comm(*comm)),
        _ => None,
    });
    let of = comms.filter(|comm| comm.kind == kind && program.groups[comm.group.0 as usize].name == over);
    of.map(|comm| comm.bytes.0).sum()
}

#[test]
fn the_bubble_is_what_a_loop_computes_while_it_fills_and_drains() {
    let pipeline = job(&[]).pipeline.unwrap();
    // MaxText's: (stages − 1) / (repeats · micro-batches + stages − 1).
    assert_eq!((pipeline.repeats, pipeline.iterations(), pipeline.wasted()), (REPEATS, 19, 3));
    assert_eq!(pipeline.bubble(), 3.0 / 19.0);
    // What takes an iteration on its way doubles it.
    let delayed = job(&[("flags = []", &key("pipeline_delay_activation_forwarding = true").1)]).pipeline.unwrap();
    assert_eq!(delayed.bubble(), 6.0 / 22.0);
    let scenario = read(&[]);
    let answer = predict(&scenario, Settings { remedies: false, ..Settings::default() }).unwrap();
    let said = report::text::report(&scenario, &answer, Default::default());
    assert!(said.contains("15.8 % of the pipeline's 19 iterations compute what nobody reads"), "{said}");
    assert_eq!(report::json::report(&scenario, &answer)["bubble"], 3.0 / 19.0);
}

#[test]
fn every_iteration_multiplies_as_much_as_the_others() {
    let alone = [("pipeline = 4\nfsdp = 4", "fsdp = 16"), ("num_pipeline_microbatches = 8\n", "")];
    let deep = [alone[0], alone[1], ("layers = 8", "layers = 16")];
    let blocks = matmuls(&fly(&deep)) - matmuls(&fly(&alone));
    let rest = matmuls(&fly(&alone)) - blocks;
    let useful = MICRO_BATCHES * REPEATS;
    assert_eq!(matmuls(&fly(&[])), rest + blocks * (useful + STAGES - 1) / useful);
}

#[test]
fn a_chip_sends_its_part_of_each_micro_batch_to_the_next_stage_and_turns_what_it_keeps() {
    let part = 2 * TOKENS * WIDTH;
    let sent = |changes: &[(&str, &str)]| exchanged(&fly(changes), Collective::SendRecv, "stage");
    // What a stage made, inputs and results, and what waits for its next time around; there and back.
    assert_eq!(sent(&[]), 19 * 3 * 2 * part);
    // With as many micro-batches as stages the last goes straight on to the first.
    let few = [("micro = 4", "micro = 2"), ("microbatches = 8", "microbatches = 4")];
    assert_eq!(sent(&few), 11 * 2 * 2 * part);
    // So it does where each goes around once.
    let once = [("flags = []", "flags = []\nnum_layers_per_pipeline_stage = 2")];
    assert_eq!(sent(&once), 11 * 2 * 2 * part);
}

#[test]
fn weights_are_gathered_in_every_iteration_or_once() {
    let tables = 2 * 2 * 128_256 * WIDTH;
    let gathered = |changes: &[(&str, &str)]| exchanged(&fly(changes), Collective::AllGather, "fsdp") - tables;
    assert_eq!(gathered(&[]), 19 * 2 * 2 * BLOCK);
    let once = key("pipeline_fsdp_ag_once = true").1;
    assert_eq!(gathered(&[("flags = []", &once)]), 2 * 2 * BLOCK);
    // They are there all the time.
    let (each, once) = (fly(&[]), fly(&[("flags = []", &once)]));
    let whole = |flown: &Prediction| flown.memory.report.phases[0].breakdown.bytes(Category::UnshardedParameter).0;
    assert_eq!(whole(&once) - whole(&each), 2 * 2 * BLOCK);
    assert!(once.memory.report.peak_allocated > each.memory.report.peak_allocated);
    let reduced = |flown: &Prediction| {
        exchanged(flown, Collective::AllReduce, "fsdp") + exchanged(flown, Collective::ReduceScatter, "fsdp")
    };
    // Gradients of all iterations', or of two sets of weights, once, with norms' in the same sum.
    let norms = 2 * 2 * 2 * WIDTH;
    assert_eq!(reduced(&each) - reduced(&once), (19 - 2) * 2 * BLOCK - norms);
}

#[test]
fn replicas_of_a_stage_add_up_gradients_once() {
    let replicas = [("pipeline = 4\nfsdp = 4", "pipeline = 4\ndata = 2\nfsdp = 2")];
    let summed = exchanged(&fly(&replicas), Collective::AllReduce, "data");
    // Shards of two blocks and their norms, in bf16; norms' are summed on their own, too.
    assert_eq!(summed, 2 * (2 * BLOCK / 2 + 2 * 2 * WIDTH) + 2 * 2 * 2 * WIDTH);
}

#[test]
fn a_stage_holds_its_own_blocks_and_a_share_of_the_tables() {
    let alone = fly(&[("pipeline = 4\nfsdp = 4", "fsdp = 16"), ("num_pipeline_microbatches = 8\n", "")]);
    let held = |flown: &Prediction| flown.memory.report.phases[0].breakdown.bytes(Category::Parameter).0;
    // The tables lie on no stage: four chips share them, not sixteen. Norms' weights are those of a quarter of the blocks.
    let tables = 4 * 2 * 128_256 * WIDTH;
    let norms = 4 * 2 * 8 * WIDTH;
    assert_eq!(held(&fly(&[])) - held(&alone), tables / 4 - tables / 16 - (norms - norms / 4));
}

#[test]
fn what_is_kept_is_kept_of_every_iteration() {
    let kept = |policy: &str| {
        let flown = fly(&[("remat_policy = \"full\"", policy)]);
        flown.memory.report.phases[0].breakdown.bytes(Category::Activation).0
    };
    let projections = 2 * TOKENS * (4096 + 2 * 1024);
    assert_eq!(kept("remat_policy = \"save_qkv_proj\"") - kept("remat_policy = \"full\""), 19 * projections);
    // An iteration's input is kept under any policy, so one that keeps all by not computing again has a key of its own.
    assert_eq!(kept("remat_policy = \"none\""), kept("remat_policy = \"full\""));
    let all = kept("set_remat_policy_on_pipeline_iterations = false");
    assert!(all > kept("remat_policy = \"minimal\""));
}

#[test]
fn blocks_behind_the_pipeline_take_stages_for_data() {
    let ten = fly(&[("layers = 8", "layers = 10"), ("flags = []", &key("pipeline_parallel_layers = 8").1)]);
    let eight = fly(&[]);
    // As often as one computes them alone: no iteration of theirs is wasted.
    let alone = |layers: &str| {
        let changes =
            [("pipeline = 4\nfsdp = 4", "fsdp = 16"), ("num_pipeline_microbatches = 8\n", ""), ("layers = 8", layers)];
        matmuls(&fly(&changes))
    };
    assert_eq!(matmuls(&ten) - matmuls(&eight), alone("layers = 10") - alone("layers = 8"));
    // Every stage has their weights.
    let held = |flown: &Prediction| flown.memory.report.phases[0].breakdown.bytes(Category::Parameter).0;
    assert_eq!(held(&ten) - held(&eight), 4 * 2 * (BLOCK / 4 + 2 * WIDTH));
}

#[test]
fn slices_can_be_stages() {
    let across =
        [("slice = \"4x4\"", "slice = \"2x2\"\nslices = 4"), ("pipeline = 4\nfsdp = 4", "dcn_pipeline = 4\nfsdp = 4")];
    let (within, across) = (fly(&[]), fly(&across));
    assert_eq!(within.tokens, across.tokens);
    assert_eq!(within.classes[0].program.flops, across.classes[0].program.flops);
    let sent = |flown: &Prediction| {
        let part = flown.parts.iter().find(|part| part.name.contains("over stage (4)") && part.name.contains("send"));
        part.map(|part| part.busy.seconds()).unwrap()
    };
    // A chip's share of a host's NICs is less than a link to its neighbour.
    assert!(sent(&across) > sent(&within));
}

#[test]
fn no_program_is_written_for_a_pipeline_yet() {
    assert!(job(&[]).only_simulated().unwrap().problem.contains("mesh.pipeline"));
}

#[test]
fn what_does_not_divide_or_means_nothing_is_refused_as_maxtext_refuses_it() {
    let refused = |changes: &[(&str, &str)]| followed::refusal("stages.toml", &with(changes));
    let keys = [
        ("num_pipeline_repeats = 3", "4 × 1 × 3 = 12, and 8 blocks are in the pipeline"),
        ("num_layers_per_pipeline_stage = 3", "4 × 3 × 1 = 12, and 8 blocks are in the pipeline"),
        ("num_pipeline_repeats = 3", "write xla.num_pipeline_repeats = 2"),
        ("num_layers_per_pipeline_stage = 3", "write num_layers_per_pipeline_stage = 2 or less"),
        ("pipeline_parallel_layers = 6", "write xla.pipeline_parallel_layers = 4: the rest follow the pipeline"),
        (
            "pipeline_parallel_layers = 6\nnum_pipeline_repeats = 2",
            "write xla.num_pipeline_repeats = 1 and xla.pipeline",
        ),
        ("scan_layers = false", "scan_layers = false: every block is in the pipeline"),
        ("set_remat_policy_on_pipeline_iterations = false", "remat_policy = \"full\": every block is in the pipeline"),
        ("pipeline_parallel_layers = 12", "xla.pipeline_parallel_layers = 12 is out of range: expected 1 to 8"),
        ("pipeline_fsdp_ag_per_repeat = true", "write xla.pipeline_fsdp_ag_once = true"),
        ("set_remat_policy_on_layers_per_stage = true", "MaxText's pipeline does not read it"),
        ("scan_pipeline_iterations = false", "write scan_pipeline_iterations = true"),
        ("num_layers_per_pipeline_stage = 2\nscan_layers_per_stage = true", "write scan_layers_per_stage = false"),
    ];
    for (line, said) in keys {
        let refusal = refused(&[("flags = []", &key(line).1)]);
        assert!(refusal.contains(said) && refusal.contains("stages.toml"), "{line}: {refusal}");
    }
    let alone = ("pipeline = 4\nfsdp = 4", "fsdp = 16");
    let cases = [
        (
            vec![("microbatches = 8", "microbatches = 6")],
            "num_pipeline_microbatches = 6 is no multiple of the 4 stages",
        ),
        (vec![("microbatches = 8", "microbatches = 32")], "32 micro-batches do not divide the 16 sequences"),
        (
            vec![("microbatches = 8", "microbatches = 4\npipeline_delay_activation_forwarding = true")],
            "write num_pipeline_microbatches = 8, or more",
        ),
        (vec![alone], "xla.num_pipeline_microbatches is about a pipeline, and the mesh has no stages"),
        (vec![("fsdp = 4", "fsdp = 8")], "pipeline × data × fsdp"),
        (vec![("fsdp = 4", "fsdp = 2\ncontext = 2")], "sequences shared in a pipeline are not simulated"),
        (
            vec![("fsdp = 4", "fsdp = 2\nexpert = 2"), ("flags = []", "flags = []\npipeline_fsdp_ag_once = true")],
            "pipeline_fsdp_ag_once gathers over fsdp",
        ),
        (vec![("name = \"llama-3.1-8b\"", "name = \"mixtral-8x7b\"")], "experts in a pipeline are not simulated"),
        (vec![("pipeline = 4", "pp = 4")], "write mesh.pipeline"),
        (vec![("[batch]", "[pipeline]\nschedule = \"1f1b\"\n[batch]")], "write mesh.pipeline"),
        (
            vec![("slice = \"4x4\"", "slice = \"4x4\"\nslices = 2"), ("fsdp = 4", "fsdp = 4\ndcn_pipeline = 3")],
            "write topology.slices, or a divisor of 2 in mesh.dcn_pipeline",
        ),
        (
            vec![
                ("slice = \"4x4\"", "slice = \"4x4\"\nslices = 4"),
                ("fsdp = 4", "fsdp = 4\ndcn_pipeline = 2\ndcn_data = 4"),
            ],
            "write topology.slices, or mesh.dcn_data = 2",
        ),
        (
            vec![
                ("slice = \"4x4\"", "slice = \"2x2\"\nslices = 4"),
                ("pipeline = 4\nfsdp = 4", "dcn_pipeline = 4\nfsdp = 2\ncontext = 2"),
            ],
            "write mesh.dcn_pipeline = 1 and mesh.dcn_data = 4",
        ),
        (
            vec![
                ("slice = \"4x4\"", "slice = \"4x4\"\nslices = 2"),
                ("fsdp = 4", "fsdp = 2\ncontext = 2\ndcn_pipeline = 2"),
            ],
            "write mesh.pipeline = 1 and mesh.fsdp = 8 and mesh.dcn_pipeline = 1 and mesh.dcn_data = 2",
        ),
        (vec![("pipeline = 4\nfsdp = 4", "pipeline = 16")], "write fewer stages in mesh.pipeline"),
    ];
    for (changes, said) in cases {
        let refusal = refused(&changes);
        assert!(refusal.contains(said), "{refusal}");
    }
    let eager = "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\n[mesh]\npipeline = 4\n\
                 [batch]\nsequence = 4096\n";
    let refusal = followed::refusal("stages.toml", eager);
    assert!(refusal.contains("mesh.pipeline is an axis of runtime = \"xla\""), "{refusal}");
}

#[test]
fn memory_falls_with_every_stage() {
    let peak = |changes: &[(&str, &str)]| fly(changes).memory.report.peak_allocated;
    let eight = [("layers = 8", "layers = 32")];
    let narrow = [("layers = 8", "layers = 32"), ("pipeline = 4\nfsdp = 4", "pipeline = 2\nfsdp = 4\ndata = 2")];
    assert!(peak(&eight) < peak(&narrow) && peak(&eight) > Bytes(0));
}

#[test]
fn a_loop_too_long_to_be_written_out_is_refused() {
    let long = [("layers = 8\n", ""), ("sequence = 4096", "sequence = 128"), ("micro = 4", "micro = 65536")];
    let with_parts = |parts: &str| {
        let changes = [long[0], long[1], long[2], ("microbatches = 8", parts)];
        Scenario::parse("stages.toml", &with(&changes))
    };
    let refusal = with_parts("microbatches = 65536").unwrap_err().to_string();
    // 32 blocks go around eight times.
    let said =
        ["524291 iterations × 1 blocks of a stage", "write num_pipeline_microbatches = 4092 or less", "stages.toml:"];
    assert!(said.iter().all(|said| refusal.contains(said)), "{refusal}");
    let line = with(&long).lines().position(|line| line.starts_with("num_pipeline_microbatches")).unwrap();
    assert!(refusal.contains(&format!("stages.toml:{}", line + 1)), "{refusal}");
    // What it says can be written, were it a divisor of the sequences; the next multiple of the stages cannot.
    let bound = |parts: &str| with_parts(parts).unwrap_err().to_string();
    assert!(bound("microbatches = 4092").contains("do not divide"));
    assert!(with_parts("microbatches = 2048").is_ok());
    assert!(bound("microbatches = 4096").contains("at most 32768 are simulated"));
}

/// Values of a name in a step of one chip.
fn made(flown: &Prediction, name: &str) -> usize {
    let program = &flown.classes[0].program;
    let named = |instr: &&Instr| matches!(instr, Instr::Alloc { buffer } if program.buffer(*buffer).name == name);
    program.step.iter().filter(named).count()
}

#[test]
fn nothing_outside_of_the_pipeline_is_in_windows_for_its_stages_have_other_tokens() {
    let all = fly(&[]);
    // In the pipeline they are.
    assert!(made(&all, "windows") > 0);
    let outside = [("layers = 8", "layers = 10"), ("flags = []", &key("pipeline_parallel_layers = 8").1)];
    assert_eq!(made(&fly(&outside), "windows"), made(&all, "windows"));
    // Nor is a look-up by a product.
    let product = key("use_iota_embed = true").1;
    assert_eq!(made(&fly(&[("flags = []", &product)]), "windows"), made(&all, "windows"));
}

#[test]
fn all_chips_of_a_stage_change_places() {
    // Sequences of all chips of a stage lie in the batch one behind the other: how often, and among how many.
    let swaps = |changes: &[(&str, &str)]| {
        let flown = fly(changes);
        let program = &flown.classes[0].program;
        let comms = program.step.iter().filter_map(|instr| match instr {
            Instr::Collective { comm, .. } => Some(program.comm(*comm)),
            _ => None,
        });
        let of = comms.filter(|comm| comm.kind == Collective::AllToAll);
        let mut sizes: Vec<u32> = of.map(|comm| program.groups[comm.group.0 as usize].size).collect();
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(swaps(&[]), [4; 4]);
    let both = ("pipeline = 4\nfsdp = 4", "pipeline = 4\ndata = 2\nfsdp = 2");
    assert_eq!(swaps(&[both]), [4; 4]);
    // Over slices those of a slice, and then those in the same place.
    let slices = ("slice = \"4x4\"", "slice = \"4x4\"\nslices = 2");
    assert_eq!(swaps(&[slices]), [2, 2, 2, 2, 4, 4, 4, 4]);
    let one = [("slice = \"4x4\"", "slice = \"2x2\"\nslices = 2"), ("pipeline = 4\nfsdp = 4", "pipeline = 4")];
    assert_eq!(swaps(&one), [2; 4]);
    // Where a stage holds one micro-batch, each chip has its part of it.
    assert!(swaps(&[("microbatches = 8", "microbatches = 4")]).is_empty());
}

#[test]
fn the_loss_is_the_heads_wherever_it_comes() {
    let flown = fly(&[]);
    let program = &flown.classes[0].program;
    let scopes: Vec<&str> = program
        .step
        .iter()
        .filter_map(|instr| match instr {
            Instr::Launch { kernel, scope, .. } if program.kernel(*kernel).name == "loss" => {
                Some(program.scope(*scope))
            }
            _ => None,
        })
        .collect();
    assert_eq!(scopes, ["decoder_norm, logits_dense"]);
}

#[test]
fn what_keeps_everything_of_iterations_is_told_to_keep_less_by_its_own_key() {
    let large = [("layers = 8\n", ""), ("remat_policy = \"full\"", "set_remat_policy_on_pipeline_iterations = false")];
    let flown = predict(&read(&large), Settings::default()).unwrap();
    let changes: Vec<&str> = flown.memory.remedies.iter().map(|remedy| remedy.change.as_str()).collect();
    assert!(changes.contains(&"xla.set_remat_policy_on_pipeline_iterations = true"), "{changes:?}");
    assert!(!changes.iter().any(|change| change.contains("xla.remat_policy")), "{changes:?}");
}

#[test]
fn stages_over_slices_are_listed_where_they_are_left_open() {
    assert!(read(&[]).assumption_lines().iter().any(|line| line == "mesh.dcn_pipeline = 1"));
    let alone = [("pipeline = 4\nfsdp = 4", "fsdp = 16"), ("num_pipeline_microbatches = 8\n", "")];
    assert!(read(&alone).assumption_lines().iter().any(|line| line == "mesh.dcn_pipeline = 1"));
}
