//! The memory of one attention kernel: its tensors side by side in one buffer, several copies that take turns.

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::shape::{Layout, Shape};
use crate::cuda::device::{Buffer, Device, Fill};
use crate::cuda::error::CudaError;

/// Tensors begin at multiples of this \[B\], as PyTorch's allocator has it.
const ALIGNMENT: u64 = 512;

/// Random numbers are made once and copied \[B\].
const PATTERN: u64 = 16 << 20;

/// Each random tensor begins this much later in the pattern \[B\]: no multiple of a head's vector, so that no query equals
/// a key.
const SHIFT: u64 = 48;

/// Where the tensors of one turn are, and how many bytes all of them take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensors {
    /// Queries.
    pub q: u64,
    /// Keys.
    pub k: u64,
    /// Values.
    pub v: u64,
    /// Output.
    pub o: u64,
    /// Statistics.
    pub statistics: u64,
    /// Of the backward pass.
    pub backward: Option<Gradients>,
}

/// Where the tensors of the backward pass are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gradients {
    /// Gradient of the output.
    pub d_o: u64,
    /// Gradient of the queries.
    pub dq: u64,
    /// Gradient of the keys.
    pub dk: u64,
    /// Gradient of the values.
    pub dv: u64,
    /// δ, in fp32.
    pub delta: u64,
    /// The queries' gradient in fp32.
    pub dq_sum: u64,
}

impl Tensors {
    /// The tensors of a shape from address `start` on, and where the next may begin.
    pub fn lay(shape: &Shape, backward: bool, start: u64) -> (Self, u64) {
        let mut end = start;
        let mut take = |bytes: u64| {
            let at = end;
            end += bytes.next_multiple_of(ALIGNMENT);
            at
        };
        let (q, k, v, o) = (take(2 * shape.q()), take(2 * shape.k()), take(2 * shape.v()), take(2 * shape.o()));
        let statistics = take(4 * shape.rows());
        let backward = backward.then(|| Gradients {
            d_o: take(2 * shape.o()),
            dq: take(2 * shape.q()),
            dk: take(2 * shape.k()),
            dv: take(2 * shape.v()),
            delta: take(4 * shape.rows()),
            dq_sum: take(4 * shape.q()),
        });
        (Self { q, k, v, o, statistics, backward }, end)
    }

    /// What they take together \[B\].
    pub fn bytes(shape: &Shape, backward: bool) -> u64 {
        Self::lay(shape, backward, 0).1
    }

    /// Copies of the tensors in one buffer, inputs random, the rest zero.
    pub fn make(device: &Device, shape: &Shape, backward: bool) -> Result<(Buffer, Vec<Self>), CudaError> {
        let turns = device.turns(shape.bytes());
        let each = Self::bytes(shape, backward);
        let buffer = device.random(each * turns as u64, Fill::Zero)?;
        let pattern = device.random(PATTERN + 16 * SHIFT, Fill::Bf16)?;
        let mut start = buffer.pointer();
        let mut all = Vec::with_capacity(turns);
        for _ in 0..turns {
            let (tensors, end) = Self::lay(shape, backward, start);
            let mut inputs = vec![(tensors.q, 2 * shape.q()), (tensors.k, 2 * shape.k()), (tensors.v, 2 * shape.v())];
            inputs.extend(tensors.backward.map(|gradients| (gradients.d_o, 2 * shape.o())));
            for (at, (address, bytes)) in inputs.into_iter().enumerate() {
                let from = pattern.pointer() + at as u64 * SHIFT;
                for done in (0..bytes).step_by(PATTERN as usize) {
                    device.copy(address + done, from, (bytes - done).min(PATTERN))?;
                }
            }
            all.push(tensors);
            start = end;
        }
        device.stream().synchronize()?;
        Ok((buffer, all))
    }
}

/// Where tensors can be read from.
pub trait Source {
    /// One head of a tensor in bf16.
    fn head(&self, address: u64, layout: &Layout, batch: u64, head: u64) -> Result<Vec<f32>, CudaError>;

    /// 32-bit floats that lie side by side.
    fn floats(&self, address: u64, count: u64) -> Result<Vec<f32>, CudaError>;
}

impl Source for Device {
    #[allow(unsafe_code)]
    fn head(&self, address: u64, layout: &Layout, batch: u64, head: u64) -> Result<Vec<f32>, CudaError> {
        self.synchronize()?;
        let (tokens, row) = (layout.tokens as usize, 2 * layout.width as usize);
        let mut bytes = vec![0u8; tokens * row];
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: address + 2 * layout.at(batch, head, 0) as u64,
            srcArray: std::ptr::null_mut(),
            srcPitch: row * layout.heads as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: bytes.as_mut_ptr().cast::<c_void>(),
            dstDevice: 0,
            dstArray: std::ptr::null_mut(),
            dstPitch: row,
            WidthInBytes: row,
            Height: tokens,
        };
        // SAFETY: the head's rows lie inside the tensor, whose layout the caller has; the vector holds all of them.
        unsafe { sys::cuMemcpy2D_v2(&copy) }.result()?;
        Ok(bytes.chunks_exact(2).map(|two| bf16(u16::from_le_bytes([two[0], two[1]]))).collect())
    }

    #[allow(unsafe_code)]
    fn floats(&self, address: u64, count: u64) -> Result<Vec<f32>, CudaError> {
        self.synchronize()?;
        let mut floats = vec![0f32; count as usize];
        // SAFETY: the caller's tensor holds as many floats as the vector.
        unsafe { result::memcpy_dtoh_sync(&mut floats, address) }?;
        Ok(floats)
    }
}

/// The number that bf16 writes so.
pub fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        batch: 2,
        heads: 4,
        kv_heads: 2,
        queries: 100,
        keys: 100,
        head_dim: 24,
        value_dim: 16,
        causal: true,
        window: None,
    };

    #[test]
    fn tensors_lie_side_by_side_and_never_overlap() {
        let (tensors, end) = Tensors::lay(&SHAPE, true, 1 << 20);
        let gradients = tensors.backward.expect("asked for");
        let order = [tensors.q, tensors.k, tensors.v, tensors.o, tensors.statistics, gradients.d_o, gradients.dq];
        assert!(order.windows(2).all(|pair| pair[0] < pair[1] && pair[1] % ALIGNMENT == 0));
        assert_eq!(tensors.k - tensors.q, (2 * SHAPE.q()).next_multiple_of(ALIGNMENT));
        assert_eq!(end - (1 << 20), Tensors::bytes(&SHAPE, true));
    }

    #[test]
    fn forward_needs_no_gradients() {
        let (tensors, _) = Tensors::lay(&SHAPE, false, 0);
        assert_eq!(tensors.backward, None);
        assert!(Tensors::bytes(&SHAPE, false) >= SHAPE.bytes());
    }
}
