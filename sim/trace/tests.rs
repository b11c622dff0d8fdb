//! Small traces of every format and era, whole and damaged, and the public ones where they are at hand.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

fn small(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces/small").join(name)
}

fn read_small(name: &str) -> Trace {
    let path = small(name);
    super::read(&path, &|_, _| ControlFlow::Continue(())).unwrap_or_else(|error| panic!("{error}"))
}

/// What one file must say.
struct Expected {
    file: &'static str,
    format: Format,
    compute: usize,
    collectives: usize,
    others: usize,
    launched: usize,
    with_operator: usize,
    /// Windows of steps: device, length in nanoseconds, whether the next step ends them.
    windows: &'static [(u32, u64, bool)],
}

const ALL: [Expected; 9] = [
    Expected {
        file: "kineto-2021.json",
        format: Format::Kineto,
        compute: 2,
        collectives: 0,
        others: 2,
        launched: 4,
        with_operator: 2,
        windows: &[(0, 1_000_000, true), (0, 400_000, false)],
    },
    Expected {
        file: "kineto-2023.json",
        format: Format::Kineto,
        compute: 2,
        collectives: 2,
        others: 0,
        launched: 4,
        with_operator: 4,
        windows: &[(0, 1_000_000, true), (0, 400_000, false)],
    },
    Expected {
        file: "kineto-events-alone.json",
        format: Format::Kineto,
        compute: 2,
        collectives: 2,
        others: 0,
        launched: 4,
        with_operator: 4,
        windows: &[(0, 1_000_000, true), (0, 400_000, false)],
    },
    Expected {
        file: "kineto-2025.json",
        format: Format::Kineto,
        compute: 10,
        collectives: 3,
        others: 0,
        launched: 12,
        with_operator: 12,
        windows: &[(0, 1_000_000, true), (0, 1_000_000, true), (0, 700_000, false)],
    },
    Expected {
        file: "kineto-2025-packed.json.gz",
        format: Format::Kineto,
        compute: 10,
        collectives: 3,
        others: 0,
        launched: 12,
        with_operator: 12,
        windows: &[(0, 1_000_000, true), (0, 1_000_000, true), (0, 700_000, false)],
    },
    Expected {
        file: "nsight.sqlite",
        format: Format::Nsight,
        compute: 4,
        collectives: 4,
        others: 4,
        launched: 12,
        with_operator: 4,
        windows: &[(0, 1000, true), (1, 1000, true), (0, 450, false), (1, 450, false)],
    },
    Expected {
        file: "gpu.xplane.pb",
        format: Format::Xplane,
        compute: 2,
        collectives: 2,
        others: 0,
        launched: 4,
        with_operator: 0,
        windows: &[(0, 1000, true), (0, 400, false)],
    },
    Expected {
        file: "tpu.xplane.pb",
        format: Format::Xplane,
        compute: 12,
        collectives: 6,
        others: 6,
        launched: 0,
        with_operator: 0,
        windows: &[
            (0, 1000, true),
            (1, 1000, true),
            (0, 1000, true),
            (1, 1000, true),
            (0, 900, false),
            (1, 900, false),
        ],
    },
    Expected {
        file: "viewer.trace.json.gz",
        format: Format::XlaViewer,
        compute: 2,
        collectives: 0,
        others: 0,
        launched: 2,
        with_operator: 0,
        windows: &[(0, 1000, true), (0, 300, false)],
    },
];

#[test]
fn every_small_trace_says_what_was_put_into_it() {
    for expected in ALL {
        let trace = read_small(expected.file);
        let file = expected.file;
        let count = |kinds: &[Kind]| trace.kernels.iter().filter(|kernel| kinds.contains(&kernel.kind)).count();
        assert_eq!(trace.format, expected.format, "{file}");
        let counts = (count(&[Kind::Compute]), count(&[Kind::Collective]), count(&[Kind::Copy, Kind::Set]));
        assert_eq!(counts, (expected.compute, expected.collectives, expected.others), "{file}");
        let launched = trace.kernels.iter().filter(|kernel| kernel.launch.is_some()).count();
        let with_operator = trace.kernels.iter().filter(|kernel| kernel.op.is_some()).count();
        assert_eq!((launched, with_operator), (expected.launched, expected.with_operator), "{file}");
        let windows: Vec<(u32, u64, bool)> = trace
            .steps
            .iter()
            .flat_map(|step| &step.windows)
            .map(|window| (window.device, window.end - window.start, window.is_whole))
            .collect();
        assert_eq!(windows, expected.windows, "{file}");
        adds_up(&trace, file);
    }
}

/// Parts of every window add up to it, lists are in order, and ids point at something.
fn adds_up(trace: &Trace, file: &str) {
    let timeline = Timeline::new(trace);
    for window in trace.steps.iter().flat_map(|step| &step.windows) {
        let (spent, gaps) = timeline.spent(window.device, window.start, window.end);
        assert_eq!(spent.total(), window.end - window.start, "{file}");
        assert_eq!(gaps.iter().map(|gap| gap.end - gap.start).sum::<u64>(), spent.idle(), "{file}");
    }
    assert!(trace.kernels.is_sorted_by_key(|kernel| kernel.start), "{file}");
    assert!(trace.ops.is_sorted_by_key(|op| (op.thread, op.start)), "{file}");
    assert!(trace.calls.is_sorted_by_key(|call| (call.thread, call.start)), "{file}");
    for (at, op) in trace.ops.iter().enumerate() {
        assert!(
            op.parent.is_none_or(|parent| parent.at() < at && trace.ops[parent.at()].thread == op.thread),
            "{file}"
        );
        assert!(op.signature.is_none_or(|id| id.at() < trace.signatures.len()), "{file}");
        assert!(op.forward.is_none_or(|id| trace.ops[id.at()].start <= op.start), "{file}");
    }
    let classes = Classes::new(trace);
    for kernel in &trace.kernels {
        assert!(!trace.name(kernel.name).is_empty() && kernel.end() <= trace.duration, "{file}");
        assert!(
            kernel.launch.is_none_or(|id| trace.calls[id.at()].kind != CallKind::Wait || kernel.duration > 0),
            "{file}"
        );
        let _ = classes.of(kernel);
    }
}

#[test]
fn a_backward_kernel_knows_its_module_and_a_collective_its_size() {
    let trace = read_small("kineto-2025.json");
    assert_eq!((trace.rank, trace.world), (Some(3), Some(8)));
    assert_eq!(trace.epoch, Some(1_759_300_074_000_000_000 + 6_322_354_291_990_500));
    assert_eq!(trace.machine.devices[0].name.as_deref(), Some("NVIDIA H100 80GB HBM3"));
    assert!(trace.machine.versions.contains(&("CUDA runtime".to_owned(), "12.6".to_owned())));
    assert!(trace.machine.versions.contains(&("NCCL".to_owned(), "2.28.9".to_owned())));
    assert_eq!(trace.groups[0].ranks, (0..8).collect::<Vec<_>>());
    assert!(trace.notes.iter().any(|note| note.contains("my_job")), "{:?}", trace.notes);
    assert!(trace.threads.iter().any(|thread| thread.name.as_deref() == Some("pt_autograd_0")));
    let of = |name: &str| {
        trace.kernels.iter().find(|kernel| trace.name(kernel.name).starts_with(name)).expect("the kernel is there")
    };
    let op = |kernel: &Kernel| &trace.ops[kernel.op.expect("it has an operator").at()];
    let (forward, backward) = (op(of("nvjet_tst_256")), op(of("nvjet_tst_128")));
    assert_eq!(trace.name(forward.module.expect("it has a module")), "Model_0/Linear_3");
    assert_eq!(backward.module, forward.module);
    assert_ne!(backward.thread, forward.thread);
    let node = &trace.ops[backward.parent.expect("the node of the graph").at()];
    assert_eq!(trace.ops[node.forward.expect("its forward").at()].start, forward.start);
    let signature = &trace.signatures[forward.signature.expect("it has shapes").at()];
    assert_eq!(signature.args[1].tensors, [Tensor { dims: vec![64, 32], strides: vec![1, 64] }]);
    assert_eq!(trace.name(signature.args[0].kind.expect("it has a type")), "c10::BFloat16");
    let gather = of("ncclDevKernel_AllGather");
    let collective = &trace.collectives[gather.collective.expect("it is described").at()];
    assert_eq!(
        (collective.kind, collective.bytes_in, collective.bytes_out),
        (CollectiveKind::AllGather, Some(2048), Some(16384))
    );
    assert_eq!((gather.start, gather.duration, gather.grid), (260_000, 150_000, [24, 1, 1]));
    let classes = Classes::new(&trace);
    assert_eq!(classes.of(of("void at::native")), Class::Optimizer);
    assert_eq!(classes.of(of("nvjet_tst_128")), Class::Matmul);
    assert_eq!(classes.of(gather), Class::Collective(CollectiveKind::AllGather));
}

#[test]
fn sizes_of_old_collectives_come_from_the_operators_around_them() {
    let trace = read_small("kineto-2023.json");
    let collective = &trace.collectives[0];
    assert_eq!((collective.kind, collective.group_size), (CollectiveKind::AllReduce, Some(8)));
    assert_eq!((collective.bytes_in, collective.bytes_out), (Some(8192), Some(8192)));
    assert_eq!(trace.epoch, Some(1_706_850_122_846_000_000));
}

#[test]
fn an_instruction_of_a_tpu_has_shapes_and_loops_are_not_counted() {
    let trace = read_small("tpu.xplane.pb");
    assert!(trace.kernels.iter().all(|kernel| trace.name(kernel.name) != "while.1"));
    let of = |name: &str| trace.kernels.iter().find(|kernel| trace.name(kernel.name) == name).expect("it is there");
    let dot = &trace.instructions[of("dot.3").instruction.expect("it is an instruction").at()];
    assert_eq!((dot.flops, dot.bytes), (Some(65536), Some(7168)));
    assert_eq!(trace.signatures[dot.results.expect("it has results").at()].args[0].tensors[0].dims, [16, 32]);
    let gather = &trace.collectives[of("all-gather.1").collective.expect("it is described").at()];
    assert_eq!((gather.bytes_in, gather.bytes_out, gather.group_size), (Some(1024), Some(4096), Some(4)));
    assert_eq!(Classes::new(&trace).of(of("dot.3")), Class::Matmul);
}

#[test]
fn processes_of_one_file_are_not_mixed() {
    let trace = read_small("nsight.sqlite");
    for kernel in &trace.kernels {
        let call = &trace.calls[kernel.launch.expect("all have one").at()];
        assert_eq!(trace.threads[call.thread.at()].process, kernel.device);
    }
    assert_eq!(trace.machine.devices.len(), 2);
    let op = &trace.ops[trace.kernels[0].op.expect("it has an operator").at()];
    assert_eq!(trace.signatures[op.signature.expect("it has shapes").at()].args[1].tensors[0].dims, [64, 32]);
}

/// Reads a file with this content; a panic is a failure of the test.
fn read_bytes(bytes: &[u8]) -> Result<Trace, Error> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    std::fs::write(file.path(), bytes).expect("a temporary file can be written");
    super::read(file.path(), &|_, _| ControlFlow::Continue(()))
}

#[test]
fn a_cut_file_is_an_error_that_says_where() {
    for expected in ALL {
        let whole = std::fs::read(small(expected.file)).expect("it is there");
        for cut in (0..whole.len()).step_by(whole.len() / 40) {
            let read = read_bytes(&whole[..cut]);
            // SQLite reads pages, and may find all that it needs; a protocol buffer may end after any field of its outermost message.
            let may_be_whole = matches!(expected.format, Format::Nsight | Format::Xplane);
            let Err(error) = read else {
                assert!(may_be_whole, "{}: {cut} of {} bytes", expected.file, whole.len());
                continue;
            };
            let text = error.to_string();
            let says =
                ["byte ", "gzip", "empty", "holds no", "no trace", "the file", "table", ", row", "StringIds", "CUPTI"];
            assert!(says.iter().any(|word| text.contains(word)), "{}, {cut}: {text}", expected.file);
        }
    }
}

#[test]
fn a_broken_escape_is_found_where_it_stands() {
    let text = b"{\"deviceProperties\": [],\n\"traceEvents\": [\n{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"C:\\path\"}]}";
    let error = read_bytes(text).expect_err("it is broken").to_string();
    let place = text.iter().position(|&byte| byte == b'\\').expect("it is there") + 1;
    assert!(error.contains(&format!("byte {place} (line 3)")), "{error}");
    assert!(error.contains("invalid escape"), "{error}");
}

#[test]
fn a_wrong_field_is_named_with_its_event() {
    let text =
        br#"{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1}]}"#;
    let error = read_bytes(text).expect_err("it is broken").to_string();
    assert!(error.contains("ts of \"k\": expected a number of microseconds, found \"soon\""), "{error}");
    let text = br#"{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "args": {"grid": [1]}}]}"#;
    let error = read_bytes(text).expect_err("it is broken").to_string();
    assert!(error.contains("args of \"k\""), "{error}");
}

/// Nsight Systems' are refused in the same way (`nsight/table.rs`).
#[test]
fn a_time_that_no_clock_shows_is_refused_and_minus_one_is_what_had_not_ended() {
    let trace = |dur: &str| {
        let text = format!(
            r#"[{{"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": {dur}, "args": {{"device": 0, "stream": 7}}}}]"#
        );
        read_bytes(text.as_bytes())
    };
    for dur in ["-2", "-0.5", "-1e300", "1e300"] {
        let error = trace(dur).expect_err(dur).to_string();
        assert!(error.contains(&format!("dur of \"k\": expected a number of microseconds, found {dur}")), "{error}");
    }
    for dur in ["NaN", "inf", "-inf"] {
        let error = trace(dur).expect_err(dur).to_string();
        assert!(error.contains("dur of \"k\": expected a number of microseconds"), "{error}");
    }
    assert_eq!(trace("-1").expect("some versions write it").kernels[0].duration, 0);
}

/// A field of a protocol buffer that holds bytes.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("it is short");
    [&[tag << 3 | 2, length], bytes].concat()
}

/// One instruction of a TPU that takes so long, as `xplane.proto` has it.
fn one_instruction(duration_ps: i64) -> Vec<u8> {
    let mut varint = vec![];
    prost::encoding::encode_varint(duration_ps.cast_unsigned(), &mut varint);
    let event = [&[1 << 3, 1, 3 << 3], &varint[..]].concat();
    let line = [field(2, b"XLA Ops"), field(4, &event)].concat();
    let kind = [&[1 << 3, 1], &field(2, &field(2, b"dot.1"))[..]].concat();
    field(1, &[field(2, b"/device:TPU:0"), field(3, &line), field(4, &kind)].concat())
}

#[test]
fn an_instruction_that_ends_before_it_begins_is_refused() {
    assert_eq!(read_bytes(&one_instruction(1_000)).expect("it is a trace").kernels.len(), 1);
    let error = read_bytes(&one_instruction(-1_000)).expect_err("it cannot be").to_string();
    assert!(error.contains("it takes -1000 ps: expected zero or more"), "{error}");
}

#[test]
fn keys_come_in_any_order_and_numbers_may_be_infinite() {
    let text =
        br#"[{"args": {"bytes": 4, "memory bandwidth (GB/s)": inf, "stream": 7, "device": 1}, "dur": 0, "ts": 5.5,
        "tid": "stream 7", "pid": "1", "name": "Memcpy HtoD", "cat": "gpu_memcpy", "ph": "X"}]"#;
    let trace = read_bytes(text).expect("it can be read");
    let kernel = &trace.kernels[0];
    assert_eq!((kernel.kind, kernel.device, kernel.stream, kernel.bytes), (Kind::Copy, 1, 7, Some(4)));
}

#[test]
fn what_is_no_trace_is_told_what_it_looks_like() {
    for (bytes, word) in [
        (&b""[..], "it is empty"),
        (b"{\"schema\": \"1.0.2-chakra.0.0.4\", \"nodes\": []}", "execution trace"),
        (b"{\"a\": 1}", "JSON without events"),
        (b"PK\x03\x04", "unpack it"),
        (b"\x00\x01", "00 01"),
        (b"[package]\nname = 1", "text that begins with \"[package]"),
        (b"{\"deviceProperties\": [], \"traceEvents\": []}", "holds no kernel"),
    ] {
        let error = read_bytes(bytes).expect_err("it is no trace").to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn reading_stops_when_it_is_told_to() {
    let error = super::read(&small("kineto-2025.json"), &|_, _| ControlFlow::Break(())).expect_err("it was stopped");
    assert!(matches!(error, Error::Interrupted { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn damaged_files_are_read_or_refused(
        file in 0..ALL.len(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = std::fs::read(small(ALL[file].file)).expect("it is there");
        for (place, byte) in damage {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(trace) = read_bytes(&bytes) {
            let timeline = Timeline::new(&trace);
            for window in trace.steps.iter().flat_map(|step| &step.windows) {
                let (spent, _) = timeline.spent(window.device, window.start, window.end);
                prop_assert_eq!(spent.total(), window.end.saturating_sub(window.start));
            }
        }
    }
}

/// Reads every trace in the folder of WINDTUNNEL_TRACES, and prints what was found. The files are listed in tests/traces/index.tsv.
#[test]
#[ignore = "needs the public traces: WINDTUNNEL_TRACES=FOLDER cargo test --lib trace::tests::public -- --ignored --nocapture"]
fn public_traces_add_up() {
    let folder = std::env::var_os("WINDTUNNEL_TRACES").expect("WINDTUNNEL_TRACES is the folder of the public traces");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder can be read")
        .flatten()
        .filter_map(|entry| std::fs::read_dir(entry.path()).ok())
        .flat_map(|folder| folder.flatten().map(|entry| entry.path()))
        .filter(|path| !path.to_string_lossy().ends_with(".txt"))
        .collect();
    files.sort();
    let (mut read, mut lines) = (0, vec![]);
    for path in files {
        let file = path.display().to_string();
        match super::read(&path, &|_, _| ControlFlow::Continue(())) {
            Ok(trace) => {
                adds_up(&trace, &file);
                read += 1;
                let kernels = || trace.kernels.iter().filter(|kernel| kernel.kind <= Kind::Collective);
                let of_op = kernels().filter(|kernel| kernel.op.is_some() || kernel.instruction.is_some()).count();
                let launched = kernels().filter(|kernel| kernel.launch.is_some()).count();
                lines.push(format!("{file}\t{}\t{launched}\t{of_op}\t{}", kernels().count(), trace.steps.len()));
            }
            Err(error) => {
                assert!(file.contains("malformed"), "{error}");
                lines.push(error.to_string());
            }
        }
    }
    println!("{}", lines.join("\n"));
    assert!(read >= 40, "{read} traces were read");
}
