//! What a plan says that changes nothing, or costs more than whoever wrote it may think, is a note of its report.

use windtunnel::report::text::Detail;
use windtunnel::scenario::Scenario;

use crate::make::{self, FILE, MEGATRON, replaced};

/// The notes of a scenario that hold some words.
fn noted(text: &str, words: &str) -> bool {
    let scenario = Scenario::parse(FILE, text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    scenario.assumption_lines().iter().any(|line| line.starts_with("note: ") && line.contains(words))
}

/// Mixtral of one block under a runtime, with experts run somehow.
fn mixtral(runtime: &str, load: &str, mesh: &str, rest: &str) -> String {
    format!(
        "runtime = \"{runtime}\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"mixtral-8x7b\"\nlayers = 1\n\
         expert_load{load}\n[mesh]\n{mesh}\n[batch]\nsequence = 1024\n{rest}"
    )
}

const GROUPED: &str = "[framework]\nexperts = \"grouped\"\n";

#[test]
fn a_load_that_grouped_matmuls_of_all_rows_do_not_see_is_said_to_change_nothing() {
    let says = |text: &str| make::parse(text).idle.iter().any(|idle| idle.key == "model.expert_load");
    let (even, uneven) = (" = \"balanced\"", ".power_law = 0.5");
    assert!(says(&mixtral("fsdp2", uneven, "", GROUPED)));
    let step = |load: &str| make::fly(&mixtral("fsdp2", load, "", GROUPED)).step;
    assert_eq!(step(even), step(uneven));
    assert!(!says(&mixtral("fsdp2", uneven, "", "[framework]\nexperts = \"loop\"\n")));
    assert!(says(&mixtral("megatron", uneven, "", "")));
    assert!(!says(&mixtral("megatron", uneven, "ep = 2", "")));
}

#[test]
fn the_workload_says_how_tokens_are_spread_over_experts() {
    for (load, words) in [
        (" = \"balanced\"", "tokens over experts: balanced)"),
        (".power_law = 1.2", "tokens over experts: a power law of exponent 1.2)"),
        (".measured = [9, 8, 8, 8, 8, 8, 8, 7]", "tokens over experts: as a run counted them)"),
    ] {
        let text = mixtral("fsdp2", load, "", "");
        let report = windtunnel::report::text::report(
            &make::parse(&text),
            &make::fly(&text),
            Detail { verbose: true, width: 400, ..Detail::default() },
        );
        assert!(report.contains(&format!("decoder with experts (2 of 8 for each token, {words}")), "{report}");
    }
}

#[test]
fn a_law_too_steep_for_one_expert_is_said_to_be_cut() {
    let says = |exponent: &str| noted(&mixtral("fsdp2", &format!(".power_law = {exponent}"), "", ""), "which it takes");
    assert!(says("3.0"));
    assert!(!says("0.5"));
}

#[test]
fn experts_that_fully_shard_fills_up_are_said_to_be_and_told_who_does_not() {
    let text = mixtral("fsdp2", " = \"balanced\"", "", GROUPED);
    let says = |text: &str, words: &str| noted(text, words);
    assert!(!says(&text, "fills that up"), "8 experts on 8 ranks");
    let many = replaced(&text, &[("nodes = 1", "nodes = 32"), ("layers = 1", "layers = 2"), ("8x7b", "8x22b")]);
    assert!(says(&many, "fills that up for dp_shard = 256: 32 times as much"));
    let within = replaced(&many, &[("[mesh]", "[mesh]\ndp_shard = 8")]);
    assert!(!says(&within, "fills that up"));
    assert!(!says(&replaced(&many, &[("grouped", "torchtitan")]), "fills that up"));
    let answer = make::fly(&many);
    let titan = answer.memory.remedies.iter().find(|remedy| remedy.change == "framework.experts = \"torchtitan\"");
    assert!(!answer.memory.fits() && titan.is_some(), "{:?}", answer.memory.remedies);
}

#[test]
fn a_stage_without_blocks_is_said_to_have_none() {
    let layers = |layers: &str| {
        let table = format!("[pipeline]\nlayers = {layers}\n\n[batch]");
        noted(&replaced(MEGATRON, &[("[batch]", &table)]), "gives stage 0 no block")
    };
    assert!(layers("[0, 4]"));
    assert!(!layers("[1, 3]"));
}

#[test]
fn more_blocks_to_run_again_than_a_stage_has_are_said_to_be_all_of_them() {
    let with = |value: &str| replaced(MEGATRON, &[("[batch]", &format!("[megatron]\nrecompute = {value}\n\n[batch]"))]);
    let (beyond, all) = (with("{ block = 100 }"), with("{ block = 2 }"));
    assert!(noted(
        &beyond,
        "megatron.recompute.block = 100 is more than the 2 blocks of any stage: all of them run again"
    ));
    assert!(!noted(&all, "blocks of any stage"));
    assert_eq!(make::fly(&beyond).step, make::fly(&all).step);
}
