//! A board that draws 400 W; `STUB_PROCESS` is a process that uses it, `STUB_LOAD` its utilisation.

#![allow(non_snake_case)]

use std::ffi::c_char;

fn set(name: &str, otherwise: u32) -> u32 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

fn give<T>(to: *mut T, value: T) -> i32 {
    unsafe { to.write(value) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> i32 {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> i32 {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverVersion(text: *mut c_char, _: u32) -> i32 {
    for (at, byte) in b"580.1.2\0".iter().enumerate() {
        unsafe { text.add(at).write(*byte as c_char) };
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetProcessName(_: u32, text: *mut c_char, _: u32) -> i32 {
    for (at, byte) in b"trainer\0".iter().enumerate() {
        unsafe { text.add(at).write(*byte as c_char) };
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(_: *const c_char, device: *mut u64) -> i32 {
    give(device, 0x60)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPowerUsage(_: u64, milliwatts: *mut u32) -> i32 {
    give(milliwatts, 400_000)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetEnforcedPowerLimit(_: u64, milliwatts: *mut u32) -> i32 {
    give(milliwatts, 1000 * set("STUB_LIMIT", 700))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetClockInfo(_: u64, kind: u32, clock: *mut u32) -> i32 {
    give(clock, if kind == 2 { 3201 } else { 1830 })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMaxClockInfo(_: u64, _: u32, clock: *mut u32) -> i32 {
    give(clock, 1980)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTemperature(_: u64, _: u32, degrees: *mut u32) -> i32 {
    give(degrees, 55)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUtilizationRates(_: u64, rates: *mut [u32; 2]) -> i32 {
    give(rates, [set("STUB_LOAD", 0), 0])
}

/// `nvmlProcessInfo_t`.
#[repr(C)]
pub struct Process {
    pid: u32,
    memory: u64,
    instances: [u32; 2],
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(_: u64, count: *mut u32, processes: *mut Process) -> i32 {
    let pid = set("STUB_PROCESS", 0);
    let room = unsafe { count.read() };
    unsafe { count.write(u32::from(pid != 0)) };
    if pid == 0 {
        return 0;
    }
    if room == 0 || processes.is_null() {
        // NVML_ERROR_INSUFFICIENT_SIZE.
        return 7;
    }
    give(processes, Process { pid, memory: 1 << 30, instances: [0; 2] })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(_: u64, count: *mut u32, _: *mut Process) -> i32 {
    give(count, 0)
}
