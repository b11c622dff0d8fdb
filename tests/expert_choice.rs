//! Experts that choose their tokens in scenarios: what is flown, what is refused and how.

use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Scenario, predict};

use crate::make::FILE;

/// A model of four blocks whose experts choose, with other keys.
fn scenario(runtime: &str, model: &str, mesh: &str, rest: &str) -> String {
    format!(
        "runtime = \"{runtime}\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = {model}\nlayers = 4\n\
         [mesh]\n{mesh}\n[framework]\nexperts = \"expert_choice\"\n[batch]\nsequence = 1024\n{rest}"
    )
}

fn said(text: &str) -> Result<Vec<String>, String> {
    let scenario = Scenario::parse(FILE, text).map_err(|error| error.to_string())?;
    predict(&scenario, Settings::default()).map_err(|error| error.to_string())?;
    Ok(scenario.assumption_lines())
}

#[test]
fn experts_that_choose_their_tokens_fly_without_a_loss_that_balances_them() {
    for model in ["\"mixtral-8x7b\"", "\"qwen3-30b-a3b\""] {
        let notes = said(&scenario("fsdp2", model, "", "")).unwrap();
        assert!(!notes.iter().any(|note| note.starts_with("framework.experts")), "{notes:?}");
    }
}

#[test]
fn what_has_no_rules_beside_experts_that_choose_is_refused_in_words() {
    const MIXTRAL: &str = "\"mixtral-8x7b\"";
    let sizes = "\"mixtral-8x7b\"\nexpert_load.power_law = 1.0";
    let mut wrong = String::new();
    for (runtime, model, mesh, rest, what) in [
        ("fsdp2", MIXTRAL, "ep = 2", "", "experts are spread over ranks as torchtitan does it"),
        ("fsdp2", MIXTRAL, "tp = 2", "", "experts under tensor parallelism"),
        (
            "fsdp2",
            MIXTRAL,
            "pp = 2",
            "micro = 1\naccumulation = 4\n",
            "experts that are not run as torchtitan runs them",
        ),
        ("fsdp2", MIXTRAL, "cp = 2", "", "context parallelism is modelled in compiled blocks alone"),
        ("fsdp2", MIXTRAL, "", "[compile]\nblocks = true\n", "compiled blocks with experts"),
        ("fsdp2", MIXTRAL, "", "[float8]\nrecipe = \"rowwise\"\n", "float8"),
        ("fsdp2", MIXTRAL, "", "[activation_checkpointing]\npolicy = \"selective_op\"\n", "selective checkpointing"),
        ("fsdp2", "\"deepseek-v2-lite\"", "", "", "shared experts with experts that choose their tokens"),
        ("fsdp2", sizes, "", "", "model.expert_load says otherwise"),
        ("fsdp1", MIXTRAL, "", "", "experts that choose their tokens run under fully_shard"),
        ("single_device", MIXTRAL, "", "", "experts that choose their tokens run under fully_shard"),
        ("megatron", MIXTRAL, "", "", "experts"),
        ("deepspeed", MIXTRAL, "", "", "experts"),
        ("deepspeed-zero", MIXTRAL, "", "", "experts"),
        ("internevo", MIXTRAL, "", "", "experts"),
        ("nanotron", MIXTRAL, "", "", "experts"),
        ("fsdp2", "\"qwen3-30b-a3b\"", "", "micro = 100\n", "128 experts or more that choose over 4,096 tokens each"),
    ] {
        match said(&scenario(runtime, model, mesh, rest)) {
            Ok(_) => wrong += &format!("{runtime} {mesh} {rest}: flies\n"),
            Err(error) if !error.contains(what) => wrong += &format!("{runtime} {mesh} {rest}: {error}\n"),
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let text = scenario("xla", MIXTRAL, "", "").replace("\"h100-sxm-80gb\"\nnodes = 1", "\"tpu-v6e\"\nslice = \"4x4\"");
    let error = said(&text).expect_err("no key of this runtime");
    assert!(error.contains("framework"), "{error}");
}
