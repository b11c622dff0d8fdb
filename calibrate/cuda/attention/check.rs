//! Whether cuDNN computed attention: some rows of its results against the definition, before anything is timed.
//!
//! Rows of the very shape that is timed, at its beginning, its middle and its end, of three heads: a wrong
//! mask, scale, layout or share of heads moves a row by tens of percent, rounding to bf16 by a few tenths.

use super::reference::{self, Pair, Queries, Vectors};
use super::shape::Shape;
use super::tensors::{Source, Tensors};
use crate::cuda::error::CudaError;
use crate::cuda::sweep::Skip;

/// How far a row may be off, relative to its length. bf16 rounds each number by up to 2⁻⁹, and weights and results are
/// rounded once each.
const ROW: f64 = 0.02;

/// How far the logarithm of a row's sum may be off.
const STATISTIC: f64 = 0.01;

/// Products that the host may spend on one tensor of one head; a row is looked at in any case.
const PRODUCTS: u64 = 100_000_000;

/// Rows that are looked at, the cheapest to be wrong in first.
fn rows(count: u64) -> Vec<u64> {
    let mut rows = vec![count - 1, 0, 1, count / 3, count / 2 + 3];
    rows.retain(|row| *row < count);
    rows.sort_unstable();
    rows.dedup();
    rows.rotate_right(1);
    rows
}

/// As many of `rows` as the host's share allows, one at least.
fn affordable(rows: Vec<u64>, products: u64) -> impl Iterator<Item = u64> {
    let most = (PRODUCTS / products.max(1)).max(1) as usize;
    rows.into_iter().take(most)
}

/// Heads that are looked at: the second as well, because the first and the last fit a wrong sharing of key-value heads.
fn heads(count: u64) -> Vec<u64> {
    let mut heads = vec![0, 1.min(count - 1), count - 1];
    heads.dedup();
    heads
}

/// A refusal if a row is too far off.
fn near(name: &str, head: u64, row: u64, distance: f64) -> Result<(), Skip> {
    if distance <= ROW {
        return Ok(());
    }
    Err(Skip::wrong(format!(
        "cuDNN's {name} is wrong: row {row} of head {head} is {:.1} % away from the definition, more than {:.0} %. \
         The kernel is not timed",
        100.0 * distance,
        100.0 * ROW
    )))
}

/// A head as the device has it.
struct Read {
    values: Vec<f32>,
    width: usize,
}

impl Read {
    fn view(&self) -> Vectors<'_> {
        Vectors { values: &self.values, width: self.width }
    }
}

/// Keys and values of a key-value head.
fn pair(source: &dyn Source, shape: &Shape, tensors: &Tensors, kv_head: u64) -> Result<[Read; 2], CudaError> {
    Ok([
        Read { values: source.head(tensors.k, &shape.keys_lie(), 0, kv_head)?, width: shape.head_dim as usize },
        Read { values: source.head(tensors.v, &shape.values_lie(), 0, kv_head)?, width: shape.value_dim as usize },
    ])
}

/// Checks the outputs and the statistics of the first sequence.
pub fn forward(source: &dyn Source, shape: &Shape, tensors: &Tensors) -> Result<(), Skip> {
    let products = shape.keys * (shape.head_dim + shape.value_dim);
    for at in heads(shape.heads) {
        let [keys, values] = pair(source, shape, tensors, at * shape.kv_heads / shape.heads)?;
        let pair = Pair { keys: keys.view(), values: values.view() };
        let queries =
            Read { values: source.head(tensors.q, &shape.queries_lie(), 0, at)?, width: shape.head_dim as usize };
        let outputs =
            Read { values: source.head(tensors.o, &shape.output_lies(), 0, at)?, width: shape.value_dim as usize };
        let statistics = source.floats(tensors.statistics + 4 * at * shape.queries, shape.queries)?;
        for row in affordable(rows(shape.queries), products) {
            let (wanted, statistic) = reference::output(shape, row, queries.view().of(row), pair);
            near("attention forward", at, row, reference::distance(outputs.view().of(row), &wanted))?;
            let got = f64::from(statistics[row as usize]);
            if got.is_nan() || (got - statistic).abs() > STATISTIC {
                return Err(Skip::wrong(format!(
                    "cuDNN's softmax statistics are wrong: {got:.4} in row {row} of head {at}, {statistic:.4} by definition"
                )));
            }
        }
    }
    Ok(())
}

/// A query head and what backward reads of it.
struct Whole {
    queries: Read,
    outputs: Read,
    gradients: Read,
    statistics: Vec<f32>,
}

impl Whole {
    fn read(source: &dyn Source, shape: &Shape, tensors: &Tensors, d_o: u64, at: u64) -> Result<Self, CudaError> {
        let (key_width, value_width) = (shape.head_dim as usize, shape.value_dim as usize);
        let output = shape.output_lies();
        Ok(Self {
            queries: Read { values: source.head(tensors.q, &shape.queries_lie(), 0, at)?, width: key_width },
            outputs: Read { values: source.head(tensors.o, &output, 0, at)?, width: value_width },
            gradients: Read { values: source.head(d_o, &output, 0, at)?, width: value_width },
            statistics: source.floats(tensors.statistics + 4 * at * shape.queries, shape.queries)?,
        })
    }

    fn view(&self) -> Queries<'_> {
        Queries {
            queries: self.queries.view(),
            outputs: self.outputs.view(),
            gradients: self.gradients.view(),
            statistics: &self.statistics,
        }
    }
}

/// Checks the gradients of the first sequence.
pub fn backward(source: &dyn Source, shape: &Shape, tensors: &Tensors) -> Result<(), Skip> {
    let Some(gradients) = tensors.backward else { return Err(Skip::because("no gradients to check")) };
    let group = shape.heads / shape.kv_heads;
    let (key_width, value_width) = (shape.head_dim as usize, shape.value_dim as usize);
    let products = shape.head_dim + 2 * shape.value_dim;
    for kv_head in heads(shape.kv_heads) {
        let [keys, values] = pair(source, shape, tensors, kv_head)?;
        let pair = Pair { keys: keys.view(), values: values.view() };
        let dq =
            Read { values: source.head(gradients.dq, &shape.queries_lie(), 0, kv_head * group)?, width: key_width };
        let dk = Read { values: source.head(gradients.dk, &shape.keys_lie(), 0, kv_head)?, width: key_width };
        let dv = Read { values: source.head(gradients.dv, &shape.values_lie(), 0, kv_head)?, width: value_width };
        let chosen: Vec<u64> = affordable(rows(shape.keys), shape.queries * group * products).collect();
        let mut sums = vec![(vec![0.0; key_width], vec![0.0; value_width]); chosen.len()];
        for at in kv_head * group..(kv_head + 1) * group {
            let whole = Whole::read(source, shape, tensors, gradients.d_o, at)?;
            if at == kv_head * group {
                for row in affordable(rows(shape.queries), shape.keys * products) {
                    let wanted = reference::query_gradient(shape, row, whole.view(), pair);
                    near("gradient of the queries", at, row, reference::distance(dq.view().of(row), &wanted))?;
                }
            }
            for (key, sum) in chosen.iter().zip(&mut sums) {
                reference::add_pair_gradient(shape, *key, whole.view(), pair, &mut sum.0, &mut sum.1);
            }
        }
        for (key, (to_key, to_value)) in chosen.into_iter().zip(sums) {
            near("gradient of the keys", kv_head, key, reference::distance(dk.view().of(key), &to_key))?;
            near("gradient of the values", kv_head, key, reference::distance(dv.view().of(key), &to_value))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
