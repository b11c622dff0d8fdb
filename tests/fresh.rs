//! `windtunnel new`: what it writes runs, and the defaults that it writes as comments are the defaults.

use windtunnel::scenario::fresh::Fresh;
use windtunnel::scenario::{Runtime, Scenario};

/// A scenario to begin with for each framework.
fn begun(runtime: &str) -> Fresh {
    let on_tpu = ["xla", "torch_xla"].contains(&runtime);
    Fresh {
        runtime: runtime.to_owned(),
        model: match runtime {
            "xla" | "torch_xla" => "llama-3.1-8b",
            "internevo" => "internlm-7b",
            _ => "llama-3.2-1b",
        }
        .to_owned(),
        topology: if on_tpu { "tpu-v6e" } else { "h100-sxm-80gb" }.to_owned(),
        nodes: (!on_tpu && runtime != "single_device").then_some(1),
        chips: (runtime == "single_device").then_some(1),
        slice: on_tpu.then(|| "4x4".to_owned()),
        sequence: 2048,
        micro: 1,
    }
}

/// The text with every default as a line of its own.
fn uncommented(text: &str) -> String {
    let lines = text.lines().map(|line| match line.strip_prefix("# ") {
        Some(rest) if rest.starts_with('[') || rest.split(" #").next().is_some_and(|key| key.contains(" = ")) => rest,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_framework_has_a_scenario_to_begin_with_whose_comments_are_its_defaults() {
    for runtime in Runtime::ALL.map(Runtime::written) {
        let fresh = begun(runtime);
        let (text, scenario) = fresh.text("new.toml").unwrap_or_else(|error| panic!("{runtime}: {error}"));
        let written = uncommented(&text);
        let all = Scenario::parse("new.toml", &written).unwrap_or_else(|error| panic!("{runtime}: {error}\n{written}"));
        let step = |scenario: &Scenario| scenario.predict().unwrap_or_else(|error| panic!("{runtime}: {error}")).step;
        assert_eq!(step(&all), step(&scenario), "{runtime}\n{written}");
        assert!(text.contains("[model] # ") && text.contains("windtunnel explain"), "{text}");
        assert!(text.matches("\n# ").count() > 5, "{runtime} takes hardly a default:\n{text}");
    }
}

#[test]
fn what_does_not_fit_together_is_said_as_for_any_scenario() {
    let nobody = Fresh { model: "llama-9".to_owned(), ..begun("fsdp2") };
    let error = nobody.text("new.toml").expect_err("no such model").to_string();
    assert!(error.contains("new.toml") && error.contains("llama-9"), "{error}");
}
