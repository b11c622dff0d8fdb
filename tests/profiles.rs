//! What profiles say: of themselves when merged (`windtunnel profile`), and of what was measured.

use windtunnel::cost::Profile;
use windtunnel::program::Dispatch;

use crate::command::Folder;

/// A shipped profile whose layout somebody measured.
fn measured() -> String {
    let text = include_str!("../sim/cost/profiles/h200-sxm-141gb.toml");
    let (head, rest) = text.split_once("[layout]\n").expect("a layout");
    let evidence = rest.find("evidence").expect("its evidence");
    let basis = rest[evidence..].replacen("basis = \"published\"", "basis = \"measured\"", 1);
    let source = head.find("source = ").expect("the machine's source");
    format!("{}source = \"timed here\"\n# {}[layout]\n{}{basis}", &head[..source], &head[source..], &rest[..evidence])
}

#[test]
fn a_merged_profile_says_that_it_is_one() {
    let folder = Folder::new("a_merged_profile_says_that_it_is_one");
    folder.write("own.toml", &measured());
    let merge = |out| ["profile", "merge", "h200-sxm-141gb", "own.toml", "--out", out];
    assert!(folder.refuses(&merge("merged.json")).contains("ends in .toml"));
    let output = folder.windtunnel(&merge("both.toml"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let merged = String::from_utf8(folder.read("both.toml")).expect("text");
    let head = merged.split("[machine]").next().expect("a head");
    assert!(head.contains("name = \"both\"") && head.contains("a merge of h200-sxm-141gb and"), "{head}");
    assert!(!head.contains("import published") && !head.contains("Nothing here was measured"), "{head}");
    assert!(merged.contains("source = \"timed here\""), "the machine goes with what was measured on it");
    assert!(folder.windtunnel(&["profile", "show", "both.toml"]).status.success());
    // What was only published leaves the machine as it is.
    let output = folder.windtunnel(&["profile", "merge", "own.toml", "h200-sxm-141gb", "--out", "back.toml"]);
    assert!(output.status.success());
    assert!(String::from_utf8(folder.read("back.toml")).expect("text").contains("source = \"timed here\""));
}

/// A host's time for a forward of `torch.nn.Linear` on a DGX H100 \[us\], and how much longer Transformer Engine's takes on
/// two other hosts (NVIDIA/TransformerEngine#2053).
const LINEAR: f64 = 13.48;
const ENGINE_OVER_LINEAR: f64 = (90.53 / 33.17 + 99.66 / 37.08) / 2.0;

#[test]
fn modules_cost_the_host_what_megatrons_own_took_at_the_scale_of_a_known_host() {
    let read: serde_json::Value = serde_json::from_str(include_str!("oracles/host-time.json")).unwrap();
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let engine = LINEAR * ENGINE_OVER_LINEAR / number(&read["linear_forward_us"]["transformer_engine.pytorch.Linear"]);
    // Each block at the mean of two scales: that of a linear in Python, and that of the plain block beside it.
    let block = |at: usize, pass: &str| {
        let times = &read["cases"][at]["us_per_block"];
        let plain = LINEAR * number(&read["plain_kernels"]) / number(&times["plain_forward"]);
        (number(&times[pass]) * (engine + plain) / 2.0, number(&read["cases"][at]["kernels"][pass]))
    };
    let profile = Profile::find("h100-sxm-80gb").expect("a shipped profile");
    let host = |dispatch| profile.host.as_ref().unwrap().cost(dispatch).time.seconds() * 1e6;
    for (pass, module, in_engine) in [
        ("forward", Dispatch::ModuleForward, Dispatch::TransformerEngineForward),
        ("backward", Dispatch::ModuleBackward, Dispatch::TransformerEngineBackward),
    ] {
        let own = [0, 1].map(|at| block(at, pass)).map(|(time, kernels)| time / kernels);
        let (mean, module) = ((own[0] + own[1]) / 2.0, host(module));
        assert!((module / mean - 1.0).abs() < 0.1, "{pass}: {module} of {mean}");
        let (time, kernels) = block(2, pass);
        let compiled = number(&read["cases"][2]["compiled"][pass]);
        let (rest, in_engine) = ((time - compiled * module) / (kernels - compiled), host(in_engine));
        assert!((in_engine / rest - 1.0).abs() < 0.1, "{pass}: {in_engine} of {rest}");
    }
}

#[test]
fn a_replay_costs_the_host_what_transformer_engines_took_at_the_scale_of_a_known_host() {
    let read: serde_json::Value = serde_json::from_str(include_str!("oracles/host-time.json")).unwrap();
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let graphs = &read["graphs"];
    let linear = number(&graphs["linear_forward_us"]["transformer_engine.pytorch.Linear"]);
    let plain = number(&graphs["us_per_block"]["plain_forward"]);
    let scale = LINEAR * (ENGINE_OVER_LINEAR / linear + number(&read["plain_kernels"]) / plain) / 2.0;
    let profile = Profile::find("h100-sxm-80gb").expect("a shipped profile");
    let host = |dispatch| profile.host.as_ref().unwrap().cost(dispatch).time.seconds() * 1e6;
    for (pass, python, copy) in [
        ("forward", Dispatch::GraphForward, Dispatch::EagerForward),
        ("backward", Dispatch::GraphBackward, Dispatch::EagerBackward),
    ] {
        let copies = host(copy) * number(&graphs["copies"][pass]);
        let rest = number(&graphs["us_per_block"][pass]) * scale - copies - host(Dispatch::GraphLaunch);
        assert!((host(python) / rest - 1.0).abs() < 0.1, "{pass}: {} of {rest}", host(python));
    }
}

/// Blocks of two tensor-parallel ranks: each exchange is waited for twice.
const SPLIT: &str = r#"
runtime = "megatron"
[topology]
name = "a100-sxm-80gb"
chips = 2
profile = "own.toml"
[model]
name = "llama-2-7b"
layers = 4
[mesh]
tp = 2
[batch]
sequence = 4096
micro = 1
accumulation = 2
"#;

#[test]
fn an_event_that_streams_see_late_makes_the_step_longer_and_its_doubt_the_interval_wider() {
    let folder = Folder::new("an_event_that_streams_see_late");
    folder.write("a.toml", SPLIT);
    let shipped = include_str!("../sim/cost/profiles/a100-sxm-80gb.toml");
    let (head, rest) = shipped.split_once("[event]\n").expect("an event");
    let behind = rest.find("\n\n").map_or("", |end| &rest[end..]);
    let flown = |us: u32, p90: f64| {
        let evidence =
            format!("{{ basis = \"measured\", points = 1, median = {p90}, p90 = {p90}, source = \"a test\" }}");
        folder.write("own.toml", &format!("{head}[event]\ntime = \"{us} us\"\nevidence = {evidence}{behind}"));
        let output = folder.windtunnel(&["run", "a.toml", "--json", "-"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let read: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let number = |value: &serde_json::Value| value.as_f64().expect("a number");
        (number(&read["step_time_s"]), number(&read["residual_half_width"]))
    };
    let (at_once, sure, unsure) = (flown(0, 0.01), flown(200, 0.01), flown(200, 1.0));
    // Two exchanges a block and pass, each waited for there and back: of four blocks, two passes and two micro-batches 64,
    // and those of the ends.
    let waits = (sure.0 - at_once.0) / 200e-6;
    assert!((64.0..160.0).contains(&waits), "{waits}");
    assert!(sure.0 == unsure.0 && unsure.1 > 1.05 * sure.1, "{sure:?} {unsure:?}");
    // A profile without it says what to do.
    folder.write("own.toml", &format!("{head}{behind}"));
    let said = folder.refuses(&["run", "a.toml"]);
    assert!(said.contains("event is missing") && said.contains("copy it from the shipped profile"), "{said}");
}
