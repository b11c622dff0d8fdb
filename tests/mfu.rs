//! Model FLOPs utilisation leads with a figure that can be: FLOPs that the model's own masks leave, over those of the chips.

use windtunnel::scenario::Prediction;

use crate::make;

fn fly(model: &str, sequence: u64, more: &str) -> Prediction {
    make::fly(&format!(
        "runtime = \"fsdp2\"\n[topology]\nname = \"h200-sxm-141gb\"\nnodes = 1\n[model]\nname = \"{model}\"\nlayers = 6\n\
         [mesh]\ndp_shard = 8\n[batch]\nsequence = {sequence}\n{more}"
    ))
}

fn flops(answer: &Prediction, name: &str) -> f64 {
    answer.mfu.iter().find(|mfu| mfu.name == name).expect(name).flops.0 as f64
}

/// By hand: of gemma-3's six layers five see 1,024 keys, and one sees all before it.
#[test]
fn keys_that_windows_hide_are_not_counted_in_the_figure_that_leads() {
    let answer = fly("gemma-3-12b", 32_768, "");
    let first = &answer.mfu[0];
    assert_eq!(first.name, "6N + attended");
    let because = first.because.as_deref().expect("it says why");
    assert!(because.starts_with("6N + 12LHS would give") && because.ends_with("keys that windows hide"), "{because}");
    let (s, w, heads) = (32_768.0, 1_024.0, 16.0 * 256.0);
    let pairs = 5.0 * (w * s - w * (w - 1.0) / 2.0) + s * (s + 1.0) / 2.0;
    let attended = 12.0 * heads * pairs * answer.tokens as f64 / s;
    let own = flops(&answer, "6N + attended") - flops(&answer, "6N");
    assert!((own / attended - 1.0).abs() < 1e-9, "{own} and {attended}");
    assert!(first.utilisation < 1.0 && flops(&answer, "6N + 12LHS") > 1.2 * first.flops.0 as f64);
}

#[test]
fn a_model_without_windows_keeps_the_convention_of_the_field() {
    let answer = fly("llama-3.1-8b", 8_192, "");
    assert_eq!((answer.mfu[0].name, answer.mfu[0].because.as_deref()), ("6N + 12LHS", None));
    // A window as long as the sequence hides nothing.
    assert_eq!(fly("gemma-3-12b", 1_024, "").mfu[0].name, "6N + 12LHS");
    // Without masks but the causal one, half of all pairs and the diagonal.
    let [own, causal, none] = ["6N + attended", "6N + 6LHS", "6N"].map(|name| flops(&answer, name));
    assert!(((own - none) / (causal - none) - 8_193.0 / 8_192.0).abs() < 1e-9);
}

/// Weights that are frozen have no gradients: a third of 6N is not computed.
#[test]
fn weights_that_are_frozen_are_not_counted_twice() {
    let answer = fly("llama-3.1-8b", 2_048, "[lora]\nrank = 16\nmodules = [\"all-linear\"]\n");
    let first = &answer.mfu[0];
    assert_eq!(first.name, "hardware");
    let because = first.because.as_deref().expect("it says why");
    assert!(because.ends_with("FLOPs that no kernel runs"), "{because}");
    assert!(first.utilisation < answer.mfu[1].utilisation);
}
