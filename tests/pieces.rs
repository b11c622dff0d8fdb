//! A step that memory would hold, were it not in pieces: what is said of it, and what mends it.

use windtunnel::scenario::Scenario;
use windtunnel::scenario::predict::{Prediction, Settings, predict};
use windtunnel::units::Bytes;

use crate::command::Folder;
use crate::make;

/// Llama 3.1 8B under FSDP2 on eight H100 that have less memory than sold.
fn on(memory: &str, expandable_segments: bool) -> (String, Prediction) {
    let folder = Folder::new(&format!("pieces-{}-{expandable_segments}", memory.replace(' ', "")));
    let shipped = include_str!("../topologies/h100-sxm-80gb.toml");
    folder.write("own.toml", &make::replaced(shipped, &[("79.18 GiB\", source", &format!("{memory}\", source"))]));
    let sample = include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml");
    let own = make::replaced(sample, &[("\"h100-sxm-80gb\"", "\"own.toml\"")]);
    folder.write("plan.toml", &format!("{own}\n[memory]\nexpandable_segments = {expandable_segments}\n"));
    let scenario = Scenario::load(folder.path.join("plan.toml")).expect("a plan that can be read");
    let answer = predict(&scenario, Settings::default()).expect("a plan that is simulated");
    (answer.text(&scenario).split_whitespace().collect::<Vec<_>>().join(" "), answer)
}

#[test]
fn a_step_whose_tensors_fit_but_for_pieces_says_so_and_expandable_segments_mend_it() {
    let (said, answer) = on("45 GiB", false);
    let memory = &answer.memory;
    let (failed, _) = memory.report.out_of_memory.expect("a step that fails");
    let free = memory.capacity - memory.outside - failed.allocated;
    assert!(memory.report.peak_allocated + memory.outside < memory.capacity && failed.requested < free);
    let gib = |bytes: Bytes| format!("{:.2} GiB", bytes.0 as f64 / (1u64 << 30) as f64);
    let [asked, free, taken] = [failed.requested, free, failed.allocated].map(gib);
    let cached = gib(failed.reserved - failed.allocated);
    let first = format!("Does not fit: no block of {asked} is free, though {free} are, in pieces.");
    assert!(said.contains(&first), "{said}");
    let why = format!("with {taken} allocated and {cached} cached in pieces, none of them large enough");
    assert!(said.contains(&why) && said.contains("expandable segments mend it"), "{said}");
    let (said, mended) = on("45 GiB", true);
    assert!(mended.memory.report.out_of_memory.is_none() && said.contains("Fits"), "{said}");
}

#[test]
fn a_step_that_runs_only_by_giving_memory_back_takes_longer_and_says_how_often() {
    let (_, roomy) = on("79.18 GiB", false);
    let (said, tight) = on("49 GiB", false);
    assert!(tight.memory.report.out_of_memory.is_none() && tight.memory.report.retries > 0);
    assert!(said.contains("Fits, but only by giving cached memory back in every step."), "{said}");
    assert!(said.contains("once a step the allocator gives cached memory back"), "{said}");
    assert!(tight.step > roomy.step && roomy.memory.report.retries == 0);
}
