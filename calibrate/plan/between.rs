//! Matmuls that leave no large gap: of a grid of sizes, again and again the one farthest from all that is planned.
//!
//! Farthest-point sampling (T. Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985): after each pick
//! the largest distance of any shape to the nearest planned one is at most twice the best that so many picks can do.
//! Distances are those of the cost model: in logarithms of m, n and k, with m and n exchanged where that is nearer.

use crate::points::What;

/// Sizes of the grid: powers of two and one and a half times those.
const SIZES: [u64; 16] =
    [256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 65_536];
/// More takes long, and a smaller one of the same kind says the same \[FLOP\].
const LARGEST: f64 = 2e13;

fn logs((m, n, k): (u64, u64, u64)) -> [f64; 3] {
    [m, n, k].map(|v| libm::log(v as f64))
}

fn distance(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    let at = |m: f64, n: f64| (a[0] - m) * (a[0] - m) + (a[1] - n) * (a[1] - n);
    at(b[0], b[1]).min(at(b[1], b[0])) + (a[2] - b[2]) * (a[2] - b[2])
}

/// So many bf16 matmuls between the planned ones, the farthest first.
pub fn between<'w>(planned: impl Iterator<Item = &'w What>, count: usize) -> Vec<What> {
    let shape = |what: &What| match what {
        What::Matmul { m, n, k, dtype, layout } if dtype == "bf16" && layout == "forward" => Some(logs((*m, *n, *k))),
        _ => None,
    };
    let known: Vec<[f64; 3]> = planned.filter_map(shape).collect();
    let mut open: Vec<((u64, u64, u64), f64)> = vec![];
    for m in SIZES {
        for n in SIZES {
            for k in SIZES {
                if 2.0 * m as f64 * n as f64 * k as f64 <= LARGEST {
                    let at = logs((m, n, k));
                    let nearest = known.iter().map(|p| distance(&at, p)).fold(f64::INFINITY, f64::min);
                    open.push(((m, n, k), nearest));
                }
            }
        }
    }
    let mut picked = vec![];
    for _ in 0..count {
        let farthest = open.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        let Some((shape, _)) = farthest.filter(|(_, nearest)| *nearest > 0.0) else { break };
        let at = logs(shape);
        for (other, nearest) in &mut open {
            *nearest = nearest.min(distance(&logs(*other), &at));
        }
        let (m, n, k) = shape;
        picked.push(What::Matmul { m, n, k, dtype: "bf16".to_owned(), layout: "forward".to_owned() });
    }
    picked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_gap_is_left_between_what_is_planned() {
        let first = between(std::iter::empty(), 200);
        assert_eq!(first.len(), 200);
        let planned: Vec<[f64; 3]> = first
            .iter()
            .map(|what| match what {
                What::Matmul { m, n, k, .. } => logs((*m, *n, *k)),
                other => panic!("{other:?} is no matmul"),
            })
            .collect();
        // Any shape of the grid is within a factor of three, in one size, of a planned one.
        let farthest = SIZES.iter().map(|&m| {
            let at = logs((m, 4096, 1024));
            planned.iter().map(|p| distance(&at, p)).fold(f64::INFINITY, f64::min)
        });
        assert!(farthest.fold(0.0, f64::max) < libm::log(3.0) * libm::log(3.0));
        let again = between(first.iter(), 1);
        assert!(!first.contains(&again[0]));
    }
}
