//! Which kernels communicate, and what is known of each: sizes stand on the kernel, on an operator around it, or nowhere.

use super::draft::{Draft, DraftOp};
use super::id::Id;
use super::parts::{Collective, CollectiveKind, Kind, Op, Signature};
use super::signature::{element_bytes, first_type};

use CollectiveKind::{AllGather, AllReduce, AllToAll, Broadcast, Other, Reduce, ReduceScatter, SendRecv};

/// Words in the names of kernels that communicate. NCCL (and RCCL), DeepEP, PyTorch's symmetric memory, vLLM, Transformer Engine,
/// NVSHMEM.
const KERNELS: [&str; 10] = [
    "nccl",
    "rccl",
    "deep_ep::",
    "ep::internode",
    "ep::intranode",
    "multimem_all_reduce",
    "_shot_all_reduce",
    "cross_device_reduce",
    "userbuffers_",
    "nvshmem",
];

/// Words in names of collectives, kernels and operators, lower case and without `_`; the first that stands in a name says what it is.
const WORDS: [(&str, CollectiveKind); 15] = [
    ("reducescatter", ReduceScatter),
    ("allreduce", AllReduce),
    ("crossdevicereduce", AllReduce),
    ("allgather", AllGather),
    ("alltoall", AllToAll),
    ("dispatch", AllToAll),
    ("combine", AllToAll),
    ("broadcast", Broadcast),
    ("sendrecv", SendRecv),
    ("ncclsend", SendRecv),
    ("ncclrecv", SendRecv),
    ("send", SendRecv),
    ("recv", SendRecv),
    ("permute", SendRecv),
    ("reduce", Reduce),
];

/// Whether a kernel of this name communicates.
pub(super) fn communicates(name: &str) -> bool {
    // Names of templates are long, and what is called stands at their begin.
    let lower: String = name.chars().take(200).map(|c| c.to_ascii_lowercase()).collect();
    KERNELS.iter().any(|word| lower.contains(word))
}

/// What a collective of this name does.
pub(super) fn kind(name: &str) -> CollectiveKind {
    let plain: String =
        name.chars().take(200).filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect();
    WORDS.iter().find(|(word, _)| plain.contains(word)).map_or(Other, |&(_, kind)| kind)
}

/// Marks kernels that communicate, and gives each what its operators know of it.
pub(super) fn describe(draft: &mut Draft) {
    let mut asked: Vec<Option<bool>> = vec![];
    for at in 0..draft.kernels.len() {
        let kernel = &draft.kernels[at].kernel;
        let (name, known, around) = (kernel.name, kernel.collective, [kernel.range, kernel.op]);
        if known.is_none() && kernel.kind != Kind::Compute {
            continue;
        }
        if asked.len() <= name.at() {
            asked.resize(name.at() + 1, None);
        }
        let communicates = *asked[name.at()].get_or_insert_with(|| communicates(draft.names.get(name)));
        if known.is_none() && !communicates {
            continue;
        }
        draft.kernels[at].kernel.kind = Kind::Collective;
        if known.is_none() {
            let kind = kind(draft.names.get(name));
            let id = match of_operators(draft, around, kind) {
                Found::Known(id) => id,
                Found::Derived(collective) => draft.collective(collective),
            };
            draft.kernels[at].kernel.collective = Some(id);
        }
    }
}

enum Found {
    Known(Id<Collective>),
    Derived(Collective),
}

/// What the range and the operators around a launch say.
fn of_operators(draft: &Draft, around: [Option<Id<Op>>; 2], by_name: CollectiveKind) -> Found {
    let mut collective = Collective { kind: by_name, ..Collective::default() };
    let mut elements = None;
    for from in around {
        let mut next = from;
        while let Some(DraftOp { op, collective: known, .. }) = next.map(|id| &draft.ops[id.at()]) {
            next = op.parent;
            if let Some(known) = known {
                return Found::Known(*known);
            }
            let name = draft.names.get(op.name);
            let is_comms = name == "record_param_comms";
            if !(is_comms || name.starts_with("c10d::") || name.starts_with("nccl:")) {
                continue;
            }
            if !is_comms && matches!(collective.kind, Other | SendRecv) {
                collective.kind = kind(name);
            }
            let Some(signature) = op.signature else { continue };
            collective.dtype = collective.dtype.or_else(|| first_type(draft, signature));
            // The first argument of these two is what this rank puts in; of c10d's operators it may be what comes out.
            if is_comms || name.starts_with("nccl:") {
                elements = elements.or_else(|| first_elements(&draft.trace.signatures[signature.at()]));
            }
            if is_comms {
                collective.group_size = last_number(draft, signature).or(collective.group_size);
            }
        }
    }
    let size = collective.dtype.and_then(|dtype| element_bytes(draft.names.get(dtype)));
    collective.bytes_in = elements.zip(size).and_then(|(elements, size): (u64, u64)| elements.checked_mul(size));
    let ranks = collective.group_size.map(u64::from).filter(|&ranks| ranks > 0);
    collective.bytes_out = match collective.kind {
        AllReduce | Broadcast | AllToAll => collective.bytes_in,
        AllGather => collective.bytes_in.zip(ranks).and_then(|(bytes, ranks)| bytes.checked_mul(ranks)),
        ReduceScatter => collective.bytes_in.zip(ranks).map(|(bytes, ranks)| bytes / ranks),
        Reduce | SendRecv | Other => None,
    };
    Found::Derived(collective)
}

fn first_elements(signature: &Signature) -> Option<u64> {
    let first = signature.args.first().filter(|arg| !arg.tensors.is_empty())?;
    let elements = |dims: &[u64]| dims.iter().try_fold(1u64, |all, &size| all.checked_mul(size));
    first.tensors.iter().try_fold(0u64, |all, tensor| all.checked_add(elements(&tensor.dims)?))
}

/// The last argument of `record_param_comms` is the size of the group.
fn last_number(draft: &Draft, signature: Id<Signature>) -> Option<u32> {
    let value = draft.trace.signatures[signature.at()].args.last()?.value?;
    draft.names.get(value).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_communicate_are_known_by_their_names() {
        for (name, expected) in [
            ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", AllGather),
            ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", AllReduce),
            ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ReduceScatter),
            ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", SendRecv),
            ("void dpsk::ep::internode::dispatch<false>(int4*)", AllToAll),
            ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", Other),
        ] {
            assert!(communicates(name), "{name}");
            assert_eq!(kind(name), expected, "{name}");
        }
        for name in ["void at::native::reduce_kernel<512, 1>", "nvjet_tst_256x128", "triton_red_fused_all_gather_copy"]
        {
            assert!(!communicates(name), "{name}");
        }
    }
}
