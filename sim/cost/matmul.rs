//! Dense matmul: the wave model of [`Waves`], corrected by what was measured nearby.
//!
//! A table of measured times on a grid of (m, n, k) gives, at each grid point, the logarithm of measured over modelled
//! time. Between points this *residual* is interpolated along log m, log n and log k; the model itself carries the
//! steps of tiles and waves in between. Outside the grid the residual of the nearest edge holds. At last no matmul is
//! let be faster than one with any dimension halved, so that noise in the table cannot make more work cheaper.
//!
//! A point of the table is `published`, one inside its hull `interpolated`, one outside `extrapolated`.

use serde::Deserialize;

use super::basis::{Basis, Cost, Evidence};
use super::waves::{Chip, Waves};
use crate::units::FlopRate;

/// What a layout and a throttled clock can cost together, at most: the ranges that a profile is checked for allow more,
/// but none comes near.
const SLOWEST: f64 = 2.0;

/// A matmul section as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    evidence: Evidence,
    peak: FlopRate,
    waves: Waves,
    table: Option<WrittenTable>,
}

/// Measured times as written: one row per (n, k), one time for each m, `-` where there is none.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTable {
    m: Vec<u64>,
    n: Vec<u64>,
    k: Vec<u64>,
    /// `"n k: t t t …"` [us].
    rows: Vec<String>,
}

/// Matmuls of one element type on one chip.
#[derive(Clone, Debug)]
pub struct Matmul {
    /// What the section rests on.
    pub evidence: Evidence,
    /// The chip, with the peak rate of this element type.
    pub chip: Chip,
    /// The wave model.
    pub waves: Waves,
    size: f64,
    table: Option<Table>,
}

/// Logarithms of measured over modelled time on a grid.
#[derive(Clone, Debug)]
struct Table {
    /// Natural logarithms of the grid's m, n and k.
    axes: [Vec<f64>; 3],
    /// By m, then n, then k; what was not measured is filled from its neighbours.
    residual: Vec<f64>,
    measured: Vec<bool>,
    /// The largest residual.
    highest: f64,
}

impl Matmul {
    /// The chip's rate of this element type.
    pub fn peak(&self) -> FlopRate {
        self.chip.peak
    }

    /// Understands a section for a chip with the given processors and bandwidth; `size` is bytes an element.
    pub(super) fn new(written: Written, chip: Chip, size: f64) -> Result<Matmul, String> {
        let w = &written.waves;
        for (name, value) in [("mma", w.mma), ("memory", w.memory), ("small_tile", w.small_tile)] {
            if !(value > 0.0 && value <= 1.5) {
                return Err(format!("waves.{name} is {value}: expected a share of the peak between 0 and 1.5"));
            }
        }
        if !(0.0..=1.0).contains(&w.tail) || !(0.0..=1e6).contains(&w.k_overhead) {
            return Err(format!(
                "waves.tail is {} and waves.k_overhead is {}: expected 0 to 1 and 0 to 1e6",
                w.tail, w.k_overhead
            ));
        }
        if written.peak.0 <= 0.0 {
            return Err("peak is zero: expected the chip's rate, such as \"989 TFLOP/s\"".to_owned());
        }
        let chip = Chip { peak: written.peak, ..chip };
        let table = written.table.map(|table| table.understand(&chip, &written.waves, size)).transpose()?;
        Ok(Matmul { evidence: written.evidence, chip, waves: written.waves, size, table })
    }

    /// Time of one matmul at burst clocks.
    pub fn cost(&self, m: u64, n: u64, k: u64) -> Cost {
        self.cost_with(m, n, k, |seconds, _| seconds)
    }

    /// Time of one matmul, with `clock(seconds, utilisation)` applied to each candidate before it is compared.
    pub(super) fn cost_with(&self, m: u64, n: u64, k: u64, clock: impl Fn(f64, f64) -> f64) -> Cost {
        if m == 0 || n == 0 || k == 0 {
            return Cost::NOTHING;
        }
        let at = |a: u32, b: u32, c: u32| {
            let (m, n, k) = ((m >> a) as f64, (n >> b) as f64, (k >> c) as f64);
            let seconds = self.seconds(m, n, k);
            clock(seconds, (2.0 * m * n * k / (seconds * self.chip.peak.0 * self.waves.mma)).min(1.0))
        };
        // No smaller matmul can take longer than the model, which only grows, times the largest correction.
        let most = self.table.as_ref().map_or(1.0, |table| libm::exp(table.highest)) * SLOWEST;
        let bound = |a: u32, b: u32, c: u32| {
            let shape = ((m >> a) as f64, (n >> b) as f64, (k >> c) as f64);
            self.waves.seconds(&self.chip, shape, self.size) * most
        };
        let mut seconds = at(0, 0, 0);
        for a in 0..=m.ilog2() {
            if bound(a, 0, 0) <= seconds {
                break;
            }
            for b in 0..=n.ilog2() {
                if bound(a, b, 0) <= seconds {
                    break;
                }
                for c in 0..=k.ilog2() {
                    if bound(a, b, c) <= seconds {
                        break;
                    }
                    seconds = seconds.max(at(a, b, c));
                }
            }
        }
        match self.table.as_ref().map(|table| table.place(m as f64, n as f64, k as f64)) {
            Some(Basis::Published) | None => self.evidence.cost(seconds),
            Some(Basis::Interpolated) => self.evidence.between(seconds),
            Some(_) => self.evidence.beyond(seconds),
        }
    }

    fn seconds(&self, m: f64, n: f64, k: f64) -> f64 {
        let model = self.waves.seconds(&self.chip, (m, n, k), self.size);
        match &self.table {
            Some(table) => model * libm::exp(table.residual(m, n, k)),
            None => model,
        }
    }
}

impl WrittenTable {
    fn understand(self, chip: &Chip, waves: &Waves, size: f64) -> Result<Table, String> {
        for (name, axis) in [("m", &self.m), ("n", &self.n), ("k", &self.k)] {
            if axis.len() < 2 || axis[0] == 0 || axis.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Err(format!("table.{name} must hold at least two sizes in rising order"));
            }
        }
        let (mm, nn, kk) = (self.m.len(), self.n.len(), self.k.len());
        let mut residual = vec![f64::NAN; mm * nn * kk];
        for row in &self.rows {
            let bad = || format!("the row {row:?} is not \"n k: one time or - for each of the {mm} values of m\"");
            let (head, times) = row.split_once(':').ok_or_else(bad)?;
            let mut head = head.split_whitespace().map(str::parse::<u64>);
            let (Some(Ok(n)), Some(Ok(k)), None) = (head.next(), head.next(), head.next()) else { return Err(bad()) };
            let (Ok(j), Ok(l)) = (self.n.binary_search(&n), self.k.binary_search(&k)) else { return Err(bad()) };
            if times.split_whitespace().count() != mm {
                return Err(bad());
            }
            for (i, text) in times.split_whitespace().enumerate().filter(|&(_, text)| text != "-") {
                let micros: f64 = text.parse().map_err(|_| bad())?;
                if !(micros > 0.0 && micros.is_finite()) {
                    return Err(bad());
                }
                let shape = (self.m[i] as f64, n as f64, k as f64);
                residual[(i * nn + j) * kk + l] = libm::log(micros * 1e-6 / waves.seconds(chip, shape, size));
            }
        }
        let measured: Vec<bool> = residual.iter().map(|r| !r.is_nan()).collect();
        let logs = |axis: &[u64]| axis.iter().map(|&v| libm::log(v as f64)).collect();
        let mut table = Table { axes: [logs(&self.m), logs(&self.n), logs(&self.k)], residual, measured, highest: 0.0 };
        table.fill();
        table.highest = table.residual.iter().copied().fold(0.0, f64::max);
        Ok(table)
    }
}

impl Table {
    fn index(&self, at: [usize; 3]) -> usize {
        (at[0] * self.axes[1].len() + at[1]) * self.axes[2].len() + at[2]
    }

    /// Fills gaps from the nearest known points: along each axis the line between the known points on both sides (or
    /// the one known side), averaged over axes. What no line reaches keeps the plain model.
    fn fill(&mut self) {
        let known = self.residual.clone();
        let sizes = [self.axes[0].len(), self.axes[1].len(), self.axes[2].len()];
        for i in 0..sizes[0] {
            for j in 0..sizes[1] {
                for l in 0..sizes[2] {
                    let here = [i, j, l];
                    if !known[self.index(here)].is_nan() {
                        continue;
                    }
                    let (mut sum, mut weight) = (0.0, 0.0);
                    for axis in 0..3 {
                        let x = self.axes[axis][here[axis]];
                        let below = self.nearest(&known, here, axis, (0..here[axis]).rev());
                        let above = self.nearest(&known, here, axis, here[axis] + 1..sizes[axis]);
                        let (value, distance) = match (below, above) {
                            (Some((x0, r0)), Some((x1, r1))) => (r0 + (r1 - r0) * (x - x0) / (x1 - x0), x1 - x0),
                            (Some((x0, r0)), None) => (r0, 4.0 * (x - x0)),
                            (None, Some((x1, r1))) => (r1, 4.0 * (x1 - x)),
                            (None, None) => continue,
                        };
                        sum += value / distance;
                        weight += 1.0 / distance;
                    }
                    let at = self.index(here);
                    self.residual[at] = if weight > 0.0 { sum / weight } else { 0.0 };
                }
            }
        }
    }

    /// The first known residual along an axis, with its place.
    fn nearest(
        &self,
        known: &[f64],
        here: [usize; 3],
        axis: usize,
        mut range: impl Iterator<Item = usize>,
    ) -> Option<(f64, f64)> {
        range.find_map(|at| {
            let mut there = here;
            there[axis] = at;
            let value = known[self.index(there)];
            (!value.is_nan()).then_some((self.axes[axis][at], value))
        })
    }

    /// A matmul and its transpose do the same work: takes the orientation that lies inside the grid.
    fn oriented(&self, m: f64, n: f64, k: f64) -> [f64; 3] {
        let x = [libm::log(m), libm::log(n), libm::log(k)];
        let outside = |m: f64, n: f64| {
            let over = |axis: &[f64], v: f64| (axis[0] - v).max(v - axis[axis.len() - 1]).max(0.0);
            over(&self.axes[0], m) + over(&self.axes[1], n)
        };
        if outside(x[1], x[0]) < outside(x[0], x[1]) { [x[1], x[0], x[2]] } else { x }
    }

    /// The cell around a point: on each axis the lower corner and the share of the way to the upper one, in 0..=1.
    fn cell(&self, x: [f64; 3]) -> [(usize, f64); 3] {
        std::array::from_fn(|axis| {
            let points = &self.axes[axis];
            let low = points.partition_point(|&p| p <= x[axis]).clamp(1, points.len() - 1) - 1;
            (low, ((x[axis] - points[low]) / (points[low + 1] - points[low])).clamp(0.0, 1.0))
        })
    }

    fn residual(&self, m: f64, n: f64, k: f64) -> f64 {
        let cell = self.cell(self.oriented(m, n, k));
        let mut sum = 0.0;
        for corner in 0..8 {
            let mut weight = 1.0;
            let mut at = [0; 3];
            for (axis, &(low, share)) in cell.iter().enumerate() {
                let upper = corner >> axis & 1 == 1;
                weight *= if upper { share } else { 1.0 - share };
                at[axis] = low + usize::from(upper);
            }
            sum += weight * self.residual[self.index(at)];
        }
        sum
    }

    /// Whether a shape is a measured point, inside the hull, or outside.
    fn place(&self, m: f64, n: f64, k: f64) -> Basis {
        const HAIR: f64 = 0.005;
        let x = self.oriented(m, n, k);
        let inside = |axis: &Vec<f64>, v: f64| (axis[0] - HAIR..=axis[axis.len() - 1] + HAIR).contains(&v);
        if !self.axes.iter().zip(x).all(|(axis, v)| inside(axis, v)) {
            return Basis::Extrapolated;
        }
        let mut at = [0; 3];
        for axis in 0..3 {
            match self.axes[axis].iter().position(|&p| (p - x[axis]).abs() <= HAIR) {
                Some(index) => at[axis] = index,
                None => return Basis::Interpolated,
            }
        }
        if self.measured[self.index(at)] { Basis::Published } else { Basis::Interpolated }
    }
}
