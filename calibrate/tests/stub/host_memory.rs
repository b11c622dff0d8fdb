//! Device memory that is the host's, so that what is written there can be read back.

#![allow(non_snake_case)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static SIZES: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), 512).unwrap()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) -> i32 {
    let at = unsafe { alloc_zeroed(layout(bytes)) } as u64;
    if at == 0 {
        return 2;
    }
    SIZES.lock().unwrap().insert(at, bytes);
    unsafe { pointer.write(at) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(pointer: u64) -> i32 {
    let Some(bytes) = SIZES.lock().unwrap().remove(&pointer) else { return 1 };
    unsafe { dealloc(pointer as *mut u8, layout(bytes)) };
    0
}

/// Error 700, an illegal address, unless `bytes` from `at` on lie in one allocation.
fn inside(at: u64, bytes: usize) -> i32 {
    let sizes = SIZES.lock().unwrap();
    let within = |(start, size): (&u64, &usize)| at + bytes as u64 <= start + *size as u64;
    if sizes.range(..=at).next_back().is_some_and(within) { 0 } else { 700 }
}

static UPLOADS: AtomicU64 = AtomicU64::new(0);

/// How often the host has written to the device, for the other stubs.
#[unsafe(no_mangle)]
pub extern "C" fn stub_uploads() -> u64 {
    UPLOADS.load(Relaxed)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize) -> i32 {
    UPLOADS.fetch_add(1, Relaxed);
    let state = inside(to, bytes);
    if state == 0 {
        unsafe { (to as *mut u8).copy_from(from, bytes) };
    }
    state
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize) -> i32 {
    let state = inside(from, bytes);
    if state == 0 {
        unsafe { to.copy_from(from as *const u8, bytes) };
    }
    state
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, _: u64) -> i32 {
    let state = inside(to, bytes).max(inside(from, bytes));
    if state == 0 {
        unsafe { (to as *mut u8).copy_from(from as *const u8, bytes) };
    }
    state
}
