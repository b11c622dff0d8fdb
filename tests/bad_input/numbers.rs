//! No whole number is too small or too large for an answer.

use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Scenario, predict};

use super::edited;
use crate::command::Folder;
use crate::make::FILE;

/// Every whole number a scenario may hold: its line as a template.
const NUMBERS: &[(&str, &str)] = &[
    ("nodes = 1", "nodes = @"),
    ("dp_shard = 8", "dp_shard = @"),
    ("dp_shard = 8", "dp_replicate = @"),
    ("sequence = 128", "sequence = @"),
    ("sequence = 128", "sequence = 128\nmicro = @"),
    ("sequence = 128", "sequence = 128\naccumulation = @"),
    ("huggingface", "layers = @\nhuggingface"),
    ("", "[fsdp]\nreshard_after_forward = @"),
    ("", "[fsdp]\nroot_reshard_after_forward = @"),
    ("", "[fsdp]\nforward_prefetch = @"),
    ("", "[fsdp]\nbackward_prefetch = @"),
    ("", "[fsdp]\nreduce_scatter_buffers = @"),
    ("", "[fsdp]\nwrap = { every = @ }"),
    ("", "[fsdp]\nwrap = { blocks = [@] }"),
    ("", "[[fsdp.override]]\nblocks = [0, @]\nreshard_after_forward = true"),
    ("", "[[fsdp.override]]\nblocks = [@, 2]\nreshard_after_forward = true"),
    ("", "[activation_checkpointing]\npolicy = { every = @ }"),
    ("", "[loss]\nkind = \"chunked_output\"\nchunks = @"),
];

#[test]
fn no_number_is_too_small_or_too_large_for_an_answer() {
    // Zero prefetches and a range that starts at block 0 are sound; nothing else is.
    let zero_is_sound = ["forward_prefetch", "backward_prefetch", "blocks = [@", "wrap = { blocks"];
    let folder = Folder::new("numbers");
    for (old, template) in NUMBERS {
        for value in ["0", "-1", "-9223372036854775808", "9223372036854775807", "99999999999999999999", "1e30"] {
            if value == "0" && zero_is_sound.iter().any(|sound| template.contains(sound)) {
                continue;
            }
            folder.write("my.toml", &edited(old, &template.replace('@', value)));
            let output = folder.windtunnel(&["run", "my.toml"]);
            let said = String::from_utf8(output.stderr).unwrap();
            let clamped = template.contains("every = @") && value == "9223372036854775807";
            if clamped && output.status.success() {
                continue;
            }
            assert_eq!(output.status.code(), Some(2), "{template} with {value}: {said}");
            assert!(output.stdout.is_empty() && !said.contains("panicked"), "{template} with {value}: {said}");
            assert!(said.contains("my.toml:"), "{template} with {value}: {said}");
        }
    }
}

#[test]
fn the_largest_number_allowed_gets_an_answer() {
    for (old, new) in [
        (
            "nodes = 1\n\n[model]\nhuggingface = \"config.json\"\n\n[mesh]\ndp_shard = 8",
            "nodes = 16384\n\n[model]\nhuggingface = \"config.json\"\n\n[mesh]\ndp_shard = 131072",
        ),
        ("sequence = 128", "sequence = 4194304"),
        ("sequence = 128", "sequence = 128\nmicro = 65536"),
        ("sequence = 128", "sequence = 1\naccumulation = 2000"),
        ("huggingface", "layers = 1024\nhuggingface"),
        ("", "[fsdp]\nforward_prefetch = 65536"),
        ("", "[fsdp]\nbackward_prefetch = 65536"),
        ("", "[fsdp]\nreduce_scatter_buffers = 65536"),
    ] {
        let scenario = Scenario::parse(FILE, &edited(old, new)).unwrap_or_else(|error| panic!("{new}: {error}"));
        let settings = Settings { remedies: false, ..Settings::default() };
        let answer = predict(&scenario, settings).unwrap_or_else(|error| panic!("{new}: {error}"));
        assert!(answer.step.0 > 0, "{new}");
    }
}
