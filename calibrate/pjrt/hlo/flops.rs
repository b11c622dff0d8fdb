//! Floating-point operations of a program's matrix products.
//!
//! A dot of result R over contracted lengths K costs 2·|R|·ΠK. On TPU dots become convolutions, batches of them as windows with
//! holes: of a window's positions only those count that meet an element of the array, as XLA's own cost analysis has it. Each
//! instruction counts as often as it runs. Custom calls (kernels written by hand) say nothing of themselves; they are
//! named beside the number. Counts stop at the largest number there is: of a program that no machine could run, a made-up one.

use std::collections::BTreeMap;

use super::flow::{Entered, entered};
use super::{Computation, Instruction, Module, WindowDimension};

/// Operations, and what they leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Flops {
    /// Of dots and convolutions, two for a multiplication and an addition.
    pub matmul: u64,
    /// Calls whose insides are not seen, by target, with how often each runs.
    pub unseen: BTreeMap<String, u64>,
    /// Loops of unknown length, counted as one turn.
    pub unbounded: Vec<String>,
}

/// Custom calls that the compiler makes for itself and that compute nothing.
pub const IDLE: [&str; 9] = [
    "AllocateBuffer",
    "AsyncCollectiveDone",
    "AsyncCollectiveStart",
    "ConcatBitcast",
    "MoveToDevice",
    "MoveToHost",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "Sharding",
];

/// Those of one device in one step.
pub fn flops(module: &Module) -> Flops {
    let (all, unbounded) = entered(module);
    let mut sum = Flops { unbounded: unbounded.into_iter().map(|loops| loops.0).collect(), ..Flops::default() };
    for Entered { computation, times } in all {
        for instruction in &computation.instructions {
            let own = product(computation, instruction).unwrap_or(0);
            sum.matmul = sum.matmul.saturating_add(times.saturating_mul(own));
            if instruction.opcode == "custom-call" && !IDLE.contains(&instruction.target.as_str()) {
                let calls = sum.unseen.entry(instruction.target.clone()).or_default();
                *calls = calls.saturating_add(times);
            }
        }
    }
    sum
}

/// Of one instruction.
fn product(within: &Computation, instruction: &Instruction) -> Option<u64> {
    match instruction.opcode.as_str() {
        "dot" => {
            let first = within.operand(instruction, 0)?.shape.as_ref()?;
            let contracted = &instruction.dot.as_ref()?.contracted;
            let depths: Vec<u64> = contracted.iter().map(|axis| first.length(*axis)).collect::<Option<_>>()?;
            Some(times_all(depths.into_iter().chain([2, instruction.shape.as_ref()?.elements()])))
        }
        "convolution" => convolution(within, instruction),
        _ => None,
    }
}

/// Rows, columns and depth of an instruction that multiplies; of a batch the rows of all of it.
pub fn sides(within: &Computation, instruction: &Instruction) -> Option<[u64; 3]> {
    let all = product(within, instruction)? / 2;
    let second = within.operand(instruction, 1)?.shape.as_ref()?;
    let (columns, depth) = match &instruction.convolution {
        Some(axes) if instruction.opcode == "convolution" => {
            (second.length(axes.kernel_output)?, second.length(axes.kernel_input)?)
        }
        _ => {
            let first = within.operand(instruction, 0)?.shape.as_ref()?;
            let contracted = &instruction.dot.as_ref()?.contracted;
            let lengths: Vec<u64> = contracted.iter().map(|axis| first.length(*axis)).collect::<Option<_>>()?;
            let depth = times_all(lengths);
            (second.dimensions.last().map_or(1, |last| last.cast_unsigned()), depth)
        }
    };
    let rows = all.checked_div(columns.saturating_mul(depth))?;
    (rows > 0).then_some([rows, columns, depth])
}

fn convolution(within: &Computation, instruction: &Instruction) -> Option<u64> {
    let axes = instruction.convolution.as_ref()?;
    let (input, kernel) =
        (within.operand(instruction, 0)?.shape.as_ref()?, within.operand(instruction, 1)?.shape.as_ref()?);
    let output = instruction.shape.as_ref()?;
    let windows = instruction.window.as_ref().map_or(&[][..], |window| &window.dimensions);
    let mut pairs: u64 = 1;
    for (at, window) in windows.iter().enumerate() {
        let met = meetings(window, input.length(axes.input_spatial[at])?, output.length(axes.output_spatial[at])?);
        pairs = pairs.saturating_mul(met);
    }
    let batch = input.length(axes.input_batch)? / groups(instruction.batch_groups);
    Some(times_all([2, batch, pairs, kernel.length(axes.kernel_input)?, kernel.length(axes.kernel_output)?]))
}

/// A product, or the largest number there is.
fn times_all(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(1, u64::saturating_mul)
}

fn groups(written: i64) -> u64 {
    written.max(1).cast_unsigned()
}

/// Pairs of an output's position and a window's element that meet an element of the array, along one axis.
fn meetings(window: &WindowDimension, input: u64, output: u64) -> u64 {
    let spacing = window.base_dilation.max(1);
    let last = (input.cast_signed() - 1) * spacing;
    let mut count = 0;
    for element in 0..window.size {
        // Position o lies on o·stride + shift of the spread-out array.
        let shift = element * window.window_dilation.max(1) - window.low;
        let stride = window.stride.max(1);
        let first = (-shift).max(0).div_euclid(stride) + i64::from((-shift).max(0).rem_euclid(stride) > 0);
        let end = ((last - shift).div_euclid(stride) + 1).clamp(0, output.cast_signed());
        count += match spacing {
            1 => (end - first).max(0).cast_unsigned(),
            _ => {
                // What an element meets repeats after as many positions as the array is spread out by.
                let meets = |o: &i64| (o * stride + shift) % spacing == 0;
                let (positions, met) =
                    ((end - first).max(0), |upto| (first..first + upto).filter(meets).count() as u64);
                match positions / spacing {
                    0 => met(positions),
                    turns => turns.cast_unsigned() * met(spacing) + met(positions % spacing),
                }
            }
        };
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(size: i64, stride: i64, padding: i64, window_dilation: i64, base_dilation: i64) -> WindowDimension {
        WindowDimension { size, stride, low: padding, high: padding, window_dilation, base_dilation }
    }

    /// By trying every pair.
    fn tried(window: &WindowDimension, input: i64, output: i64) -> u64 {
        let spread = (input - 1) * window.base_dilation;
        let meets = |o: i64, element: i64| {
            let at = o * window.stride + element * window.window_dilation - window.low;
            (0..=spread).contains(&at) && at % window.base_dilation == 0
        };
        (0..output).map(|o| (0..window.size).filter(|element| meets(o, *element)).count() as u64).sum()
    }

    #[test]
    fn windows_meet_what_trying_every_pair_finds() {
        for size in 1..6 {
            for (stride, padding, holes, spacing) in
                [(1, 0, 1, 1), (2, 3, 1, 1), (1, 4, 2, 3), (3, 5, 1, 2), (5, 0, 4, 4)]
            {
                let window = window(size, stride, padding, holes, spacing);
                for input in 1..9 {
                    let output = ((input - 1) * spacing + 2 * padding - (size - 1) * holes) / stride + 1;
                    let expected = tried(&window, input, output.max(0));
                    assert_eq!(meetings(&window, input as u64, output.max(0) as u64), expected, "{window:?} {input}");
                }
            }
        }
    }

    #[test]
    fn a_batch_of_dots_written_as_a_convolution_meets_each_of_its_batch_once() {
        // As TPU's compiler writes one: as many elements as the batch, spread so far that only equal ones meet.
        let batch = 8;
        let window = WindowDimension {
            size: batch,
            stride: batch - 1,
            low: 0,
            high: 0,
            window_dilation: 1,
            base_dilation: batch,
        };
        assert_eq!(meetings(&window, batch as u64, batch as u64), batch as u64);
    }
}
