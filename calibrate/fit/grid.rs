//! Points on a grid of (m, n, k): neighbours, noise, and errors of leaving out whole planes.

use std::collections::BTreeMap;

use crate::fit;

/// A shape (m, n, k).
pub type Shape = (u64, u64, u64);

/// The values that each axis takes.
#[derive(Debug)]
pub struct Grid {
    /// Of m, n and k, rising.
    pub axes: [Vec<u64>; 3],
}

/// Whether two sizes are within 1 % of each other, so that one would give the other's answer away.
pub fn same(x: u64, y: u64) -> bool {
    x.abs_diff(y) * 100 <= x.min(y)
}

fn array(&(m, n, k): &Shape) -> [u64; 3] {
    [m, n, k]
}

impl Grid {
    /// The grid on which points lie.
    pub fn new(points: &BTreeMap<Shape, f64>) -> Grid {
        let axes = std::array::from_fn(|axis| {
            let mut values: Vec<u64> = points.keys().map(|shape| array(shape)[axis]).collect();
            values.sort_unstable();
            values.dedup();
            values
        });
        Grid { axes }
    }

    /// The point `by` grid lines away along an axis.
    fn step(&self, shape: &Shape, axis: usize, by: isize) -> Option<Shape> {
        let mut there = array(shape);
        let at = self.axes[axis].binary_search(&there[axis]).ok()?;
        there[axis] = *self.axes[axis].get(at.checked_add_signed(by)?)?;
        Some((there[0], there[1], there[2]))
    }

    /// Whether a residual is more than 25 % off the median of its neighbours': no kernel is, so the timing was disturbed.
    pub fn noise(&self, points: &BTreeMap<Shape, f64>, shape: &Shape, r: f64) -> bool {
        let around: Vec<f64> = (0..3)
            .flat_map(|axis| [-1, 1].map(|by| self.step(shape, axis, by)))
            .flatten()
            .filter_map(|there| points.get(&there).copied())
            .collect();
        around.len() >= 3 && (r - fit::median(&around)).abs() > 0.25
    }

    /// Relative errors of predicting each point from the planes on both sides of its own. In m the step is two lines,
    /// because every m has a neighbour m + 1.
    pub fn leave_planes_out(&self, points: &BTreeMap<Shape, f64>) -> Vec<f64> {
        let mut errors = Vec::new();
        for (shape, r) in points {
            for (axis, by) in [(0, 2), (1, 1), (2, 1)] {
                let (Some(low), Some(high)) = (self.step(shape, axis, -by), self.step(shape, axis, by)) else {
                    continue;
                };
                let (Some(r0), Some(r1)) = (points.get(&low), points.get(&high)) else { continue };
                let log = |shape: &Shape| libm::log(array(shape)[axis] as f64);
                let share = (log(shape) - log(&low)) / (log(&high) - log(&low));
                errors.push(libm::fabs(libm::exp(r0 + (r1 - r0) * share - r) - 1.0));
            }
        }
        errors
    }
}
