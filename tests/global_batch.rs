//! The global batch: as the report shows it, and as a file may write it.

use crate::followed;
use crate::make::{self, FILE, MEGATRON, TINY, replaced};

/// The tiny scenario of Megatron-Core with other keys of its batch: two replicas of the model.
fn batch(keys: &str) -> String {
    replaced(MEGATRON, &[("accumulation = 4", keys)])
}

#[test]
fn the_report_shows_the_global_batch_and_the_tokens_of_a_step() {
    for (text, line) in [
        (TINY.to_owned(), "  batch         8 sequences of 128 tokens, 1,024 tokens a step (global)"),
        (
            batch("micro = 2\naccumulation = 4"),
            "  batch         16 sequences of 128 tokens, 2,048 tokens a step (global)",
        ),
    ] {
        let report = windtunnel::report::text::report(&make::parse(&text), &make::fly(&text), Default::default());
        assert!(report.contains(line), "{report}");
    }
}

#[test]
fn micro_batches_follow_from_the_global_batch_in_sequences_or_in_tokens() {
    for (keys, micro_batches) in [
        ("global = 16", 8),
        ("micro = 2\nglobal = 16", 4),
        ("global_tokens = 2048", 8),
        ("global = 16\naccumulation = 8", 8),
    ] {
        let text = batch(keys);
        let scenario = make::parse(&text);
        assert_eq!(scenario.job.micro_batches(), micro_batches, "{keys}");
        assert_eq!(scenario.job.tokens(), 2048, "{keys}");
        let follows = scenario.assumption_lines().iter().any(|line| line.starts_with("batch.accumulation = "));
        assert_eq!(follows, !keys.contains("accumulation"), "{keys}");
    }
    // The other runtimes share out what is left of the chips.
    for (text, keys) in [(TINY.to_owned(), "global = 24"), (TINY.replace("dp_shard = 8", "tp = 2"), "global = 12")] {
        let text = text.replace("sequence = 128", &format!("sequence = 128\n{keys}"));
        assert_eq!(make::parse(&text).job.micro_batches(), 3, "{text}");
    }
}

#[test]
fn a_step_on_a_compiled_mesh_has_the_global_batch_in_as_many_micro_batches_or_is_refused_with_both_numbers() {
    let text = include_str!("../scenarios/two-narrow-blocks-4xv6e.toml");
    let own = make::parse(text);
    let sequences = (own.job.tokens() / own.job.seq()) as i64;
    assert!(make::parse(&make::with(text, "batch", "global", sequences)).job.tokens() == own.job.tokens());
    let twice = make::parse(&make::with(text, "batch", "global", 2 * sequences));
    assert_eq!((twice.job.tokens(), twice.job.micro_batches()), (2 * own.job.tokens(), 2));
    let said = followed::refusal(FILE, &make::with(text, "batch", "global", sequences + 1));
    assert!(said.contains(&format!("{} sequences a step do not divide into 4 replicas", sequences + 1)), "{said}");
}

#[test]
fn a_global_batch_that_cannot_be_is_refused_with_both_numbers() {
    for (keys, problem, remedy) in [
        (
            "global = 15",
            "15 sequences a step do not divide into 2 replicas of the model × batch.micro = 1, which are 2",
            "write batch.global = 16",
        ),
        ("micro = 4\nglobal = 20", "do not divide into 2 replicas", "write batch.global = 24"),
        ("global_tokens = 1000", "1000 tokens a step are no whole number of sequences of 128", "global_tokens = 1024"),
        (
            "global = 16\naccumulation = 4",
            "batch.accumulation = 4 makes 8 sequences a step, not 16",
            "remove batch.accumulation, or write batch.global = 8",
        ),
        ("global = 16\nglobal_tokens = 2048", "both say how large", "remove batch.global_tokens"),
    ] {
        let said = followed::refusal(FILE, &batch(keys));
        assert!(said.contains(problem) && said.contains(remedy), "{keys}: {said}");
    }
}

#[test]
fn a_smaller_micro_batch_under_a_global_batch_makes_more_of_them() {
    let text = batch("micro = 2\nglobal = 16");
    let smaller = make::with(&text, "batch", "micro", 1);
    assert_eq!(make::parse(&smaller).job.tokens(), make::parse(&text).job.tokens());
    assert_eq!(make::parse(&smaller).job.micro_batches(), 8);
}
