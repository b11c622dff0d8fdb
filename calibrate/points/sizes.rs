//! Sizes that can be measured: above zero, and small enough that no product of them wraps.

use crate::points::What;

/// More than any device holds, with room for our arithmetic \[B\].
const LARGEST: u64 = 1 << 40;

/// More than any memory moves \[B/s\].
const FASTEST: u64 = 1 << 50;

/// Bytes of the widest element.
const WIDEST: u64 = 4;

/// Refuses sizes that mean nothing, and those that nothing here could hold.
pub fn check(what: &What) -> Result<(), String> {
    match *what {
        What::Matmul { m, n, k, .. } => matmul(1, m, n, k),
        What::GroupedMatmul { groups, m, n, k, .. } => matmul(groups, m, n, k),
        What::Attention { batch, heads, kv_heads, queries, keys, head_dim, value_dim, .. } => {
            let sizes = [batch, heads, kv_heads, queries, keys, head_dim, value_dim];
            product(&sizes).map(|_| ()).ok_or_else(|| {
                format!("sizes of attention {sizes:?}: each must be above zero, and their product below 2^64")
            })
        }
        What::Memory { read, written, .. } => bytes(read.checked_add(written), &format!("{read} B + {written} B")),
        What::HostCopy { bytes: size, .. } => bytes(Some(size), &format!("a copy of {size} B")),
        What::Collective { ranks, nodes, bytes: size, .. } => {
            if ranks == 0 || nodes == 0 {
                return Err(format!("a collective of {ranks} ranks on {nodes} nodes: both must be above zero"));
            }
            bytes(Some(size), &format!("a collective of {size} B"))
        }
        What::Overlap { ref slowed, ref beside, processors, bandwidth } => {
            // Without processors nothing runs beside: so the sweep itself times a kernel alone, and calls it `spin`.
            if processors == 0 && (beside != "spin" || bandwidth > 0) {
                return Err(format!("{beside:?} holds 0 processors: it must hold one at least"));
            }
            if bandwidth > FASTEST {
                return Err(format!("{bandwidth} B/s are to be moved: {FASTEST} B/s at most"));
            }
            check(slowed)
        }
        What::Overhead { .. } => Ok(()),
    }
}

/// Operands and results of all groups.
fn matmul(groups: u64, m: u64, n: u64, k: u64) -> Result<(), String> {
    let sides = [[n, k], [m, k], [m, n]].map(|[rows, columns]| product(&[groups, rows, columns, WIDEST]));
    let all = sides.into_iter().try_fold(0u64, |all, side| all.checked_add(side?));
    bytes(all, &format!("{groups} matmul(s) of {m} x {n} x {k}"))
}

/// The product, if no size is zero and it is below 2^64.
fn product(sizes: &[u64]) -> Option<u64> {
    sizes.iter().try_fold(1u64, |all, size| all.checked_mul(*size)).filter(|all| *all > 0)
}

fn bytes(all: Option<u64>, name: &str) -> Result<(), String> {
    match all {
        Some(all) if (1..=LARGEST).contains(&all) => Ok(()),
        _ => Err(format!("{name}: sizes must be above zero, and operands of {LARGEST} B at most in all")),
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::points::What;

    fn says(what: &str) -> Result<(), String> {
        check(&serde_json::from_str::<What>(what).expect("a thing to measure"))
    }

    #[test]
    fn sizes_of_zero_and_sizes_whose_product_wraps_are_refused() {
        let matmul = |m: u64, n: u64, k: u64| {
            says(&format!(r#"{{"matmul":{{"m":{m},"n":{n},"k":{k},"dtype":"bf16","layout":"forward"}}}}"#))
        };
        assert_eq!(matmul(65_536, 65_536, 32_768), Ok(()));
        for (m, n, k) in [(1 << 32, 1 << 32, 1 << 32), (0, 8, 8), (8, 0, 8), (8, 8, 0), (u64::MAX, 1, 1)] {
            assert!(matmul(m, n, k).is_err(), "{m} x {n} x {k}");
        }
        for what in [
            r#"{"grouped_matmul":{"groups":0,"m":8,"n":8,"k":8,"dtype":"bf16"}}"#,
            r#"{"grouped_matmul":{"groups":1099511627776,"m":8,"n":8,"k":8,"dtype":"bf16"}}"#,
            r#"{"host_copy":{"bytes":0,"to_host":true}}"#,
            r#"{"host_copy":{"bytes":18446744073709551615,"to_host":true}}"#,
            r#"{"memory":{"family":"copy","kernel":"copy_1r1w","read":0,"written":0}}"#,
            r#"{"memory":{"family":"copy","kernel":"copy_1r1w","read":18446744073709551615,"written":16}}"#,
            r#"{"collective":{"kind":"all_reduce","ranks":0,"nodes":1,"bytes":64,"in_place":false,"dtype":"bfloat16"}}"#,
        ] {
            assert!(says(what).is_err(), "{what}");
        }
    }

    #[test]
    fn what_runs_beside_holds_processors_unless_it_stands_for_nothing() {
        let overlap = |beside: &str, processors: u32, bandwidth: u64, bytes: u64| {
            let slowed = format!(r#"{{"host_copy":{{"bytes":{bytes},"to_host":true}}}}"#);
            let beside = format!(r#""beside":"{beside}","processors":{processors},"bandwidth":{bandwidth}"#);
            says(&format!(r#"{{"overlap":{{"slowed":{slowed},{beside}}}}}"#))
        };
        assert_eq!(overlap("copy", 8, 1 << 30, 64), Ok(()));
        assert_eq!(overlap("spin", 0, 0, 64), Ok(()));
        assert!(overlap("copy", 0, 0, 64).is_err());
        assert!(overlap("spin", 0, 1 << 30, 64).is_err());
        assert!(overlap("copy", 8, u64::MAX, 64).is_err());
        assert!(overlap("copy", 8, 1 << 30, 0).is_err());
    }
}
