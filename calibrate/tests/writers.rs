//! The calibrator's half of the table of writers.

#[path = "../../tests/writers.rs"]
mod table;

use table::Bench;

const NCCL: &str = "\
# Command: all_reduce_perf -b 8
# Using devices
#  Rank  0 Group  0 Pid  1 on host1 device  0 [0x07] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  1 on host1 device  1 [0x07] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    50.00   20.97   20.97      0    50.00   20.97   20.97      0
";

const TABLE: &str = "\
op,gpu,nodes,num_gpus,bytes,dtype,time_us,algbw_GBps,busbw_GBps,time_us_inplace,busbw_inplace_GBps,nccl_version,fabric,site,config,source
alltoall,H100 80GB HBM3,1.0,8.0,1024,float,13.67,0.0,0.0,13.03,0.0,2.18.3,NVSwitch,DGX,,a/b@c:d
";

/// A launch measured in both ways, which is enough for a section of a profile.
fn points() -> String {
    let machine = r#"{"machine":{"chip":"NVIDIA H200","processors":132,"capability":"9.0","memory":150754820096,"memory_bandwidth":4.9e12,"power_limit":700.0,"clock":1980.0,"gpus":1,"versions":{"cuda":"13.0"},"date":"2026-01-02T03:04:05Z","tool":"a test","source":"measured"}}"#;
    let point = |call: &str| {
        format!(
            r#"{{"point":{{"what":{{"overhead":{{"call":"{call}"}}}},"regime":"burst","median":2.1,"p10":2.0,"p90":2.2,"repeats":100,"outliers":0}}}}"#
        )
    };
    [machine.to_owned(), point("launch"), point("launch_rate")].map(|line| line + "\n").concat()
}

fn bench() -> Bench {
    let compiled = include_str!("../../scenarios/two-narrow-blocks-4xv6e.toml").to_owned();
    let files = [
        ("points.jsonl", points()),
        ("nccl.log", NCCL.to_owned()),
        ("table.csv", TABLE.to_owned()),
        ("compiled.toml", compiled),
        ("program.mlir", include_str!("xla/matmul.mlir").to_owned()),
        ("plan.jsonl", String::new()),
    ];
    Bench::new("windtunnel-calibrate", env!("CARGO_BIN_EXE_windtunnel-calibrate"), env!("CARGO_TARGET_TMPDIR"), &files)
}

#[test]
fn every_writer_is_in_the_table() {
    bench().every_writer_is_in_the_table();
}

#[test]
fn a_place_that_cannot_be_written_is_refused_first() {
    let bench = bench();
    bench.a_place_that_cannot_be_written_is_refused_first();
    for option in ["--out", "--held-out"] {
        let other = if option == "--out" { "" } else { "--out profiles" };
        let (code, said) =
            bench.run(&format!("import published --from no-such-tables {other} {option} /proc/profiles"));
        assert!(code == Some(2) && said.contains("/proc/profiles") && !said.contains("no-such"), "{said}");
    }
    for command in ["xla --topology v6e:2x2", "cuda"] {
        let (code, said) = bench.run(&format!("{command} --out /proc/points.jsonl"));
        assert!(code == Some(2) && said.contains("cannot write /proc/points.jsonl"), "{said}");
    }
}

#[test]
fn a_full_disk_leaves_the_old_file() {
    bench().a_full_disk_leaves_the_old_file();
}

#[test]
fn a_report_that_nobody_takes_costs_no_file() {
    let bench = bench();
    bench.a_report_that_nobody_takes_costs_no_file();
    for line in ["import nccl-tests nccl.log", "import csv table.csv", "plugins list", "--help"] {
        let (code, said) = bench.run(&format!("{line} > /dev/full"));
        assert!(code == Some(2) && said.contains("cannot write to standard output: No space left"), "{line}: {said}");
    }
}

#[test]
fn an_interrupt_leaves_the_old_file() {
    bench().an_interrupt_leaves_the_old_file();
}

#[test]
fn what_is_read_is_not_written() {
    bench().what_is_read_is_not_written();
}

#[test]
fn inputs_without_end_are_refused() {
    let bench = bench();
    std::os::unix::fs::symlink("/dev/zero", bench.path("endless.csv")).unwrap();
    let mut bomb = flate2::write::GzEncoder::new(
        std::fs::File::create(bench.path("bomb.csv.gz")).unwrap(),
        flate2::Compression::fast(),
    );
    for _ in 0..257 {
        std::io::Write::write_all(&mut bomb, &vec![b'a'; 1 << 20]).unwrap();
    }
    bomb.finish().unwrap();
    for line in [
        "import nccl-tests /dev/zero",
        "import csv endless.csv",
        "import csv bomb.csv.gz",
        "fit /dev/zero --base h200-sxm-141gb --out answer.toml",
        "plan endless.csv",
    ] {
        let (code, said) = bench.run(line);
        assert!(code == Some(2) && said.contains("longer than 256 MiB"), "{line}: {said}");
    }
    for wheel in ["/dev/zero", "."] {
        let (code, said) = bench.run(&format!("plugins fetch cpu --wheel {wheel}"));
        assert!(code == Some(2) && said.contains("is not a plain file"), "{said}");
    }
}
