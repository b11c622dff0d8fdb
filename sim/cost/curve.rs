//! A measured curve of time over size, read between its points on log-log axes.
//!
//! Times are made non-decreasing on the way in (a larger transfer that once took less time is noise), so the curve is
//! monotone everywhere. Below the first point the time is the first point's (the floor is latency); beyond the last
//! it grows in proportion to the size (the end is bandwidth).

use libm::{exp, log};

/// Time over size, both positive, sizes strictly increasing.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Natural logarithms of size [B] and of time [s].
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// A curve through `(size [B], time [s])`; says what is wrong with points that make none.
    pub fn new(points: &[(f64, f64)]) -> Result<Curve, String> {
        if points.is_empty() {
            return Err("a curve needs at least one point".to_owned());
        }
        let mut curve: Vec<(f64, f64)> = Vec::with_capacity(points.len());
        for &(size, time) in points {
            if !(size > 0.0 && size.is_finite() && time > 0.0 && time.is_finite()) {
                return Err(format!("the point ({size}, {time}) is not positive: remove it"));
            }
            let (x, mut y) = (log(size), log(time));
            if let Some(&(last_x, last_y)) = curve.last() {
                if x <= last_x {
                    return Err(format!("size {size} does not exceed the one before it: sort the points"));
                }
                y = y.max(last_y);
            }
            curve.push((x, y));
        }
        Ok(Curve { points: curve })
    }

    /// Time of a size \[s\].
    pub fn seconds(&self, size: f64) -> f64 {
        let x = log(size.max(1e-9));
        let after = self.points.partition_point(|&(at, _)| at <= x);
        let y = match (after.checked_sub(1), self.points.get(after)) {
            (None, _) => self.points[0].1,
            (Some(last), None) => self.points[last].1 + (x - self.points[last].0),
            (Some(before), Some(&(x1, y1))) => {
                let (x0, y0) = self.points[before];
                y0 + (y1 - y0) * (x - x0) / (x1 - x0)
            }
        };
        exp(y)
    }

    /// The curve of sizes so many times as large in the same time.
    pub fn scaled(&self, factor: f64) -> Curve {
        Curve { points: self.points.iter().map(|&(x, y)| (x + log(factor), y)).collect() }
    }

    /// Whether a size lies between the first and the last point (a tenth beyond counts as inside).
    pub fn covers(&self, size: f64) -> bool {
        let x = log(size.max(1e-9));
        let (first, last) = (self.points[0].0, self.points[self.points.len() - 1].0);
        (first - 0.1..=last + 0.1).contains(&x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_flat_before_straight_between_and_proportional_after() {
        let curve = Curve::new(&[(100.0, 1.0), (400.0, 2.0)]).expect("two points");
        assert!((curve.seconds(1.0) - 1.0).abs() < 1e-12);
        assert!((curve.seconds(200.0) - 2f64.sqrt()).abs() < 1e-12);
        assert!((curve.seconds(4000.0) - 20.0).abs() < 1e-9);
    }

    #[test]
    fn noise_that_would_make_more_work_faster_is_lifted() {
        let curve = Curve::new(&[(1.0, 3.0), (2.0, 1.0), (4.0, 9.0)]).expect("three points");
        assert!((curve.seconds(2.0) - 3.0).abs() < 1e-12);
    }

    #[test]
    fn points_out_of_order_are_named() {
        assert!(Curve::new(&[(2.0, 1.0), (1.0, 1.0)]).expect_err("a mistake").contains("sort the points"));
    }
}
