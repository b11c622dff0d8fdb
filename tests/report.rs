//! The report that a person reads: it keeps to its page, colours nothing that nobody sees, and what it proposes is so.

use std::path::PathBuf;

use windtunnel::report::html;
use windtunnel::report::text::{self, Detail};
use windtunnel::scenario::advice::{Advice, Tried};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Prediction, Scenario, predict};

use crate::command::Folder;
use crate::make::{self, MEGATRON, TINY, apply, replaced};

/// FSDP of a model that is known by name, small enough to try changes of, with much recomputed.
const PLAN: &str = "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\nlayers = 4\n\
                    [mesh]\ndp_shard = 8\n[batch]\nsequence = 4096\n[activation_checkpointing]\npolicy = \"full\"\n";

fn predicted(text: &str) -> (Scenario, Prediction) {
    (make::parse(text), make::fly(text))
}

fn advice(text: &str) -> Advice {
    let (scenario, answer) = predicted(text);
    Advice::of(&scenario, &answer, |_| {})
}

/// What a change does, written into the file as a user would write it.
fn written(text: &str, change: &str) -> Tried {
    let (scenario, answer) = predicted(&apply(text, change));
    Tried {
        change: change.to_owned(),
        step: answer.step,
        tokens: answer.tokens,
        rate: answer.tokens_per_second_per_chip(scenario.topology.chips()),
        device_total: answer.memory.device_total(),
        fits: !answer.memory.refused(),
        sure: answer.memory.fits_beyond_doubt(),
    }
}

#[test]
fn a_change_that_is_said_to_help_does_so_when_it_is_written_into_the_file() {
    for text in [PLAN, &apply(MEGATRON, "megatron.recompute = { uniform = 1 }")] {
        let (advice, before) = (advice(text), written(text, "batch.micro = 1"));
        assert!(!advice.faster.is_empty(), "{advice:?}");
        for tried in &advice.faster {
            assert_eq!(tried, &written(text, &tried.change));
            assert!(tried.sure && tried.rate > before.rate, "{tried:?}");
        }
        assert!(advice.faster.windows(2).all(|pair| pair[0].rate >= pair[1].rate));
    }
}

/// Routers are seldom balanced, and the slowest rank is waited for: 2.2 times the step of a balanced load in one public run of 64 GB200.
#[test]
fn a_load_of_experts_that_nobody_states_is_a_range_whose_slow_end_is_uneven() {
    let text = "runtime = \"megatron\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"qwen3-30b-a3b\"\nlayers = 2\n\
                [mesh]\nep = 8\n[batch]\nsequence = 4096\nmicro = 4\n[megatron]\nmoe_token_dispatcher_type = \"alltoall\"\n";
    let (scenario, answer) = predicted(text);
    let unstated = advice(text).unstated.expect("its load is not stated");
    assert!(unstated.defaults.iter().any(|line| line == "model.expert_load = \"balanced\""), "{unstated:?}");
    let uneven = written(text, "model.expert_load.power_law = 0.08");
    let own = answer.tokens_per_second_per_chip(scenario.topology.chips());
    assert!(uneven.rate < own && unstated.rates.0 <= uneven.rate, "{unstated:?}, {uneven:?}");
    let stated = advice(&apply(text, "model.expert_load = \"balanced\"")).unstated;
    assert!(stated.is_none_or(|of| !of.defaults.iter().any(|line| line.starts_with("model.expert_load"))));
}

/// Who leaves out what decides is told so on the first screen, between which ends the answer lies, and what to state.
#[test]
fn what_decides_and_is_not_stated_is_a_range_until_it_is_stated() {
    let text = replaced(PLAN, &[("[activation_checkpointing]\npolicy = \"full\"\n", "")]);
    let (scenario, answer) = predicted(&text);
    let of = advice(&text);
    let unstated = of.unstated.clone().expect("neither the micro-batch nor what is recomputed is stated");
    let own = answer.tokens_per_second_per_chip(scenario.topology.chips());
    assert!(unstated.rates.0 < own && own < unstated.rates.1, "{unstated:?} around {own}");
    let recomputed = written(&text, "activation_checkpointing.policy = \"full\"");
    assert!(recomputed.rate < own && unstated.rates.0 <= recomputed.rate, "{unstated:?}, {recomputed:?}");
    let taken = |key: &str| unstated.defaults.iter().find(|line| line.starts_with(key)).cloned();
    assert_eq!(taken("activation_checkpointing.policy"), Some("activation_checkpointing.policy = \"none\"".to_owned()));
    assert!(taken("fsdp.cpu_offload").is_none(), "nobody leaves that out who uses it: {unstated:?}");
    let detail = Detail { advice: Some(&of), unstated: Some(&unstated), width: 600, ..Detail::default() };
    let page = text::report(&scenario, &answer, detail);
    let line = page.lines().find(|line| line.trim_start().starts_with("unstated")).expect(&page);
    assert!(line.contains(" is taken (with ") && line.contains("; in all ") && line.contains("policy = \"none\""));
    assert!(html::page_with(&scenario, &answer, Some(&unstated), None).contains("; in all "));
    let json = answer.report(&scenario).with(Some(&of)).json();
    assert_eq!(json["unstated"]["tokens_per_second_per_chip"], serde_json::json!([unstated.rates.0, unstated.rates.1]));
    // Stated as it is by default, it is no question any more.
    let stated = unstated.defaults.iter().fold(text, |text, line| apply(&text, line));
    assert_eq!(advice(&stated).unstated, None);
}

/// Where the default does not fit and another value does, the range is of what fits.
#[test]
fn a_default_that_cannot_fit_is_not_what_the_range_is_about() {
    let text = replaced(
        PLAN,
        &[
            ("[activation_checkpointing]\npolicy = \"full\"\n", ""),
            ("layers = 4", "layers = 32"),
            ("sequence = 4096", "sequence = 12288"),
        ],
    );
    let (scenario, answer) = predicted(&text);
    assert!(answer.memory.refused());
    let of = advice(&text);
    let unstated = of.unstated.clone().expect("with all recomputed it fits");
    let recomputed = written(&text, "activation_checkpointing.policy = \"full\"");
    assert!(recomputed.fits && unstated.rates.0 <= recomputed.rate && recomputed.rate <= unstated.rates.1);
    let page = text::report(
        &scenario,
        &answer,
        Detail { advice: Some(&of), unstated: Some(&unstated), width: 400, ..Detail::default() },
    );
    assert!(page.contains("; in all, of what fits, "), "{page}");
}

#[test]
fn a_default_that_decides_is_moved_by_the_value_that_is_shown() {
    let advice = advice(PLAN);
    let (_, before) = predicted(PLAN);
    assert!(advice.defaults.iter().any(|moved| moved.default.starts_with("attention.backend = ")), "{advice:?}");
    for moved in &advice.defaults {
        assert_eq!(moved.other, written(PLAN, &moved.other.change), "{}", moved.default);
        let memory = moved.other.device_total.0 as f64 / before.memory.device_total().0 as f64 - 1.0;
        assert!((moved.memory - memory).abs() < 1e-12 && moved.rate.abs().max(memory.abs()) >= 0.005, "{moved:?}");
    }
    // What the file states is nobody's default.
    let stated = apply(PLAN, "attention.backend = 'cudnn'");
    let (scenario, answer) = predicted(&stated);
    let advice = Advice::of(&scenario, &answer, |_| {});
    assert!(!advice.defaults.iter().any(|moved| moved.default.starts_with("attention.backend")));
}

#[test]
fn less_is_recomputed_where_that_helps_and_nothing_is_proposed_that_is_there_already() {
    let changes = |text: &str| advice(text).faster.into_iter().map(|tried| tried.change).collect::<Vec<_>>();
    let none = "activation_checkpointing.policy = \"none\"";
    assert!(changes(PLAN).iter().any(|change| change == none));
    assert!(!changes(&apply(PLAN, none)).iter().any(|change| change.starts_with("activation_checkpointing")));
}

/// Texts of all shipped scenarios.
fn shipped() -> Vec<PathBuf> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|ending| ending == "toml")).collect()
}

#[test]
fn reports_of_shipped_scenarios_keep_to_their_page() {
    for file in shipped() {
        let scenario = Scenario::load(&file).unwrap();
        let answer = predict(&scenario, Settings { remedies: false, ..Settings::default() }).unwrap();
        for (width, verbose) in [(80, false), (120, false), (120, true)] {
            let said = text::report(&scenario, &answer, Detail { width, verbose, ..Detail::default() });
            // The title is the file's own.
            let wide: Vec<&str> = said.lines().skip(1).filter(|line| line.chars().count() > width).collect();
            assert!(wide.is_empty(), "{}, {width} columns:\n{}", file.display(), wide.join("\n"));
        }
    }
}

#[test]
fn colour_changes_no_word_and_a_pipe_has_none() {
    let (scenario, answer) = predicted(TINY);
    let of = |colour: bool| text::report(&scenario, &answer, Detail { colour, ..Detail::default() });
    let coloured = of(true);
    let mut plain = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain += before;
        rest = after.split_once('m').unwrap().1;
    }
    assert!(coloured.len() > plain.len() && plain + rest == of(false));
    let folder = Folder::new("colour");
    folder.write("config.json", include_str!("tiny/config.json"));
    folder.write("my.toml", TINY);
    let said = String::from_utf8(folder.windtunnel(&["run", "my.toml"]).stdout).unwrap();
    assert!(!said.contains('\u{1b}'), "{said}");
}

#[test]
fn the_verdict_comes_first_and_says_what_is_missing() {
    let second = |text: &str| {
        let (scenario, answer) = predicted(text);
        text::report(&scenario, &answer, Detail { width: 400, ..Detail::default() }).lines().nth(2).unwrap().to_owned()
    };
    assert!(
        second(PLAN).starts_with("Fits, with ")
            && second(PLAN).contains("A step takes ")
            && second(PLAN).contains("% compute"),
        "{}",
        second(PLAN)
    );
    let large = replaced(PLAN, &[("layers = 4", "layers = 400")]);
    assert!(
        second(&large).starts_with("Does not fit: ") && second(&large).contains("GiB too much"),
        "{}",
        second(&large)
    );
}

#[test]
fn changes_are_tried_unasked_only_where_that_is_quick() {
    let folder = Folder::new("report-changes");
    let run = |text: &str, more: &[&str]| {
        folder.write("my.toml", text);
        String::from_utf8(folder.windtunnel(&[&["run", "my.toml"], more].concat()).stdout).unwrap()
    };
    let heading = "What would help most";
    assert!(run(PLAN, &[]).contains(heading));
    assert!(!run(PLAN, &["--changes", "none"]).contains(heading));
    let json: serde_json::Value = serde_json::from_str(&run(PLAN, &["--json", "-"])).unwrap();
    assert!(json["changes"]["simulated"].as_u64() > Some(10), "{json:#}");
    let long =
        replaced(PLAN, &[("layers = 4", "layers = 110"), ("sequence = 4096", "sequence = 512\naccumulation = 11")]);
    assert!(!run(&long, &[]).contains(heading));
}
