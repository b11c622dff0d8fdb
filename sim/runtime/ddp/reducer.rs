//! Buckets of gradients: filled as leaves take gradients, all-reduced in their order, waited for when backward ends.

use std::cell::RefCell;
use std::rc::Rc;

use super::broadcast::{Buffers, Ranks};
use super::{DECOMPRESS, REDUCE, assignment};
use crate::plan::torch::ddp::Ddp;
use crate::program::{Category, Collective, Comm, DType, Dispatch, EventId, MemoryKind, StreamId, Work};
use crate::runtime::eager::around::Around;
use crate::runtime::eager::{COMPUTE, Eager, Storage};
use crate::units::Bytes;

/// A bucket.
#[derive(Debug)]
struct Bucket {
    params: Vec<usize>,
    bytes: u64,
    /// Its memory, where it has some.
    storage: Option<Storage>,
    /// Gradients that have not come in this backward.
    pending: usize,
    /// Gradients that have come and wait for the others to be copied.
    waiting: Vec<usize>,
    /// When it was reduced, in this backward.
    reduced: Option<EventId>,
}

/// The reducer of a model.
#[derive(Debug)]
pub(in crate::runtime) struct Reducer {
    settings: Ddp,
    ranks: Ranks,
    dtype: DType,
    /// Elements of each parameter that is trained, by index.
    elements: Vec<Option<u64>>,
    buffers: Buffers,
    buckets: Vec<Bucket>,
    /// By parameter, its bucket.
    bucket_of: Vec<usize>,
    /// Parameters in the order in which their gradients came in the first backward that reduces.
    order: Vec<usize>,
    /// Whether buckets are as they will stay.
    settled: bool,
    /// Whether the backward at hand, or the next, reduces (`expect_autograd_hooks_`).
    reducing: bool,
    /// Whether the next forward begins with a broadcast of buffers (`require_forward_param_sync`).
    broadcasts: bool,
    /// Whether no backward has ended that reduces.
    first: bool,
    /// The bucket that is reduced next.
    next: usize,
}

impl Reducer {
    /// Of the parameters that are trained, each with its elements.
    pub(in crate::runtime) fn new(
        settings: Ddp,
        ranks: Ranks,
        dtype: DType,
        elements: Vec<Option<u64>>,
        buffers: Buffers,
    ) -> Reducer {
        Reducer {
            settings,
            ranks,
            dtype,
            bucket_of: vec![0; elements.len()],
            elements,
            buffers,
            buckets: vec![],
            order: vec![],
            settled: settings.searches(),
            reducing: false,
            broadcasts: true,
            first: true,
            next: 0,
        }
    }

    fn bytes(&self, param: usize) -> u64 {
        self.elements[param].unwrap_or(0) * self.dtype.bytes()
    }

    /// How many parameters it has, as a map of those that were used \[B\].
    fn map_bytes(&self) -> u64 {
        self.elements.iter().flatten().count() as u64 * DType::Int32.bytes()
    }

    /// Construction: all parameters and buffers come from the first rank, and the first buckets are made.
    pub(in crate::runtime) fn set_up(&mut self, eager: &mut Eager, parameters: Vec<(DType, Vec<u64>)>) {
        Buffers(parameters).broadcast(&mut eager.program, self.ranks);
        if self.settings.broadcast_buffers {
            self.buffers.broadcast(&mut eager.program, self.ranks);
        }
        let params: Vec<(usize, u64)> =
            (0..self.elements.len()).filter(|&at| self.elements[at].is_some()).map(|at| (at, self.bytes(at))).collect();
        let Ddp { first_bucket, bucket_cap, .. } = self.settings;
        let limits = if self.settings.searches() { vec![first_bucket, bucket_cap] } else { vec![] };
        // The parameters that are registered last are expected first.
        let mut buckets = assignment::by_size(params, &limits);
        buckets.reverse();
        self.make(eager, buckets);
        if self.settings.find_unused_parameters || self.settings.static_graph {
            let bytes = Bytes(self.map_bytes());
            eager.program.alloc(bytes, COMPUTE, Category::Buffer, "local_used_map");
        }
    }

    fn make(&mut self, eager: &mut Eager, buckets: Vec<Vec<usize>>) {
        let before = std::mem::take(&mut self.buckets);
        for storage in before.into_iter().filter_map(|bucket| bucket.storage) {
            eager.release(storage);
        }
        for params in buckets {
            let bytes = params.iter().map(|&param| self.bytes(param)).sum();
            for &param in &params {
                self.bucket_of[param] = self.buckets.len();
            }
            let storage = (!self.settings.lazy_bucket_allocation).then(|| bucket(eager, bytes));
            let pending = params.len();
            self.buckets.push(Bucket { params, bytes, storage, pending, waiting: vec![], reduced: None });
        }
        // Gradients that were views of what there was move over.
        for param in 0..self.elements.len() {
            let Some(storage) = self.buckets.get(self.bucket_of[param]).and_then(|bucket| bucket.storage) else {
                continue;
            };
            if eager.leaf_is_part(param) && self.elements[param].is_some() {
                let bytes = self.bytes(param);
                kernel(eager, "aten.copy_", MemoryKind::Copy, (bytes, bytes));
                let gone = eager.set_leaf(param, storage, (self.dtype, bytes));
                gone.into_iter().for_each(|storage| eager.release(storage));
            }
        }
    }

    /// Makes buckets anew in the order in which gradients have come, once that is known.
    pub(in crate::runtime) fn rebuild(&mut self, eager: &mut Eager) {
        if self.settled || self.order.is_empty() {
            return;
        }
        self.settled = true;
        let sized: Vec<(usize, u64)> = self.order.iter().map(|&param| (param, self.bytes(param))).collect();
        let Ddp { first_bucket, bucket_cap, .. } = self.settings;
        let buckets = assignment::by_size(sized, &[first_bucket, bucket_cap]);
        self.make(eager, buckets);
    }

    /// Before the model's forward.
    pub(in crate::runtime) fn pre_forward(&mut self, eager: &mut Eager) {
        self.rebuild(eager);
        if self.broadcasts && self.settings.broadcast_buffers {
            self.buffers.broadcast(&mut eager.program, self.ranks);
        }
    }

    /// After it: whether the backward to come reduces (`no_sync`). Returns whether what the model returns is copied (`_DDPSink`).
    pub(in crate::runtime) fn post_forward(&mut self, reduces: bool) -> bool {
        self.broadcasts = reduces;
        self.reducing = reduces;
        self.settings.searches() || self.delays()
    }

    /// Whether nothing is reduced before backward ends, as in a static graph's first.
    fn delays(&self) -> bool {
        self.settings.static_graph && self.first
    }

    /// A leaf has taken a gradient.
    fn arrived(&mut self, eager: &mut Eager, param: usize) {
        if !self.reducing {
            return;
        }
        if !self.settled {
            self.order.push(param);
        }
        if !self.delays() {
            self.ready(eager, param);
        }
    }

    fn ready(&mut self, eager: &mut Eager, param: usize) {
        let at = self.bucket_of[param];
        if self.buckets[at].storage.is_none() {
            let bytes = self.buckets[at].bytes;
            self.buckets[at].storage = Some(bucket(eager, bytes));
        }
        let mut gone = None;
        if self.settings.batched_grad_copy {
            self.buckets[at].waiting.push(param);
        } else {
            gone = self.fill(eager, param);
        }
        self.buckets[at].pending -= 1;
        if self.buckets[at].pending == 0 {
            gone = gone.or(self.fill_together(eager, at, param));
            while self.buckets.get(self.next).is_some_and(|bucket| bucket.pending == 0) {
                self.reduce(eager, self.next);
                self.next += 1;
            }
            if self.next == self.buckets.len() && self.settings.searches() {
                self.reduce_map(eager);
            }
        }
        // Autograd's engine holds the gradient that it has just made until the hook returns.
        gone.into_iter().for_each(|storage| eager.release(storage));
    }

    /// Copies a gradient into its bucket and divides it; a hook divides on its own. Returns what it no longer is.
    fn fill(&mut self, eager: &mut Eager, param: usize) -> Option<Storage> {
        let (bytes, hooked) = (self.bytes(param), self.settings.compressed.is_some());
        if eager.leaf_is_part(param) {
            if !hooked {
                kernel(eager, "aten.div_", MemoryKind::Elementwise, (bytes, bytes));
            }
            return None;
        }
        let (name, kind) =
            if hooked { ("aten.copy_", MemoryKind::Copy) } else { ("aten.mul", MemoryKind::Elementwise) };
        kernel(eager, name, kind, (bytes, bytes));
        self.point(eager, param)
    }

    /// Makes a gradient a part of its bucket, where it is to be one.
    fn point(&self, eager: &mut Eager, param: usize) -> Option<Storage> {
        let storage = self.buckets[self.bucket_of[param]].storage?;
        if !self.settings.gradient_as_bucket_view {
            return None;
        }
        eager.set_leaf(param, storage, (self.dtype, self.bytes(param)))
    }

    /// Copies gradients that have waited for their bucket's last one, and divides the bucket. Returns what the last one no longer is.
    fn fill_together(&mut self, eager: &mut Eager, at: usize, last: usize) -> Option<Storage> {
        let waiting = std::mem::take(&mut self.buckets[at].waiting);
        if !self.settings.batched_grad_copy {
            return None;
        }
        let copied: Vec<usize> = waiting.into_iter().filter(|&param| !eager.leaf_is_part(param)).collect();
        let bytes = copied.iter().map(|&param| self.bytes(param)).sum::<u64>();
        if bytes > 0 {
            kernel(eager, "aten._foreach_copy_", MemoryKind::Foreach, (bytes, bytes));
        }
        if self.settings.compressed.is_none() {
            let whole = self.buckets[at].bytes;
            kernel(eager, "aten.div_", MemoryKind::Elementwise, (whole, whole));
        }
        let mut held = None;
        for param in copied {
            match self.point(eager, param) {
                Some(storage) if param == last => held = Some(storage),
                gone => gone.into_iter().for_each(|storage| eager.release(storage)),
            }
        }
        held
    }

    /// All-reduces a bucket, which a hook may compress.
    fn reduce(&mut self, eager: &mut Eager, at: usize) {
        let bytes = self.buckets[at].bytes;
        let narrow = self.settings.compressed.filter(|&to| to != self.dtype);
        let Some(to) = narrow else {
            if self.settings.compressed.is_some() {
                kernel(eager, "aten.div_", MemoryKind::Elementwise, (bytes, bytes));
            }
            self.buckets[at].reduced = Some(self.all_reduce(eager, bytes, self.dtype));
            return;
        };
        let small = bytes / self.dtype.bytes() * to.bytes();
        let compressed = eager.program.alloc(Bytes(small), COMPUTE, Category::BackwardTemporary, "aten._to_copy");
        kernel(eager, "aten._to_copy", MemoryKind::Elementwise, (bytes, small));
        kernel(eager, "aten.div_", MemoryKind::Elementwise, (small, small));
        let event = self.all_reduce(eager, small, to);
        eager.program.wait(DECOMPRESS, event);
        launch(eager, DECOMPRESS, "aten.copy_", MemoryKind::Elementwise, (small, bytes));
        self.buckets[at].reduced = Some(eager.program.record(DECOMPRESS));
        eager.program.free(compressed);
    }

    /// All-reduces what the default stream has made so far, and records the end.
    fn all_reduce(&self, eager: &mut Eager, bytes: u64, dtype: DType) -> EventId {
        eager.program.wait_stream(REDUCE, COMPUTE);
        if self.ranks.count > 1 {
            let comm = Comm { kind: Collective::AllReduce, group: self.ranks.group, bytes: Bytes(bytes), dtype };
            eager.program.collective(REDUCE, comm);
        }
        eager.program.record(REDUCE)
    }

    /// Reduces the map of parameters that were used.
    fn reduce_map(&self, eager: &mut Eager) {
        let bytes = self.map_bytes();
        let work = Work::HostCopy { bytes: Bytes(bytes), to_host: false };
        eager.program.launch(COMPUTE, "Memcpy HtoD", work, Dispatch::EagerBackward);
        self.all_reduce(eager, bytes, DType::Int32);
    }

    /// At the end of a backward: each bucket is waited for, and its gradients are copied back.
    pub(in crate::runtime) fn finish(&mut self, eager: &mut Eager) {
        if !std::mem::take(&mut self.reducing) {
            return;
        }
        if self.delays() {
            self.reduce_map(eager);
            for param in (0..self.elements.len()).filter(|&param| self.elements[param].is_some()).collect::<Vec<_>>() {
                self.ready(eager, param);
            }
        }
        self.first = false;
        self.next = 0;
        for at in 0..self.buckets.len() {
            self.finish_bucket(eager, at);
        }
        if self.settings.searches() {
            eager.program.wait_stream(COMPUTE, REDUCE);
        }
        if self.settings.lazy_bucket_allocation {
            let storages: Vec<Storage> = self.buckets.iter_mut().filter_map(|bucket| bucket.storage.take()).collect();
            storages.into_iter().for_each(|storage| eager.release(storage));
        }
    }

    fn finish_bucket(&mut self, eager: &mut Eager, at: usize) {
        let bucket = &mut self.buckets[at];
        bucket.pending = bucket.params.len();
        if let Some(event) = bucket.reduced.take() {
            eager.program.wait(COMPUTE, event);
        }
        if self.settings.gradient_as_bucket_view {
            return;
        }
        if self.settings.batched_grad_copy {
            let bytes = bucket.bytes;
            return kernel(eager, "aten._foreach_copy_", MemoryKind::Foreach, (bytes, bytes));
        }
        for param in bucket.params.clone() {
            let bytes = self.bytes(param);
            kernel(eager, "aten.copy_", MemoryKind::Copy, (bytes, bytes));
        }
    }
}

fn bucket(eager: &mut Eager, bytes: u64) -> Storage {
    eager.storage_as(bytes, Category::UnshardedGradient, "gradient bucket")
}

fn kernel(eager: &mut Eager, name: &'static str, kind: MemoryKind, moved: (u64, u64)) {
    launch(eager, COMPUTE, name, kind, moved);
}

fn launch(eager: &mut Eager, stream: StreamId, name: &'static str, kind: MemoryKind, (read, written): (u64, u64)) {
    let work = Work::Memory { kind, read: Bytes(read), written: Bytes(written) };
    eager.program.launch(stream, name, work, Dispatch::EagerBackward);
}

/// Tells the reducer of gradients that leaves have taken.
#[derive(Debug)]
pub(in crate::runtime) struct Hooks(pub(in crate::runtime) Rc<RefCell<Reducer>>);

impl Around for Hooks {
    fn arrived(&mut self, eager: &mut Eager, param: usize) {
        self.0.borrow_mut().arrived(eager, param);
    }
}
