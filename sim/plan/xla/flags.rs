//! What the compiler's flags let it do with collectives, by the groups of MaxText's `benchmarks/xla_flags_library.py`.

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
    };

    /// Groups of flags that are understood, with what they do here.
    pub const GROUPS: [(&'static str, &'static str); 13] = [
        ("CF_FOR_ALL_GATHER", "all-gathers of weights overlap with the computation"),
        ("DATA_PARALLEL_OVERLAP", "reductions of gradients overlap with the computation"),
        ("DISABLE_COLLECTIVE_MATMUL", "no windowed einsum"),
        ("LAYOUT_FOR_ALL_REDUCE_SCATTER", "gradients are reduce-scattered"),
        ("ENABLE_SPARSECORE_OFFLOADING_FOR_ALL_REDUCE", "all-reduces run on the SparseCores"),
        ("ENABLE_SPARSECORE_OFFLOADING_FOR_ALL_GATHER", "all-gathers run on the SparseCores"),
        ("ENABLE_SPARSECORE_OFFLOADING_FOR_REDUCE_SCATTER", "reduce-scatters run on the SparseCores"),
        ("ENABLE_SPARSECORE_OFFLOADING_FOR_RS_AG_AR", "all three run on the SparseCores"),
        (
            "ENABLE_ASYNC_COLLECTIVE_PERMUTE",
            "exchanges of windows overlap with the computation, as they do here without",
        ),
        ("DENSE_VMEM_LIMIT_FLAG", "more VMEM for fusions: no effect here"),
        ("MOE_VMEM_LIMIT_FLAG", "more VMEM for fusions: no effect here"),
        ("CUSTOM_VMEM_LIMIT_FLAG", "more VMEM for fusions: no effect here"),
        ("HOST_OFFLOAD_FLAGS", "copies to the host overlap with the computation, as they do here without"),
    ];

    /// The flags of a list of groups; the first unknown name otherwise.
    pub fn of<'n>(groups: &[&'n str]) -> Result<Flags, &'n str> {
        let mut flags = Flags::DEFAULT;
        if let Some(unknown) = groups.iter().find(|name| !Self::GROUPS.iter().any(|(known, _)| known == *name)) {
            return Err(unknown);
        }
        let has = |name: &str| groups.contains(&name);
        if has("DISABLE_COLLECTIVE_MATMUL") {
            (flags.gather_forward, flags.scatter) = (Overlap::None, Overlap::None);
            flags.windows = false;
        }
        if has("LAYOUT_FOR_ALL_REDUCE_SCATTER") {
            flags.all_reduce_and_slice = false;
        }
        let sparse = |which: &str| {
            has(&format!("ENABLE_SPARSECORE_OFFLOADING_FOR_{which}"))
                || has("ENABLE_SPARSECORE_OFFLOADING_FOR_RS_AG_AR")
        };
        if has("CF_FOR_ALL_GATHER") || sparse("ALL_GATHER") {
            (flags.gather_forward, flags.gather_backward) = (Overlap::Asynchronous, Overlap::Asynchronous);
        }
        if has("DATA_PARALLEL_OVERLAP") || sparse("ALL_REDUCE") || sparse("REDUCE_SCATTER") {
            flags.scatter = Overlap::Asynchronous;
        }
        Ok(flags)
    }
}
