//! What the compiler's flags let it do with collectives.
//!
//! A scenario lists groups of MaxText's library and flags by their own names, as users set them in `LIBTPU_INIT_ARGS`; of a flag that
//! is there twice the last counts.

mod groups;

use std::collections::BTreeMap;

pub use groups::GROUPS;

/// Where a collective runs relative to the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Overlap {
    /// The computation waits for it.
    None,
    /// In parts beside the parts of its own matmul (windowed einsum), where that pays; else the computation waits.
    Windowed,
    /// Beside the computation before it, or behind.
    Asynchronous,
}

/// A set of flags, as far as it changes what is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Flags {
    /// All-gathers of weights in forward.
    pub gather_forward: Overlap,
    /// All-gathers of weights in backward.
    pub gather_backward: Overlap,
    /// Reductions of weight gradients.
    pub scatter: Overlap,
    /// Whether matmuls exchange what the tensor axis shares in windows.
    pub windows: bool,
    /// Whether a weight gradient's reduction is an all-reduce of which each chip keeps its slice.
    pub all_reduce_and_slice: bool,
    /// VMEM that a kernel may have \[KiB\] (`xla_tpu_scoped_vmem_limit_kib`); none for the compiler's own limit.
    pub scoped_vmem_kib: Option<u64>,
}

/// The compiler's flags by name, without dashes.
pub type Named = BTreeMap<String, String>;

/// A word of a list that is neither a group nor a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(pub String);

/// Threshold from which no matmul exchanges in windows \[MiB\]: more than any weight has.
const NO_WINDOWS: u64 = 100_000;
/// By which gathers overlap with what is computed beside them.
const GATHER: [&str; 2] = ["xla_enable_async_all_gather", "xla_tpu_enable_async_collective_fusion_fuse_all_gather"];
const GATHER_APART: &str = "xla_tpu_enable_sparse_core_collective_offload_all_gather";
/// By which reductions do, each.
const SCATTER: [&str; 3] = [
    "xla_tpu_enable_data_parallel_all_reduce_opt",
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce",
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter",
];
const WINDOWS: &str = "xla_jf_spmd_threshold_for_windowed_einsum_mib";
const LAYOUT: &str = "xla_tpu_assign_all_reduce_scatter_layout";
const VMEM: &str = "xla_tpu_scoped_vmem_limit_kib";

/// The flags of a list of groups and flags.
///
/// # Errors
/// A word that is neither: no group of that name, and no `NAME=VALUE` of an XLA flag.
pub fn named(words: &[&str]) -> Result<Named, Unknown> {
    let mut all = Named::new();
    for &word in words {
        if let Some((_, flags)) = GROUPS.iter().find(|(name, _)| *name == word) {
            all.extend(flags.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
            continue;
        }
        let flag = word.trim_start_matches('-').split_once('=');
        let flag = flag.filter(|(name, value)| {
            let letters = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
            name.contains("xla")
                && name.bytes().all(letters)
                && !value.is_empty()
                && !value.contains(char::is_whitespace)
        });
        let Some((name, value)) = flag else { return Err(Unknown(word.to_owned())) };
        all.insert(name.to_owned(), value.to_owned());
    }
    Ok(all)
}

impl Flags {
    /// With no flag set: matmuls exchange in windows in forward and for weight gradients, where that pays; in backward a weight
    /// that is used twice is gathered at once, and waited for. A gradient that is not reduced in windows is all-reduced.
    pub const DEFAULT: Flags = Flags {
        gather_forward: Overlap::Windowed,
        gather_backward: Overlap::None,
        scatter: Overlap::Windowed,
        windows: true,
        all_reduce_and_slice: true,
        scoped_vmem_kib: None,
    };

    /// What flags do here.
    pub fn of(named: &Named) -> Flags {
        let on = |name: &str| named.get(name).is_some_and(|value| value == "true");
        let number = |name: &str| named.get(name).and_then(|value| value.parse::<u64>().ok());
        let mut flags = Flags { scoped_vmem_kib: number(VMEM), ..Flags::DEFAULT };
        if number(WINDOWS).is_some_and(|threshold| threshold >= NO_WINDOWS) {
            (flags.gather_forward, flags.scatter) = (Overlap::None, Overlap::None);
            flags.windows = false;
        }
        flags.all_reduce_and_slice = !on(LAYOUT);
        if GATHER.iter().all(|name| on(name)) || on(GATHER_APART) {
            (flags.gather_forward, flags.gather_backward) = (Overlap::Asynchronous, Overlap::Asynchronous);
        }
        if SCATTER.iter().any(|name| on(name)) {
            flags.scatter = Overlap::Asynchronous;
        }
        flags
    }

    /// Groups and flags of a list that change nothing here.
    pub fn idle<'w>(words: &[&'w str]) -> Vec<&'w str> {
        let read = |name: &str| {
            [WINDOWS, LAYOUT, VMEM, GATHER_APART].contains(&name) || GATHER.contains(&name) || SCATTER.contains(&name)
        };
        let counts = |word: &str| match GROUPS.iter().find(|(group, _)| *group == word) {
            Some((_, flags)) => flags.iter().any(|(name, _)| read(name)),
            None => word.trim_start_matches('-').split('=').next().is_some_and(read),
        };
        words.iter().copied().filter(|word| !counts(word)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Flags {
        Flags::of(&named(words).expect("they are known"))
    }

    #[test]
    fn a_group_is_the_flags_it_sets() {
        let by_name = of(&["--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000"]);
        assert_eq!(of(&["DISABLE_COLLECTIVE_MATMUL"]), by_name);
        assert!(!by_name.windows && by_name != Flags::DEFAULT);
        assert_eq!(of(&["DENSE_VMEM_LIMIT_FLAG"]).scoped_vmem_kib, Some(98304));
    }

    #[test]
    fn of_a_flag_that_is_there_twice_the_last_counts() {
        let list = ["DENSE_VMEM_LIMIT_FLAG", "xla_tpu_scoped_vmem_limit_kib=65536"];
        assert_eq!(of(&list).scoped_vmem_kib, Some(65536));
        let off = ["DATA_PARALLEL_OVERLAP", "xla_tpu_enable_data_parallel_all_reduce_opt=false"];
        assert_eq!(of(&off), Flags::DEFAULT);
    }

    #[test]
    fn what_is_neither_group_nor_flag_is_named() {
        for word in ["CF_FOR_ALL_GATHERS", "xla_tpu_x", "xla_tpu_x=", "scoped=1", "xla_a=1 --xla_b=2"] {
            assert_eq!(named(&[word]), Err(Unknown(word.to_owned())));
        }
    }

    #[test]
    fn what_changes_nothing_here_is_known_as_such() {
        let words = [
            "LAYOUT_FOR_ALL_REDUCE_SCATTER",
            "ENHANCED_LAUNCH_BARRIER",
            "--xla_tpu_x=1",
            "xla_tpu_scoped_vmem_limit_kib=1",
        ];
        assert_eq!(Flags::idle(&words), ["ENHANCED_LAUNCH_BARRIER", "--xla_tpu_x=1"]);
    }
}
