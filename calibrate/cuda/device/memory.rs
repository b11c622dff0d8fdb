//! Memory on the device and pinned memory of the host.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};

use super::{Device, Fill};
use crate::cuda::error::CudaError;

/// A pattern is written once and repeated: so long that it does not repeat inside a kernel's tile \[B\].
const PATTERN: usize = 16 << 20;

/// How far apart in the pattern buffers start: elements stay whole, and it is no divisor of the pattern \[B\].
const START: u64 = 256 * 20_011;

/// Memory on the device, freed when dropped.
pub struct Buffer {
    pointer: sys::CUdeviceptr,
    bytes: u64,
    context: Arc<CudaContext>,
}

impl Buffer {
    /// Its address on the device.
    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Buffer {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the pointer came from `malloc_sync` and is freed once; the driver waits for kernels that still use it.
        let freed = self.context.bind_to_thread().and_then(|()| unsafe { result::free_sync(self.pointer) });
        self.context.record_err(freed);
    }
}

/// Equal parts of one buffer that take turns.
pub struct Ring {
    buffer: Buffer,
    stride: u64,
    copies: u64,
}

impl Ring {
    /// The address of the part whose turn it is.
    pub fn at(&self, turn: usize) -> u64 {
        self.buffer.pointer() + (turn as u64 % self.copies) * self.stride
    }

    /// All parts, one after the other.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

/// Pinned memory of the host that the device sees too, freed when dropped.
pub struct Pinned {
    pointer: *mut c_void,
    bytes: u64,
    context: Arc<CudaContext>,
}

impl Pinned {
    /// Its address, the same on the host and on the device.
    pub fn pointer(&self) -> u64 {
        self.pointer as u64
    }

    /// Writes the 64-bit word `at`, for a kernel that watches it.
    #[allow(unsafe_code)]
    pub fn store(&self, at: usize, value: u64) {
        assert!(8 * (at as u64 + 1) <= self.bytes, "word {at} of {} bytes", self.bytes);
        // SAFETY: the word lies inside the memory, which is page-aligned; the device may read it at the same time, hence
        // volatile.
        unsafe { self.pointer.cast::<u64>().add(at).write_volatile(value) }
    }

    /// Reads the 64-bit word `at`, which a kernel may be writing.
    #[allow(unsafe_code)]
    pub fn load(&self, at: usize) -> u64 {
        assert!(8 * (at as u64 + 1) <= self.bytes, "word {at} of {} bytes", self.bytes);
        // SAFETY: as of `store`.
        unsafe { self.pointer.cast::<u64>().add(at).read_volatile() }
    }
}

impl Drop for Pinned {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the pointer came from `malloc_host` and is freed once.
        let freed = self.context.bind_to_thread().and_then(|()| unsafe { result::free_host(self.pointer) });
        self.context.record_err(freed);
    }
}

impl Device {
    /// Memory that holds nothing in particular.
    #[allow(unsafe_code)]
    pub fn alloc(&self, bytes: u64) -> Result<Buffer, CudaError> {
        self.context().bind_to_thread()?;
        // SAFETY: the memory is not read through the pointer on the host; kernels get it with its size.
        let pointer = unsafe { result::malloc_sync(bytes.max(1) as usize) }.map_err(|error| match error.into() {
            CudaError::OutOfMemory(_) => CudaError::OutOfMemory(format!("{:.1} MB", bytes as f64 / 1e6)),
            other => other,
        })?;
        Ok(Buffer { pointer, bytes, context: self.context().clone() })
    }

    /// Memory filled as asked. Random contents repeat every 16 MiB, and start elsewhere in each buffer, so that no two operands
    /// are alike.
    pub fn random(&self, bytes: u64, fill: Fill) -> Result<Buffer, CudaError> {
        let buffer = self.alloc(bytes)?;
        let pattern = self.pattern(fill)?;
        let mut start = self.starts.get() % pattern.bytes();
        self.starts.set(self.starts.get() + START);
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(pattern.bytes() - start);
            self.copy(buffer.pointer() + done, pattern.pointer() + start, part)?;
            done += part;
            start = 0;
        }
        self.stream().synchronize()?;
        Ok(buffer)
    }

    /// `copies` parts of `bytes` each, filled as asked.
    pub fn ring(&self, copies: usize, bytes: u64, fill: Fill) -> Result<Ring, CudaError> {
        let stride = bytes.next_multiple_of(256).max(256);
        let buffer = self.random(stride * copies as u64, fill)?;
        Ok(Ring { buffer, stride, copies: copies as u64 })
    }

    /// Pinned host memory.
    #[allow(unsafe_code)]
    pub fn pinned(&self, bytes: u64) -> Result<Pinned, CudaError> {
        self.context().bind_to_thread()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the flags are the documented ones; the memory is only touched by copies of its size.
        let pointer = unsafe { result::malloc_host(bytes.max(1) as usize, flags) }?;
        Ok(Pinned { pointer, bytes: bytes.max(1), context: self.context().clone() })
    }

    /// Copies within the device, on the measured stream.
    #[allow(unsafe_code)]
    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: callers pass addresses inside live buffers of at least that size; the stream is this device's.
        Ok(unsafe { result::memcpy_dtod_async(to, from, bytes as usize, self.stream().cu_stream()) }?)
    }

    /// Copies between the device and pinned host memory, on the measured stream.
    #[allow(unsafe_code)]
    pub fn copy_host(&self, device: &Buffer, host: &Pinned, bytes: u64, to_host: bool) -> Result<(), CudaError> {
        assert!(bytes <= device.bytes(), "a copy of {bytes} bytes from a buffer of {}", device.bytes());
        let stream = self.stream().cu_stream();
        // SAFETY: both ends are alive for as long as the caller holds them and at least `bytes` long.
        let result = unsafe {
            if to_host {
                sys::cuMemcpyDtoHAsync_v2(host.pointer, device.pointer(), bytes as usize, stream)
            } else {
                sys::cuMemcpyHtoDAsync_v2(device.pointer(), host.pointer, bytes as usize, stream)
            }
        };
        Ok(result.result()?)
    }

    /// Reads a buffer back that was filled with random numbers, or computed from such.
    #[allow(unsafe_code)]
    pub fn read(&self, from: &Buffer, bytes: usize) -> Result<Vec<u8>, CudaError> {
        self.synchronize()?;
        let mut out = vec![0u8; bytes.min(from.bytes() as usize)];
        // SAFETY: the buffer holds at least as many bytes as the vector, and nothing runs.
        unsafe { result::memcpy_dtoh_sync(&mut out, from.pointer()) }?;
        Ok(out)
    }

    /// The pattern on the device, made the first time it is asked for.
    #[allow(unsafe_code)]
    fn pattern(&self, fill: Fill) -> Result<Arc<Buffer>, CudaError> {
        if let Some(pattern) = self.patterns.borrow().get(&fill) {
            return Ok(pattern.clone());
        }
        let bytes = fill.bytes(PATTERN);
        let buffer = self.alloc(bytes.len() as u64)?;
        // SAFETY: the buffer is as long as the vector.
        unsafe { result::memcpy_htod_sync(buffer.pointer(), &bytes) }?;
        // The copy runs on another stream than what reads the pattern.
        self.synchronize()?;
        let pattern = Arc::new(buffer);
        self.patterns.borrow_mut().insert(fill, pattern.clone());
        Ok(pattern)
    }
}
