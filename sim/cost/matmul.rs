//! Dense matmul: the wave model of [`Waves`], corrected by what was measured nearby.
//!
//! A table of published times ([`super::table`]) and points measured at shapes of any kind ([`super::nearby`]) correct the
//! model, one on top of the other; the model itself carries the steps of tiles and waves in between.
//!
//! At last no matmul is let be slower than one with any dimension doubled: the smaller could be padded with zeros. So more
//! work is never cheaper, though measurements are not monotone. What spoils them makes matmuls slower, not faster: a
//! disturbed timing, or a kernel that cuBLAS chooses badly (on H200, 1 × 1,024 × 1,536 takes 10.2 us and 16 rows 4.8 us). To
//! let no matmul be *faster* than one with a dimension halved instead would hand every such slip on to all larger ones.
//!
//! A point of the table is `published`, one inside its hull `interpolated`, one outside `extrapolated`; a point measured on
//! the profile's own machine, and what is near it, has the evidence of the points. A point of the table that such points
//! have moved is `interpolated`, with the median by which they move it added to its spread.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;

use super::basis::{Basis, Cost, Evidence};
use super::nearby::{self, Nearby};
use super::sound::{self, Wrong};
use super::table::{self, Shape, Table};
use super::waves::{Chip, Waves};
use crate::units::FlopRate;

/// A time that is undercut by less than this, about what a table's digits say, is its own.
const SAME: f64 = 0.995;

/// A matmul section as written.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    evidence: Evidence,
    peak: FlopRate,
    waves: Waves,
    table: Option<table::Written>,
    points: Option<nearby::Written>,
}

/// A table that is made when it is first asked: few jobs multiply in all element types.
#[derive(Clone)]
struct Later(Arc<LazyLock<Table, Box<dyn FnOnce() -> Table + Send>>>);

fn later(table: impl FnOnce() -> Table + Send + 'static) -> Later {
    Later(Arc::new(LazyLock::new(Box::new(table))))
}

impl Deref for Later {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.0
    }
}

/// A profile is told from others by what is printed of it, whoever has asked for its tables until then.
impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
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
    table: Option<Later>,
    nearby: Option<Nearby>,
}

/// How far above its peak a chip's rate may be read, by rounding of figures and clocks above the stated one (assumed).
pub(super) const PEAK_READ: f64 = 1.05;

impl Written {
    /// The chip's rate of this element type.
    pub(super) fn peak(&self) -> FlopRate {
        self.peak
    }
}

/// Refuses a time in which the chip cannot multiply elements of `size` bytes, or that no measurement of it gives.
fn possible(chip: &Chip, size: f64, (m, n, k): Shape, seconds: f64) -> Result<(), String> {
    let [rows, columns, depth] = [m, n, k].map(|v| v as f64);
    let flops = 2.0 * rows * columns * depth;
    let (micros, rate) = (seconds * 1e6, FlopRate(flops / seconds));
    let shown = || format!("{m} x {n} x {k} in {} us", sound::figure(micros));
    if !(seconds > 0.0 && seconds.is_finite()) {
        return Err(format!("{}: expected a time above zero", shown()));
    }
    if rate.0 > PEAK_READ * chip.peak.0 {
        let peak = chip.peak;
        return Err(format!(
            "{} is {rate}, above the chip's peak of {peak}: remove the point, or correct the peak",
            shown()
        ));
    }
    let bytes = size * (rows * depth + depth * columns) + 2.0 * rows * columns;
    sound::not_stuck(seconds, (flops / chip.peak.0).max(bytes / chip.bandwidth.0)).map_err(|why| shown() + &why)
}

impl Matmul {
    /// The chip's rate of this element type.
    pub fn peak(&self) -> FlopRate {
        self.chip.peak
    }

    /// Understands a section for a chip with the given processors and bandwidth; `size` is bytes an element.
    pub(super) fn new(written: Written, chip: Chip, size: f64) -> Result<Matmul, Wrong> {
        let w = &written.waves;
        for (name, value) in [("mma", w.mma), ("memory", w.memory), ("small_tile", w.small_tile)] {
            let most = if name == "mma" { PEAK_READ } else { 1.5 };
            if !(value > 0.0 && value <= most) {
                return Err(
                    format!("waves.{name} is {value}: expected a share of the peak between 0 and {most}").into()
                );
            }
        }
        if !(0.0..=1.0).contains(&w.tail) || !(0.0..=1e6).contains(&w.k_overhead) {
            return Err(format!(
                "waves.tail is {} and waves.k_overhead is {}: expected 0 to 1 and 0 to 1e6",
                w.tail, w.k_overhead
            )
            .into());
        }
        if written.peak.0 <= 0.0 {
            return Err("peak is zero: expected the chip's rate, such as \"989 TFLOP/s\"".to_owned().into());
        }
        let chip = Chip { peak: written.peak, ..chip };
        let waves = written.waves;
        let possible = |shape, seconds| possible(&chip, size, shape, seconds);
        let times = written.table.map(|table| table.understand(possible)).transpose()?;
        let table = times.map(|times| later(move || times.beside(|shape| waves.seconds(&chip, shape, size))));
        let matmul = Matmul { evidence: written.evidence, chip, waves, size, table, nearby: None };
        match written.points {
            Some(points) => {
                let times = points.points(possible)?;
                Ok(matmul.with_points(points.evidence(), &times)?)
            }
            None => Ok(matmul),
        }
    }

    /// The wave model alone: no table, no points.
    pub fn bare(evidence: Evidence, chip: Chip, waves: Waves, size: f64) -> Matmul {
        Matmul { evidence, chip, waves, size, table: None, nearby: None }
    }

    /// The same with a table of shapes and seconds in place of any it had; each size must take two values at least.
    pub fn with_table(self, times: &[(Shape, f64)]) -> Result<Matmul, String> {
        let residual = |&((m, n, k), seconds): &(Shape, f64)| {
            let model = self.waves.seconds(&self.chip, (m as f64, n as f64, k as f64), self.size);
            ((m, n, k), libm::log(seconds / model))
        };
        let table = Table::scattered(times.iter().map(residual))?;
        Ok(Matmul { table: Some(later(|| table)), ..self })
    }

    /// The same with points measured on the profile's own machine, shapes and seconds, in place of any it had.
    pub fn with_points(self, evidence: Evidence, times: &[(Shape, f64)]) -> Result<Matmul, String> {
        let beneath = Matmul { nearby: None, ..self };
        let residual = |&(shape, seconds): &(Shape, f64)| {
            let (m, n, k) = shape;
            (shape, libm::log(seconds / beneath.seconds(m as f64, n as f64, k as f64)))
        };
        let nearby = Nearby::new(evidence, times.iter().map(residual));
        let nearby = nearby.ok_or("points.rows is empty: leave points out where nothing was measured")?;
        Ok(Matmul { nearby: Some(nearby), ..beneath })
    }

    /// The same had some shapes not been measured.
    pub fn without(&self, gone: &[Shape]) -> Matmul {
        Matmul {
            table: self.table.as_ref().map(|table| table.without(gone)).map(|table| later(|| table)),
            nearby: self.nearby.as_ref().and_then(|nearby| nearby.without(|shape| gone.contains(&shape))),
            ..self.clone()
        }
    }

    /// The same had some points not been measured on the profile's own machine; the published table stays.
    pub fn without_measured(&self, gone: impl Fn(Shape) -> bool) -> Matmul {
        let nearby = self.nearby.as_ref().and_then(|nearby| nearby.without(&gone));
        Matmul { nearby, ..self.clone() }
    }

    /// The points of the published table: shapes and seconds.
    pub fn table(&self) -> Vec<(Shape, f64)> {
        let points = self.table.iter().flat_map(|table| table.points());
        let seconds = |(m, n, k): Shape, r: f64| {
            libm::exp(r) * self.waves.seconds(&self.chip, (m as f64, n as f64, k as f64), self.size)
        };
        points.map(|(shape, r)| (shape, seconds(shape, r))).collect()
    }

    /// The points measured on the profile's own machine: shapes and seconds.
    pub fn measured(&self) -> Vec<(Shape, f64)> {
        let points = self.nearby.iter().flat_map(Nearby::points);
        let seconds = |(m, n, k): Shape, r: f64| libm::exp(r) * self.beneath(m as f64, n as f64, k as f64);
        points.map(|(shape, r)| (shape, seconds(shape, r))).collect()
    }

    /// How many times as long a matmul takes in the wave model if so many processors are left to others, 1 or more.
    pub(super) fn slower_without(&self, idle: f64, (m, n, k): Shape) -> f64 {
        if idle <= 0.0 || idle >= self.chip.processors {
            return 1.0;
        }
        let left = self.chip.processors - idle;
        let chip =
            Chip { processors: left, peak: FlopRate(self.chip.peak.0 * left / self.chip.processors), ..self.chip };
        let shape = (m as f64, n as f64, k as f64);
        let seconds = |chip: &Chip| self.waves.seconds(chip, shape, self.size);
        (seconds(&chip) / seconds(&self.chip)).max(1.0)
    }

    /// Time of one matmul at burst clocks.
    pub fn cost(&self, m: u64, n: u64, k: u64) -> Cost {
        self.cost_with(1, (m, n, k), |seconds, _| seconds)
    }

    /// Time of as many matmuls of one shape as fill the chip together, with `clock(seconds, utilisation)` applied to each candidate before it is
    /// compared; `clock` must grow with both. What was measured near one matmul of all their rows corrects them.
    pub(super) fn cost_with(&self, groups: u64, (m, n, k): Shape, clock: impl Fn(f64, f64) -> f64) -> Cost {
        if groups == 0 || m == 0 || n == 0 || k == 0 {
            return Cost::NOTHING;
        }
        let (own, seconds) = self.least(groups as f64, (m as f64, n as f64, k as f64), clock);
        let m = m.saturating_mul(groups);
        let itself = seconds >= own * SAME;
        match self.nearby.as_ref().and_then(|nearby| Some((&nearby.evidence, nearby.place((m, n, k))?))) {
            Some((evidence, Basis::Measured)) if itself => return evidence.cost(seconds),
            Some((evidence, _)) => return evidence.between(seconds),
            None => {}
        }
        let moved = self.nearby.as_ref().map_or(0.0, |nearby| libm::fabs(nearby.middle));
        let widened = |cost: Cost| Cost { spread: cost.spread + moved, ..cost };
        match self.table.as_ref().map(|table| table.place(m as f64, n as f64, k as f64)) {
            Some(Basis::Published) if itself && self.nearby.is_none() => self.evidence.cost(seconds),
            // The table's figure, moved by points measured elsewhere or undercut by a larger one: nobody published this.
            Some(Basis::Published | Basis::Interpolated) => widened(self.evidence.between(seconds)),
            // The model fitted to points, and none of them near.
            None if self.nearby.is_some() => self.evidence.beyond(seconds),
            None => self.evidence.cost(seconds),
            Some(_) => self.evidence.beyond(seconds),
        }
    }

    /// The time of a shape itself, and the least of it and of all that its dimensions doubled lead to.
    fn least(&self, groups: f64, (m, n, k): (f64, f64, f64), clock: impl Fn(f64, f64) -> f64) -> (f64, f64) {
        let lowest = self.table.as_ref().map_or(0.0, |table| table.lowest)
            + self.nearby.as_ref().map_or(0.0, |nearby| nearby.lowest);
        let lowest = libm::exp(lowest);
        let model = |m, n, k| self.waves.of_groups(&self.chip, groups, (m, n, k), self.size);
        let at = |m: f64, n: f64, k: f64, model: f64| {
            let seconds = self.corrected(groups * m, n, k, model);
            clock(seconds, (2.0 * groups * m * n * k / (seconds * self.chip.peak.0 * self.waves.mma)).min(1.0))
        };
        let own = at(m, n, k, model(m, n, k));
        let mut least = own;
        let doubled = |from: f64| std::iter::successors(Some(from), |size| Some(2.0 * size));
        'm: for a in doubled(m) {
            'n: for b in doubled(n) {
                for c in doubled(k) {
                    let model = model(a, b, c);
                    // The model only grows: if its lowest correction at boost clocks undercuts nothing, no larger one does.
                    if clock(model * lowest, 0.0) >= least {
                        match (b > n, c > k) {
                            (false, false) => break 'm,
                            (true, false) => break 'n,
                            (_, true) => break,
                        }
                    }
                    least = least.min(at(a, b, c, model));
                }
            }
        }
        (own, least)
    }

    fn seconds(&self, m: f64, n: f64, k: f64) -> f64 {
        self.corrected(m, n, k, self.waves.seconds(&self.chip, (m, n, k), self.size))
    }

    /// The model's seconds as table and points correct them.
    fn corrected(&self, m: f64, n: f64, k: f64, model: f64) -> f64 {
        let table = self.table.as_ref().map_or(0.0, |table| table.residual(m, n, k));
        let nearby = self.nearby.as_ref().map_or(0.0, |nearby| nearby.residual(m, n, k));
        model * libm::exp(table + nearby)
    }

    /// The model as the table corrects it.
    fn beneath(&self, m: f64, n: f64, k: f64) -> f64 {
        let table = self.table.as_ref().map_or(0.0, |table| table.residual(m, n, k));
        self.waves.seconds(&self.chip, (m, n, k), self.size) * libm::exp(table)
    }
}
