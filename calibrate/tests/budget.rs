//! Tables of times take ten times their bytes and 64 MiB at most to be read, whoever wrote them.

use std::process::Command;

use crate::peak;

/// A seed with its last row again and again.
fn long(seed: &str, size: usize) -> Vec<u8> {
    let path = format!("{}/../tests/fuzz/seeds/{seed}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let row = text.lines().rfind(|line| !line.is_empty() && !line.starts_with('#')).unwrap().to_owned() + "\n";
    let (begin, end) = text.rsplit_once(&row).unwrap();
    [begin, &row.repeat(size / row.len()), end].concat().into_bytes()
}

#[test]
fn no_table_of_times_takes_more_than_ten_times_its_bytes() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("no_table_of_times_takes_more");
    std::fs::create_dir_all(&folder).unwrap();
    let files = [
        ("nccl-tests", "nccl_tests/all_reduce.log"),
        ("csv", "points_csv/memory_bandwidth.csv"),
        ("csv", "points_csv/collectives_nccltests_logs.csv"),
        ("csv", "points_csv/attention_published_points.csv"),
    ];
    let mut over = vec![];
    for (kind, seed, size) in
        [1 << 20, 8 << 20].into_iter().flat_map(|size| files.map(|(kind, seed)| (kind, seed, size)))
    {
        let name = seed.split_once('/').unwrap().1;
        let command = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_windtunnel-calibrate"));
            let _ = std::fs::remove_file(folder.join("points.jsonl"));
            command.current_dir(&folder).args(["import", kind, name, "--out", "points.jsonl"]);
            command
        };
        over.extend(peak::over(command, &folder.join(name), &long(seed, size)));
    }
    assert!(over.is_empty(), "{}", over.join("\n"));
}
