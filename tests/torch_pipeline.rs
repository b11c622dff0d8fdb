//! Pipelines under FSDP2, as torchtitan makes them: plans that cannot be are answered with a place and a remedy, and those that
//! can keep what holds of every job.

use crate::command::Folder;
use crate::make;
use windtunnel::program::{Category, Collective, Instr, Program};
use windtunnel::runtime::train::pipeline::SCHEDULES;
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Prediction, Scenario, predict};
use windtunnel::schedule::{Shape, build};

/// Four blocks in two stages on half a node each.
const STAGES: &str = r#"runtime = "fsdp2"

[topology]
name = "h100-sxm-80gb"
nodes = 1

[model]
huggingface = "config.json"
layers = 4

[mesh]
dp_shard = 4
pp = 2

[batch]
sequence = 128
accumulation = 4
"#;

fn with(table: &str) -> Scenario {
    make::parse(&format!("{STAGES}\n[pipeline]\n{table}\n"))
}

fn fly(scenario: &Scenario, fold: bool) -> Prediction {
    predict(scenario, Settings { fold, ..Settings::default() }).unwrap()
}

/// Ranks of a stage, and bytes of a parameter that is kept.
const RANKS: u64 = 4;
const FP32: u64 = 4;

/// Bytes of parameters that a rank holds.
fn parameters(program: &Program) -> u64 {
    let bytes = |instr: &Instr| match *instr {
        Instr::Alloc { buffer } => Some(program.buffer(buffer)).filter(|buffer| buffer.category == Category::Parameter),
        _ => None,
    };
    program.setup.iter().filter_map(bytes).map(|buffer| buffer.bytes.0).sum()
}

/// How many reductions a rank issues in a step.
fn reductions(program: &Program) -> usize {
    let reduces = |instr: &&Instr| match **instr {
        Instr::Collective { comm, .. } => program.comm(comm).kind == Collective::ReduceScatter,
        _ => false,
    };
    program.step.iter().filter(reduces).count()
}

/// Blocks of each rank's stages.
fn blocks(scenario: &Scenario) -> Vec<Vec<u64>> {
    (0..2).map(|rank| scenario.job.layers_of(rank)).collect()
}

#[test]
fn a_plan_that_torchtitan_could_not_run_is_told_what_would() {
    let folder = Folder::new("torch-pipeline");
    for (old, new, problem, remedy) in [
        ("pp = 2", "pp = 3", "mesh.pp = 3 does not divide the 8 chips", "write a divisor"),
        ("dp_shard = 4", "dp_shard = 8", "the mesh holds 16 ranks", "must be 4 beside pp = 2"),
        ("pp = 2", "pp = 1\n[pipeline]\nschedule = \"1F1B\"", "mesh.pp makes none", "write mesh.pp = 2"),
        ("accumulation = 4", "accumulation = 1", "1F1B needs at least 2 micro-batches", "write batch.accumulation = 2"),
        ("", "[pipeline]\nschedule = \"2F2B\"", "there is no schedule \"2F2B\"", "1F1B, GPipe, Interleaved1F1B"),
        ("", "[pipeline]\nschedule = \"Megatron1F1B\"", "is not of torch.distributed.pipelining", "write one of: 1F1B"),
        (
            "",
            "[pipeline]\nschedule = \"ZBVZeroBubble\"\n[compile]\nblocks = true",
            "PyTorch does not run ZBVZeroBubble on stage modules that have used torch.compile",
            "write compile.blocks = false, or pipeline.schedule = \"LoopedBFS\"",
        ),
        (
            "",
            "[pipeline]\nschedule = \"DualPipeV\"\n[activation_checkpointing]\npolicy = \"full\"",
            "computed again for its input's gradient and for each of its parameters",
            "write activation_checkpointing.policy = \"none\"",
        ),
        (
            "",
            "[pipeline]\nschedule = \"ZBVZeroBubble\"\nlayers_per_stage = 1",
            "ZBVZeroBubble runs two stages on each rank, not 3",
            "write pipeline.layers, the blocks of 4 stages in place of pipeline.layers_per_stage",
        ),
        (
            "",
            "[pipeline]\nschedule = \"ZBVZeroBubble\"\nlayers = [1, 1, 0, 1, 1, 0]",
            "ZBVZeroBubble runs two stages on each rank, not 3",
            "write 4 numbers in pipeline.layers",
        ),
        (
            "accumulation = 4",
            "accumulation = 7\n[pipeline]\nschedule = \"Interleaved1F1B\"",
            "7 are no multiple of 3",
            "write batch.accumulation = 8, or pipeline.schedule = \"LoopedBFS\"",
        ),
        ("", "[pipeline]\nvirtual_stages = 2", "1F1B runs one stage on each rank", "write pipeline.virtual_stages = 1"),
        ("", "[pipeline]\nlayers_per_stage = 2", "are 3 stages of 2", "write pipeline.layers_per_stage = 3"),
        ("", "[pipeline]\nlayers_per_stage = 1", "are 6 stages of 1", "write pipeline.layers_per_stage = 3"),
        ("", "[pipeline]\nfirst_stage_less_layers = 9", "do not make 2 stages", "write pipeline.layers"),
        (
            "",
            "[pipeline]\nschedule = \"Interleaved1F1B\"\nvirtual_stages = 1",
            "Interleaved1F1B takes two stages or more on each rank",
            "write pipeline.schedule = \"1F1B\"",
        ),
        ("", "[pipeline]\nschedule = \"LoopedBFS\"\nvirtual_stages = 99", "more than the 32 on a rank", "fewer stages"),
        ("", "[pipeline]\nlayers = [1, 2, 1]", "2 pipeline ranks have equally many stages", "a multiple of 2"),
        ("", "[pipeline]\nlayers = [1, 2]", "sums to 3", "such as [2, 2]"),
        (
            "",
            "[pipeline]\nschedule = \"Interleaved1F1B\"\nlayers = [2, 0, 0, 2]",
            "a stage of nothing between",
            "1 block",
        ),
        ("", "[pipeline]\nlayers = [2, 2]\nvirtual_stages = 1", "says how to find out", "remove one"),
        ("", "[pipeline]\noverlap_p2p = true", "never make the host wait", "remove the key"),
        ("", "[pipeline]\nscatter_gather = true", "send what they have, whole", "remove the key"),
        (
            "accumulation = 4",
            "accumulation = 4\nsync_every_micro_batch = true",
            "| sync_every_micro_batch = true",
            "remove batch",
        ),
        ("", "[loss]\nkind = \"fused_linear\"", "a pipeline of a model whose loss runs the head itself", "mesh.pp = 1"),
        ("", "[fsdp]\ncpu_offload = true", "a pipeline of parameters on the host", "mesh.pp = 1"),
        ("\"fsdp2\"", "\"fsdp1\"", "mesh.pp is an axis of runtime = \"megatron\" and of \"fsdp2\"", "write runtime"),
    ] {
        let text = if old.is_empty() { format!("{STAGES}\n{new}\n") } else { make::replaced(STAGES, &[(old, new)]) };
        folder.write("my.toml", &text);
        let said = folder.refuses(&["run", "my.toml"]);
        assert!(said.contains(problem) && said.contains("--> my.toml:"), "{new}\n{said}");
        assert!(said.trim_end().lines().last().unwrap_or_default().contains(remedy), "{new}\n{said}");
    }
}

#[test]
fn the_ends_of_the_model_count_as_a_block_each_unless_the_file_says_otherwise() {
    assert_eq!(blocks(&make::parse(STAGES)), [[2], [2]]);
    assert_eq!(blocks(&with("first_stage_less_layers = 2\nlast_stage_less_layers = 0")), [[1], [3]]);
    assert_eq!(blocks(&with("layers = [3, 1]")), [[3], [1]]);
    let interleaved = "schedule = \"Interleaved1F1B\"\n";
    assert_eq!(blocks(&with(interleaved)), [[1, 1], [2, 0]]);
    let even = format!("{interleaved}layers_per_stage = 1\nfirst_stage_less_layers = 0\nlast_stage_less_layers = 0");
    assert_eq!(blocks(&with(&even)), [[1, 1], [1, 1]]);
}

#[test]
fn every_rank_of_a_stage_runs_the_same_and_folding_them_changes_nothing() {
    for schedule in SCHEDULES {
        let scenario = with(&format!("schedule = {:?}", schedule.name));
        let (folded, whole) = (fly(&scenario, true), fly(&scenario, false));
        assert_eq!(folded.classes.len(), 2);
        assert_eq!(folded.step, whole.step, "{}", schedule.name);
        assert_eq!(folded.breakdown, whole.breakdown, "{}", schedule.name);
        assert!(folded.bubble() > 0.0, "{}", schedule.name);
    }
}

#[test]
fn stages_hold_all_parameters_of_the_model_between_them_and_do_all_its_work() {
    let whole = make::parse(&make::replaced(STAGES, &[("pp = 2\n", ""), ("dp_shard = 4", "dp_shard = 8")]));
    let staged = make::parse(STAGES);
    let flops = |scenario: &Scenario| {
        let flight = scenario.job.compile();
        let ranks = u128::from(flight.classes[0].ranks) / flight.classes.len() as u128;
        flight.classes.iter().map(|program| program.flops.0 * ranks).sum::<u128>()
    };
    // The same tokens: four ranks take four micro-batches of one stage each, or eight do of the whole model.
    assert_eq!(2 * flops(&staged), flops(&whole));
    // Each rank of a stage has a fourth of it, in fp32.
    let held: u64 = staged.job.compile().programs().iter().map(parameters).sum();
    assert_eq!(RANKS * held, FP32 * staged.job.model().params().total);
}

#[test]
fn gradients_are_reduced_once_however_many_micro_batches_there_are() {
    let issued = |accumulation: &str| {
        let scenario = make::parse(&make::replaced(STAGES, &[("accumulation = 4", accumulation)]));
        scenario.job.compile().programs().iter().map(reductions).collect::<Vec<_>>()
    };
    assert_eq!(issued("accumulation = 2"), issued("accumulation = 8"));
    assert!(issued("accumulation = 2").iter().all(|&count| count > 0));
}

#[test]
fn what_a_remedy_says_is_accepted() {
    for (accumulation, table) in [
        ("accumulation = 8", "schedule = \"Interleaved1F1B\""),
        ("accumulation = 7", "schedule = \"LoopedBFS\""),
        ("accumulation = 4", "layers_per_stage = 3"),
        ("accumulation = 4", "schedule = \"ZBVZeroBubble\"\nlayers = [1, 1, 1, 1]"),
        ("accumulation = 4", "schedule = \"LoopedBFS\"\n[compile]\nblocks = true"),
        ("accumulation = 4", "schedule = \"LoopedBFS\"\n[activation_checkpointing]\npolicy = \"full\""),
        ("accumulation = 1", "schedule = \"GPipe\""),
    ] {
        make::parse(&make::replaced(
            &format!("{STAGES}\n[pipeline]\n{table}\n"),
            &[("accumulation = 4", accumulation)],
        ));
    }
}

#[test]
fn backwards_in_halves_do_the_work_of_whole_ones_and_give_back_what_they_took() {
    let programs = |schedule: &str| with(&format!("schedule = {schedule:?}")).job.compile().classes;
    let flops = |schedule| programs(schedule).iter().map(|program| program.flops.0).sum::<u128>();
    for schedule in ["InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"] {
        assert_eq!(flops(schedule), flops("Interleaved1F1B"), "{schedule}");
        for program in programs(schedule) {
            // Some workspaces are given back.
            let counts = |instr: &&Instr| match **instr {
                Instr::Free { buffer } => program.buffer(buffer).category != Category::Workspace,
                _ => true,
            };
            let mut held = vec![false; program.buffers.len()];
            let before = make::live(&program, program.before_second().filter(counts), &mut held);
            let after = make::live(&program, program.step.iter().filter(counts), &mut held);
            assert_eq!(after, before, "{schedule}");
        }
    }
}

#[test]
fn experts_are_spread_in_every_stage_and_the_ranks_of_all_stages_hold_the_model() {
    let model = "name = \"deepseek-v2-lite\"\nlayers = 4";
    let text =
        make::replaced(STAGES, &[("huggingface = \"config.json\"\nlayers = 4", model), ("pp = 2", "pp = 2\nep = 2")]);
    let scenario = make::parse(&text);
    let held: u64 = scenario.job.compile().programs().iter().map(parameters).sum();
    assert_eq!(RANKS * held, FP32 * scenario.job.model().params().total);
    let (folded, whole) = (fly(&scenario, true), fly(&scenario, false));
    assert_eq!((folded.step, &folded.breakdown), (whole.step, &whole.breakdown));
    let halves = format!("{text}\n[pipeline]\nschedule = \"ZBVZeroBubble\"\n");
    let said = crate::followed::refusal("my.toml", &halves);
    assert!(said.contains("those of a mixture of experts are not simulated"), "{said}");
}

/// The schedule of a name in two stages a rank, or one, as PyTorch's CSV.
fn csv(name: &str, virtual_stages: u32) -> String {
    let shape = Shape { ranks: 2, virtual_stages, microbatches: 4 };
    build(name, shape).unwrap_or_else(|error| panic!("{error}")).lists.csv()
}

#[test]
fn a_schedule_written_to_a_file_and_read_back_gives_the_step_of_its_name() {
    let folder = Folder::new("schedule-csv-step");
    let file = folder.path.join("my.toml").display().to_string();
    let of_file = |text: &str| {
        folder.write("plan.csv", text);
        let table = "[pipeline]\nschedule = \"plan.csv\"\n";
        Scenario::parse(&file, &format!("{STAGES}\n{table}")).unwrap_or_else(|error| panic!("{error}"))
    };
    for name in ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"] {
        let (named, read) = (with(&format!("schedule = {name:?}")), of_file(&csv(name, 2)));
        let (named, read) = (fly(&named, true), fly(&read, true));
        assert_eq!((read.step, read.breakdown), (named.step, named.breakdown), "{name}");
        assert_eq!(read.memory.wanted, named.memory.wanted, "{name}");
    }
    // One stage a rank, in a loop of its own by name and as a list from a file: the same work.
    let flops =
        |scenario: &Scenario| scenario.job.compile().classes.iter().map(|program| program.flops).collect::<Vec<_>>();
    assert_eq!(flops(&of_file(&csv("1F1B", 1))), flops(&make::parse(STAGES)));
}

#[test]
fn a_schedules_file_is_found_beside_its_scenario_wherever_that_is_flown() {
    let folder = Folder::new("schedule-csv-beside");
    std::fs::create_dir(folder.path.join("mine")).unwrap();
    let text = |schedule: &str| format!("{STAGES}\n[pipeline]\nschedule = {schedule:?}\n");
    folder.write("mine/config.json", include_str!("tiny/config.json"));
    folder.write("mine/plan.csv", &csv("Interleaved1F1B", 2));
    folder.write("mine/of_file.toml", &text("plan.csv"));
    folder.write("named.toml", &text("Interleaved1F1B"));
    let output = folder.windtunnel(&["compare", "mine/of_file.toml", "named.toml"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("mine/plan.csv"), "{said}");
}

#[test]
fn a_file_that_contradicts_itself_or_the_job_is_told_where() {
    let folder = Folder::new("schedule-csv");
    let interleaved = csv("Interleaved1F1B", 2);
    let swapped: String = interleaved.lines().rev().map(|line| format!("{line}\n")).collect();
    let (round, halves) = ("plan.csv:2:1: 1B0: comes before its forward", csv("ZBVZeroBubble", 2));
    for (text, keys, problem, remedy) in [
        (&interleaved.replacen("\n1F0", "\n1B0", 1), "", round, "`windtunnel show schedule"),
        (&csv("GPipe", 1).replace("1F3", "1F9"), "", "plan.csv:2:13: 2 stages and 10 micro-batches", "mend the file"),
        (&interleaved.lines().next().unwrap_or_default().to_owned(), "", "plan.csv:1:", "mend the file"),
        (&"0F0,1F0,1B0,0B0".to_owned(), "", "plan.csv has 1 ranks, a line for each, and mesh.pp = 2", "mesh.pp = 1"),
        (&"0F0,0B0\n1F0,1B0".to_owned(), "", "plan.csv has 1 micro-batches, and batch.accumulation = 4", "= 1, or"),
        (&swapped, "", "plan.csv:2: stage 0 is another rank's: torchtitan makes it on rank 0", "round and round"),
        (
            &interleaved,
            "virtual_stages = 1",
            "has 2 stages on each rank, and the keys of [pipeline] give it 1",
            "remove",
        ),
        (
            &interleaved,
            "layers = [2, 2]",
            "has 2 stages on each rank, and the keys of [pipeline] give it 1",
            "4 stages",
        ),
        (
            &interleaved,
            "layers_per_stage = 3",
            "plan.csv runs 2 on each rank",
            "4 stages in place of pipeline.layers_per_stage",
        ),
        (&halves, "[compile]\nblocks = true", "those of compiled blocks are not simulated", "compile.blocks = false"),
    ] {
        folder.write("plan.csv", text);
        folder.write("my.toml", &format!("{STAGES}\n[pipeline]\nschedule = \"plan.csv\"\n{keys}\n"));
        let said = folder.refuses(&["run", "my.toml"]);
        assert!(said.contains(problem) && said.contains("--> my.toml:"), "{keys}\n{said}");
        assert!(said.trim_end().lines().last().unwrap_or_default().contains(remedy), "{keys}\n{said}");
    }
    folder.write("my.toml", &format!("{STAGES}\n[pipeline]\nschedule = \"none.csv\"\n"));
    assert!(folder.refuses(&["run", "my.toml"]).contains("cannot read the schedule none.csv: "));
}
