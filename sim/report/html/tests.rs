//! What the page claims: its figures are the JSON report's, it loads nothing, names in it are escaped, and its size has a bound.

use std::path::Path;

use serde_json::Value;

use super::page;
use crate::scenario::predict::Settings;
use crate::scenario::{Prediction, Scenario, predict};

/// A shipped scenario with its prediction.
fn predicted(name: &str) -> (Scenario, Prediction) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(format!("{name}.toml"));
    let scenario = Scenario::load(&path).expect("it is shipped");
    let answer = predict(&scenario, Settings::default()).expect("it is simulated");
    (scenario, answer)
}

/// A page without its script, as a browser shows it that runs none.
fn without_script(page: &str) -> String {
    let (before, rest) = page.split_once("<script>").expect("a page has a script");
    let (_, after) = rest.split_once("</script>").expect("a script ends");
    assert!(!after.contains("<script"), "one script is enough");
    format!("{before}{after}")
}

/// Figures on a page that name their place in the JSON report, with their values.
fn figures(page: &str) -> Vec<(&str, &str)> {
    let figure = |rest| {
        let (key, rest) = str::split_once(rest, "\" value=\"")?;
        Some((key, rest.split_once('"')?.0))
    };
    page.split("<data id=\"").skip(1).map(|rest| figure(rest).expect("a figure has a value")).collect()
}

/// The value at a path of keys; of a list, the first item's.
fn at<'v>(report: &'v Value, path: &str) -> &'v Value {
    path.split('.').fold(report, |value, key| match &value[key] {
        Value::Array(items) => &items[0],
        value => value,
    })
}

const SHOWN: [&str; 4] =
    ["llama3.1-8b-fsdp2-8xh100", "llama3.1-8b-maxtext-8xv6e", "llama3.1-8b-too-large-8xh100", "qwen3-30b-a3b-64xh100"];

#[test]
fn every_figure_is_the_one_of_the_json_report() {
    for name in SHOWN {
        let (scenario, answer) = predicted(name);
        let (page, json) = (page(&scenario, &answer), answer.report(&scenario).json());
        let figures = figures(&page);
        for key in [
            "step_time_s",
            "memory.device_total_bytes",
            "tokens_per_second_per_chip",
            "mfu.utilisation",
            "breakdown_s.compute",
        ] {
            assert!(figures.iter().any(|(shown, _)| *shown == key), "{name} does not show {key}");
        }
        for (key, value) in figures {
            let value: f64 = value.parse().expect("a figure is a number");
            assert_eq!(Some(value), at(&json, key).as_f64(), "{name}: {key}");
        }
    }
}

#[test]
fn a_page_loads_nothing_and_says_all_without_its_script() {
    for name in SHOWN {
        let (scenario, answer) = predicted(name);
        let page = page(&scenario, &answer);
        // The scenario's own text may name its sources.
        let (page_proper, _) = page.split_once("<h2 id=\"scenario\">").expect("the scenario is shown");
        let markup = without_script(&page);
        for loaded in
            ["http:", "https:", "src=", "href=", "url(", "@import", "<link", "<img", "<iframe", "fetch(", "import("]
        {
            assert!(!page_proper.contains(loaded), "{name}: {loaded}");
        }
        let fits = if answer.memory.refused() { "Does not fit: " } else { "Fits, with " };
        assert!(markup.contains(fits), "{name}");
        let takes = if answer.memory.refused() { "would take" } else { "takes" };
        assert!(markup.contains(&format!("A step {takes} {}: ", answer.step)), "{name}");
        assert!(markup.matches("<path class=\"k").count() > 100, "{name} has no timeline");
        assert!(markup.contains("id=\"memory-title\""), "{name} has no curve of memory");
        assert!(!page.contains("NaN") && !page.contains("inf%"), "{name}: a coordinate is no number");
    }
}

#[test]
fn the_peak_of_the_curve_is_the_peak_of_the_report() {
    for name in SHOWN {
        let (scenario, answer) = predicted(name);
        let asked =
            answer.memory.report.phases.iter().map(|phase| phase.peak_requested).max().expect("a step has phases");
        let words = format!("At most {:.2} GiB are asked for", asked.gib());
        assert!(page(&scenario, &answer).contains(&words), "{name}: {words}");
    }
}

#[test]
fn names_are_escaped() {
    let text = "description = \"<script>alert(1)</script> & \\\"co\\\"\"\nruntime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\n\
                nodes = 1\n[model]\nname = \"llama-3.1-8b\"\nlayers = 2\n[mesh]\ndp_shard = 8\n[batch]\nsequence = 1024\n# </code><b>\n";
    let scenario = Scenario::parse("<i>.toml", text).expect("it is a scenario");
    let answer = predict(&scenario, Settings::default()).expect("it is simulated");
    let page = page(&scenario, &answer);
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt; &amp;"));
    for tag in ["<script>alert", "<b>", "<i>.toml"] {
        assert!(!page.contains(tag), "{tag}");
    }
    // The text is the file's, with its comments.
    assert!(page.contains("# &lt;/code&gt;&lt;b&gt;"));
}

#[test]
fn a_pipeline_of_sixteen_ranks_has_a_page_of_less_than_2_mb() {
    let (scenario, answer) = predicted("gpt3-175b-megatron-1024xa100");
    let page = page(&scenario, &answer);
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    assert!(page.contains("The step has 192 micro-batches, more than are kept for a timeline."));
    for rank in 0..16 {
        assert!(page.contains(&format!("aria-label=\"rank {rank}: ")), "rank {rank}");
    }
}

#[test]
fn a_prediction_that_was_recorded_gives_the_same_page() {
    let (scenario, answer) = predicted("two-narrow-blocks-4xv6e");
    let recorded = predict(&scenario, Settings { record: true, ..Settings::default() }).expect("it is simulated");
    assert!(page(&scenario, &answer) == page(&scenario, &recorded));
}
