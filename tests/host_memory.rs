//! Memory of the host: what offloading takes of it, against closed forms, and the verdict where a node has too little.
//!
//! FSDP2 pins each sharded parameter and its gradient in a block of the next power of two, and keeps moments in memory that is
//! not pinned (`torch/distributed/fsdp/_fully_shard/_fsdp_param.py`, `_fsdp_collectives.py`; `CachingHostAllocator.h`).

use windtunnel::explore::ceiling;
use windtunnel::explore::ceiling::Options;
use windtunnel::report;
use windtunnel::scenario::predict::Verdict;

use crate::make::{self, TINY};

const LAYERS: u64 = 3;
const WIDTH: u64 = 64;
const KV: u64 = 32;
const FFN: u64 = 160;
const VOCAB: u64 = 512;
const RANKS: u64 = 8;

fn offloaded() -> String {
    format!("{TINY}\n[fsdp]\ncpu_offload = true\n")
}

/// A topology of nodes with so much host memory; none: it says nothing of it.
fn node(has: Option<&str>) -> String {
    let shipped = include_str!("../topologies/h100-sxm-80gb.toml");
    let line = "host_memory = { value = \"2 TB\", source = \"mlperf\" }\n";
    assert!(shipped.contains(line));
    let own = has.map(|has| format!("host_memory = {{ value = {has:?}, source = \"assumed: a test\" }}\n"));
    let name = has.map_or("none".to_owned(), |has| has.replace(' ', "-"));
    let path = format!("{}/host-{name}.toml", env!("CARGO_TARGET_TMPDIR"));
    let whole = format!("{path}.{}.{:?}", std::process::id(), std::thread::current().id());
    std::fs::write(&whole, shipped.replace(line, &own.unwrap_or_default())).unwrap();
    std::fs::rename(&whole, &path).unwrap();
    path
}

fn on(text: &str, has: Option<&str>) -> String {
    text.replace("name = \"h100-sxm-80gb\"", &format!("name = {:?}", node(has)))
}

/// Elements of a rank's part of every parameter.
fn shards() -> Vec<u64> {
    let layer =
        [WIDTH * WIDTH, KV * WIDTH, KV * WIDTH, WIDTH * WIDTH, FFN * WIDTH, WIDTH * FFN, FFN * WIDTH, WIDTH, WIDTH];
    let ends = [VOCAB * WIDTH, WIDTH, VOCAB * WIDTH];
    let layers = (0..LAYERS).flat_map(|_| layer);
    layers.chain(ends).map(|elements| elements / RANKS).collect()
}

#[test]
fn fsdp2_pins_parameters_and_gradients_in_powers_of_two_and_moments_not() {
    let host = make::program(&offloaded()).host;
    let pinned: u64 = shards().iter().map(|elements| 2 * (4 * elements).next_power_of_two()).sum();
    let moments: u64 = shards().iter().map(|elements| 2 * 4 * elements).sum();
    assert_eq!(host.pinned.0, pinned);
    assert_eq!(host.all.0, pinned + moments);
    assert_eq!(host.held.0, 2 * moments);
    assert_eq!(make::program(TINY).host.all.0, 0);
}

#[test]
fn checkpoints_on_the_host_are_pinned_one_for_each_layer_whatever_the_accumulation() {
    for stream in ["default_stream", "own_stream"] {
        for accumulation in [1, 4] {
            let tables = format!("[activation_checkpointing]\npolicy = \"full\"\noffload = {stream:?}\n");
            let text = make::with(&format!("{TINY}\n{tables}"), "batch", "accumulation", accumulation);
            let host = make::program(&text).host;
            let input = 128 * WIDTH * 2;
            assert_eq!(host.held.0, LAYERS * input, "{stream}");
            assert_eq!(host.all.0, LAYERS * input.next_power_of_two());
        }
    }
}

#[test]
fn a_node_of_ten_megabytes_is_refused_and_one_that_states_nothing_gets_no_verdict() {
    let verdict = |has| make::fly(&on(&offloaded(), has)).memory.verdict();
    assert_eq!(verdict(Some("2 TB")), Verdict::Yes);
    assert_eq!(verdict(Some("20 GB")), Verdict::Perhaps);
    assert_eq!(verdict(Some("1 MB")), Verdict::No);
    assert_eq!(verdict(None), Verdict::Unknown);
    // Without offloading nobody asks.
    assert_eq!(make::fly(&on(TINY, None)).memory.verdict(), Verdict::Yes);
}

#[test]
fn the_405b_does_not_fit_in_the_host_memory_of_one_node() {
    let text = offloaded().replace("huggingface = \"config.json\"", "name = \"llama-3.1-405b\"");
    let text = format!("{text}\n[activation_checkpointing]\npolicy = \"full\"\n");
    let memory = make::fly(&text).memory;
    let host = memory.host.unwrap();
    // 16 bytes a parameter at least.
    assert!(host.wanted().0 > 16 * 405_000_000_000 && host.capacity.unwrap().0 == 2_000_000_000_000);
    assert!(memory.refused() && !memory.fits() && host.shortfall().0 > 4_400_000_000_000);
}

#[test]
fn reports_say_what_the_host_holds_and_why_there_is_no_verdict() {
    let said = |has| {
        let scenario = make::parse(&on(&offloaded(), has));
        let answer = windtunnel::scenario::predict(&scenario, Default::default()).unwrap();
        (
            report::text::report(&scenario, &answer, report::text::Detail { width: 400, ..Default::default() }),
            report::json::report(&scenario, &answer),
        )
    };
    let (text, json) = said(None);
    assert!(text.contains("Whether it fits is unknown.") && text.contains("the topology states none"), "{text}");
    assert!(text.contains("host memory   ") && !text.contains("Fits"), "{text}");
    assert_eq!((&json["memory"]["fits"], &json["memory"]["verdict"]), (&false.into(), &"unknown".into()));
    let (text, json) = said(Some("1 MB"));
    assert!(text.contains("too much for the host's memory. A node's ranks want"), "{text}");
    assert_eq!(json["memory"]["host_capacity_bytes"], 1_000_000);
    assert!(json["memory"]["host_bytes_per_node"].as_u64() > Some(1_000_000));
}

#[test]
fn no_sequence_fits_where_the_host_has_too_little() {
    let found = |has| {
        let draft = make::parse(&on(&offloaded(), has)).draft;
        let options = Options { max: Some(1024), ..Options::default() };
        ceiling(&draft, options, &|| {}).unwrap().longest.is_some()
    };
    assert!(!found(Some("1 MB")));
    assert!(found(Some("2 TB")));
}

#[test]
fn a_compiled_step_keeps_on_the_host_what_it_sends_there() {
    let shipped = include_str!("../scenarios/llama3.1-8b-maxtext-8xv6e.toml");
    let scenario = make::parse(shipped);
    let flight = scenario.job.compile();
    let host = flight.classes[0].host;
    assert!(host.all.0 > 0 && host.all == host.held);
    // The same machine cut to four chips has half the memory.
    let has = |slice: &str| {
        let size = windtunnel::hardware::Size::Slice(slice.to_owned());
        windtunnel::hardware::Topology::load("tpu-v6e", &size).unwrap().node.host_memory.unwrap().0
    };
    assert_eq!((has("2x4"), has("2x2")), (1_440_000_000_000, 720_000_000_000));
}

#[test]
fn machines_that_state_their_host_s_memory_give_offload_a_verdict() {
    use windtunnel::hardware::{Size, Topology, registry};
    let silent: Vec<&str> = registry()
        .into_iter()
        .map(|listed| listed.name)
        .filter(|name| Topology::load(name, &Size::Smallest).unwrap().node.host_memory.is_none())
        .collect();
    // Nobody has published what these two have.
    assert_eq!(silent, ["h100-hbm2e-96gb-500w", "tpu-v4"]);
}

#[test]
fn an_unknown_verdict_is_no_success_where_a_plan_must_fit() {
    let folder = crate::command::Folder::new("an_unknown_verdict_is_no_success_where_a_plan_must_fit");
    let silent = offloaded().replace("name = \"h100-sxm-80gb\"", "name = \"h100-hbm2e-96gb-500w\"");
    folder.write("scenario.toml", &silent);
    let output = folder.windtunnel(&["run", "scenario.toml", "--fail-if-oom"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("whether the plan fits is unknown: h100-hbm2e-96gb-500w states no node.host_memory"),
        "{said}"
    );
    assert_eq!(folder.windtunnel(&["run", "scenario.toml"]).status.code(), Some(0));
}
