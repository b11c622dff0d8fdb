//! Number formats and layouts of a matrix multiplication, by what frameworks call it.
//!
//! | layout | is | first operand (our `B`) | second (our `A`) |
//! |---|---|---|---|
//! | `forward` | `Y[T,out] = X·Wᵀ` | `W[out,in]`, transposed | `X[T,in]` |
//! | `data_gradient` | `dX[T,in] = dY·W` | `W[out,in]` | `dY[T,out]` |
//! | `weight_gradient` | `dW[out,in] = dYᵀ·X` | `X[T,in]` | `dY[T,out]`, transposed |
//! | `weight_gradient_fp32` | the same, added to an fp32 main gradient | | |
//!
//! 8-bit operands must both be contiguous along `k` (cuBLAS, "cublasLtMatmul", the table of 8-bit kernels), so frameworks
//! keep a transposed copy of what is not, and every layout becomes `forward`'s. Gradients are E5M2 where one scale covers a
//! tensor and E4M3 where scales are finer; forward accumulates fast, gradients do not (Transformer Engine's
//! `fp8_gemm` with its recipes' defaults, torchao's `Float8LinearConfig`).

use cudarc::cublaslt::sys::{cublasComputeType_t, cublasLtMatmulMatrixScale_t as Scale, cudaDataType_t};

use super::Shape;
use crate::cuda::device::Fill;

/// How one multiplication is put to cuBLASLt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// Contents of the first operand.
    pub first: Fill,
    /// Contents of the second.
    pub second: Fill,
    /// Contents of the result before the call.
    pub result: Fill,
    /// Whether the first operand is transposed.
    pub first_transposed: bool,
    /// Whether the second is.
    pub second_transposed: bool,
    /// In which arithmetic.
    pub compute: cublasComputeType_t,
    /// How the first operand is scaled, if it is.
    pub first_scale: Option<ScaleMode>,
    /// How the second is.
    pub second_scale: Option<ScaleMode>,
    /// 8-bit products are summed with fewer bits.
    pub fast: bool,
    /// The result is added to what is there.
    pub accumulate: bool,
}

/// What one scale stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleMode {
    /// The whole operand.
    Tensor,
    /// A row of the result's dimension.
    Row,
    /// 128 elements along `k`.
    Strip,
    /// 128 by 128 elements.
    Block,
}

impl ScaleMode {
    /// As cuBLASLt calls it.
    pub fn mode(self) -> Scale {
        match self {
            Self::Tensor => Scale::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
            Self::Row => Scale::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
            Self::Strip => Scale::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
            Self::Block => Scale::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
        }
    }

    /// Scales of an operand with `rows` rows of length `k`; blocks are padded to four along each side, as cuBLASLt reads.
    pub fn count(self, rows: u64, k: u64) -> u64 {
        let blocks = k.div_ceil(128);
        match self {
            Self::Tensor => 1,
            Self::Row => rows,
            Self::Strip => rows.next_multiple_of(4) * blocks,
            Self::Block => rows.div_ceil(128).next_multiple_of(4) * blocks.next_multiple_of(4),
        }
    }
}

impl Recipe {
    /// The recipe of a number format and a layout.
    pub fn of(dtype: &str, layout: &str) -> Result<Self, String> {
        let transposed = match layout {
            "forward" => (true, false),
            "data_gradient" => (false, false),
            "weight_gradient" | "weight_gradient_fp32" => (false, true),
            _ => return Err(format!("no layout {layout:?}")),
        };
        let main = layout == "weight_gradient_fp32";
        let compute = cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let plain = |fill, result, compute| Self {
            first: fill,
            second: fill,
            result: if main { Fill::Fp32 } else { result },
            first_transposed: transposed.0,
            second_transposed: transposed.1,
            compute,
            first_scale: None,
            second_scale: None,
            fast: false,
            accumulate: main,
        };
        let weights = !layout.starts_with("weight_gradient");
        let gradient = layout != "forward";
        let eight_bits = |second, scales: (ScaleMode, ScaleMode)| Self {
            second,
            first_transposed: true,
            second_transposed: false,
            first_scale: Some(scales.0),
            second_scale: Some(scales.1),
            fast: !gradient,
            ..plain(Fill::Fp8, Fill::Bf16, compute)
        };
        Ok(match dtype {
            "bf16" => plain(Fill::Bf16, Fill::Bf16, compute),
            "fp32" => plain(Fill::Fp32, Fill::Fp32, compute),
            "tf32" => plain(Fill::Fp32, Fill::Fp32, cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32),
            "fp8_tensor" => {
                let second = if gradient { Fill::Fp8Wide } else { Fill::Fp8 };
                eight_bits(second, (ScaleMode::Tensor, ScaleMode::Tensor))
            }
            "fp8_row" => eight_bits(Fill::Fp8, (ScaleMode::Row, ScaleMode::Row)),
            "fp8_block" => {
                let first = if weights { ScaleMode::Block } else { ScaleMode::Strip };
                eight_bits(Fill::Fp8, (first, ScaleMode::Strip))
            }
            _ => return Err(format!("no number format {dtype:?}")),
        })
    }

    /// What one multiplication touches \[B\].
    pub fn bytes(&self, shape: Shape) -> u64 {
        let Shape { m, n, k } = shape;
        let part = |elements: u64, fill: Fill| elements * fill.width() as u64;
        part(n * k, self.first) + part(m * k, self.second) + part(m * n, self.result)
    }
}

/// As CUDA calls a buffer's number format.
pub fn data_type(fill: Fill) -> cudaDataType_t {
    match fill {
        Fill::Bf16 => cudaDataType_t::CUDA_R_16BF,
        Fill::Fp16 => cudaDataType_t::CUDA_R_16F,
        Fill::Fp8 => cudaDataType_t::CUDA_R_8F_E4M3,
        Fill::Fp8Wide => cudaDataType_t::CUDA_R_8F_E5M2,
        Fill::Zero | Fill::One | Fill::Fp32 => cudaDataType_t::CUDA_R_32F,
        Fill::Index(_) => cudaDataType_t::CUDA_R_32I,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FORMATS: [&str; 6] = ["bf16", "fp8_tensor", "fp8_row", "fp8_block", "tf32", "fp32"];
    const LAYOUTS: [&str; 4] = ["forward", "data_gradient", "weight_gradient", "weight_gradient_fp32"];

    #[test]
    fn eight_bit_operands_are_contiguous_along_k_in_every_layout() {
        for format in &FORMATS[1..4] {
            for layout in LAYOUTS {
                let recipe = Recipe::of(format, layout).unwrap();
                assert!(recipe.first_transposed && !recipe.second_transposed, "{format} {layout}");
                assert!(recipe.first_scale.is_some() && recipe.second_scale.is_some());
            }
        }
    }

    #[test]
    fn only_the_main_gradient_is_added_to() {
        for format in FORMATS {
            for layout in LAYOUTS {
                let recipe = Recipe::of(format, layout).unwrap();
                assert_eq!(recipe.accumulate, layout == "weight_gradient_fp32");
                assert!(!recipe.accumulate || recipe.result == Fill::Fp32);
            }
        }
    }

    #[test]
    fn no_two_operands_are_both_of_the_wide_eight_bit_format() {
        for layout in LAYOUTS {
            let recipe = Recipe::of("fp8_tensor", layout).unwrap();
            assert_eq!(recipe.first, Fill::Fp8);
        }
    }

    #[test]
    fn a_format_or_layout_nobody_knows_is_named() {
        assert!(Recipe::of("bf17", "forward").unwrap_err().contains("bf17"));
        assert!(Recipe::of("bf16", "sideways").unwrap_err().contains("sideways"));
    }
}
