//! The order of kernels with the least peak, as inductor looks for it (`torch/_inductor/memory.py`).
//!
//! Candidates are the order as written and "least peak memory first": of the kernels that can run, one that fits under
//! the peak so far and leaves least behind, else the one that takes least. The lower peak wins, the first on a tie.

use std::collections::BTreeSet;

use super::compiled::{Kernel, Tensor, TensorId};

struct Planner<'k> {
    tensors: &'k [Tensor],
    kernels: &'k [Kernel],
    /// Tensors alive at the start that may be freed.
    given: &'k [TensorId],
    results: BTreeSet<TensorId>,
    /// For each tensor, how many kernels read it.
    readers: Vec<u32>,
    freeable: Vec<bool>,
}

/// Puts kernels in the order in which they are run. `given` tensors may be freed when read for the last time.
pub(super) fn least_peak(
    tensors: &[Tensor],
    kernels: Vec<Kernel>,
    given: &[TensorId],
    results: &[TensorId],
) -> Vec<Kernel> {
    // The module's input is the caller's.
    let given: Vec<TensorId> = given.iter().copied().filter(|&tensor| tensor != 0).collect();
    let mut readers = vec![0; tensors.len()];
    let mut freeable = vec![false; tensors.len()];
    for kernel in &kernels {
        for tensor in bases(tensors, &kernel.reads) {
            readers[tensor] += 1;
        }
        for &tensor in &kernel.writes {
            freeable[tensor] = true;
        }
    }
    for &tensor in &given {
        freeable[tensor] = true;
    }
    let results = results.iter().map(|&tensor| tensors[tensor].base).collect();
    let planner = Planner { tensors, kernels: &kernels, given: &given, results, readers, freeable };
    let written = planner.in_order();
    let frugal = planner.frugal(&written);
    let order = if planner.peak(&frugal) < planner.peak(&written) { frugal } else { written };
    let mut kernels: Vec<Option<Kernel>> = kernels.into_iter().map(Some).collect();
    order.into_iter().filter_map(|at| kernels[at].take()).collect()
}

/// The tensors whose memory a list touches.
pub(super) fn bases(tensors: &[Tensor], list: &[TensorId]) -> BTreeSet<TensorId> {
    list.iter().map(|&tensor| tensors[tensor].base).collect()
}

impl Planner<'_> {
    fn makers(&self, at: usize) -> BTreeSet<usize> {
        let reads = bases(self.tensors, &self.kernels[at].reads);
        (0..self.kernels.len()).filter(|&other| self.kernels[other].writes.iter().any(|t| reads.contains(t))).collect()
    }

    /// As written, each kernel after what it needs (`topological_sort_schedule` of the scheduler): a kernel that grew
    /// stands where its first part was and pulls what its other parts need before it.
    fn in_order(&self) -> Vec<usize> {
        let mut order = vec![];
        let mut seen = vec![false; self.kernels.len()];
        for at in 0..self.kernels.len() {
            self.visit(at, &mut seen, &mut order);
        }
        order
    }

    fn visit(&self, at: usize, seen: &mut [bool], order: &mut Vec<usize>) {
        if !std::mem::replace(&mut seen[at], true) {
            for maker in self.makers(at) {
                self.visit(maker, seen, order);
            }
            order.push(at);
        }
    }

    fn size(&self, at: usize) -> u64 {
        self.kernels[at].writes.iter().map(|&tensor| self.tensors[tensor].bytes).sum()
    }

    /// Bytes that go when a kernel has run, if `left` reads of each tensor are still to come.
    fn freed(&self, at: usize, left: &[u32]) -> u64 {
        let last = |&tensor: &TensorId| left[tensor] == 1 && self.freeable[tensor] && !self.results.contains(&tensor);
        let reads = bases(self.tensors, &self.kernels[at].reads);
        let unread = |&&tensor: &&TensorId| left[tensor] == 0 && !self.results.contains(&tensor);
        let dead: u64 = self.kernels[at].writes.iter().filter(unread).map(|&t| self.tensors[t].bytes).sum();
        dead + reads.iter().filter(|tensor| last(tensor)).map(|&t| self.tensors[t].bytes).sum::<u64>()
    }

    fn run(&self, at: usize, left: &mut [u32]) {
        for tensor in bases(self.tensors, &self.kernels[at].reads) {
            left[tensor] -= 1;
        }
    }

    fn start(&self) -> u64 {
        self.given.iter().map(|&tensor| self.tensors[tensor].bytes).sum()
    }

    fn peak(&self, order: &[usize]) -> u64 {
        let (mut left, mut live, mut peak) = (self.readers.clone(), self.start(), self.start());
        for &at in order {
            live += self.size(at);
            peak = peak.max(live);
            live -= self.freed(at, &left);
            self.run(at, &mut left);
        }
        peak
    }

    fn frugal(&self, written: &[usize]) -> Vec<usize> {
        let makers: Vec<BTreeSet<usize>> = (0..self.kernels.len()).map(|at| self.makers(at)).collect();
        let mut left = self.readers.clone();
        let mut live = self.start();
        let results = self.results.iter().filter(|&&tensor| self.freeable[tensor]);
        let mut peak = live.max(results.map(|&tensor| self.tensors[tensor].bytes).sum());
        let (mut order, mut done) = (vec![], BTreeSet::new());
        while order.len() < written.len() {
            let ready = (0..written.len()).filter(|&place| {
                !done.contains(&written[place]) && makers[written[place]].iter().all(|maker| done.contains(maker))
            });
            let gap = peak - live;
            let best = ready.min_by_key(|&place| {
                let size = self.size(written[place]);
                let freed = self.freed(written[place], &left);
                (if size > gap { size } else { 0 }, i128::from(size) - i128::from(freed), place)
            });
            let at = written[best.expect("kernels form no cycle")];
            live += self.size(at);
            peak = peak.max(live);
            live -= self.freed(at, &left);
            self.run(at, &mut left);
            done.insert(at);
            order.push(at);
        }
        order
    }
}
