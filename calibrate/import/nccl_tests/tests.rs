//! One small log of each kind that has been seen, and of each that must be refused.

use super::*;
use crate::points::{Point, Points, What, parse};

fn import(text: &str, known: &Known) -> Result<(Points, Vec<String>), String> {
    let mut imported = Imported::default();
    one("some.log", text.as_bytes(), known, &mut imported).map_err(|why| why.to_string())?;
    let points = parse("points", &imported.text).map_err(|why| why.to_string())?;
    assert_eq!(points.points.len(), imported.points);
    Ok((points, imported.remarks))
}

fn points(text: &str) -> Vec<Point> {
    let (points, _) = import(text, &Known::default()).expect("a log");
    points.points.into_iter().map(|(_, point)| point).collect()
}

/// Kind, ranks, nodes, bytes, in place, and µs of each point.
fn short(text: &str) -> Vec<String> {
    let line = |point: Point| match point.what {
        What::Collective { kind, ranks, nodes, bytes, in_place, dtype } => {
            let place = if in_place { "in" } else { "out" };
            format!("{kind} {ranks}/{nodes} {bytes} {dtype} {place} {}", point.median)
        }
        other => format!("{other:?}"),
    };
    points(text).into_iter().map(line).collect()
}

fn refusal(text: &str) -> String {
    import(text, &Known::default()).expect_err("a refusal")
}

fn ranks(count: u64, per_node: u64) -> String {
    let line = |rank| {
        let host = rank / per_node;
        format!(
            "#  Rank {rank:2} Group  0 Pid {rank:6} on      node{host} device {rank:2} [0x07] NVIDIA H100 80GB HBM3\n"
        )
    };
    (0..count).map(line).collect()
}

const PARAMETERS: &str = "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg \
                          iters: 1 validation: 1 graph: 0\n#\n# Using devices\n";
const HEADING: &str = "#\n\
#                                                              out-of-place                       in-place          \n\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n\
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \n";
const ROW: &str = "  1073741824     268435456     float     sum      -1   4173.5  257.28  450.24      0   4171.4  257.41  450.46      0\n";
const FOOTER: &str = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 450.35 \n#\n";

fn log(row: &str) -> String {
    [PARAMETERS, &ranks(8, 8), HEADING, row, FOOTER].concat()
}

#[test]
fn a_table_tells_its_collective_by_its_own_figures() {
    let both = ["all_reduce 8/1 1073741824 float out 4173.5", "all_reduce 8/1 1073741824 float in 4171.4"];
    assert_eq!(short(&log(ROW)), both);
}

#[test]
fn what_the_log_says_of_the_machine_is_kept_and_the_rest_stays_unknown() {
    let text = ["NCCL version 2.23.4+cuda12.6\n", &log(ROW)].concat();
    let (points, _) = import(&text, &Known::default()).expect("a log");
    let machine = &points.machines[0];
    assert_eq!((machine.chip.as_str(), machine.gpus, machine.processors), ("NVIDIA H100 80GB HBM3", 8, 0));
    assert_eq!(machine.versions.get("nccl").map(String::as_str), Some("2.23.4"));
    assert_eq!(machine.versions.get("cuda").map(String::as_str), Some("12.6"));
    assert_eq!((points.points[0].1.repeats, machine.source.as_str()), (20, "some.log"));
}

#[test]
fn hosts_are_nodes() {
    let row = "  1073741824     268435456     float     sum      -1   4000.0  268.44  503.32      0   4000.0  268.44  503.32      0\n";
    let text = [PARAMETERS, &ranks(16, 8), HEADING, row, FOOTER].concat();
    assert_eq!(short(&text)[0], "all_reduce 16/2 1073741824 float out 4000");
}

#[test]
fn the_first_version_counts_in_milliseconds() {
    let text = "$ ./build/all_reduce_perf -g 2\nnThread 1 nGpus 2 minBytes 4 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 \n\
                # Using devices\n\
                #   Rank  0 on       dgx1 device  0 [0x06] Tesla V100-SXM2-16GB\n\
                #   Rank  1 on       dgx1 device  1 [0x07] Tesla V100-SXM2-16GB\n\n\
                #                                          out-of-place                    in-place\n\
                #      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res\n\
                \x20  33554432       8388608   float     sum    1.000  33.55  33.55    0e+00    2.000  16.78  16.78    0e+00\n\
                \x20Out of bounds values : 0 OK\n Avg bus bandwidth    : 25.2\n";
    let all = short(text);
    assert_eq!(all, ["all_reduce 2/1 33554432 float out 1000", "all_reduce 2/1 33554432 float in 2000"]);
}

#[test]
fn a_broadcast_of_the_first_version_is_not_run_in_place() {
    let text = "# Using devices\n#   Rank  0 on       dgx1 device  0 [0x06] Tesla V100\n#   Rank  1 on       dgx1 device  1 \
                [0x07] Tesla V100\n#      bytes             N    type    root     time  algbw  busbw      res\n\
                \x20  33554432       8388608   float       0    1.000  33.55  33.55    0e+00\n";
    assert_eq!(short(text), ["broadcast 2/1 33554432 float out 1000"]);
}

#[test]
fn an_all_gather_of_2019_printed_its_bus_bandwidth_as_algbw() {
    let text = [
        &ranks(8, 8),
        "#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error\n\
         #        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n\
         + ./build/all_gather_perf -g 8\n\
         \x20  67108864       2097152   float    419.4  140.00  140.00    N/A    419.4  140.00  140.00  0e+00\n",
    ]
    .concat();
    let said = Known { collective: Kind::named("all_gather"), ..Known::default() };
    let (points, _) = import(&text, &said).expect("a log");
    assert_eq!(points.points.len(), 2);
}

#[test]
fn a_mentioned_program_decides_between_collectives_of_the_same_figures() {
    let row = "    67108864       2097152     float    none      -1    419.4  160.01  140.01      0    419.4  160.01  140.01      0\n";
    let unnamed = refusal(&log(row));
    assert!(unnamed.contains("all_gather or all_to_all") && unnamed.contains("--collective"), "{unnamed}");
    let named = ["+ srun -l alltoall_perf -b 8\n", &log(row)].concat();
    assert_eq!(short(&named)[0], "all_to_all 8/1 67108864 float out 419.4");
}

#[test]
fn several_runs_and_collectives_share_a_file() {
    let gather = "    67108864       2097152     float    none      -1    419.4  160.01  140.01      0    419.4  160.01  140.01      0\n";
    let head = |program: &str| {
        format!(
            "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807\n# Collective test starting: {program}\n"
        )
    };
    let text = [head("all_reduce_perf"), log(ROW), head("all_gather_perf"), log(gather)].concat();
    let (points, _) = import(&text, &Known::default()).expect("a log");
    assert_eq!((points.machines.len(), points.points.len()), (1, 4));
    assert_eq!(points.machines[0].versions.get("nccl").map(String::as_str), Some("2.28.7"));
}

#[test]
fn labels_tags_and_quotation_marks_before_lines_are_skipped() {
    for tag in ["0: ", " 0: ", "[1,0]<stdout>:", "> ", "    ", "\u{1b}[32m"] {
        let tagged: String = log(ROW).lines().map(|line| format!("{tag}{line}\n")).collect();
        assert_eq!(short(&tagged).len(), 2, "{tag}");
    }
}

#[test]
fn messages_may_stand_inside_a_row_and_touch_it() {
    let row = "  1073741824     268435456     float     sum      -1node7:31:31 [0] NCCL INFO Launch mode Parallel\n\
               node7:31:31 [0] NCCL INFO 7 coll channels\n\
               \x20  4173.5  257.28  450.24      0node7:31:31 [0] NCCL INFO AllReduce: opCount 7\n\
               \x20  4171.4  257.41  450.46      0\n";
    assert_eq!(short(&log(row)).len(), 2);
}

#[test]
fn a_time_of_day_and_single_calls_may_follow() {
    let row =
        "  1073741824     268435456     float     sum      -1   4173.5  257.28  450.24      0  2026-07-01 12:00:00\n";
    let text = log(row).replace("#wrong     time   algbw   busbw #wrong", "#wrong timestamp");
    assert_eq!(short(&text), ["all_reduce 8/1 1073741824 float out 4173.5"]);
    let row = "  1073741824     268435456     float     sum      -1   4173.5  257.28  450.24      0  4170.0  4190.0  4190.0    0.10   4171.4  257.41  450.46      0  4170.0  4190.0  4190.0    0.10\n";
    let text = log(row)
        .replace("#wrong ", "#wrong  i_min  i_max  i_p99  i_cv% ")
        .replace("#wrong\n", "#wrong i_min i_max i_p99 i_cv%\n");
    assert_eq!(short(&text).len(), 2);
}

#[test]
fn a_file_that_ends_inside_a_row_keeps_what_is_whole() {
    let text = log(&[ROW, ROW].concat());
    let cut = text.rfind("4171.4").expect("the last body");
    let (points, remarks) = import(&text[..cut + 4], &Known::default()).expect("a log");
    assert_eq!(points.points.len(), 3);
    assert!(remarks[0].contains("breaks off"), "{remarks:?}");
}

#[test]
fn a_row_that_is_garbled_is_no_noise() {
    for (from, to, says) in [
        ("  1073741824 ", "  10737x1824 ", "some.log:17: `10737x1824` stands where a size"),
        (" 268435456 ", " 2684e5456 ", "some.log:17: `2684e5456` stands where a size or a count"),
        (" float ", " flo@t ", "some.log:17: the line has the figures of a row"),
        ("  1073741824 ", "             ", "some.log:17: "),
    ] {
        let why = refusal(&log(&[ROW, &ROW.replace(from, to)].concat()));
        assert!(why.starts_with(says) && why.contains("damaged"), "{why}");
    }
    // What NCCL and people write between rows is no row.
    let noise = "node7:31:31 [0] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7\n# before: 10737x 1 float 1.5 2.5 3.5 0\nreal 0m10.32s\n";
    assert_eq!(short(&log(&[ROW, noise, ROW].concat())).len(), 4);
}

#[test]
fn sizes_of_no_bytes_and_runs_that_died_leave_no_points() {
    let row = "           0             0     float     sum      -1     8.50    0.00    0.00      0     8.50    0.00    0.00      0\n";
    let (points, remarks) = import(&log(row), &Known::default()).expect("a log");
    assert!(points.points.is_empty() && remarks[0].contains("without rows"), "{remarks:?}");
}

#[test]
fn wrong_results_refuse_the_log() {
    let wrong = log(&ROW.replace("450.24      0", "450.24   4832"));
    let why = refusal(&wrong);
    assert!(why.starts_with("some.log:16: #wrong is 4832 for 1073741824 bytes"), "{why}");
    let why = refusal(&log(ROW).replace(": 0 OK", ": 3 FAILED"));
    assert!(why.starts_with("some.log:17: 3 checks of the results failed"), "{why}");
}

#[test]
fn figures_that_contradict_each_other_are_refused() {
    let typed = refusal(&log(&ROW.replace("4173.5", "   4.2")));
    assert!(typed.contains("some.log:16"), "{typed}");
    let seven = [PARAMETERS, &ranks(7, 7), HEADING, ROW, FOOTER].concat();
    assert!(refusal(&seven).contains("between 7 ranks"), "{}", refusal(&seven));
}

#[test]
fn what_is_no_log_or_not_this_ones_time_is_refused_with_a_remedy() {
    for (text, says) in [
        ("[{\"config\": {}}]".to_owned(), "expected its printed output"),
        ("{\"config\": {}}".to_owned(), "not what nccl-tests writes with -J"),
        (log(ROW).replace("time ", "cputime "), "run without -C"),
        (log(ROW).replace("(us)", "(ms)"), "expected (us)"),
        (log(ROW).replace("redop ", "redux "), "`redux`"),
        (log(ROW).replace("# Using", "# Blocking Enabled: wait\n# Using"), "run without -z"),
        (log(ROW).replace("busbw #wrong", "busbw copybw #wrong"), "shared links"),
        (ROW.to_owned(), "a row without a heading"),
        ([HEADING, ROW].concat(), "--nodes N"),
        (log(&ROW.replace("4171.4", "4171.4  9.0")), "one too many"),
        (log(ROW).replace("Rank  7 Group  0", "Rank  7 Group  1"), "NCCL_TESTS_SPLIT"),
        (log(ROW).replace("Rank  7", "Rank  6"), "listed twice"),
    ] {
        let why = refusal(&text);
        assert!(why.starts_with("some.log:") && why.contains(says), "{says}: {why}");
    }
}

#[test]
fn quotes_of_a_word_processor_around_a_program_are_no_part_of_its_name() {
    for text in ["“all_reduce_perf” -b 8", "…all_reduce_perf", "ééall_reduce_perf", "“é”_perf"] {
        let expected = text.contains("all_reduce").then_some(Kind::AllReduce);
        assert_eq!(Kind::program(text), expected, "{text}");
    }
}

#[test]
fn threads_and_gpus_beyond_all_numbers_are_no_panic() {
    let threads = PARAMETERS.replace("nThread 1 nGpus 1", "nThread 16233402244732900690 nGpus 2");
    let text = [&threads, &ranks(8, 8), HEADING, ROW, FOOTER].concat();
    assert_eq!(short(&text).len(), 2);
}
