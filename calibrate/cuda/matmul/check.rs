//! Are the products right? Every number format and layout once, against sums in fp64 on the host.

use super::lt::{Call, Handle, Problem, workspace};
use super::recipe::Recipe;
use super::{Operands, Shape};
use crate::cuda::device::{Device, Fill, Ring};
use crate::cuda::error::CudaError;
use crate::cuda::sweep::Skip;

/// Three sides that differ, so that no mistaken layout goes unnoticed; multiples of 128, for scales of blocks.
const SHAPE: Shape = Shape { m: 256, n: 384, k: 512 };

/// What each step of rounding may add to a sum of `k` products of numbers around one: 8-bit sums keep 14 bits, bf16 results
/// eight. A wrong operand is wrong by √k.
const SLACK: f64 = 0.02;

/// Multiplies in every format and layout that the chip has kernels for.
pub fn check(handle: &Handle, device: &Device) -> Result<String, Skip> {
    let (mut right, mut absent) = (0, vec![]);
    for dtype in ["bf16", "fp8_tensor", "fp8_row", "fp8_block", "tf32", "fp32"] {
        for layout in ["forward", "data_gradient", "weight_gradient", "weight_gradient_fp32"] {
            let recipe = Recipe::of(dtype, layout).map_err(Skip::because)?;
            let operands = Operands::new(device, &recipe, SHAPE, 1)?;
            let Ok(call) = Call::new(handle, &Problem { recipe, shape: SHAPE, scales: operands.scales() }, device)
            else {
                absent.push(format!("{dtype} {layout}"));
                continue;
            };
            let (first, second) =
                (read(device, &operands.first, recipe.first)?, read(device, &operands.second, recipe.second)?);
            if first.iter().all(|number| *number == 0.0) {
                return Err(Skip::because("what was written to the device does not come back"));
            }
            let before = read(device, &operands.result, recipe.result)?;
            let workspace = device.alloc(workspace(device.facts().capability))?;
            call.run(operands.at(0), &workspace, device.stream())?;
            let got = read(device, &operands.result, recipe.result)?;
            let wanted = product(&recipe, &first, &second, &before);
            if let Some(at) = differs(&got, &wanted) {
                let (row, column) = (at as u64 / SHAPE.n, at as u64 % SHAPE.n);
                return Err(Skip::because(format!(
                    "{dtype} {layout}: row {row}, column {column} is {}, and {:.3} is right",
                    got[at], wanted[at]
                )));
            }
            right += 1;
        }
    }
    let absent = if absent.is_empty() { String::new() } else { format!("; no kernels for {}", absent.join(", ")) };
    Ok(format!("{right} products agree with the host\'s{absent}"))
}

fn read(device: &Device, ring: &Ring, fill: Fill) -> Result<Vec<f32>, CudaError> {
    Ok(fill.numbers(&device.read(ring.buffer(), usize::MAX)?))
}

/// `C[m,n]`, row by row, from operands as they lie in memory.
fn product(recipe: &Recipe, first: &[f32], second: &[f32], before: &[f32]) -> Vec<f64> {
    let [m, n, k] = [SHAPE.m, SHAPE.n, SHAPE.k].map(|side| side as usize);
    // A transposed first operand lies as rows of length k, a transposed second one as columns.
    let right = |column: usize, at: usize| {
        if recipe.first_transposed { first[column * k + at] } else { first[at * n + column] }
    };
    let left =
        |row: usize, at: usize| if recipe.second_transposed { second[at * m + row] } else { second[row * k + at] };
    let mut out = Vec::with_capacity(m * n);
    for row in 0..m {
        for column in 0..n {
            let sum: f64 = (0..k).map(|at| f64::from(left(row, at)) * f64::from(right(column, at))).sum();
            let old = if recipe.accumulate { f64::from(before[row * n + column]) } else { 0.0 };
            out.push(sum + old);
        }
    }
    out
}

/// The first place where they differ by more than rounding.
fn differs(got: &[f32], wanted: &[f64]) -> Option<usize> {
    let slack = SLACK * (SHAPE.k as f64).sqrt();
    let agrees = |got: f32, wanted: f64| (f64::from(got) - wanted).abs() <= slack + 0.01 * wanted.abs();
    got.iter().zip(wanted).position(|(got, wanted)| !agrees(*got, *wanted))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_is_told_from_every_other() {
        let numbers = |fill: Fill, count: u64| fill.numbers(&fill.bytes(count as usize * fill.width()));
        let recipes = ["forward", "data_gradient", "weight_gradient"].map(|layout| Recipe::of("bf16", layout).unwrap());
        let (first, second) = (numbers(Fill::Bf16, SHAPE.n * SHAPE.k), numbers(Fill::Bf16, SHAPE.m * SHAPE.k));
        let products = recipes.map(|recipe| product(&recipe, &first, &second, &[]));
        for (at, wanted) in products.iter().enumerate() {
            for (other, got) in products.iter().enumerate() {
                let got: Vec<f32> = got.iter().map(|value| *value as f32).collect();
                assert_eq!(differs(&got, wanted).is_some(), at != other, "{at} {other}");
            }
        }
    }

    #[test]
    fn the_main_gradient_is_what_was_there_and_the_product() {
        let recipe = Recipe::of("bf16", "weight_gradient_fp32").unwrap();
        let ones = |count: u64| vec![1.0; count as usize];
        let sums = product(&recipe, &ones(SHAPE.n * SHAPE.k), &ones(SHAPE.m * SHAPE.k), &ones(SHAPE.m * SHAPE.n));
        assert!(sums.iter().all(|sum| *sum == SHAPE.k as f64 + 1.0));
    }
}
