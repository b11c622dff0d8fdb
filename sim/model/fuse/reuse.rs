//! Which buffers are handed on (`memory_plan_reuse` and `decide_inplace_update` of inductor).
//!
//! A generated kernel may write into a buffer it reads for the last time, if only the node that writes reads it. Otherwise a new buffer takes the latest dead
//! one of its size and type that was made here (not saved by forward), if that one died just before, or if keeping it until now raises no peak. A dead buffer that
//! somebody takes later is not freed in between.

use std::collections::{BTreeMap, BTreeSet};

use super::compiled::{Kernel, Launch, Tensor, TensorId};
use super::order::bases;

/// For each tensor that takes over a buffer, whose it takes. `given` tensors are alive at the start.
pub(super) fn plan(
    tensors: &[Tensor],
    kernels: &[Kernel],
    given: &[TensorId],
    results: &[TensorId],
) -> BTreeMap<TensorId, TensorId> {
    let results = bases(tensors, results);
    let deaths = deaths(tensors, kernels);
    let mut live = live(tensors, kernels, given, &results, &deaths);
    let peak = live.iter().copied().max().unwrap_or(0);
    let mut mine: BTreeSet<TensorId> = given.iter().copied().filter(|&tensor| tensor != 0).collect();
    let mut takes = BTreeMap::new();
    // Dead buffers by bytes and elements, with the kernel after which they died.
    let mut pool: BTreeMap<(u64, u64), Vec<(TensorId, usize)>> = BTreeMap::new();
    let key = |tensor: TensorId| (tensors[tensor].bytes, tensors[tensor].elements);
    for (at, kernel) in kernels.iter().enumerate() {
        let mut dying: Vec<TensorId> =
            bases(tensors, &kernel.reads).into_iter().filter(|t| deaths[t] == at && mine.contains(t)).collect();
        dying.retain(|tensor| !results.contains(tensor));
        let own = matches!(kernel.launch, Launch::Matmul(_) | Launch::Fused(_));
        for &write in kernel.writes.iter().filter(|_| own) {
            let fits = |&tensor: &TensorId| key(tensor) == key(write) && kernel.in_place.contains(&(write, tensor));
            if let Some(place) = dying.iter().position(fits) {
                takes.insert(write, dying.remove(place));
                continue;
            }
            let Some(&(dead, died)) = pool.get(&key(write)).and_then(|list| list.last()) else { continue };
            let size = tensors[write].bytes;
            let between = live[died..=at].iter().copied().max().unwrap_or(0);
            if died + 1 == at || between + size <= peak {
                live[died + 1..at].iter_mut().for_each(|bytes| *bytes += size);
                takes.insert(write, dead);
                pool.entry(key(write)).or_default().pop();
            }
        }
        if !matches!(kernel.launch, Launch::Library(_)) {
            mine.extend(&kernel.writes);
        }
        for tensor in dying.into_iter().filter(|tensor| !given.contains(tensor)) {
            pool.entry(key(tensor)).or_default().push((tensor, at));
        }
    }
    takes
}

/// The last kernel that reads (or, if none does, writes) each tensor.
pub(super) fn deaths(tensors: &[Tensor], kernels: &[Kernel]) -> BTreeMap<TensorId, usize> {
    let mut deaths = BTreeMap::new();
    for (at, kernel) in kernels.iter().enumerate() {
        for tensor in bases(tensors, &kernel.reads).into_iter().chain(kernel.writes.iter().copied()) {
            deaths.insert(tensor, at);
        }
    }
    deaths
}

/// Bytes alive while each kernel runs, if nothing is handed on.
fn live(
    tensors: &[Tensor],
    kernels: &[Kernel],
    given: &[TensorId],
    results: &BTreeSet<TensorId>,
    deaths: &BTreeMap<TensorId, usize>,
) -> Vec<u64> {
    let mut now: u64 = given.iter().filter(|&&tensor| tensor != 0).map(|&tensor| tensors[tensor].bytes).sum();
    let mut alive: BTreeSet<TensorId> = given.iter().copied().filter(|&tensor| tensor != 0).collect();
    let mut live = vec![];
    for (at, kernel) in kernels.iter().enumerate() {
        alive.extend(&kernel.writes);
        now += kernel.writes.iter().map(|&tensor| tensors[tensor].bytes).sum::<u64>();
        live.push(now);
        let dead = |tensor: &TensorId| deaths.get(tensor) == Some(&at) && !results.contains(tensor);
        now -= alive.iter().filter(|tensor| dead(tensor)).map(|&tensor| tensors[tensor].bytes).sum::<u64>();
        alive.retain(|tensor| !dead(tensor));
    }
    live
}
