//! What other programs write is read without a panic, whole or damaged: every seed of the fuzz targets, and damage to each.

#[path = "../../tests/mutations.rs"]
mod mutations;

use std::path::Path;

use windtunnel_calibrate::readers;

fn read(target: &str, damaged: usize, reader: fn(&[u8]) -> bool) -> (usize, usize) {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/seeds").join(target);
    let mut read = 0;
    let all = mutations::each(&seeds, damaged, |bytes| read += usize::from(reader(bytes)));
    (read, all)
}

#[test]
fn logs_of_nccl_tests_are_read_or_refused() {
    let (read, all) = read("nccl_tests", 2_000, readers::nccl_tests);
    assert!(read >= 3 && read < all, "{read} of {all}");
}

#[test]
fn tables_of_times_are_read_or_refused() {
    let (read, all) = read("points_csv", 2_000, readers::points);
    assert!(read >= 1 && read < all, "{read} of {all}");
}

#[test]
fn compiled_programs_are_read_or_refused() {
    let (read, all) = read("compiled_program", 5_000, readers::program);
    assert!(read >= 1 && read < all, "{read} of {all}");
}
