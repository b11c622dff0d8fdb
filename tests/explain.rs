//! `windtunnel explain`: every key, table and code has an answer, and an unknown name gets the nearest.

use crate::command::Folder;
use crate::keys::rows;

fn said(name: &str) -> String {
    let output = Folder::new(&format!("explain-{}", name.replace('.', "-"))).windtunnel(&["explain", name]);
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_key_is_explained_with_its_values_its_default_and_an_example() {
    let text = said("fsdp.reshard_after_forward");
    for part in [
        "takes         true, false, or a number of ranks",
        "true under fsdp2, fsdp1",
        "PyTorch 2.15.0",
        "read by       fsdp2, fsdp1",
        "xla: nothing is wrapped",
        "[fsdp]\n    reshard_after_forward = 8",
    ] {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn a_table_lists_its_keys_and_a_table_in_a_table_too() {
    let text = said("zero");
    assert!(text.contains("Elements of a bucket of gradients"), "{text}");
    assert!(text.contains("DeepSpeed's zero_optimization") && text.contains("zero.aio.queue_depth"), "{text}");
    let text = said("zero.aio");
    assert!(text.contains("zero.aio.use_gds") && !text.contains("zero.stage"), "{text}");
}

#[test]
fn a_key_without_its_table_is_found_where_one_table_has_it() {
    assert!(said("reduce_scatter_buffers").starts_with("fsdp.reduce_scatter_buffers\n"));
    let several = said("sequence");
    assert!(several.contains("batch.sequence") && several.contains("tensor_parallel.sequence"), "{several}");
}

#[test]
fn a_code_of_a_refusal_is_explained_with_what_to_write_instead() {
    let text = said("zero-bubble-multi-token");
    assert!(text.contains("Not simulated: multi-token prediction under a zero-bubble schedule."), "{text}");
    assert!(text.contains("frameworks") && text.contains("write megatron.mtp_num_layers = 0"), "{text}");
}

#[test]
fn a_framework_is_explained_by_the_tables_that_it_reads() {
    let text = said("nanotron");
    assert!(text.contains("[nanotron]"), "the table of the same name stands first: {text}");
    let text = said("deepspeed-zero");
    assert!(text.contains("[zero]") && text.contains("[batch]") && !text.contains("[fsdp]"), "{text}");
}

#[test]
fn every_key_has_an_explanation() {
    for (_, key) in rows().step_by(9) {
        let path = key.path;
        assert!(said(path).starts_with(&format!("{path}\n")), "{path}");
    }
}

#[test]
fn an_unknown_name_gets_the_nearest_ones() {
    let folder = Folder::new("explain-unknown");
    let said = folder.refuses(&["explain", "fsdp.reshard_after_foward"]);
    assert!(said.contains("did you mean \"fsdp.reshard_after_forward\"?"), "{said}");
    let said = folder.refuses(&["explain", "shape"]);
    assert!(said.contains("the nearest names are:") && said.contains("xla.shapes"), "{said}");
}
