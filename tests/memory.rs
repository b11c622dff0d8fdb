//! What must hold of memory in every plan, and what a plan that does not fit is told.

use proptest::prelude::*;
use windtunnel::memory::{self, Settings};
use windtunnel::program::{Category, Instr, Program, Rename};
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Verdict;
use windtunnel::units::Bytes;

use crate::command::Folder;
use crate::make;

/// Buffers live after a list of instructions, by bytes and category; checks on the way that nothing is freed twice.
fn live(program: &Program, list: &[Instr], live: &mut [Option<Category>]) {
    for instr in list {
        match *instr {
            Instr::Alloc { buffer } => {
                let slot = &mut live[buffer.0 as usize];
                assert_eq!(*slot, None, "{} is allocated twice", program.buffer(buffer).name);
                *slot = Some(program.buffer(buffer).category);
            }
            Instr::Rename { rename } => {
                let Rename { from, to } = program.rename(rename);
                let moved = live[from.0 as usize].take();
                assert!(moved.is_some(), "{} is handed over while not allocated", program.buffer(from).name);
                assert_eq!(live[to.0 as usize], None, "{} is taken twice", program.buffer(to).name);
                live[to.0 as usize] = Some(program.buffer(to).category);
            }
            // The first step finds nothing of a step before it.
            Instr::Free { buffer } if program.buffer(buffer).name == "logits of the step before" => {
                live[buffer.0 as usize] = None;
            }
            Instr::Free { buffer } => {
                let was = live[buffer.0 as usize].take();
                assert!(was.is_some(), "{} is freed while not allocated", program.buffer(buffer).name);
            }
            Instr::Recategorize { buffer, category } => {
                let slot = &mut live[buffer.0 as usize];
                assert!(slot.is_some(), "{} is renamed while not allocated", program.buffer(buffer).name);
                *slot = Some(category);
            }
            _ => {}
        }
    }
}

/// What is live, as sorted (category, bytes).
fn contents(program: &Program, live: &[Option<Category>]) -> Vec<(Category, u64)> {
    let of = |(slot, buffer): (&Option<Category>, &windtunnel::program::Buffer)| Some(((*slot)?, buffer.bytes.0));
    let mut list: Vec<_> = live.iter().zip(program.buffers.iter()).filter_map(of).collect();
    list.sort();
    list
}

/// Bytes allocated in one category during the setup.
fn set_up(text: &str, category: Category) -> u64 {
    let program = make::program(text);
    let bytes = |instr: &Instr| match *instr {
        Instr::Alloc { buffer } if program.buffer(buffer).category == category => program.buffer(buffer).bytes.0,
        _ => 0,
    };
    program.before_second().map(bytes).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_step_leaves_memory_as_it_found_it(text in make::scenarios()) {
        let program = make::program(&text);
        let mut buffers = vec![None; program.buffers.len()];
        live(&program, &program.setup, &mut buffers);
        program.first_step().into_iter().for_each(|part| live(&program, part, &mut buffers));
        let before = contents(&program, &buffers);
        live(&program, &program.step, &mut buffers);
        let after = contents(&program, &buffers);
        prop_assert_eq!(&before, &after);
        live(&program, &program.step, &mut buffers);
        prop_assert_eq!(&before, &contents(&program, &buffers));
        for (category, bytes) in after {
            let persistent = matches!(
                category,
                Category::Parameter | Category::Buffer | Category::OptimizerState | Category::Workspace
            ) || (category == Category::Logits && text.contains("train_metrics"));
            prop_assert!(persistent, "{bytes} B of {} outlive the step", category.label());
        }
    }

    #[test]
    fn requested_is_within_allocated_and_allocated_within_reserved(text in make::scenarios()) {
        let answer = make::fly(&text);
        let report = &answer.memory.report;
        prop_assert!(report.peak_allocated <= report.peak_reserved);
        prop_assert_eq!(report.breakdown.total(), report.peak_allocated);
        prop_assert!(answer.memory.device_total() >= report.peak_reserved);
        prop_assert_eq!(report.reserved_by_stream.iter().map(|bytes| bytes.0).sum::<u64>(), report.peak_reserved.0);
        for phase in &report.phases {
            prop_assert!(phase.end_allocated <= phase.peak_allocated, "{}", phase.name);
            prop_assert!(phase.peak_requested <= phase.peak_allocated, "{}", phase.name);
            prop_assert_eq!(phase.breakdown.total(), phase.peak_requested, "{}", &phase.name);
        }
        for hook in &report.hooks {
            prop_assert!(hook.now <= hook.peak && hook.peak <= report.peak_allocated);
        }
        let live: u64 = report.live(&answer.classes[answer.tightest].program).iter().map(|live| live.bytes.0).sum();
        prop_assert_eq!(live, report.breakdown.total().0);
    }

    #[test]
    fn what_fits_without_a_limit_fits_into_what_it_took(text in make::scenarios()) {
        let program = make::program(&text);
        for expandable_segments in [false, true] {
            let settings = Settings { expandable_segments, capacity: Bytes(u64::MAX / 4) };
            let free = memory::replay(&program, settings);
            let tight = memory::replay(&program, Settings { capacity: free.peak_reserved, ..settings });
            prop_assert!(tight.out_of_memory.is_none());
            prop_assert_eq!(tight.retries, 0);
            prop_assert_eq!(tight.peak_allocated, free.peak_allocated);
            let starved = memory::replay(&program, Settings { capacity: Bytes(free.peak_allocated.0 - 1), ..settings });
            prop_assert!(starved.out_of_memory.is_some(), "more is allocated than the device has");
        }
    }

    #[test]
    fn more_sharding_never_means_more_of_the_sharded(text in make::scenarios()) {
        for category in [Category::Parameter, Category::OptimizerState] {
            let mut before = u64::MAX;
            let ranks = if text.contains("tp = 2") { 4 } else { 8 };
            for shard in [1, 2, 4, 8].into_iter().filter(|&shard| shard <= ranks) {
                let text = make::with(&text, "topology", "nodes", 1);
                let text = make::with(&text, "mesh", "dp_shard", shard);
                let text = make::with(&text, "mesh", "dp_replicate", ranks / shard);
                let text = make::with(&text, "fsdp", "reshard_after_forward", true);
                let bytes = set_up(&text, category);
                prop_assert!(bytes <= before, "{} on {shard} ranks: {bytes} B", category.label());
                before = bytes;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_proposed_fits_when_it_is_written_down(text in make::scenarios(), share in 0.3..1.0_f64) {
        let text = make::with(&text, "batch", "sequence", 2048);
        let plenty = make::fly(&text).memory;
        // A device that has only a share of what the plan takes.
        let memory = plenty.outside + Bytes((plenty.report.peak_reserved.0 as f64 * share) as u64);
        let on_the_small_device = |text: &str| {
            let mut scenario = make::parse(text);
            scenario.topology.chip.memory = memory;
            predict(&scenario, Default::default()).unwrap().memory
        };
        for remedy in on_the_small_device(&text).remedies {
            let applied = on_the_small_device(&make::apply(&text, &remedy.change));
            prop_assert!(applied.fits(), "{} does not fit", remedy.change);
            prop_assert_eq!(applied.device_total(), remedy.device_total, "{}", remedy.change);
        }
    }
}

#[test]
fn a_remedy_is_something_that_the_scenario_may_say() {
    // Parameters of a split model stay on the device, and a device alone has nothing to shard.
    let split = make::TINY.replace("dp_shard = 8", "tp = 2");
    let alone = make::TINY.replace("\"fsdp2\"", "\"single_device\"").replace("nodes = 1", "chips = 1");
    for text in [split, alone.replace("dp_shard = 8", "")] {
        let enough = make::fly(&make::with(&text, "batch", "sequence", 512)).memory.wanted;
        let scarce = |text: &str| {
            let mut scenario = make::parse(text);
            scenario.topology.chip.memory = enough;
            predict(&scenario, Default::default()).unwrap().memory
        };
        let long = make::with(&text, "batch", "sequence", 2048);
        let memory = scarce(&long);
        assert!(!memory.fits() && !memory.remedies.is_empty(), "{text}");
        for remedy in memory.remedies {
            assert!(scarce(&make::apply(&long, &remedy.change)).fits(), "{}", remedy.change);
        }
    }
}

/// A plan that needs several times the memory there is.
const TOO_LARGE: &str = r#"runtime = "fsdp2"

[topology]
name = "h100-sxm-80gb"
nodes = 1

[model]
name = "llama-3.1-8b"

[mesh]
dp_shard = 4

[batch]
sequence = 8192
micro = 3

[fsdp]
wrap = "root"
reshard_after_forward = false

[optimizer]
implementation = "foreach"
"#;

#[test]
fn a_plan_that_does_not_fit_is_an_answer() {
    let folder = Folder::new("oom");
    folder.write("big.toml", TOO_LARGE);
    let output = folder.windtunnel(&["run", "big.toml"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    let answer = make::fly(TOO_LARGE);
    let missing = format!("It wants {:.2} GiB and has ", answer.memory.wanted.gib());
    assert!(said.contains(&missing), "{said}");
    assert!(said.contains(&format!("{:.2} GiB too much", answer.memory.shortfall().gib())), "{said}");
    assert!(answer.memory.shortfall() > Bytes(0));
    let json = folder.windtunnel(&["run", "big.toml", "--json", "-"]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let told = json["memory"]["remedies"].as_array().unwrap().iter().map(|remedy| remedy["change"].as_str().unwrap());
    assert!(told.eq(answer.memory.remedies.iter().map(|remedy| &*remedy.change)), "{json}");
    assert!(!answer.memory.remedies.is_empty() && said.contains("It would fit with any one of"), "{said}");
    assert_eq!(folder.windtunnel(&["run", "big.toml", "--fail-if-oom"]).status.code(), Some(1));
    folder.write("small.toml", make::TINY);
    assert_eq!(folder.windtunnel(&["run", "small.toml", "--fail-if-oom"]).status.code(), Some(0));
}

/// Plans that do not fit, each for a reason of its own.
fn misfits() -> Vec<String> {
    let full = make::with(TOO_LARGE, "activation_checkpointing", "policy", "full");
    vec![
        TOO_LARGE.to_owned(),
        make::with(TOO_LARGE, "batch", "micro", 2),
        make::with(TOO_LARGE, "fsdp", "wrap", "torchtitan"),
        make::with(&make::with(&full, "batch", "micro", 4), "fsdp", "wrap", "torchtitan"),
        make::with(
            &make::with(&full, "batch", "micro", 1),
            "fsdp",
            "wrap",
            toml::Table::from_iter([("every".to_owned(), 4.into())]),
        ),
        make::with(&make::with(TOO_LARGE, "model", "name", "llama-3.1-70b"), "mesh", "dp_shard", 8),
        make::with(&make::with(&full, "model", "name", "llama-2-13b"), "batch", "sequence", 4096),
        make::with(&make::with(&full, "model", "name", "llama-2-13b"), "fsdp", "wrap", "block"),
        format!("{TOO_LARGE}\n[[fsdp.override]]\nblocks = [0, 16]\nreshard_after_forward = 2\n")
            .replace("wrap = \"root\"", "wrap = \"block\""),
        include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml").replace("micro = 1", "micro = 2"),
    ]
}

#[test]
fn a_remedy_fits_when_it_is_applied() {
    let mut tried = 0;
    for text in misfits() {
        let answer = make::fly(&text);
        if answer.memory.fits() {
            continue;
        }
        for remedy in &answer.memory.remedies {
            let changed = make::apply(&text, &remedy.change);
            let memory = make::fly(&changed).memory;
            assert!(memory.fits(), "{} does not fit\n{text}", remedy.change);
            assert_eq!(memory.device_total(), remedy.device_total, "{}\n{text}", remedy.change);
            tried += 1;
        }
        let mut changes: Vec<_> = answer.memory.remedies.iter().map(|remedy| &remedy.change).collect();
        changes.dedup();
        assert_eq!(changes.len(), answer.memory.remedies.len(), "a remedy is listed twice: {changes:?}");
    }
    assert!(tried >= 20, "only {tried} remedies were tried");
}

#[test]
fn a_plan_that_has_about_what_it_needs_may_not_fit_and_the_chance_is_said() {
    let text = include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml");
    let mut memory = make::fly(text).memory;
    assert!(memory.chance() > 0.99 && !memory.is_open(), "26 GiB to spare: {}", memory.chance());
    memory.capacity = memory.needs;
    assert!((memory.chance() - 0.5).abs() < 0.01 && memory.is_open(), "{}", memory.chance());
    assert_eq!(memory.verdict(), Verdict::Perhaps);
    memory.capacity = Bytes(memory.needs.0 + memory.doubt.0 / 2);
    let more = memory.chance();
    assert!((0.6..0.9).contains(&more), "{more}");
    memory.capacity = Bytes(memory.needs.0 + 4 * memory.doubt.0);
    assert!(memory.chance() > 0.99 && memory.verdict() == Verdict::Yes, "{}", memory.chance());
}

#[test]
fn a_step_that_gives_memory_back_each_time_is_said_to_run_at_the_limit() {
    let folder = Folder::new("at-the-limit");
    let text = include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml");
    let longer = text.replace("sequence = 8192", "sequence = 16384");
    let answer = make::fly(&longer);
    assert!(answer.memory.on_device && answer.memory.report.retries > 0, "the cache outgrows the device");
    folder.write("limit.toml", &longer);
    let said = String::from_utf8(folder.windtunnel(&["run", "limit.toml"]).stdout).unwrap();
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("Fits, but only by giving cached memory back in every step."), "{said}");
    assert!(words.contains("It runs at the limit: once a step"), "{said}");
}
