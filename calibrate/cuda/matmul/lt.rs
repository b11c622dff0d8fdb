//! cuBLASLt: descriptors, the heuristic's first answer, the call.
//!
//! Set up as PyTorch does (`aten/src/ATen/cuda/CUDABlas.cpp`): sums and scales in fp32, default epilogue, the heuristic is
//! asked for one algorithm with the workspace and the alignment of the buffers at hand; no algorithm is tried out.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::from_ref;

use cudarc::cublaslt::{result, sys};
use cudarc::driver::CudaStream;

use super::Shape;
use super::recipe::{Recipe, data_type};
use crate::cuda::device::{Buffer, Device};
use crate::cuda::error::CudaError;
use crate::cuda::library::Library;
use crate::cuda::sweep::Skip;

use sys::cublasLtMatmulAlgoConfigAttributes_t as Config;
use sys::cublasLtMatmulDescAttributes_t as Attribute;
use sys::cublasLtMatmulPreferenceAttributes_t as Preferred;

/// Workspace \[B\]: what PyTorch gives cuBLAS (`CUDABlas`, `CublasHandlePool.cpp`, `parseChosenWorkspaceSize`): 32 MiB from
/// Hopper on, `:4096:2:16:8` KiB before.
pub fn workspace(capability: (u32, u32)) -> u64 {
    if capability.0 >= 9 { 32 << 20 } else { (4096 * 2 + 16 * 8) << 10 }
}

/// The library's handle, made when first needed. It lives until the program ends.
#[derive(Default)]
pub struct Handle(Cell<Option<sys::cublasLtHandle_t>>);

impl Handle {
    fn get(&self, device: &Device) -> Result<sys::cublasLtHandle_t, CudaError> {
        if let Some(handle) = self.0.get() {
            return Ok(handle);
        }
        device.context().bind_to_thread()?;
        let handle = result::create_handle()?;
        self.0.set(Some(handle));
        Ok(handle)
    }
}

/// What is to be multiplied, and how.
pub struct Problem {
    /// Formats and layout.
    pub recipe: Recipe,
    /// Size.
    pub shape: Shape,
    /// Where the scales of the first and the second operand lie, for formats that have them.
    pub scales: (u64, u64),
}

/// A multiplication with everything settled but the addresses.
pub struct Call {
    handle: sys::cublasLtHandle_t,
    operation: Operation,
    first: Layout,
    second: Layout,
    result: Layout,
    chosen: sys::cublasLtMatmulHeuristicResult_t,
    accumulate: bool,
}

impl Call {
    /// Asks the heuristic.
    pub fn new(handle: &Handle, problem: &Problem, device: &Device) -> Result<Self, Skip> {
        let Problem { recipe, shape: Shape { m, n, k }, scales } = problem;
        let handle = handle.get(device)?;
        let operation = Operation::new(recipe, *scales)?;
        let first = Layout::new(recipe.first, *n, *k, recipe.first_transposed)?;
        let second = Layout::new(recipe.second, *k, *m, recipe.second_transposed)?;
        let result = Layout::new(recipe.result, *n, *m, false)?;
        let preference = Preference::new(workspace(device.facts().capability))?;
        let chosen = choose(handle, &operation, [&first, &second, &result], &preference)?;
        Ok(Self { handle, operation, first, second, result, chosen, accumulate: recipe.accumulate })
    }

    /// Multiplies what lies at the addresses of first operand, second operand and result.
    #[allow(unsafe_code)]
    pub fn run(
        &self,
        [first, second, result]: [u64; 3],
        workspace: &Buffer,
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        let (alpha, beta) = (1f32, if self.accumulate { 1f32 } else { 0f32 });
        // SAFETY: descriptors and algorithm were made for one another in `new`; callers pass addresses of live buffers of the
        // problem's size on the stream's device; `alpha` and `beta` are of the scale type, fp32.
        let done = unsafe {
            result::matmul(
                self.handle,
                self.operation.0,
                from_ref(&alpha).cast(),
                from_ref(&beta).cast(),
                first as *const c_void,
                self.first.0,
                second as *const c_void,
                self.second.0,
                result as *const c_void,
                self.result.0,
                result as *mut c_void,
                self.result.0,
                &self.chosen.algo,
                workspace.pointer() as *mut c_void,
                workspace.bytes() as usize,
                stream.cu_stream().cast(),
            )
        };
        Ok(done?)
    }

    /// The algorithm that the heuristic chose, in the library's own numbers.
    pub fn algorithm(&self) -> String {
        let mut text = format!("id={}", self.config(Config::CUBLASLT_ALGO_CONFIG_ID));
        for (name, config) in [
            ("tile", Config::CUBLASLT_ALGO_CONFIG_TILE_ID),
            ("split_k", Config::CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
            ("stages", Config::CUBLASLT_ALGO_CONFIG_STAGES_ID),
            ("swizzle", Config::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
        ] {
            text += &format!(" {name}={}", self.config(config));
        }
        // The one that is two bytes wide.
        text += &format!(" cluster={}", self.config(Config::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) & 0xFFFF);
        text + &format!(" waves={:.2}", self.chosen.wavesCount)
    }

    #[allow(unsafe_code)]
    fn config(&self, what: Config) -> u32 {
        let narrow = what == Config::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
        let (mut value, mut written) = (0u32, 0usize);
        let size = if narrow { 2 } else { 4 };
        // SAFETY: the library writes at most `size` bytes, and the value has four. What it does not know stays zero.
        let _ = unsafe {
            sys::cublasLtMatmulAlgoConfigGetAttribute(
                &self.chosen.algo,
                what,
                std::ptr::from_mut(&mut value).cast(),
                size,
                &mut written,
            )
        };
        value
    }
}

#[allow(unsafe_code)]
fn choose(
    handle: sys::cublasLtHandle_t,
    operation: &Operation,
    [first, second, result]: [&Layout; 3],
    preference: &Preference,
) -> Result<sys::cublasLtMatmulHeuristicResult_t, Skip> {
    // SAFETY: all descriptors are live.
    let chosen = unsafe {
        result::get_matmul_algo_heuristic(handle, operation.0, first.0, second.0, result.0, result.0, preference.0)
    };
    chosen.map_err(|error| match error.0 {
        sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => {
            Skip::because("cuBLASLt has no kernel for this format and layout on this chip")
        }
        _ => CudaError::from(error).into(),
    })
}

struct Operation(sys::cublasLtMatmulDesc_t);

impl Operation {
    fn new(recipe: &Recipe, scales: (u64, u64)) -> Result<Self, CudaError> {
        let operation = Self(result::create_matmul_desc(recipe.compute, sys::cudaDataType_t::CUDA_R_32F)?);
        // `cublasOperation_t`: 0 is as it is, 1 is transposed.
        operation.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &i32::from(recipe.first_transposed))?;
        operation.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &i32::from(recipe.second_transposed))?;
        let Some((first, second)) = recipe.first_scale.zip(recipe.second_scale) else { return Ok(operation) };
        operation.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &i8::from(recipe.fast))?;
        // One scale a tensor is what libraries before 12.8 know without being told.
        if (first, second) != (super::recipe::ScaleMode::Tensor, super::recipe::ScaleMode::Tensor) {
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &(first.mode() as i32))?;
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &(second.mode() as i32))?;
        }
        operation.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scales.0)?;
        operation.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scales.1)?;
        Ok(operation)
    }

    #[allow(unsafe_code)]
    fn set<T>(&self, attribute: Attribute, value: &T) -> Result<(), CudaError> {
        // SAFETY: the descriptor is live; the library copies the value, which has the size that goes with it.
        let set = unsafe {
            result::set_matmul_desc_attribute(self.0, attribute, from_ref(value).cast(), std::mem::size_of::<T>())
        };
        set.map_err(|error| CudaError::library(Library::CublasLt, format!("{attribute:?}: {:?}", error.0)))
    }
}

impl Drop for Operation {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// A matrix as it lies in memory, column by column without gaps.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    /// Of a matrix that is `rows` by `columns` once it has been transposed, if it is to be.
    fn new(fill: crate::cuda::device::Fill, rows: u64, columns: u64, transposed: bool) -> Result<Self, CudaError> {
        let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
        Ok(Self(result::create_matrix_layout(data_type(fill), rows, columns, rows as i64)?))
    }
}

impl Drop for Layout {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    /// With a workspace, and buffers aligned as PyTorch's allocator and [`Device::ring`] do.
    fn new(workspace: u64) -> Result<Self, CudaError> {
        let preference = Self(result::create_matmul_pref()?);
        preference.set(Preferred::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(workspace as usize))?;
        for alignment in [
            Preferred::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Preferred::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Preferred::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Preferred::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(alignment, &256u32)?;
        }
        Ok(preference)
    }

    #[allow(unsafe_code)]
    fn set<T>(&self, attribute: Preferred, value: &T) -> Result<(), CudaError> {
        // SAFETY: as of `Operation::set`.
        let set = unsafe {
            result::set_matmul_pref_attribute(self.0, attribute, from_ref(value).cast(), std::mem::size_of::<T>())
        };
        set.map_err(|error| CudaError::library(Library::CublasLt, format!("{attribute:?}: {:?}", error.0)))
    }
}

impl Drop for Preference {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::library::Libraries;

    #[test]
    fn the_workspace_is_pytorch_s() {
        assert_eq!(workspace((9, 0)), 33_554_432);
        assert_eq!(workspace((10, 0)), 33_554_432);
        assert_eq!(workspace((8, 0)), 8_519_680);
    }

    #[test]
    fn descriptors_are_what_the_library_takes_where_cublaslt_is_here() {
        match Libraries::look(&[]) {
            Ok(libraries) if libraries.has(Library::CublasLt) => {}
            _ => return eprintln!("skipped: cuBLASLt is not here"),
        }
        for dtype in ["bf16", "fp8_tensor", "fp8_row", "fp8_block", "tf32", "fp32"] {
            for layout in ["forward", "data_gradient", "weight_gradient", "weight_gradient_fp32"] {
                let recipe = Recipe::of(dtype, layout).unwrap_or_else(|why| panic!("{why}"));
                if let Err(error) = Operation::new(&recipe, (256, 512)) {
                    panic!("{dtype} {layout}: {error}");
                }
                let made = Layout::new(recipe.first, 256, 512, recipe.first_transposed);
                assert!(made.is_ok(), "{dtype} {layout}");
            }
        }
        assert!(Preference::new(workspace((9, 0))).is_ok());
    }
}
