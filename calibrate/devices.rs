//! What this machine has that could be measured.

use cudarc::driver::{CudaContext, result};

/// The CUDA devices of this machine, in words. Without a driver library nothing of CUDA is touched: cudarc would panic.
pub fn cuda() -> String {
    if !driver_is_present() {
        return "no CUDA driver library (libcuda.so) is installed, so nothing could be measured here".to_owned();
    }
    let count = match result::init().and_then(|()| CudaContext::device_count()) {
        Ok(count) => count,
        Err(error) => return format!("the CUDA driver is installed but does not start: {error}"),
    };
    let names: Vec<String> = (0..count.max(0) as usize)
        .map(|ordinal| {
            let name = CudaContext::new(ordinal).and_then(|context| context.name());
            name.unwrap_or_else(|error| format!("device {ordinal} ({error})"))
        })
        .collect();
    format!("{count} CUDA device(s): {}", names.join(", "))
}

/// Whether the loader finds the CUDA driver library.
#[allow(unsafe_code)]
fn driver_is_present() -> bool {
    // SAFETY: the function loads a library, whose initialisers are those of NVIDIA's driver, and calls nothing in it.
    unsafe { cudarc::driver::sys::is_culib_present() }
}
