//! A job whose ranks differ: what is said of each stage, and of all of them together.

use windtunnel::report::{json, text};
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings;

use crate::command::Folder;
use crate::make::{self, MEGATRON};

#[test]
fn simulating_every_rank_of_a_pipeline_changes_nothing() {
    let interleaved = format!("{MEGATRON}\n[pipeline]\nvirtual_stages = 2\n");
    for text in [MEGATRON, &interleaved] {
        let scenario = make::parse(text);
        let fly = |fold| predict(&scenario, Settings { fold, ..Settings::default() }).unwrap();
        let (folded, full) = (fly(true), fly(false));
        assert_eq!((folded.timeline.ranks.len(), full.timeline.ranks.len()), (2, 8));
        assert_eq!((folded.step, folded.interval, folded.breakdown), (full.step, full.interval, full.breakdown));
        assert_eq!((folded.parts, folded.shares), (full.parts, full.shares));
    }
}

#[test]
fn a_step_extended_from_short_runs_is_the_step_of_all_its_micro_batches() {
    let virtual_stages = "\n[pipeline]\nvirtual_stages = 2\n";
    let mut extended = 0;
    for more in ["", virtual_stages] {
        let text = format!("{}{more}", MEGATRON.replace("accumulation = 4", "accumulation = 32"));
        let scenario = make::parse(&text);
        let fly = |record| predict(&scenario, Settings { record, ..Settings::default() }).unwrap();
        // A run that is recorded has all micro-batches.
        let (short, full) = (fly(false), fly(true));
        extended += usize::from(short.classes[0].program.step.len() < full.classes[0].program.step.len());
        assert_eq!((short.step, short.breakdown, &short.parts), (full.step, full.breakdown, &full.parts));
        assert_eq!((short.mfu, short.interval), (full.mfu, full.interval));
    }
    assert!(extended > 0, "nothing was extended");
}

#[test]
fn rounds_that_repeat_are_taken_at_once_and_nobody_can_tell() {
    let wide = MEGATRON.replace("tp = 2\npp = 2", "pp = 4").replace("layers = 4", "layers = 8");
    let pipeline = |more: &str| format!("{wide}\n[pipeline]\n{more}\n");
    let mut taken = 0;
    for (text, micro_batches) in [
        (pipeline("schedule = \"1F1B\""), 44),
        (pipeline("layers = [1, 3, 2, 2]"), 44),
        (pipeline("virtual_stages = 2"), 44),
        (pipeline("virtual_stages = 2\nlayers = [1, 1, 1, 1, 1, 1, 1, 1]\noverlap_p2p = false"), 40),
    ] {
        let scenario = make::parse(&text.replace("accumulation = 4", &format!("accumulation = {micro_batches}")));
        let fly = |record| predict(&scenario, Settings { record, ..Settings::default() }).unwrap();
        // A run that is recorded is run round by round.
        let (few, all) = (fly(false), fly(true));
        assert_eq!((few.step, few.breakdown, few.parts), (all.step, all.breakdown, all.parts), "{text}");
        assert_eq!(few.timeline.busy, all.timeline.busy, "{text}");
        assert_eq!(few.timeline.ends, all.timeline.ends, "{text}");
        // A step of three, and what cannot be taken at once of it.
        taken += usize::from(few.timeline.events * 5 < all.timeline.events);
    }
    assert!(taken >= 2, "{taken} were taken at once");
}

#[test]
fn the_parts_of_every_stage_and_of_their_mean_are_the_whole_step() {
    let answer = make::fly(MEGATRON);
    assert_eq!(answer.breakdown.total(), answer.step);
    for class in &answer.classes {
        assert_eq!(class.breakdown.total(), answer.step);
    }
    let mean = answer.breakdown.bubble.seconds() / answer.step.seconds();
    assert!((mean - answer.bubble()).abs() < 1e-9, "{mean} and {}", answer.bubble());
    assert!(answer.bubble() > 0.0);
    let ranks: u32 = answer.classes.iter().map(|class| class.ranks).sum();
    assert_eq!((ranks, answer.class_of.len()), (8, 8));
}

#[test]
fn memory_is_that_of_the_fullest_stage() {
    for layers in ["[3, 1]", "[1, 3]", "[2, 2]"] {
        let answer = make::fly(&format!("{MEGATRON}\n[pipeline]\nlayers = {layers}\n"));
        let totals: Vec<_> = answer.classes.iter().map(|class| class.memory.device_total()).collect();
        assert_eq!(answer.memory.device_total(), *totals.iter().max().unwrap());
        assert_eq!(answer.memory.device_total(), totals[answer.tightest]);
    }
}

#[test]
fn hardware_flops_are_those_of_all_ranks() {
    let answer = make::fly(MEGATRON);
    let all: u128 = answer.classes.iter().map(|class| class.counts.flops.0 * u128::from(class.ranks)).sum();
    let hardware = answer.mfu.iter().find(|mfu| mfu.name == "hardware").unwrap();
    assert_eq!(hardware.flops.0, all);
}

#[test]
fn more_micro_batches_shrink_the_bubble() {
    // Kernels long enough that the host is ahead of them.
    let large = MEGATRON.replace("huggingface = \"config.json\"\nlayers = 4", "name = \"llama-3.1-8b\"\nlayers = 4");
    let large = large.replace("sequence = 128", "sequence = 4096");
    let bubble =
        |count: u32| make::fly(&large.replace("accumulation = 4", &format!("accumulation = {count}"))).bubble();
    let (few, some, many) = (bubble(2), bubble(8), bubble(32));
    assert!(few > some && some > many, "{few} {some} {many}");
}

#[test]
fn a_report_has_a_row_for_each_rank_of_the_pipeline() {
    let scenario = make::parse(MEGATRON);
    let answer = predict(&scenario, Settings::default()).unwrap();
    let report = text::report(&scenario, &answer, text::Detail::default());
    let table = report.split("Ranks of the pipeline").nth(1).unwrap().lines().skip(2).take(2);
    for (rank, row) in table.enumerate() {
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[..2], [rank.to_string().as_str(), "2"], "{report}");
    }
    let stages = json::report(&scenario, &answer)["stages"].clone();
    assert_eq!(stages.as_array().map(Vec::len), Some(2));
    assert_eq!(stages[1]["layers"][0], 2);

    let alone = make::parse(&MEGATRON.replace("pp = 2", "pp = 1"));
    let answer = predict(&alone, Settings::default()).unwrap();
    assert!(!text::report(&alone, &answer, text::Detail::default()).contains("Ranks of the pipeline"));
    assert_eq!(json::report(&alone, &answer)["stages"].as_array().map(Vec::len), Some(0));
}

#[test]
fn the_program_of_each_stage_can_be_shown() {
    let folder = Folder::new("show-stage");
    folder.write("my.toml", MEGATRON);
    let show = |stage: &str| {
        let output = folder.windtunnel(&["show", "program", "my.toml", "--stage", stage]);
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let (first, last) = (show("0"), show("1"));
    assert!(first != last);
    let said = folder.refuses(&["show", "program", "my.toml", "--stage", "2"]);
    assert!(said.contains("--stage 2: the pipeline has ranks 0 to 1"), "{said}");
}
