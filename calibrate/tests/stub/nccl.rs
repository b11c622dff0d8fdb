//! NCCL on the host's memory: collectives of one process' ranks, carried out when their group ends, once
//! after the host has filled their buffers.
//! `STUB_WRONG` spoils an element of what rank 1 receives; `STUB_REFUSE` is what collectives return. Numbers are NCCL's
//! (`nccl.h`).

#![allow(non_snake_case)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{c_char, c_void};

/// A rank of so many.
struct Rank {
    rank: usize,
    of: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    AllGather,
    AllReduce,
    ReduceScatter,
    Send,
    Receive,
}

struct Call {
    kind: Kind,
    from: *const u16,
    to: *mut u16,
    count: usize,
    peer: usize,
    rank: *const Rank,
}

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(vec![]) };
    static DONE: RefCell<(u64, BTreeSet<usize>)> = const { RefCell::new((0, BTreeSet::new())) };
}

unsafe extern "C" {
    fn stub_work(microseconds: u64);
    fn stub_uploads() -> u64;
}

fn set(name: &str) -> i32 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn float(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

fn add(kind: Kind, from: *const u16, to: *mut u16, count: usize, peer: i32, dtype: i32, rank: *const Rank) -> i32 {
    // Error 4, a wrong argument: only bf16 is asked for.
    if dtype != 9 {
        return 4;
    }
    CALLS.with_borrow_mut(|calls| calls.push(Call { kind, from, to, count, peer: peer as usize, rank }));
    set("STUB_REFUSE")
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetVersion(version: *mut i32) -> i32 {
    unsafe { version.write(22_907) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitAll(ranks: *mut *mut Rank, of: i32, devices: *const i32) -> i32 {
    let of = of as usize;
    let distinct: BTreeSet<i32> = (0..of).map(|at| unsafe { *devices.add(at) }).collect();
    if distinct.len() != of {
        return 5;
    }
    (0..of).for_each(|rank| unsafe { ranks.add(rank).write(Box::into_raw(Box::new(Rank { rank, of }))) });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(rank: *mut Rank) -> i32 {
    drop(unsafe { Box::from_raw(rank) });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> i32 {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllGather(
    from: *const u16,
    to: *mut u16,
    count: usize,
    dtype: i32,
    rank: *const Rank,
    _: *const c_void,
) -> i32 {
    add(Kind::AllGather, from, to, count, 0, dtype, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    from: *const u16,
    to: *mut u16,
    count: usize,
    dtype: i32,
    _: i32,
    rank: *const Rank,
    _: *const c_void,
) -> i32 {
    add(Kind::AllReduce, from, to, count, 0, dtype, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclReduceScatter(
    from: *const u16,
    to: *mut u16,
    count: usize,
    dtype: i32,
    _: i32,
    rank: *const Rank,
    _: *const c_void,
) -> i32 {
    add(Kind::ReduceScatter, from, to, count, 0, dtype, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(
    from: *const u16,
    count: usize,
    dtype: i32,
    peer: i32,
    rank: *const Rank,
    _: *const c_void,
) -> i32 {
    add(Kind::Send, from, std::ptr::null_mut(), count, peer, dtype, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(
    to: *mut u16,
    count: usize,
    dtype: i32,
    peer: i32,
    rank: *const Rank,
    _: *const c_void,
) -> i32 {
    add(Kind::Receive, std::ptr::null(), to, count, peer, dtype, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(_: i32) -> *const c_char {
    c"unhandled system error".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_: *const Rank) -> *const c_char {
    c"the stub was told to".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> i32 {
    let calls = CALLS.take();
    unsafe { stub_work(20) };
    let Some(first) = calls.first() else { return 0 };
    let uploads = unsafe { stub_uploads() };
    let again = DONE.with_borrow_mut(|(seen, done)| {
        if std::mem::replace(seen, uploads) != uploads {
            done.clear();
        }
        !done.insert(first.from as usize)
    });
    if again {
        return 0;
    }
    let (kind, count, of) = (first.kind, first.count, unsafe { (*first.rank).of });
    let sent = |call: &Call, count: usize| unsafe { std::slice::from_raw_parts(call.from, count) }.to_vec();
    match kind {
        Kind::AllGather => {
            let all: Vec<u16> = calls.iter().flat_map(|call| sent(call, count)).collect();
            calls.iter().for_each(|call| unsafe { call.to.copy_from(all.as_ptr(), all.len()) });
        }
        Kind::AllReduce | Kind::ReduceScatter => {
            let part = if kind == Kind::ReduceScatter { count } else { 0 };
            let whole = if part > 0 { count * of } else { count };
            let all: Vec<Vec<u16>> = calls.iter().map(|call| sent(call, whole)).collect();
            let sum = |at: usize| (all.iter().map(|one| float(one[at])).sum::<f32>().to_bits() >> 16) as u16;
            let sums: Vec<u16> = (0..whole).map(sum).collect();
            for (rank, call) in calls.iter().enumerate() {
                unsafe { call.to.copy_from(sums[rank * part..].as_ptr(), count) };
            }
        }
        Kind::Send | Kind::Receive => {
            let rank = |call: &Call| unsafe { (*call.rank).rank };
            for to in calls.iter().filter(|call| call.kind == Kind::Receive) {
                let matches = |call: &&Call| {
                    call.kind == Kind::Send && call.peer == rank(to) && rank(call) == to.peer && call.count == to.count
                };
                let Some(from) = calls.iter().find(matches) else { return 5 };
                unsafe { to.to.copy_from(from.from, to.count) };
            }
        }
    }
    if set("STUB_WRONG") != 0
        && let Some(spoilt) = calls.iter().find(|call| !call.to.is_null() && unsafe { (*call.rank).rank } == 1)
    {
        unsafe { *spoilt.to ^= 0x40 };
    }
    0
}
