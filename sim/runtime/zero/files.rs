//! Which parameters are in files (`offload_param.device = "nvme"`; `stage3.py`, `partition_parameters.py`), and what of the host's
//! memory they take besides.
//!
//! Groups that `max_in_cpu` elements have room for, counted from the first, lie flat in the host's memory. Of the others each part
//! of at least 1 MiB is a file, and each smaller one a pinned block of its own.

use super::elements::{groups, of_each, parts};
use super::kernels::BF16;
use crate::plan::zero::Zero;

/// Whether a part is large enough to be a file.
pub fn swappable(zero: &Zero, elements: u64) -> bool {
    zero.offload.aio.swappable(parts(zero, &[elements])[0] * BF16)
}

/// Groups, from the first, that lie in the host's memory.
pub(super) fn in_memory(zero: &Zero, groups: &[u64]) -> usize {
    let Some(files) = zero.offload.files else { return groups.len() };
    let mut end = 0;
    let fits = groups.iter().take_while(|&group| {
        end += group;
        end <= files.in_memory
    });
    fits.count()
}

/// Whether each parameter is in a file.
pub(super) fn of(zero: &Zero, elements: &[u64]) -> Vec<bool> {
    let parts = parts(zero, elements);
    let first = in_memory(zero, &groups(&parts, zero.sub_group));
    let groups = of_each(&parts, zero.sub_group);
    elements.iter().zip(groups).map(|(&elements, group)| group >= first && swappable(zero, elements)).collect()
}

/// Bytes of the file of a parameter's part.
pub(super) fn bytes(zero: &Zero, elements: u64) -> u64 {
    zero.offload.aio.aligned(parts(zero, &[elements])[0] * BF16)
}

/// What parameters take.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Blocks that PyTorch pins.
    pub(super) pinned: Vec<u64>,
    /// Bytes of buffers.
    pub(super) locked: u64,
    /// Bytes of files.
    pub(super) files: u64,
}

pub(super) fn memory(zero: &Zero, elements: &[u64]) -> Memory {
    let Some(settings) = zero.offload.files else { return Memory::default() };
    let (aio, parts) = (zero.offload.aio, parts(zero, elements));
    let groups = groups(&parts, zero.sub_group);
    let of_each = of_each(&parts, zero.sub_group);
    let first = in_memory(zero, &groups);
    let flat = settings.in_memory.min(parts.iter().sum());
    let mut memory = Memory { locked: settings.buffers * aio.aligned(settings.buffer * BF16), ..Memory::default() };
    memory.pinned.extend((flat > 0).then_some(flat * BF16));
    let file = of(zero, elements);
    for (param, part) in parts.iter().enumerate() {
        // A file is written before anybody asks whether the host's memory has room for it.
        if swappable(zero, elements[param]) {
            memory.files += bytes(zero, elements[param]);
        }
        if !file[param] && of_each[param] >= first {
            memory.pinned.push(part * BF16);
        }
    }
    // Stepped parameters of a group go back through a block as large as all of the largest one's, of which it fills a rank's part.
    if first < groups.len() {
        let most = groups.iter().max().copied().unwrap_or(0);
        let largest = groups.iter().position(|&group| group == most).unwrap_or(0);
        let own = elements.iter().zip(&of_each).filter(|&(_, &group)| group == largest);
        memory.locked += own.map(|(elements, _)| aio.aligned(elements * BF16)).sum::<u64>();
    }
    memory
}
