//! Which parameters share a bucket (`reducer.cpp`, `compute_bucket_assignment_by_size`).
//!
//! A bucket closes with the parameter that fills it: it is as large as its limit or larger. The first limit is of the first bucket, the
//! last of all that follow.

/// Cuts parameters, each with its bytes, into buckets in this order.
pub(super) fn by_size(params: impl IntoIterator<Item = (usize, u64)>, limits: &[u64]) -> Vec<Vec<usize>> {
    let (mut buckets, mut open, mut bytes, mut limit) = (vec![], vec![], 0, 0);
    for (param, size) in params {
        open.push(param);
        bytes += size;
        if limits.get(limit).is_some_and(|&most| bytes >= most) {
            buckets.push(std::mem::take(&mut open));
            bytes = 0;
            limit = (limit + 1).min(limits.len().saturating_sub(1));
        }
    }
    buckets.extend((!open.is_empty()).then_some(open));
    buckets
}

#[cfg(test)]
mod tests {
    use super::by_size;

    #[test]
    fn a_bucket_closes_with_the_parameter_that_fills_it() {
        let sizes = [4, 4, 1, 9, 2, 2];
        let cut = |limits: &[u64]| by_size(sizes.into_iter().enumerate(), limits);
        assert_eq!(cut(&[1, 5]), [vec![0], vec![1, 2], vec![3], vec![4, 5]]);
        assert_eq!(cut(&[5]), [vec![0, 1], vec![2, 3], vec![4, 5]]);
        assert_eq!(cut(&[]), [vec![0, 1, 2, 3, 4, 5]]);
    }
}
