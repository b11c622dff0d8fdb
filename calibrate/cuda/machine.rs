//! The machine line of a file of points: chip, software, limits, date.

use std::collections::BTreeMap;

use cudarc::{cublaslt, driver, nvrtc};

use super::device::Facts;
use super::library::{Libraries, Library};
use super::nvml::Monitor;
use crate::points::Machine;
use crate::stamp::{now, program};

/// Describes this machine; `disturbed` says who else uses it.
pub fn machine(facts: &Facts, libraries: &Libraries, monitor: Option<&Monitor>, disturbed: Option<String>) -> Machine {
    Machine {
        chip: facts.name.clone(),
        processors: facts.processors,
        capability: format!("{}.{}", facts.capability.0, facts.capability.1),
        memory: facts.memory,
        memory_bandwidth: facts.memory_bandwidth,
        power_limit: monitor.and_then(Monitor::power_limit),
        clock: monitor.and_then(Monitor::highest_clock),
        gpus: super::nccl::gpus().max(1),
        versions: versions(libraries, monitor),
        date: now(),
        tool: program(),
        source: "measured".to_owned(),
        disturbed,
    }
}

fn versions(libraries: &Libraries, monitor: Option<&Monitor>) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    if let Some(driver) = monitor.and_then(Monitor::driver) {
        versions.insert("driver".to_owned(), driver);
    }
    for (component, library) in [
        ("cuda", Library::Driver),
        ("cublas", Library::CublasLt),
        ("nvrtc", Library::Nvrtc),
        ("cudnn", Library::Cudnn),
        ("nccl", Library::Nccl),
    ] {
        if let Some(version) = version(libraries, library) {
            versions.insert(component.to_owned(), version);
        }
    }
    versions
}

/// A library's version in words.
pub fn version(libraries: &Libraries, library: Library) -> Option<String> {
    match library {
        Library::Driver => driver_version(libraries).map(|(major, minor)| format!("{major}.{minor}")),
        Library::CublasLt => number(libraries, library, "cublasLtGetVersion").map(|version| {
            let scale = if version >= 100_000 { 10_000 } else { 1000 };
            format!("{}.{}.{}", version / scale, version % scale / 100, version % 100)
        }),
        Library::Nvrtc => nvrtc_version(libraries).map(|(major, minor)| format!("{major}.{minor}")),
        Library::Cudnn => number(libraries, library, "cudnnGetVersion")
            .map(|version| format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)),
        Library::Nccl => nccl_version(libraries)
            .map(|version| format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)),
        Library::Nvml => None,
    }
}

/// The CUDA version that the driver can run.
#[allow(unsafe_code)]
pub fn driver_version(libraries: &Libraries) -> Option<(u32, u32)> {
    libraries.has(Library::Driver).then_some(())?;
    let mut version = 0;
    // SAFETY: the function writes one integer, and is the one that may be called before `cuInit`.
    unsafe { driver::sys::cuDriverGetVersion(&mut version) }.result().ok()?;
    Some((version as u32 / 1000, version as u32 % 1000 / 10))
}

/// The CUDA version that a library belongs to, where it says so: it needs a driver of the same major version.
#[allow(unsafe_code)]
pub fn built_for(libraries: &Libraries, library: Library) -> Option<(u32, u32)> {
    match library {
        Library::CublasLt if libraries.has(library) => {
            // SAFETY: the function takes nothing and gives a number.
            let version = unsafe { cublaslt::sys::cublasLtGetCudartVersion() } as u32;
            Some((version / 1000, version % 1000 / 10))
        }
        Library::Nvrtc => nvrtc_version(libraries),
        _ => None,
    }
}

#[allow(unsafe_code)]
fn nvrtc_version(libraries: &Libraries) -> Option<(u32, u32)> {
    libraries.has(Library::Nvrtc).then_some(())?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the function writes two integers.
    unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) }.result().ok()?;
    Some((major as u32, minor as u32))
}

/// What a function says that takes nothing and gives a `size_t`, as version functions are declared.
#[allow(unsafe_code)]
fn number(libraries: &Libraries, library: Library, function: &str) -> Option<usize> {
    // SAFETY: the named functions are declared `size_t f(void)`.
    unsafe {
        let get = libraries.handle(library)?.get::<unsafe extern "C" fn() -> usize>(function.as_bytes()).ok()?;
        Some(get())
    }
}

#[allow(unsafe_code)]
fn nccl_version(libraries: &Libraries) -> Option<i32> {
    let mut version = 0;
    // SAFETY: `ncclGetVersion` is declared `ncclResult_t f(int *)`.
    unsafe {
        let handle = libraries.handle(Library::Nccl)?;
        let get = handle.get::<unsafe extern "C" fn(*mut i32) -> i32>(b"ncclGetVersion").ok()?;
        (get(&mut version) == 0).then_some(version)
    }
}
