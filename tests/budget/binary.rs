//! Traces that are no text, as dense as their readers take them: XLA's `xplane.pb` and exports of Nsight Systems.

use std::path::Path;

/// The name of what writes so many bytes, and it.
pub type Writer = (&'static str, fn(usize) -> Vec<u8>);

/// A plane of a TPU, by what its events are.
pub const PLANES: [Writer; 5] = [
    ("ops.xplane.pb", |size| plane("fusion.1", "x", &[("XLA Ops", events(size, |_| vec![]))])),
    ("collectives.xplane.pb", |size| plane("all-reduce.1", "x", &[("XLA Ops", events(size, |_| vec![]))])),
    ("programs.xplane.pb", |size| plane("fusion.1", "hlo_module", &[("XLA Ops", events(size, program))])),
    ("steps.xplane.pb", |size| {
        let half = events(size / 2, |_| vec![]);
        plane("fusion.1", "x", &[("XLA Ops", half.clone()), ("Steps", half)])
    }),
    ("kinds.xplane.pb", |size| [bytes(1, &kinds(size)), plane("fusion.1", "x", &[])].concat()),
];

/// The least bytes of an event of which so many are taken: those of a TPU have two values of their own, and more.
const EVENT: usize = 30;

/// What a profile of JAX holds besides kernels: a program's text of some megabytes as a value of a kind of event, in a plane of its
/// own, and calls of Python functions, which are short and many.
pub fn of_jax() -> Vec<u8> {
    let program = bytes(5, &[number(1, 1), bytes(6, &vec![7; 5 << 20])].concat());
    let kind = bytes(4, &[number(1, 1), bytes(2, &[bytes(2, b"jit_step"), program].concat())].concat());
    let metadata = bytes(1, &[bytes(2, b"/host:metadata"), kind].concat());
    let calls = (0..600_000).flat_map(|at| bytes(4, &[number(1, 1), number(2, 1_000 * at), number(3, 900)].concat()));
    let named = [number(1, 1), bytes(2, &bytes(2, b"$train.py:12 step"))].concat();
    let python = bytes(3, &[bytes(2, b"python"), calls.collect()].concat());
    let host = bytes(1, &[bytes(2, b"/host:CPU"), bytes(4, &named), python].concat());
    [host, metadata, plane("fusion.1", "x", &[("XLA Ops", events(1 << 10, |_| vec![]))])].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = vec![];
    while number >= 128 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A field of a message that is a number.
fn number(field: u64, number: u64) -> Vec<u8> {
    [varint(field << 3), varint(number)].concat()
}

/// A field of a message that is text or a message.
fn bytes(field: u64, bytes: &[u8]) -> Vec<u8> {
    [&varint(field << 3 | 2), &varint(bytes.len() as u64), bytes].concat()
}

/// A plane with one kind of event, one kind of value, and these lines.
fn plane(kind: &str, value: &str, lines: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let named = |name: &str| [number(1, 1), bytes(2, &bytes(2, name.as_bytes()))].concat();
    let mut plane = [bytes(2, b"/device:TPU:0"), bytes(4, &named(kind)), bytes(5, &named(value))].concat();
    for (name, events) in lines {
        plane.extend(bytes(3, &[bytes(2, name.as_bytes()), events.clone()].concat()));
    }
    bytes(1, &plane)
}

/// Events of a line, one after the other, with what each says besides.
fn events(size: usize, said: fn(usize) -> Vec<u8>) -> Vec<u8> {
    let mut events = vec![];
    for at in 0.. {
        if events.len() >= size {
            break;
        }
        let mut event = [number(1, 1), number(2, 2_000_000 * at as u64), number(3, 1_000_000), said(at)].concat();
        while event.len() + 2 < EVENT {
            event.extend(number(9, 1));
        }
        events.extend(bytes(4, &event));
    }
    events
}

/// The program of an event, each its own.
fn program(at: usize) -> Vec<u8> {
    bytes(4, &[number(1, 1), bytes(5, format!("{at:x}").as_bytes())].concat())
}

/// A plane of kinds of events that are nothing but a number.
fn kinds(size: usize) -> Vec<u8> {
    let kinds = (0..size as u64 / 8).flat_map(|at| bytes(4, &number(1, at)));
    [bytes(2, b"/device:TPU:0"), kinds.collect()].concat()
}

/// An export of Nsight Systems: kernels with their launches, or kernels and ranges that are steps.
pub const EXPORTS: [Writer; 2] = [
    ("kernels.sqlite", |size| {
        export(size, "insert into CUPTI_ACTIVITY_KIND_RUNTIME select 2 * n, 2 * n + 1, 0, n, 0 from numbers")
    }),
    ("steps.sqlite", |size| {
        export(size, "insert into NVTX_EVENTS select 2 * n, 2 * n + 1, 59, 'step ' || n, null, 0 from numbers")
    }),
];

fn export(size: usize, others: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dense-{}.sqlite", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let numbers = format!(
        "with recursive numbers(n) as (values (1) union all select n + 1 from numbers where n < {})",
        size / 2 / 24
    );
    let sql = format!(
        "create table CUPTI_ACTIVITY_KIND_KERNEL
             (start integer, end integer, deviceId integer, streamId integer, correlationId integer);
         create table CUPTI_ACTIVITY_KIND_RUNTIME
             (start integer, end integer, globalTid integer, correlationId integer, nameId integer);
         create table NVTX_EVENTS
             (start integer, end integer, eventType integer, text text, textId integer, globalTid integer);
         create temp table numbers as {numbers} select n from numbers;
         insert into CUPTI_ACTIVITY_KIND_KERNEL select 2 * n, 2 * n + 1, 0, 7, n from numbers;
         {others};"
    );
    rusqlite::Connection::open(&path).unwrap().execute_batch(&sql).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}
