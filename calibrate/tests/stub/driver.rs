//! A CUDA driver without a device: every call succeeds and no kernel runs. Time is made up: ten microseconds a launch. The
//! environment says what is to go wrong (`STUB_VERSION`, `STUB_INIT`, `STUB_DEVICES`, `STUB_RETAIN`, `STUB_MEMORY`,
//! `STUB_BREAK_AFTER`). Numbers are the driver's (`cuda.h`).

#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static CLOCK_NS: AtomicU64 = AtomicU64::new(0);
static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
static USED: AtomicU64 = AtomicU64::new(0);
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

fn set(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// Error 700, an illegal address, from the launch on that `STUB_BREAK_AFTER` names.
fn state() -> i32 {
    if LAUNCHES.load(Relaxed) > set("STUB_BREAK_AFTER", u64::MAX) { 700 } else { 0 }
}

fn handle<T>(out: *mut T, value: T) -> i32 {
    unsafe { out.write(value) };
    0
}

macro_rules! fine {
    ($($name:ident)*) => { $(#[unsafe(no_mangle)] pub extern "C" fn $name() -> i32 { 0 })* };
}

fine! {
    cuDevicePrimaryCtxRelease_v2 cuCtxSetCurrent cuStreamDestroy_v2 cuEventSynchronize cuStreamWaitEvent cuModuleUnload
    cuFuncSetAttribute cuMemFreeHost cuStreamBeginCapture_v2 cuGraphDestroy cuGraphExecDestroy
}

#[cfg(host_memory)]
mod host_memory;

#[cfg(not(host_memory))]
fine! { cuMemcpyDtoDAsync_v2 cuMemcpyHtoD_v2 }

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2() -> i32 {
    stub_work(10);
    state()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2() -> i32 {
    stub_work(10);
    state()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: *mut i32) -> i32 {
    handle(version, set("STUB_VERSION", 13_000) as i32)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_: u32) -> i32 {
    set("STUB_INIT", 0) as i32
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: *mut i32) -> i32 {
    handle(count, set("STUB_DEVICES", 1) as i32)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> i32 {
    handle(device, ordinal)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(name: *mut c_char, size: i32, _: i32) -> i32 {
    let text = std::env::var("STUB_NAME").unwrap_or_else(|_| "Stub H200".to_owned());
    for (at, byte) in text.bytes().chain([0]).take(size as usize).enumerate() {
        unsafe { name.add(at).write(byte as c_char) };
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _: i32) -> i32 {
    handle(bytes, set("STUB_MEMORY", 150 << 30) as usize)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, _: i32) -> i32 {
    handle(value, match attribute {
        16 => 132,
        36 => 3_201_000,
        37 => 6144,
        38 => 60 << 20,
        75 => 9,
        97 => 232_448,
        115 => 1,
        _ => 0,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, _: i32) -> i32 {
    unsafe { context.write(0x10) };
    set("STUB_RETAIN", 0) as i32
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: *mut u64) -> i32 {
    handle(context, 0x10)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> i32 {
    state()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(_: u64) -> i32 {
    state()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: *mut u64, _: u32) -> i32 {
    handle(stream, NEXT.fetch_add(8, Relaxed))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: *mut *mut u64, _: u32) -> i32 {
    handle(event, Box::into_raw(Box::new(0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: *mut u64) -> i32 {
    drop(unsafe { Box::from_raw(event) });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: *mut u64, _: u64) -> i32 {
    handle(event, CLOCK_NS.load(Relaxed))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, from: *const u64, to: *const u64) -> i32 {
    let (from, to) = unsafe { (*from, *to) };
    unsafe { milliseconds.write((to - from) as f32 / 1e6) };
    state()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadData(module: *mut u64, _: *const c_void) -> i32 {
    handle(module, 0x20)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetFunction(function: *mut *const CStr, _: u64, name: *const c_char) -> i32 {
    let name: Box<CStr> = unsafe { CStr::from_ptr(name) }.into();
    unsafe { function.cast::<*mut CString>().write(Box::into_raw(Box::new(name))) };
    0
}

type CString = Box<CStr>;

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    function: *const CString,
    blocks: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u64,
    arguments: *const *const u64,
    _: *const c_void,
) -> i32 {
    LAUNCHES.fetch_add(1, Relaxed);
    CLOCK_NS.fetch_add(10_000, Relaxed);
    let name = unsafe { &*function }.to_bytes();
    if name == b"spin" || name == b"move" {
        // Says that all its blocks have begun, in the second word that it shares with the host, and what it moved.
        let words = unsafe { **arguments } as *mut u64;
        unsafe {
            words.add(1).write_volatile(u64::from(blocks));
            words.add(2).write_volatile(1 << 20);
            words.add(3).write_volatile(1 << 10);
        }
    }
    state()
}

/// Whatever is read back is 12.0625 in bf16, whatever was computed; or zero, if `STUB_ZERO` says so.
#[cfg(not(host_memory))]
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(to: *mut u8, _: u64, bytes: usize) -> i32 {
    unsafe { to.write_bytes(if set("STUB_ZERO", 0) == 0 { 0x41 } else { 0 }, bytes) };
    state()
}

/// Lets made-up time pass, for the other stubs.
#[unsafe(no_mangle)]
pub extern "C" fn stub_work(microseconds: u64) {
    CLOCK_NS.fetch_add(1000 * microseconds, Relaxed);
}

#[cfg(not(host_memory))]
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) -> i32 {
    let bytes = bytes as u64;
    if USED.load(Relaxed) + bytes > set("STUB_FREE", set("STUB_MEMORY", 150 << 30)) {
        return 2;
    }
    USED.fetch_add(bytes, Relaxed);
    let at = NEXT.fetch_add(bytes.next_multiple_of(512), Relaxed).next_multiple_of(512);
    SIZES.lock().unwrap().insert(at, bytes);
    handle(pointer, at)
}

static SIZES: std::sync::Mutex<std::collections::BTreeMap<u64, u64>> =
    std::sync::Mutex::new(std::collections::BTreeMap::new());

#[cfg(not(host_memory))]
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(pointer: u64) -> i32 {
    match SIZES.lock().unwrap().remove(&pointer) {
        Some(bytes) => USED.fetch_sub(bytes, Relaxed),
        // Error 1, an invalid value: nothing was allocated there.
        None => return 1,
    };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(pointer: *mut *mut u64, bytes: usize, _: u32) -> i32 {
    // Only words that the host shares with kernels are touched; more is never looked at.
    handle(pointer, Box::leak(vec![0u64; bytes.min(4096).div_ceil(8)].into_boxed_slice()).as_mut_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(_: u64, graph: *mut u64) -> i32 {
    handle(graph, 0x30)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphInstantiateWithFlags(exec: *mut u64, _: u64, _: u64) -> i32 {
    handle(exec, 0x40)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(_: u64, _: u64) -> i32 {
    CLOCK_NS.fetch_add(1_000_000, Relaxed);
    state()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(_: i32, text: *mut *const c_char) -> i32 {
    handle(text, c"stub".as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(_: i32, text: *mut *const c_char) -> i32 {
    handle(text, c"STUB".as_ptr())
}
