//! Matmuls of sharded matrices as DTensor runs them: it takes the placements that cost least to reach, and moves operands there.
//!
//! Placements and their order are those of `torch/distributed/tensor/_ops/_einsum_strategy.py`, costs those of
//! `_collective_utils.py` (PyTorch 2.15). An operand is an oriented matrix: `Rows` and `Columns` say which of its dimensions is sharded.

use super::kernels::Step;
use crate::program::{BufferId, Collective, Comm, DType, Dispatch, GroupId, MatmulLayout, MemoryKind, StreamId, Work};
use crate::units::Bytes;

/// What a rank has of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Whole,
    Rows,
    Columns,
    Partial,
}

use Place::{Columns, Partial, Rows, Whole};

/// A matrix of bf16 in some placement, and whether its rows lie one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub rows: u64,
    pub cols: u64,
    pub place: Place,
    pub plain: bool,
}

impl Matrix {
    /// Transposed: a view.
    pub fn turned(self) -> Matrix {
        let place = match self.place {
            Rows => Columns,
            Columns => Rows,
            other => other,
        };
        Matrix { rows: self.cols, cols: self.rows, place, plain: !self.plain }
    }

    /// The rank's own rows and columns.
    fn local(self, ranks: u64) -> (u64, u64) {
        match self.place {
            Rows => (self.rows.div_ceil(ranks), self.cols),
            Columns => (self.rows, self.cols.div_ceil(ranks)),
            Whole | Partial => (self.rows, self.cols),
        }
    }

    /// Bytes that the rank has.
    pub fn bytes(self, ranks: u64) -> u64 {
        let (rows, cols) = self.local(ranks);
        rows * cols * DType::Bf16.bytes()
    }
}

/// Ranks that share matrices; none: a rank by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranks {
    pub count: u64,
    pub group: Option<GroupId>,
}

/// GPUs of a host, by which DTensor judges links. Assumed: it asks how many the process sees.
const OF_HOST: u64 = 8;

impl Ranks {
    /// What DTensor thinks that a change of placement takes \[µs\]; none: it does not do it.
    fn cost(self, matrix: Matrix, to: Place) -> Option<f64> {
        let near = self.count <= OF_HOST;
        let (bandwidth, latency) = if near { (87.7, 0.6) } else { (87.7 * 0.22, 2.7) };
        let hops = (self.count - 1) as f64;
        let over = |bytes: u64, hops: f64| {
            let gigabytes = bytes as f64 / f64::from(1 << 30);
            6.6 + hops * latency + gigabytes * hops / self.count as f64 / bandwidth * 1e6
        };
        let own = matrix.bytes(self.count);
        match (matrix.place, to) {
            (from, to) if from == to => Some(0.0),
            (Whole, _) => Some(0.0),
            (_, Partial) => None,
            (Partial, Whole) => Some(over(own, 2.0 * hops)),
            (Partial, _) => Some(over(own, hops)),
            (_, Whole) => Some(over(own * self.count, hops)),
            (_, _) => Some(over(own, hops) + 1.0),
        }
    }
}

/// Placements of a product, and of its left and right factor.
const STRATEGIES: [[Place; 3]; 6] = [
    [Whole, Whole, Whole],
    [Partial, Columns, Rows],
    [Rows, Rows, Whole],
    [Columns, Whole, Columns],
    [Partial, Partial, Whole],
    [Partial, Whole, Partial],
];

/// A matmul's workspace: of cuBLAS, and of cuBLASLt where what is added lies plain.
const WORKSPACES: [u64; 2] = [32 << 20, 1 << 20];

/// `left · right`, or `added + left · right`: its result, and the memory that it lies in.
pub(super) fn matmul(
    step: &mut Step<'_>,
    ranks: Ranks,
    (added, left, right): (Option<Matrix>, Matrix, Matrix),
) -> (Matrix, BufferId) {
    let cost = |[result, first, second]: [Place; 3]| {
        let added = added.map_or(Some(0.0), |added| ranks.cost(added, result));
        Some(added? + ranks.cost(left, first)? + ranks.cost(right, second)?)
    };
    let mut best = (STRATEGIES[0], f64::INFINITY);
    for strategy in STRATEGIES {
        match cost(strategy) {
            Some(cost) if cost < best.1 => best = (strategy, cost),
            _ => {}
        }
    }
    let [result, first, second] = best.0;
    let name = if added.is_some() { "aten.addmm" } else { "aten.mm" };
    let mut moved = vec![];
    let mut known: Vec<(Matrix, Place)> = vec![];
    let mut bring = |step: &mut Step<'_>, matrix: Matrix, to: Place| {
        known.push((matrix, to));
        let (matrix, made) = redistribute(step, ranks, matrix, to);
        moved.extend(made);
        matrix
    };
    let added = added.map(|added| bring(step, added, result));
    let (left, right) = (bring(step, left, first), bring(step, right, second));
    let (m, k) = left.local(ranks.count);
    let (_, n) = right.local(ranks.count);
    let product = Matrix { rows: left.rows, cols: right.cols, place: result, plain: true };
    let buffer = step.temporary(product.bytes(ranks.count), name);
    let workspace = WORKSPACES[usize::from(added.is_some_and(|added| added.plain))];
    let workspace = step.temporary(workspace, "cublas workspace");
    let work = Work::Matmul { m, n, k, dtype: DType::Bf16, layout: layout(left, right) };
    step.program.launch(StreamId(0), name, work, Dispatch::EagerForward);
    step.program.free(workspace);
    for made in moved.into_iter().rev() {
        step.program.free(made);
    }
    (product, buffer)
}

/// The layout as a linear layer has it.
fn layout(left: Matrix, right: Matrix) -> MatmulLayout {
    match (left.plain, right.plain) {
        (true, false) => MatmulLayout::Forward,
        (false, _) => MatmulLayout::WeightGradient,
        (true, true) => MatmulLayout::DataGradient,
    }
}

/// Moves a matrix to another placement: what it is then, and the memory that this takes.
pub(super) fn redistribute(step: &mut Step<'_>, ranks: Ranks, matrix: Matrix, to: Place) -> (Matrix, Option<BufferId>) {
    let there = Matrix { place: to, ..matrix };
    let Some(group) = ranks.group.filter(|_| matrix.place != to) else { return (there, None) };
    let (own, bytes) = (matrix.bytes(ranks.count), there.bytes(ranks.count));
    let there = Matrix { plain: true, ..there };
    let collect = |step: &mut Step<'_>, kind, bytes| {
        step.program.collective(StreamId(0), Comm { kind, group, bytes: Bytes(bytes), dtype: DType::Bf16 });
    };
    let copy = |step: &mut Step<'_>, name, bytes: u64| {
        let made = step.temporary(bytes, name);
        let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(bytes), written: Bytes(bytes) };
        step.program.launch(StreamId(0), name, work, Dispatch::EagerForward);
        made
    };
    let buffer = match (matrix.place, to) {
        (Partial, Whole) => {
            let buffer = step.temporary(bytes, "all_reduce");
            collect(step, Collective::AllReduce, bytes);
            buffer
        }
        (Partial, _) => {
            let buffer = step.temporary(bytes, "reduce_scatter");
            collect(step, Collective::ReduceScatter, own);
            buffer
        }
        (Whole, _) => copy(step, "aten.clone", bytes),
        (_, Whole) => {
            // Columns are gathered as if they were rows, then laid side by side.
            let by_columns = matrix.place == Columns;
            let plain = (by_columns && !matrix.plain).then(|| copy(step, "aten.clone", own));
            let gathered = step.temporary(bytes, "all_gather");
            collect(step, Collective::AllGather, bytes);
            if !by_columns {
                return (there, Some(gathered));
            }
            let joined = copy(step, "aten.cat", bytes);
            step.program.free(gathered);
            plain.into_iter().for_each(|plain| step.program.free(plain));
            joined
        }
        (_, _) => {
            let plain = (!matrix.plain).then(|| copy(step, "aten.clone", own));
            let taken = step.temporary(bytes, "shard_dim_alltoall");
            collect(step, Collective::AllToAll, own);
            let joined = copy(step, "aten.cat", bytes);
            step.program.free(taken);
            plain.into_iter().for_each(|plain| step.program.free(plain));
            joined
        }
    };
    (there, Some(buffer))
}
