//! `framework.modules = "transformers"`: what a file may say beside it, and what is refused with what to write.

use windtunnel::model::style::{AttentionCode, Modules};
use windtunnel::runtime::train::KeepLogits;
use windtunnel::scenario::Scenario;

/// A scenario on eight GPUs; `tables` are added to it, keys of `[framework]` beside the release first.
fn read(model: &str, framework: &str, tables: &str) -> Result<Scenario, String> {
    let text = format!(
        r#"runtime = "fsdp2"
[topology]
name = "h100-sxm-80gb"
nodes = 1
[model]
name = "{model}"
[mesh]
[batch]
sequence = 1024
[framework]
release = "transformers 5.23"
{framework}
{tables}
"#
    );
    Scenario::parse("scenario.toml", &text).map_err(|error| error.to_string())
}

fn refused(model: &str, framework: &str, tables: &str) -> String {
    read(model, framework, tables).err().unwrap()
}

#[test]
fn the_release_makes_modules_and_loss_transformers() {
    let scenario = read("llama-3.2-1b", "", "").unwrap();
    let job = scenario.job.train().unwrap();
    assert_eq!((job.style.modules, job.style.attention), (Modules::Transformers, AttentionCode::Sdpa));
    assert!(job.loss_inside && job.keep_logits == KeepLogits::No);
    let held = read("llama-3.2-1b", "", "[loss]\nkeep_logits = \"backward\"\ninside_model = false").unwrap();
    let job = held.job.train().unwrap();
    assert!(!job.loss_inside && job.keep_logits == KeepLogits::Backward);
}

#[test]
fn a_class_without_a_fused_kernel_computes_attention_itself() {
    let scenario = read("gemma-2-9b", "", "").unwrap();
    assert_eq!(scenario.job.train().unwrap().style.attention, AttentionCode::Eager);
    let message = refused("gemma-2-9b", "", "[attention]\nimplementation = \"sdpa\"");
    assert!(message.contains("_supports_sdpa = False") && message.contains("\"eager\""), "{message}");
}

#[test]
fn models_without_rules_are_written_as_before_and_the_report_says_so() {
    let scenario = read("mixtral-8x7b", "", "").unwrap();
    assert_eq!(scenario.job.train().unwrap().style.modules, Modules::Plain);
    assert!(scenario.idle.iter().any(|idle| idle.why.contains("mixtral-8x7b have no rules here")));
}

#[test]
fn dropout_that_is_not_simulated_is_noted() {
    let says = |scenario: &Scenario| scenario.assumption_lines().iter().any(|line| line.contains("gpt2 has dropout"));
    assert!(!says(&read("gpt2", "", "").unwrap()));
    assert!(says(&read("gpt2", "modules = \"plain\"", "").unwrap()));
}

#[test]
fn what_the_classes_do_not_go_with_is_refused_by_name() {
    for (framework, tables, key) in [
        ("rope = \"complex\"", "", "framework.rope"),
        ("repeat_kv = true", "", "framework.repeat_kv"),
        ("", "[attention]\nunpad = true", "attention.unpad"),
    ] {
        let message = refused("llama-3.2-1b", framework, tables);
        assert!(message.contains(key) && message.contains("modules = \"plain\""), "{message}");
    }
    let message = refused("llama-3.2-1b", "modules = \"plain\"", "[attention]\nimplementation = \"eager\"");
    assert!(message.contains("write framework.modules = \"transformers\""), "{message}");
    let message = refused("llama-3.2-1b", "", "[precision]\noutput = \"fp32\"");
    assert!(message.contains("loss.inside_model = false"), "{message}");
}

#[test]
fn a_window_that_hides_nothing_needs_no_mask() {
    let steps = |implementation: &str| {
        let tables = format!("[attention]\nimplementation = \"{implementation}\"");
        let scenario = read("mistral-7b-v0.1", "", &tables).unwrap();
        scenario.job.compile().classes.remove(0).step.len()
    };
    // Sequences are of 1,024 tokens, the window of 4,096.
    assert_eq!(steps("sdpa"), steps("flash_attention_2"));
}
