//! Whatever integer a scenario accepts, alone or with the largest accumulation, is answered or refused in ten seconds and one
//! gigabyte of memory.

mod keys;
mod plans;

use std::collections::BTreeSet;
use std::process::Command;

use proptest::prelude::*;
use rayon::prelude::*;
use windtunnel::program::TooLong;
use windtunnel::scenario::Scenario;

use crate::command::Folder;
use crate::make;
use keys::Key;

/// Seconds of all processors together, and KiB of address space, that a prediction may take.
const SECONDS: u32 = 10;
const KIB: u32 = 1 << 20;
/// Of all pairs of a plan and an integer, the first that is examined each time, and how many there are from one to the next.
const SAMPLE: (usize, usize) = (7, 83);

/// Whether a plan is accepted, before anything is written.
fn accepted(plan: &toml::Table) -> bool {
    let read = Scenario::parse(make::FILE, &plan.to_string());
    read.is_ok_and(|scenario| scenario.simulable().is_ok())
}

/// The plan with an integer of some value, on a machine on which that is accepted.
fn with(plan: &toml::Table, key: &Key, value: i64) -> Option<toml::Table> {
    let written = key.set(plan, value);
    let sized =
        |nodes: i64| move |plan: &toml::Table| make::with(&plan.to_string(), "topology", "nodes", nodes).parse().ok();
    let spreads = key.path[0] == "mesh" || key.name() == "megatron.hierarchical_context_parallel_sizes";
    let sizes = [value, value / 8, 1 << 14].into_iter().filter(|_| spreads);
    let larger = sizes.flat_map(|nodes| written.iter().filter_map(sized(nodes)).collect::<Vec<toml::Table>>());
    written.iter().cloned().chain(larger).find(accepted)
}

/// The plan with the largest value that is accepted of an integer, to a 64th.
fn largest(plan: &toml::Table, key: &Key) -> Option<(i64, toml::Table)> {
    let known = [1, 2, 4, 0, 16, 128, 2048, 65_536].into_iter().any(|value| with(plan, key, value).is_some());
    let powers = [62, 50, 40, 36, 32, 30, 28, 26].into_iter().chain((0..26).rev()).filter(|_| known);
    let mut values = powers.map(|power| 1_i64 << power).chain([0]);
    let (mut best, mut found) = values.find_map(|value| Some((value, with(plan, key, value)?)))?;
    let mut beyond = best.saturating_mul(2);
    while beyond - best > 1 + best / 64 {
        let middle = best + (beyond - best) / 2;
        match with(plan, key, middle) {
            Some(plan) => (best, found) = (middle, plan),
            None => beyond = middle,
        }
    }
    Some((best, found))
}

/// Runs a plan within its limits: what went wrong, or the largest accumulation that a refusal names.
fn run(name: &str, plan: &toml::Table) -> Result<Option<i64>, String> {
    let folder = concat!(env!("CARGO_TARGET_TMPDIR"), "/limits");
    std::fs::create_dir_all(folder).unwrap();
    std::fs::copy(make::FILE.replace("scenario.toml", "config.json"), format!("{folder}/config.json")).unwrap();
    let file = format!("{folder}/{}.toml", name.replace(|letter: char| !letter.is_alphanumeric(), "-"));
    std::fs::write(&file, plan.to_string()).unwrap();
    // Seconds of its processors, as other tests run beside this one.
    let limited = format!("ulimit -v {KIB}; ulimit -t {SECONDS}; exec \"$0\" run \"$1\"");
    let binary = env!("CARGO_BIN_EXE_windtunnel");
    // Address space that threads reserve and do not use is no memory.
    let environment = [("RAYON_NUM_THREADS", "2"), ("MALLOC_ARENA_MAX", "1")];
    let output = Command::new("bash").args(["-c", &limited, binary, &file]).envs(environment).output().unwrap();
    let status = output.status.code();
    let said = String::from_utf8_lossy(&output.stderr);
    let ended = matches!(status, Some(0)) || status == Some(2) && said.starts_with("error: ");
    if !ended {
        let wrong = format!("{name}: {status:?} {}\n  {file}", said.lines().next().unwrap_or_default());
        // As they are found: the whole takes minutes.
        println!("{wrong}");
        return Err(wrong);
    }
    let named = said.split_once("write batch.accumulation = ").and_then(|(_, rest)| rest.split(' ').next());
    Ok(named.and_then(|count| count.parse().ok()))
}

/// What goes wrong with the largest accumulation beside the rest, and with the largest that is named where that is too much.
fn accumulated(name: &str, plan: &toml::Table) -> Vec<String> {
    let key = Key::accumulation();
    let Some((mut count, mut plan)) = largest(plan, &key) else { return vec![] };
    let mut wrong = vec![];
    loop {
        let name = format!("{name} accumulated {count} times");
        let named = match run(&name, &plan) {
            Ok(named) => named,
            Err(why) => {
                wrong.push(why);
                None
            }
        };
        let smaller = named.filter(|&named| named < count).and_then(|named| Some((named, with(&plan, &key, named)?)));
        match smaller {
            Some(smaller) => (count, plan) = smaller,
            None => return wrong,
        }
    }
}

/// What went wrong with an integer at its largest, alone and with the largest accumulation; none where no plan may have it.
fn examined(name: &str, plan: &toml::Table, key: &Key) -> Option<Vec<String>> {
    let (value, largest) = largest(plan, key)?;
    let name = format!("{name} {} {value}", key.name());
    Some(run(&name, &largest).err().into_iter().chain(accumulated(&name, &largest)).collect())
}

/// Examines one of so many pairs of a plan and an integer, from the `first` on. What went wrong, and the keys that no plan accepts.
fn examine(first: usize, every: usize) -> (Vec<String>, Vec<String>) {
    let (plans, keys) = (plans::all(), keys::all());
    let pairs: Vec<_> = plans.iter().enumerate().flat_map(|plan| keys.iter().map(move |key| (plan, key))).collect();
    let chosen: Vec<_> = pairs.into_iter().skip(first).step_by(every).collect();
    let examined = |&((number, plan), key): &((usize, &toml::Table), &Key)| {
        (key.name(), examined(&format!("plan {number}"), plan, key))
    };
    let found: Vec<_> = chosen.par_iter().with_max_len(1).map(examined).collect();
    let accepted: BTreeSet<&String> = found.iter().filter(|(_, wrong)| wrong.is_some()).map(|(name, _)| name).collect();
    println!("{} of {} pairs are accepted", found.iter().filter(|(_, wrong)| wrong.is_some()).count(), found.len());
    let never = keys.iter().map(Key::name).filter(|name| !accepted.contains(name)).collect();
    (found.iter().filter_map(|(_, wrong)| wrong.clone()).flatten().collect(), never)
}

/// Debug builds take ten times as long.
#[test]
#[cfg_attr(debug_assertions, ignore)]
fn a_sample_of_integers_at_their_largest_is_answered_or_refused_in_time() {
    let (wrong, _) = examine(SAMPLE.0, SAMPLE.1);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "takes ten minutes: every integer of every plan"]
fn every_integer_at_its_largest_is_answered_or_refused_in_time() {
    let (wrong, never) = examine(0, 1);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(never.is_empty(), "no plan accepts {}", never.join(", "));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    /// Instructions are counted as they are written: no plan is refused that is short enough, and none written that is not.
    #[test]
    fn programs_are_refused_from_the_first_instruction_that_is_too_many(text in make::scenarios()) {
        let job = make::parse(&text).job;
        let length = job.compile().instructions();
        prop_assert_eq!(job.compile_within(length).map(|flight| flight.instructions()), Ok(length));
        prop_assert!(matches!(job.compile_within(length - 1), Err(TooLong)));
    }
}

/// A refusal of `windtunnel run`, with and without options.
fn refusal(plan: &str, options: &[&str]) -> String {
    let folder = Folder::new(&format!("limits-{}", options.concat()));
    folder.write("my.toml", plan);
    folder.refuses(&[&["run", "my.toml"], options].concat())
}

#[test]
fn a_trace_and_ranks_one_by_one_are_refused_where_they_would_take_too_much() {
    let plan = "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 4096\n[model]\nname = \"llama-3.1-8b\"\n\
                [mesh]\ndp_shard = 8\n[batch]\nsequence = 4096\naccumulation = 400\n";
    let traced = refusal(plan, &["--trace", "trace.json"]);
    assert!(traced.contains("at most 2,000,000 are kept for a trace: 400 micro-batches"), "{traced}");
    assert!(traced.contains("write batch.accumulation = "), "{traced}");
    let full = refusal(plan, &["--full"]);
    assert!(full.contains("on 32,768 ranks, and at most 30,000,000") && full.contains("leave out --full"), "{full}");
}

/// Stages × micro-batches are more than any schedule is built for, whatever their instructions.
#[test]
#[cfg_attr(debug_assertions, ignore)]
fn a_pipeline_of_too_many_forwards_names_the_accumulation_that_works() {
    let megatron = "runtime = \"megatron\"\n[topology]\nname = \"a100-sxm-80gb\"\nnodes = 128\n[model]\n\
                    name = \"gpt-megatron-175b\"\n[mesh]\ntp = 32\npp = 16\n[batch]\nsequence = 2048\naccumulation = 65536\n\
                    [pipeline]\nvirtual_stages = 3\n[tensor_parallel]\nsequence = true\n";
    let torch = "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 8\n[model]\nname = \"llama-3.1-405b\"\n\
                 layers = 128\n[mesh]\npp = 64\n[batch]\nsequence = 128\naccumulation = 65536\n[pipeline]\n\
                 schedule = \"Interleaved1F1B\"\nvirtual_stages = 2\n";
    let said = refusal(torch, &[]);
    let problem = "128 stages × 65,536 micro-batches are more than the 2,097,152 forwards";
    assert!(said.contains(problem) && said.contains("batch.accumulation"), "{said}");
    let named = said.split_once("write batch.accumulation = ").and_then(|(_, rest)| rest.split(' ').next());
    let fewer = torch.replace("65536", named.unwrap_or("1"));
    assert_eq!(run("fewer forwards", &fewer.parse().unwrap()), Ok(None), "{said}");
    // One that repeats itself after some rounds is answered, however many there are.
    assert_eq!(run("rounds that repeat", &megatron.parse().unwrap()), Ok(None));
}

#[test]
#[cfg_attr(debug_assertions, ignore)]
fn a_long_program_is_printed_in_little_memory() {
    let folder = Folder::new("limits-printed");
    folder.write(
        "my.toml",
        &make::TINY.replace("huggingface = \"config.json\"", "name = \"llama-3.1-8b\"\nlayers = 1024"),
    );
    let limited = format!("ulimit -v {}; \"$0\" show program my.toml | wc -l", KIB / 2);
    let output = Command::new("bash")
        .args(["-o", "pipefail", "-c", &limited, env!("CARGO_BIN_EXE_windtunnel")])
        .current_dir(&folder.path)
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    assert!(lines > 250_000, "{lines}");
}
