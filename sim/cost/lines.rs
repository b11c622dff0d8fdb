//! A measured curve of time over size, read between its points as the straight lines of one protocol after another.
//!
//! A protocol takes `α + x/B`: straight in size, not in its logarithm. NCCL changes protocols (LL, LL128, Simple), channels
//! and algorithms as sizes grow, each time to one with more latency and more bandwidth, so the whole is the lowest of
//! several lines and bends downward only. Between two points no switch may lie, and the chord is the time; or one does,
//! and the lines of both neighbouring pieces, drawn on, bound it from above. The middle of the two bounds is taken:
//!
//! ```text
//! chord = t0 + (t1 − t0)(x − x0)/(x1 − x0)
//! bound = min(line through the two points to the left, line through the two points to the right)
//! time  = chord                              where the bound lies below the chord: no such switch
//!       = (chord + bound)/2                  otherwise
//! ```
//!
//! Points that fall where more bytes took less time are noise of both: they are pooled to their geometric mean (pool
//! adjacent violators; M. Ayer et al., "An empirical distribution function for sampling with incomplete information",
//! 1955). Below the first point the time is the first point's; beyond the last its line goes on.

/// Time over size, both positive, sizes strictly increasing, times not decreasing.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    points: Vec<(f64, f64)>,
}

impl Lines {
    /// Lines through `(size [B], time [s])`; says what is wrong with points that make none.
    pub fn new(points: &[(f64, f64)]) -> Result<Lines, String> {
        if points.len() < 2 {
            return Err(format!("{} points make no line: at least two are needed", points.len()));
        }
        // Pooled runs of points: sizes, sum of logarithms of times.
        let mut pools: Vec<(Vec<f64>, f64)> = Vec::with_capacity(points.len());
        let mean = |pool: &(Vec<f64>, f64)| pool.1 / pool.0.len() as f64;
        for (at, &(size, time)) in points.iter().enumerate() {
            if !(size > 0.0 && size.is_finite() && time > 0.0 && time.is_finite()) {
                return Err(format!("the point ({size}, {time}) is not positive: remove it"));
            }
            if at > 0 && size <= points[at - 1].0 {
                return Err(format!("size {size} does not exceed the one before it: sort the points"));
            }
            let mut pool = (vec![size], libm::log(time));
            while let Some(before) = pools.pop() {
                if mean(&before) <= mean(&pool) {
                    pools.push(before);
                    break;
                }
                pool = ([before.0, pool.0].concat(), before.1 + pool.1);
            }
            pools.push(pool);
        }
        let flat = |pool: &(Vec<f64>, f64)| {
            let time = libm::exp(mean(pool));
            pool.0.iter().map(|&size| (size, time)).collect::<Vec<_>>()
        };
        Ok(Lines { points: pools.iter().flat_map(flat).collect() })
    }

    /// Time of a size \[s\].
    pub fn seconds(&self, size: f64) -> f64 {
        let last = self.points.len() - 2;
        let after = self.points.partition_point(|&(at, _)| at <= size);
        if after == 0 {
            return self.points[0].1;
        }
        let piece = (after - 1).min(last);
        let chord = self.line(piece, size);
        if after > last + 1 {
            return chord;
        }
        let (low, high) = (self.points[piece].1, self.points[piece + 1].1);
        let left = if piece > 0 { self.line(piece - 1, size) } else { high };
        let right = if piece < last { self.line(piece + 1, size) } else { high };
        let bound = left.min(right).clamp(low, high);
        if bound > chord { f64::midpoint(chord, bound) } else { chord }
    }

    /// The line through a piece's ends, at any size.
    fn line(&self, piece: usize, size: f64) -> f64 {
        let ((x0, t0), (x1, t1)) = (self.points[piece], self.points[piece + 1]);
        t0 + (t1 - t0) * (size - x0) / (x1 - x0)
    }

    /// Whether a size lies between the first and the last point (a tenth beyond counts as inside).
    pub fn covers(&self, size: f64) -> bool {
        let (first, last) = (self.points[0].0, self.points[self.points.len() - 1].0);
        (0.9 * first..=1.1 * last).contains(&size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two protocols: 10 s and 1 B/s, 40 s and 10 B/s; they meet at 33 B.
    fn two(x: f64) -> f64 {
        (10.0 + x).min(40.0 + x / 10.0)
    }

    fn lines(points: &[f64]) -> Lines {
        Lines::new(&points.iter().map(|&x| (x, two(x))).collect::<Vec<_>>()).expect("points")
    }

    #[test]
    fn one_protocol_is_read_exactly_between_and_beyond_its_points() {
        let lines = lines(&[100.0, 400.0, 1600.0]);
        for x in [100.0, 250.0, 900.0, 1600.0, 1e6] {
            assert!((lines.seconds(x) / two(x) - 1.0).abs() < 1e-12, "{x}");
        }
        assert!((lines.seconds(1.0) - two(100.0)).abs() < 1e-12);
    }

    #[test]
    fn a_switch_of_protocols_lies_between_chord_and_bound() {
        let lines = lines(&[8.0, 16.0, 64.0, 128.0]);
        let chord = f64::midpoint(two(16.0), two(64.0));
        let read = lines.seconds(40.0);
        assert!(chord < read && read < two(40.0), "{chord} {read} {}", two(40.0));
    }

    #[test]
    fn noise_that_would_make_more_work_faster_is_pooled() {
        let lines = Lines::new(&[(1.0, 4.0), (2.0, 1.0), (4.0, 9.0)]).expect("three points");
        assert!((lines.seconds(1.0) - 2.0).abs() < 1e-12 && (lines.seconds(2.0) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn points_that_make_no_line_are_named() {
        assert!(Lines::new(&[(2.0, 1.0), (1.0, 1.0)]).expect_err("a mistake").contains("sort the points"));
        assert!(Lines::new(&[(2.0, 1.0)]).expect_err("a mistake").contains("at least two"));
        assert!(Lines::new(&[(2.0, 1.0), (3.0, 0.0)]).expect_err("a mistake").contains("not positive"));
    }
}
