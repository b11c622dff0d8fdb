//! A table of measured matmuls on a grid of (m, n, k), as residuals of the wave model.
//!
//! At each grid point stands the logarithm of measured over modelled time; gaps are filled from their neighbours, and
//! between points the residual is interpolated along log m, log n and log k. Outside the grid the nearest edge holds.

use serde::Deserialize;
use toml::Spanned;

use super::basis::Basis;
use super::sound::Wrong;

/// A matmul's m, n and k.
pub type Shape = (u64, u64, u64);

/// Two sizes that are closer than this, in logarithms, are the same.
pub(super) const HAIR: f64 = 0.005;

/// Measured times as written: one row per (n, k), one time for each m, `-` where there is none.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    m: Vec<u64>,
    n: Vec<u64>,
    k: Vec<u64>,
    /// `"n k: t t t …"` [us].
    #[cfg_attr(test, schemars(with = "Vec<String>"))]
    rows: Vec<Spanned<String>>,
}

/// Logarithms of measured over modelled time on a grid.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// The grid's m, n and k.
    sizes: [Vec<u64>; 3],
    /// Their natural logarithms.
    axes: [Vec<f64>; 3],
    /// By m, then n, then k; not a number where nothing was measured.
    known: Vec<f64>,
    /// The same, filled from its neighbours where nothing was measured.
    residual: Vec<f64>,
    /// The least residual, or zero.
    pub(super) lowest: f64,
}

impl Written {
    /// Reads the times, those that `possible` does not refuse; what they are beside the model's is asked for when a matmul is.
    pub(super) fn understand(self, possible: impl Fn(Shape, f64) -> Result<(), String>) -> Result<Times, Wrong> {
        for (name, axis) in [("m", &self.m), ("n", &self.n), ("k", &self.k)] {
            if axis.len() < 2 || axis[0] == 0 || axis.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Err(format!("table.{name} must hold at least two sizes in rising order").into());
            }
        }
        let mut seconds = vec![f64::NAN; self.m.len() * self.n.len() * self.k.len()];
        for row in &self.rows {
            self.read(row.get_ref(), &mut seconds, &possible).map_err(|why| Wrong::at(row, why))?;
        }
        Ok(Times { sizes: [self.m, self.n, self.k], seconds })
    }

    /// Puts a row's times in their places \[s\].
    fn read(
        &self,
        row: &str,
        seconds: &mut [f64],
        possible: impl Fn(Shape, f64) -> Result<(), String>,
    ) -> Result<(), String> {
        let form = || format!("expected \"n k: one time or - for each of the {} values of m\"", self.m.len());
        let (head, times) = row.split_once(':').ok_or_else(form)?;
        let mut head = head.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(n)), Some(Ok(k)), None) = (head.next(), head.next(), head.next()) else { return Err(form()) };
        let (Ok(j), Ok(l)) = (self.n.binary_search(&n), self.k.binary_search(&k)) else { return Err(form()) };
        let mut times = times.split_whitespace();
        for (i, &m) in self.m.iter().enumerate() {
            let text = times.next().ok_or_else(form)?;
            if text != "-" {
                let micros: f64 = text.parse().map_err(|_| form())?;
                possible((m, n, k), micros * 1e-6)?;
                seconds[(i * self.n.len() + j) * self.k.len() + l] = micros * 1e-6;
            }
        }
        times.next().is_none().then_some(()).ok_or_else(form)
    }
}

/// Measured times on a grid \[s\], not a number where there are none.
#[derive(Clone, Debug)]
pub(super) struct Times {
    sizes: [Vec<u64>; 3],
    seconds: Vec<f64>,
}

impl Times {
    /// The same beside a model's times. On one thread: whoever asks first holds a lock, and a thread that waits for others may be handed
    /// a task that asks, too.
    pub(super) fn beside(&self, model: impl Fn((f64, f64, f64)) -> f64) -> Table {
        let [m, n, k] = &self.sizes;
        let plane = n.len() * k.len();
        let residual = |(at, &seconds): (usize, &f64)| {
            let shape = (m[at / plane] as f64, n[at / k.len() % n.len()] as f64, k[at % k.len()] as f64);
            if seconds.is_nan() { seconds } else { libm::log(seconds / model(shape)) }
        };
        Table::new(self.sizes.clone(), self.seconds.iter().enumerate().map(residual).collect())
    }
}

impl Table {
    fn new(sizes: [Vec<u64>; 3], known: Vec<f64>) -> Table {
        let axes = sizes.each_ref().map(|axis| axis.iter().map(|&v| libm::log(v as f64)).collect());
        let mut table = Table { sizes, axes, residual: known.clone(), known, lowest: 0.0 };
        table.fill();
        table.lowest = table.residual.iter().copied().fold(0.0, f64::min);
        table
    }

    /// The smallest grid that holds these residuals.
    pub(super) fn scattered(residuals: impl Iterator<Item = (Shape, f64)>) -> Result<Table, String> {
        let points: Vec<(Shape, f64)> = residuals.collect();
        let axis = |of: fn(&Shape) -> u64| -> Vec<u64> {
            let mut sizes: Vec<u64> = points.iter().map(|(shape, _)| of(shape)).collect();
            sizes.sort_unstable();
            sizes.dedup();
            sizes
        };
        let sizes = [axis(|s| s.0), axis(|s| s.1), axis(|s| s.2)];
        if sizes.iter().any(|axis| axis.len() < 2) {
            return Err(format!("{} shapes span no grid: m, n and k must take two sizes each", points.len()));
        }
        let [mm, nn, kk] = &sizes;
        let mut known = vec![f64::NAN; mm.len() * nn.len() * kk.len()];
        for ((m, n, k), residual) in points {
            let at = (mm.partition_point(|&v| v < m) * nn.len() + nn.partition_point(|&v| v < n)) * kk.len();
            known[at + kk.partition_point(|&v| v < k)] = residual;
        }
        Ok(Table::new(sizes, known))
    }

    /// What was measured: shapes and residuals.
    pub(super) fn points(&self) -> impl Iterator<Item = (Shape, f64)> + '_ {
        let [m, n, k] = &self.sizes;
        let at = |index: usize| (m[index / k.len() / n.len()], n[index / k.len() % n.len()], k[index % k.len()]);
        let known = self.known.iter().enumerate().filter(|(_, r)| !r.is_nan());
        known.map(move |(index, &r)| (at(index), r))
    }

    /// The same had some shapes not been measured.
    pub(super) fn without(&self, gone: &[Shape]) -> Table {
        let mut known = self.known.clone();
        let [m, n, k] = &self.sizes;
        for shape in gone {
            if let (Ok(i), Ok(j), Ok(l)) =
                (m.binary_search(&shape.0), n.binary_search(&shape.1), k.binary_search(&shape.2))
            {
                known[self.index([i, j, l])] = f64::NAN;
            }
        }
        Table::new(self.sizes.clone(), known)
    }

    fn index(&self, at: [usize; 3]) -> usize {
        (at[0] * self.axes[1].len() + at[1]) * self.axes[2].len() + at[2]
    }

    /// Fills gaps from the nearest known points: along each axis the line between the known points on both sides (or
    /// the one known side), averaged over axes. What no line reaches keeps the plain model.
    fn fill(&mut self) {
        let known = &self.known;
        let sizes = self.axes.each_ref().map(Vec::len);
        let mut filled = vec![];
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
                        let below = self.nearest(known, here, axis, (0..here[axis]).rev());
                        let above = self.nearest(known, here, axis, here[axis] + 1..sizes[axis]);
                        let (value, distance) = match (below, above) {
                            (Some((x0, r0)), Some((x1, r1))) => (r0 + (r1 - r0) * (x - x0) / (x1 - x0), x1 - x0),
                            (Some((x0, r0)), None) => (r0, 4.0 * (x - x0)),
                            (None, Some((x1, r1))) => (r1, 4.0 * (x1 - x)),
                            (None, None) => continue,
                        };
                        sum += value / distance;
                        weight += 1.0 / distance;
                    }
                    filled.push((self.index(here), if weight > 0.0 { sum / weight } else { 0.0 }));
                }
            }
        }
        for (at, value) in filled {
            self.residual[at] = value;
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

    pub(super) fn residual(&self, m: f64, n: f64, k: f64) -> f64 {
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
    pub(super) fn place(&self, m: f64, n: f64, k: f64) -> Basis {
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
        if self.known[self.index(at)].is_nan() { Basis::Interpolated } else { Basis::Published }
    }
}
