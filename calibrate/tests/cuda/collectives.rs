//! Collectives over devices whose memory is the host's, carried out by a stub of NCCL.

use std::collections::BTreeSet;

use super::{Run, build, stubs};

/// A run with so many devices of 256 KiB each, which collectives of up to 64 KiB fit into.
fn with(name: &str, devices: u32) -> Run {
    let run = Run::without(name, &["driver", "nvml"]);
    let library = run.folder.join("lib");
    build(&library, "driver", "libcuda.so.1", &["--cfg", "host_memory"]);
    build(&library, "nccl", "libnccl.so.2", &[]);
    std::os::unix::fs::symlink(library.join("libcuda.so.1"), library.join("libcuda.so")).unwrap();
    assert!(stubs().is_dir());
    run.fault("STUB_DEVICES", devices).fault("STUB_MEMORY", 1 << 18)
}

const SWEEP: [&str; 5] = ["--sweeps", "collectives", "--burst-only", "--minutes", "10"];

#[test]
fn one_gpu_is_told_that_collectives_need_two() {
    let run = with("alone", 1);
    run.run(&["--list"]).is(0, &["collectives  cannot run: collectives need two GPUs or more, and there is 1 here"]);
    run.run(&SWEEP).is(3, &["collectives need two GPUs or more, and there is 1 here"]);
    // Not asked for by name, they are left out, and said to be.
    let others = run.run(&["--minutes", "0.05", "--burst-only"]);
    others.is(0, &["collectives need two GPUs or more", "new points"]);
}

#[test]
fn every_collective_of_three_gpus_arrives_where_it_should() {
    let run = with("three", 3);
    run.run(&["--list"]).is(0, &["collectives  can run, 96 points planned"]);
    let ended = run.run(&SWEEP);
    ended.is(0, &["96 new points", "all_reduce over 3 GPUs: at best", "GB/s on the bus"]);
    assert!(!ended.text.contains("left out"), "{}", ended.text);
    let points = run.points();
    let of = |field: &str| -> BTreeSet<String> {
        points.iter().map(|point| point["what"]["collective"][field].to_string()).collect()
    };
    let kinds = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter", "send_recv"];
    assert_eq!(of("kind"), kinds.map(|kind| format!("\"{kind}\"")).into());
    assert_eq!(of("ranks"), ["2".to_owned(), "3".to_owned()].into());
    assert_eq!(of("in_place"), ["false".to_owned(), "true".to_owned()].into());
    // Three ranks share 512 bytes in grains of 16.
    assert!(of("bytes").contains("480") && of("bytes").contains("65536"));
    assert!(points.iter().all(|point| point["median"].as_f64() == Some(20.0)), "what the stub's clock says");
}

#[test]
fn a_collective_that_is_wrong_is_not_timed() {
    let run = with("wrong", 2).fault("STUB_WRONG", 1);
    run.run(&SWEEP).is(6, &["NCCL's all_gather is wrong: 1 of", "NCCL's send_recv is wrong: 1 of", "It is not timed"]);
    assert!(run.points().is_empty());
}

#[test]
fn what_nccl_refuses_is_said_in_its_words() {
    let run = with("refused", 2).fault("STUB_REFUSE", 2);
    run.run(&SWEEP).is(0, &["NCCL: all_reduce: unhandled system error: the stub was told to"]);
    assert!(run.points().is_empty());
}
