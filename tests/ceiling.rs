//! The longest sequence that fits: that it does, that one step more does not, and that it moves as memory does.

use proptest::prelude::*;
use windtunnel::explore::ceiling::{Checked, End, Options};
use windtunnel::explore::{Ceiling, ceiling, variants};
use windtunnel::runtime::spmd::{Policy, TENSORS};
use windtunnel::scenario::Runtime;
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings;
use windtunnel::units::Bytes;

use crate::command::Folder;
use crate::make;

const LLAMA: &str = include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml");
const GPT2: &str = include_str!("../scenarios/gpt2-xl-8xa100.toml");

fn climb(text: &str, options: Options) -> Ceiling {
    ceiling(&make::parse(text).draft, options, &|| {}).unwrap_or_else(|error| panic!("{error}\n\n{text}"))
}

fn longest(text: &str) -> u64 {
    climb(text, Options::default()).longest.map_or(0, |point| point.sequence)
}

/// Whether `windtunnel run` says that the scenario fits at a length, for sure if asked so.
fn fits(text: &str, sequence: u64, sure: bool) -> bool {
    let text = make::with(text, "batch", "sequence", i64::try_from(sequence).unwrap());
    let memory = predict(&make::parse(&text), Settings { remedies: false, ..Settings::default() }).unwrap().memory;
    if sure { memory.fits_beyond_doubt() } else { memory.fits() }
}

/// The 8B model on a machine, with a policy of recomputing.
fn llama(machine: &str, policy: &str) -> String {
    let policy = match policy.strip_prefix("every=") {
        Some(blocks) => {
            toml::Value::Table(toml::Table::from_iter([("every".to_owned(), blocks.parse::<i64>().unwrap().into())]))
        }
        None => policy.into(),
    };
    make::with(&make::with(LLAMA, "topology", "name", machine), "activation_checkpointing", "policy", policy)
}

#[test]
fn recomputing_more_never_lowers_the_ceiling_and_neither_does_more_memory() {
    let ceilings = ["h100-sxm-80gb", "h200-sxm-141gb"].map(|machine| {
        let [none, every, selective, full] =
            ["none", "every=2", "selective_op", "full"].map(|policy| longest(&llama(machine, policy)));
        assert!(none > 0 && none <= every && none <= selective && every <= full && selective <= full, "{machine}");
        [none, every, selective, full]
    });
    for (h100, h200) in ceilings[0].iter().zip(ceilings[1]) {
        assert!(*h100 <= h200);
    }
}

#[test]
fn the_ceiling_fits_and_one_step_more_does_not() {
    for (machine, policy) in [("h100-sxm-80gb", "selective_op"), ("h100-sxm-80gb", "none"), ("h200-sxm-141gb", "full")]
    {
        let text = llama(machine, policy);
        for step in [1024, 640] {
            let found = climb(&text, Options { step, max: None });
            let top = found.longest.as_ref().unwrap().sequence;
            assert!(fits(&text, top, false) && !fits(&text, top + step, false), "{machine} {policy} {step}: {top}");
            assert_eq!(found.beyond.unwrap().sequence, top + step);
            assert_eq!(found.end, End::Memory);
            let sure = found.sure.unwrap().sequence;
            assert!(fits(&text, sure, true) && !fits(&text, sure + step, true), "{machine} {policy} {step}: {sure}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// The tiny model's ceilings lie at millions of tokens, where steps are large.
    #[test]
    fn whatever_the_plan_both_sides_of_the_edge_were_flown(text in make::scenarios(), step in 40_000..200_000_u64) {
        let found = climb(&text, Options { step, max: None });
        if let Some(top) = &found.longest {
            prop_assert!(fits(&text, top.sequence, false));
            prop_assert!(found.sure.is_none_or(|sure| sure.sequence <= top.sequence));
        }
        if found.end == End::Memory {
            let top = found.longest.map_or(0, |point| point.sequence);
            prop_assert!(!fits(&text, top + step, false));
        }
    }
}

#[test]
fn a_larger_micro_batch_never_raises_the_ceiling() {
    let ceilings = [1, 2, 4, 8].map(|micro| longest(&make::with(LLAMA, "batch", "micro", micro)));
    assert!(ceilings.is_sorted_by(|left, right| left >= right), "{ceilings:?}");
}

#[test]
fn along_the_ladder_steps_take_longer_and_memory_grows() {
    for text in [llama("h100-sxm-80gb", "full"), llama("h200-sxm-141gb", "none"), GPT2.to_owned()] {
        let found = climb(&text, Options::default());
        assert!(found.ladder.len() >= 4);
        assert!(found.ladder.is_sorted_by(|left, right| left.sequence < right.sequence && left.step < right.step));
        assert!(found.ladder.is_sorted_by_key(|point| point.memory.report.peak_allocated));
        assert_eq!(found.ladder.last().unwrap().sequence, found.longest.unwrap().sequence);
    }
}

#[test]
fn a_table_of_positions_is_a_ceiling_of_its_own() {
    let found = climb(GPT2, Options::default());
    assert_eq!((found.longest.unwrap().sequence, found.end), (1024, End::Positions(1024)));
    // Also where the step does not divide it.
    let found = climb(GPT2, Options { step: 300, max: None });
    assert_eq!((found.longest.unwrap().sequence, found.end), (1024, End::Positions(1024)));
}

#[test]
fn what_a_run_has_measured_is_no_part_of_a_what_if() {
    let measured = format!("{LLAMA}\n[measured]\nstep_time = \"1.1 s\"\nsource = \"a log\"\n");
    assert_eq!(longest(&measured), longest(LLAMA));
}

#[test]
fn no_longer_than_asked_for() {
    let found = climb(LLAMA, Options { step: 1000, max: Some(5500) });
    assert_eq!((found.longest.unwrap().sequence, found.end), (5500, End::Asked(5500)));
}

#[test]
fn a_plan_that_never_fits_says_by_how_much() {
    let text = make::with(&make::with(LLAMA, "model", "name", "llama-3.1-405b"), "batch", "sequence", 1024);
    let found = climb(&text, Options::default());
    assert!(found.longest.is_none() && found.sure.is_none() && found.ladder.is_empty());
    assert!(found.beyond.unwrap().memory.shortfall().0 > 0);
    let folder = Folder::new("never");
    folder.write("a.toml", &text);
    let output = folder.windtunnel(&["ceiling", "a.toml"]);
    let said = String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        output.status.success() && said.contains("none: not even 1,024 tokens fit") && said.contains("too much"),
        "{said}"
    );
}

#[test]
fn variants_are_the_ceilings_of_the_files_they_stand_for() {
    let draft = make::parse(LLAMA).draft;
    let answer = variants::ceilings(&draft, "recompute=none,full", Options::default(), &|| {}).unwrap();
    for row in &answer.rows {
        let top = row.ceiling.as_ref().unwrap().longest.as_ref().unwrap().sequence;
        assert_eq!(top, longest(&llama("h100-sxm-80gb", &row.name)), "{}", row.name);
        assert_eq!(row.common.as_ref().unwrap().sequence, answer.common.unwrap());
    }
    let answer = variants::ceilings(&draft, "topology=h200-sxm-141gb,tpu-v6e", Options::default(), &|| {}).unwrap();
    let top = answer.rows[0].ceiling.as_ref().unwrap().longest.as_ref().unwrap().sequence;
    assert_eq!(top, longest(&llama("h200-sxm-141gb", "selective_op")));
    assert!(answer.rows[1].ceiling.as_ref().unwrap_err().contains("sold in slices"));
    let answer = variants::ceilings(&draft, "offload", Options::default(), &|| {}).unwrap();
    let tops = answer.rows.iter().map(|row| row.ceiling.as_ref().unwrap().longest.as_ref().unwrap().sequence);
    assert!(tops.is_sorted());
}

/// The 7B model that Megatron steps, on a stage of two.
const SPLIT: &str = r#"
runtime = "megatron"
[topology]
name = "a100-sxm-80gb"
nodes = 1
[model]
name = "llama-2-7b"
layers = 16
[mesh]
tp = 4
pp = 2
[batch]
sequence = 4096
micro = 1
accumulation = 4
"#;

#[test]
fn what_runs_again_is_varied_as_the_runtime_writes_it() {
    let draft = make::parse(SPLIT).draft;
    let options = Options { step: 16_384, ..Options::default() };
    let answer = variants::ceilings(&draft, "recompute=none,uniform=2", options, &|| {}).unwrap();
    let tops = answer.rows.iter().map(|row| row.ceiling.as_ref().unwrap().longest.as_ref().unwrap().sequence);
    let tops: Vec<u64> = tops.collect();
    assert!(tops[0] < tops[1], "{tops:?}");
    let uneven = variants::ceilings(&draft, "recompute=uniform=3", options, &|| {}).unwrap();
    let why = uneven.rows[0].ceiling.as_ref().unwrap_err();
    assert!(why.contains("megatron.recompute takes 3 blocks at a time, and a stage has 8"), "{why}");
    let said = variants::ceilings(&draft, "recompute=full", options, &|| {}).unwrap_err().to_string();
    assert!(said.contains("write some of: none, core_attn, block=1, uniform=1"), "{said}");
    for (file, text, most) in [
        ("xla", include_str!("../scenarios/llama3.1-8b-maxtext-8xv6e.toml"), 1024),
        ("nanotron", include_str!("../scenarios/llama-8.9b-nanotron-8xh100.toml"), 4096),
        ("internevo", include_str!("../scenarios/internlm-7b-internevo-64xa100.toml"), 2048),
        ("fsdp2", LLAMA, 1024),
    ] {
        let draft = make::parse(text).draft;
        let options = Options { max: Some(most), step: most };
        let answer = variants::ceilings(&draft, "recompute", options, &|| {}).unwrap();
        assert!(answer.rows.iter().all(|row| row.ceiling.is_ok()), "{file}: {:?}", answer.rows);
    }
    let also = SPLIT.replace("[mesh]", "[megatron]\nrecompute_modules = [\"core_attn\"]\n[mesh]");
    let answer = variants::ceilings(&make::parse(&also).draft, "recompute=uniform=2", options, &|| {}).unwrap();
    assert_eq!(answer.rows[0].note.as_deref(), Some("without megatron.recompute_modules"));
}

#[test]
fn every_policy_of_maxtext_is_offered_and_every_tensor_of_a_custom_one_gives_way() {
    let rerun = Runtime::find("xla").unwrap().recompute();
    let mut policies = Policy::NAMED.map(|(name, _)| name);
    let mut offered = rerun.values.to_vec();
    policies.sort_unstable();
    offered.sort_unstable();
    assert_eq!(offered, policies);
    assert_eq!(rerun.beside, TENSORS.map(|tensor| format!("xla.{tensor}")));
}

#[test]
fn another_machine_is_rented_in_as_many_nodes_as_make_the_same_chips() {
    let folder = Folder::new("fours");
    let of = |chips: u32| {
        // The switch of a node joins all of its chips.
        let shipped = include_str!("../topologies/h100-sxm-80gb.toml");
        let node = shipped.replace("chips = { value = 8", &format!("chips = {{ value = {chips}"));
        node.replace("size = { value = 8", &format!("size = {{ value = {chips}"))
    };
    let (fours, three, sixteen) = (of(4), of(3), of(16));
    folder.write("fours.toml", &fours.replace("name = \"h100-sxm-80gb\"", "name = \"fours\""));
    folder.write("threes.toml", &three.replace("name = \"h100-sxm-80gb\"", "name = \"threes\""));
    folder.write("sixteens.toml", &sixteen.replace("name = \"h100-sxm-80gb\"", "name = \"sixteens\""));
    folder.write("a.toml", LLAMA);
    let output = folder.windtunnel(&[
        "ceiling",
        "a.toml",
        "--max",
        "1024",
        "--compare",
        "topology=fours.toml,threes.toml,sixteens.toml",
    ]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("fours.toml: 2 nodes, for the same 8 chips"), "{said}");
    assert!(said.contains("sixteens.toml: 8 chips of a node of 16"), "{said}");
    assert!(said.contains("threes.toml: refused: 8 chips are no whole number of its nodes of 3"), "{said}");
}

#[test]
fn what_cannot_be_varied_is_told_what_can() {
    let folder = Folder::new("vary");
    folder.write("a.toml", LLAMA);
    for (what, answer) in [
        ("colour", "cannot vary \"colour\"; write one of: topology="),
        ("recompute=half", "there is no \"half\"; write some of: none, every=2, selective_op, full"),
        ("recompute=every=x", "there is no \"every=x\""),
        ("offload=perhaps", "there is no \"perhaps\"; write some of: false, true"),
        ("topology=h300", "h300"),
    ] {
        let said = folder.refuses(&["ceiling", "a.toml", "--compare", what]);
        assert!(said.contains(answer), "{said}");
    }
    let said = folder.refuses(&["ceiling", "missing.toml"]);
    assert!(said.contains("cannot read the scenario missing.toml"), "{said}");
    folder.refuses(&["ceiling", "a.toml", "--step", "0"]);
}

#[test]
fn the_page_holds_all_it_shows_and_comes_out_alike_on_any_number_of_threads() {
    let pages = ["1", "7"].map(|threads| {
        let folder = Folder::new(&format!("page{threads}"));
        folder.write("a.toml", LLAMA);
        let mut command = folder.command();
        command.args(["ceiling", "a.toml", "--compare", "recompute", "--html", "a.html", "--json", "a.json"]);
        let output = command.env("RAYON_NUM_THREADS", threads).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        (folder.read("a.html"), folder.read("a.json"), output.stdout)
    });
    assert!(pages[0] == pages[1]);
    let page = String::from_utf8(pages[0].0.clone()).unwrap();
    assert_eq!(page.matches("<svg").count(), 4);
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(page.contains("the device has 79.18 GiB") && page.contains("memory [GiB]"));
    for loaded in ["<script", "<link", "<img", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(loaded), "{loaded}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf"), "a coordinate is no number");
}

#[test]
fn where_a_compiler_decides_every_length_says_whether_it_was_asked() {
    let text = include_str!("../scenarios/two-narrow-blocks-4xv6e.toml");
    let scenario = make::parse(text);
    let mut found = climb(text, Options { step: 1024, max: Some(2048) });
    let said = |found: &Ceiling| windtunnel::explore::ceiling::text::report(&scenario, found, 400);
    assert_eq!((found.compiles, found.to_ask()), (true, Some(2048)));
    assert!(said(&found).contains("yes, predicted") && said(&found).contains("--compile-check asks the compiler"));
    let compiler = "libtpu 0.0.51".to_owned();
    found.checked.push(Checked { sequence: 2048, compiler, fits: true, bytes: Some(Bytes(3 << 30)) });
    assert_eq!(found.to_ask(), None, "no more was asked for");
    assert!(said(&found).contains("yes, compile-checked"), "{}", said(&found));
    assert!(said(&found).contains("2,048 tokens by libtpu 0.0.51: it fits, and takes 3.00 GiB"), "{}", said(&found));
    found.checked[0].fits = false;
    assert!(said(&found).contains("yes, but the compiler says no"), "{}", said(&found));
    assert!(!climb(LLAMA, Options { step: 1024, max: Some(2048) }).compiles);
}

/// A compiler that takes so many bytes a token, asked until the ceiling has nothing more to ask.
fn asked(found: &mut Ceiling, a_token: u64) -> Vec<u64> {
    let capacity = found.longest.as_ref().unwrap().memory.capacity;
    let mut lengths = vec![];
    while let Some(sequence) = found.to_ask() {
        assert!(lengths.len() < 12, "{lengths:?}");
        let bytes = Bytes(sequence * a_token);
        let (fits, compiler) = (bytes <= capacity, "libtpu 0.0.51".to_owned());
        found.checked.push(Checked { sequence, compiler, fits, bytes: Some(bytes) });
        lengths.push(sequence);
    }
    lengths
}

#[test]
fn a_compiler_that_disagrees_is_asked_until_its_own_ceiling_is_known() {
    let text = include_str!("../scenarios/llama3.1-8b-maxtext-8xv6e.toml");
    let found = climb(text, Options::default());
    let (top, capacity) = (found.longest.as_ref().unwrap().sequence, found.longest.as_ref().unwrap().memory.capacity.0);
    // Where it agrees two answers are enough.
    assert_eq!(asked(&mut found.clone(), capacity / top), [top, top + 1024]);
    for share in [1.31, 0.7, 0.09] {
        let mut found = found.clone();
        let own = (top as f64 * share) as u64;
        let lengths = asked(&mut found, capacity / own);
        let (fits, refused) = found.compiled();
        assert_eq!(
            (fits.unwrap().sequence, refused.unwrap().sequence),
            (own / 1024 * 1024, own / 1024 * 1024 + 1024),
            "{lengths:?}"
        );
        let said = windtunnel::explore::ceiling::text::report(&make::parse(text), &found, 400);
        assert!(said.contains("so the compiler's ceiling is"), "{said}");
    }
    // No further than was asked for, and down to the first length.
    let mut short = climb(text, Options { max: Some(16_384), ..Options::default() });
    assert_eq!(asked(&mut short, 1).last(), Some(&16_384));
    let mut none = found.clone();
    assert_eq!(asked(&mut none, capacity).last(), Some(&1024));
    let said = windtunnel::explore::ceiling::text::report(&make::parse(text), &none, 400);
    assert!(said.contains("all that were asked, down to 1,024 tokens, are refused"), "{said}");
    let mut found = found.clone();
    found.checked.push(Checked { sequence: top, compiler: "libtpu 0.0.51".to_owned(), fits: true, bytes: None });
    found.checked.push(Checked { sequence: top + 1024, compiler: "libtpu 0.0.51".to_owned(), fits: true, bytes: None });
    let said = windtunnel::explore::ceiling::text::report(&make::parse(text), &found, 400);
    let least = format!("so its ceiling is at least {},{:03} tokens", (top + 1024) / 1000, (top + 1024) % 1000);
    assert!(said.contains(&least) && said.contains("more --compilations find it"), "{said}");
    assert!(said.contains("the compiler disagrees"), "{said}");
}

#[test]
fn a_ceiling_that_the_compiler_refutes_is_not_the_headline() {
    let text = include_str!("../scenarios/llama3.1-8b-maxtext-8xv6e.toml");
    let mut found = climb(text, Options::default());
    let top = found.longest.as_ref().unwrap().sequence;
    let shorter = top - 4096;
    for (sequence, fits) in [(top, false), (shorter + 1024, false), (shorter, true)] {
        let compiler = "libtpu 0.0.51".to_owned();
        found.checked.push(Checked { sequence, compiler, fits, bytes: Some(Bytes(sequence << 20)) });
    }
    found.heard(&make::parse(text).draft).unwrap();
    assert_eq!(found.top().unwrap().sequence, shorter);
    let said = windtunnel::explore::ceiling::text::report(&make::parse(text), &found, 400);
    let words = |tokens: u64| format!("{},{:03} tokens", tokens / 1000, tokens % 1000);
    let headline = said.lines().find(|line| line.trim_start().starts_with("ceiling")).unwrap();
    assert!(headline.contains(&format!("{} by libtpu 0.0.51", words(shorter))), "{said}");
    assert!(said.contains(&format!("predicted     {}, which the compiler refuses", words(top))), "{said}");
    assert!(said.contains(&format!("the compiler refuses {}", words(shorter + 1024))), "{said}");
    assert!(said.contains(&format!("Memory at {}", words(shorter))), "{said}");
}

#[test]
fn a_mask_of_all_pairs_of_tokens_is_named_where_it_binds_and_so_is_how_to_do_without() {
    let text = make::replaced(make::MEGATRON, &[("pp = 2", "pp = 1"), ("accumulation = 4", "accumulation = 1")]);
    let found = climb(&text, Options { step: 16_384, max: None });
    let said = windtunnel::explore::ceiling::text::report(&make::parse(&text), &found, 400);
    assert!(said.contains("buffers and inputs, most of it attention_mask"), "{said}");
    let mask = "megatron.create_attention_mask_in_dataloader = false";
    let Some((change, longest)) = found.longer.iter().find(|(change, _)| change == mask) else { panic!("{said}") };
    assert!(*longest > 2 * found.longest.as_ref().unwrap().sequence, "{said}");
    let without = climb(&make::apply(&text, change), Options { step: 16_384, max: None });
    assert_eq!(without.longest.unwrap().sequence, *longest);
    assert!(without.longer.iter().all(|(other, _)| other != mask));
    // In a run, too, it is an input and no activation.
    let top = found.longest.unwrap();
    let inputs = top.memory.report.breakdown.bytes(windtunnel::program::Category::Buffer);
    assert!(inputs.0 >= top.sequence * top.sequence, "{said}");
}

#[test]
fn no_compiler_is_asked_about_what_runs_eagerly() {
    let folder = Folder::new("eager-ceiling");
    folder.write("a.toml", LLAMA);
    let output = folder.windtunnel(&["ceiling", "a.toml", "--max", "2048", "--compile-check"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("only runtime = \"xla\" compiles a whole step"));
}
