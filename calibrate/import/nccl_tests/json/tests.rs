//! One file of each kind that `-J` writes, after `src/util.cu` of nccl-tests, and of each that must be refused.

use crate::import::Imported;
use crate::import::nccl_tests::{Known, one};
use crate::points::{Points, What, parse};

fn import(text: &str) -> Result<(Points, Vec<String>), String> {
    let mut imported = Imported::default();
    one("run.json", text.as_bytes(), &Known::default(), &mut imported).map_err(|why| why.to_string())?;
    Ok((parse("points", &imported.text).map_err(|why| why.to_string())?, imported.remarks))
}

/// A whole run of one process and two GPUs, of which the tool lists the first alone.
fn whole() -> String {
    document(
        r#"{"rank":0,"group":0,"pid":7,"hostname":"node0","device":0,"device_hex":"0000:07:00","device_info":"NVIDIA H100 80GB HBM3"}"#,
        2,
    )
}

fn document(devices: &str, gpus: u64) -> String {
    // Two ranks: the bus bandwidth of an all-reduce is its algorithm's.
    let body = |us: f64| {
        let bandwidth = 1_048_576.0 / us / 1e3;
        format!(r#"{{"time":{us:.6},"alg_bw":{bandwidth:.6},"bus_bw":{bandwidth:.6},"nwrong":0.000000}}"#)
    };
    format!(
        r#"{{"version":3,"start_time":"2026-07-10 10:00:00","args":["./build/all_reduce_perf","-g","2","-J","run.json"],"env":["HOME=/root"],
"nccl_version":22807,"config":{{"nthreads":1,"ngpus":{gpus},"minimum_bytes":1048576,"maximum_bytes":1048576,"step_factor":2,
"warmup_iters":1,"iterations":20,"aggregated_iterations":1,"validation":1,"graph":0,"blocking_collectives":"false",
"per_iter_timing":"false","per_iter_skip":0,"parallel_init":"false","devices":[{devices}]}},
"results":[{{"size":1048576,"count":262144,"type":"float","redop":"sum","root":"    -1","out_of_place":{},"in_place":{},
"actual_iterations":20,"experiment_name":""}}],"out_of_bounds":{{"count":0,"okay":"true"}},
"average_bus_bandwidth":{{"bandwidth":83.1,"okay":"unchecked"}},"errors":[],"end_time":"2026-07-10 10:00:09"}}"#,
        body(12.625_517),
        body(12.5)
    )
}

#[test]
fn a_run_says_its_collective_ranks_times_and_versions() {
    let (points, remarks) = import(&whole()).expect("a run");
    assert!(remarks.is_empty(), "{remarks:?}");
    let machine = &points.machines[0];
    assert_eq!((machine.chip.as_str(), machine.gpus), ("NVIDIA H100 80GB HBM3", 2));
    assert_eq!(machine.versions.get("nccl").map(String::as_str), Some("2.28.7"));
    let kinds: Vec<_> = points.points.iter().map(|(_, point)| (point.what.clone(), point.median)).collect();
    let what = |in_place| What::Collective {
        kind: "all_reduce".to_owned(),
        ranks: 2,
        nodes: 1,
        bytes: 1 << 20,
        in_place,
        dtype: "float".to_owned(),
    };
    assert_eq!(kinds, [(what(false), 12.625_517), (what(true), 12.5)]);
}

#[test]
fn a_device_stands_for_the_ranks_of_its_process() {
    let device = |rank: u64, host: &str| {
        format!(
            r#"{{"rank":{rank},"group":0,"pid":7,"hostname":"{host}","device":0,"device_hex":"07","device_info":"H100"}}"#
        )
    };
    // Two processes with a GPU each, on two hosts.
    let (points, _) = import(&document(&[device(0, "a"), device(1, "b")].join(","), 1)).expect("a run");
    let What::Collective { ranks, nodes, .. } = points.points[0].1.what else { panic!("a collective") };
    assert_eq!((ranks, nodes), (2, 2));
    // Two processes with two GPUs each are four ranks, and these figures are two ranks'.
    let why = import(&document(&[device(0, "a"), device(2, "b")].join(","), 2)).expect_err("four ranks");
    assert!(why.contains("between 4 ranks"), "{why}");
}

#[test]
fn a_size_that_was_not_timed_out_of_place_is_one_point() {
    let text = whole();
    let begin = text.find(r#""out_of_place":"#).expect("a body") + r#""out_of_place":"#.len();
    let end = begin + text[begin..].find('}').expect("its end") + 1;
    let (points, _) = import(&[&text[..begin], "null", &text[end..]].concat()).expect("a run");
    assert_eq!(points.points.len(), 1);
}

#[test]
fn the_first_version_misspelt_an_average_that_nobody_needs() {
    let text = whole()
        .replace(r#""version":3"#, r#""version":1"#)
        .replace("bandwidth\":{\"bandwidth", "bandwidith\":{\"bandwidith");
    assert_eq!(import(&text).expect("a run").0.points.len(), 2);
}

#[test]
fn a_run_that_died_says_what_nccl_said() {
    let text = whole().replace(r#""errors":[]"#, r#""errors":["unhandled system error"]"#);
    let (_, remarks) = import(&text).expect("a run");
    assert_eq!(remarks, ["run.json:1: NCCL said: unhandled system error"]);
    // Closed early: an object without results.
    let early = &text[..text.find(r#","config""#).expect("a configuration")];
    assert!(import(&(early.to_owned() + "}")).expect_err("nothing").contains("measured nothing"));
}

#[test]
fn what_cannot_be_trusted_or_is_not_known_is_refused_with_a_place_and_a_remedy() {
    for (from, to, says) in [
        (r#""nwrong":0.000000"#, r#""nwrong":7.000000"#, "#wrong is 7 for 1048576 bytes"),
        (r#"{"count":0,"okay":"true"}"#, r#"{"count":3,"okay":"false"}"#, "3 checks of the results failed"),
        (r#""time":"#, r#""cpu_time":"#, "run without -C"),
        (r#""blocking_collectives":"false""#, r#""blocking_collectives":"true""#, "run without -z"),
        (r#""version":3"#, r#""version":9"#, "version 9 of nccl-tests' JSON is not known here, 1 to 3 are"),
        (r#""type":"float""#, r#""type":"quad""#, "`quad` is no element type"),
        (r#""size":1048576"#, r#""size":2097152"#, "GB/s"),
        (r#""errors":[]"#, r#""eras":[]"#, "unknown field `eras`"),
        (r#""end_time":"#, "", "not what nccl-tests writes with -J"),
    ] {
        let why = import(&whole().replace(from, to)).expect_err(says);
        assert!(why.starts_with("run.json:") && why.contains(says), "{says}: {why}");
    }
    // A file that breaks off names the line where it does.
    let text = whole();
    let cut = &text[..text.find(r#""out_of_bounds""#).expect("the footer")];
    assert!(import(cut).expect_err("cut").starts_with("run.json:6: not what"), "{}", import(cut).expect_err("cut"));
}

#[test]
fn more_ranks_than_any_machine_has_are_refused_before_they_are_listed() {
    let said = import(&whole().replace(r#""nthreads":1"#, r#""nthreads":4294967296"#)).expect_err("a refusal");
    assert!(said.contains("1 processes of 8589934592 ranks each (nthreads x ngpus) are more than 1048576"), "{said}");
}
