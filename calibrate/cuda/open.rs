//! From nothing known to a device that may be measured, or to the reason why not.

use cudarc::driver::result;
use cudarc::driver::sys::CUresult;

use super::device::{Device, Facts, facts};
use super::error::{CudaError, Failure};
use super::library::{Libraries, Library};
use super::machine::{built_for, driver_version};
use super::nvml::Monitor;

/// The oldest CUDA version of a driver that has every function called here (`cuEventElapsedTime_v2` came last).
const OLDEST: (u32, u32) = (12, 8);

/// What to do about a busy device.
const REMEDY: &str = "wait until it is free, choose another by --device, or measure all the same with --busy-ok";

/// Starts the driver; says what stands in the way. The device count comes back.
pub fn driver(libraries: &Libraries) -> Result<usize, Failure> {
    if !libraries.has(Library::Driver) {
        return Err(Failure::NoDevice(
            "no CUDA driver is installed here (libcuda.so.1 was not found), so nothing can be measured\n\
             install NVIDIA's driver; in a container, start it with the GPU (`--gpus all`)"
                .to_owned(),
        ));
    }
    let version = driver_version(libraries);
    if let Some(version) = version.filter(|version| *version < OLDEST) {
        let ((major, minor), (least_major, least_minor)) = (version, OLDEST);
        return Err(Failure::DriverTooOld(format!(
            "the driver runs CUDA {major}.{minor}, and {least_major}.{least_minor} is needed: update NVIDIA's driver"
        )));
    }
    if let Err(error) = result::init() {
        return Err(match error.0 {
            CUresult::CUDA_ERROR_NO_DEVICE => no_device(),
            CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
                Failure::DriverTooOld(format!(
                    "the driver's library and its kernel module do not fit together ({:?}): update the driver, or take \
                     CUDA's compat folder out of LD_LIBRARY_PATH",
                    error.0
                ))
            }
            other => Failure::NoDevice(format!("the CUDA driver is installed but does not start: {other:?}")),
        });
    }
    match result::device::get_count() {
        Ok(count) if count > 0 => Ok(count as usize),
        Ok(_) => Err(no_device()),
        Err(error) => Err(Failure::NoDevice(format!("the CUDA driver names no devices: {:?}", error.0))),
    }
}

fn no_device() -> Failure {
    Failure::NoDevice(
        "the CUDA driver sees no device here: see whether `nvidia-smi` does, and whether CUDA_VISIBLE_DEVICES hides it"
            .to_owned(),
    )
}

/// A library that the driver is too old for, in words.
pub fn too_new(libraries: &Libraries, library: Library) -> Option<String> {
    let ((major, minor), (runs, _)) = (built_for(libraries, library)?, driver_version(libraries)?);
    (major > runs).then(|| {
        format!(
            "{} is of CUDA {major}.{minor}, and the driver runs {runs}.x at most: update the driver, or name a folder with \
             libraries of CUDA {runs} by --libraries",
            library.name()
        )
    })
}

/// What the driver says about the device that the user chose.
pub fn chosen(ordinal: usize, count: usize) -> Result<Facts, Failure> {
    if ordinal >= count {
        return Err(Failure::Input(format!("--device {ordinal}: there are {count} device(s), numbered from 0")));
    }
    Ok(facts(ordinal)?)
}

/// Who else uses the device, in words. Whoever insists on measuring all the same (`--busy-ok`) has it in the file; where
/// nobody can look, insisting is taken to mean that there are others. Asked before this program opens the device.
pub fn others(ordinal: usize, monitor: Option<&Monitor>, busy_ok: bool) -> Result<Option<String>, Failure> {
    let seen = monitor.map(Monitor::others);
    match (seen, busy_ok) {
        (Some(Some(others)), false) => Err(Failure::Busy(format!("device {ordinal} is busy: {others}\n{REMEDY}"))),
        (Some(seen), _) => Ok(seen),
        (None, true) => Ok(Some("--busy-ok, and nothing here says who uses the device".to_owned())),
        (None, false) => Ok(None),
    }
}

/// Opens it.
pub fn device(ordinal: usize) -> Result<Device, Failure> {
    let device = Device::open(ordinal).map_err(|error| match error {
        CudaError::Driver(error) if error.0 == CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => Failure::Busy(format!(
            "device {ordinal} is taken by another process, and its compute mode lets only one in\n{REMEDY}"
        )),
        error => error.into(),
    })?;
    // A job that does not fit is skipped; if not even this fits, all would be.
    device.alloc(4 * device.facts().l2.max(32 << 20))?;
    Ok(device)
}
