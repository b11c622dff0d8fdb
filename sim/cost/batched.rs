//! Batched matmuls of matrices whose rows begin at no multiple of 16 bytes.
//!
//! Tensor cores are fed 16 bytes at a time where every row of an operand begins at such a multiple. Where rows begin at a
//! multiple of 4 or 8 bytes only, or of 2, cuBLAS has other kernels, which load less at once. In attention a row is a
//! head: 150 numbers of two bytes are 300.

use serde::Deserialize;

use super::basis::{Basis, Cost, Evidence};
use crate::units::Time;

/// Whether rows of so many bytes all begin at multiples of 16.
pub(super) fn are_aligned(rows: [u64; 2]) -> bool {
    rows.iter().all(|bytes| bytes.is_multiple_of(16))
}

/// Time over that of the same matmuls with aligned rows.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Batched {
    /// Rows begin at multiples of 4 or 8 bytes.
    pub by_4_bytes: f64,
    /// Rows begin at multiples of 2 bytes.
    pub by_2_bytes: f64,
    /// What they rest on.
    pub evidence: Evidence,
}

impl Batched {
    pub(super) fn check(self) -> Result<Batched, String> {
        match [self.by_4_bytes, self.by_2_bytes].into_iter().find(|factor| !(1.0..=10.0).contains(factor)) {
            Some(factor) => Err(format!("a factor is {factor}: expected the time over aligned rows', 1 to 10")),
            None => Ok(self),
        }
    }

    /// What aligned matmuls cost, for rows of so many bytes.
    pub(super) fn slowed(&self, aligned: Cost, rows: [u64; 2]) -> Cost {
        let all = |multiple: u64| rows.iter().all(|bytes| bytes.is_multiple_of(multiple));
        let factor = match (are_aligned(rows), all(4)) {
            (true, _) => return aligned,
            (_, true) => self.by_4_bytes,
            _ => self.by_2_bytes,
        };
        Cost {
            time: Time::from_seconds(aligned.time.seconds() * factor),
            spread: libm::hypot(aligned.spread, self.evidence.spread()),
            basis: aligned.basis.and(self.evidence.basis).and(Basis::Interpolated),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cost::{CostModel, Profile, Regime, Software};
    use crate::program::{DType, Grouping, MatmulLayout, Work};

    /// The scores of 64 heads of 2,048 tokens.
    fn scores_of(head: u64) -> Work {
        Work::GroupedMatmul {
            groups: 64,
            rows: 64 * 2048,
            inputs: head,
            outputs: 2048,
            dtype: DType::Fp16,
            layout: MatmulLayout::Forward,
            kernels: Grouping::Batched,
        }
    }

    /// Their time in seconds.
    fn scores(profile: &Profile, head: u64) -> f64 {
        CostModel::new(profile, Regime::Burst).work(&scores_of(head)).time.seconds()
    }

    #[test]
    fn heads_that_are_no_multiple_of_eight_cost_more_than_the_next_that_are() {
        let a100 = Profile::find("a100-sxm-80gb").expect("a shipped profile");
        let [whole, four, two] = [152, 150, 151].map(|head| scores(&a100, head));
        // EleutherAI/cookbook: 98.4 TFLOP/s at 152, 78.5 at 150; odd ones reach half.
        assert!((four / whole - 98.4 * 150.0 / (78.5 * 152.0)).abs() < 0.2, "{}", four / whole);
        assert!((1.7..2.9).contains(&(two / whole)), "{}", two / whole);
    }

    #[test]
    fn before_cuda_11_7_unaligned_heads_have_no_tensor_cores() {
        let a100 = Profile::find("a100-sxm-80gb").expect("a shipped profile");
        let at = a100.cublas.iter().position(|entry| entry.versions.contains(&"11.5".to_owned()));
        let old = Software { cublas: Some(at.expect("a release")), ..Software::default() };
        let rate = |head: u64| {
            let work = scores_of(head);
            let time = CostModel::new(&a100, Regime::Burst).with(old).work(&work).time;
            work.flops().0 as f64 / time.seconds()
        };
        assert!(rate(152) > 90e12, "{}", rate(152));
        // 19.5 TFLOP/s are the chip's peak without them.
        assert!([150, 108, 151].into_iter().all(|head| (5e12..19.5e12).contains(&rate(head))), "{}", rate(150));
    }

    #[test]
    fn where_nobody_measured_alignment_changes_nothing() {
        let b200 = Profile::find("b200-sxm").expect("a shipped profile");
        assert!(scores(&b200, 150) <= scores(&b200, 152));
    }
}
