//! ZeRO-3: parameters in parts, gathered around modules; gradients reduced bucket by bucket, each rank's part of all of them kept
//! for good (`stage3.py`, `partitioned_param_coordinator.py`, `partition_parameters.py`).
//!
//! A gather of several parameters takes a block for all their parts; when the first of them is waited for, each gets a block of
//! its own, and the first block goes when all of them have been waited for. Gathers run on a stream of their own, which the
//! default stream waits for whenever a module begins; gradients are copied and reduced on another, behind the default stream. The
//! host has at most two gathers, and two reductions, of which it does not know that they have ended. Without `overlap_comm` all
//! run on the default stream.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::away::Gradients;
use super::disk::{self, PARAMETERS};
use super::gather::{Bring, Coordinator, Fetch, gathered_elements};
use super::host::bring;
use super::kernels::{BF16, copy, elementwise, made};
use super::modules::Modules;
use super::quantized::{Gathered, Hops, Part};
use super::reduce::Scatters;
use super::{files, visits};
use crate::plan::zero::{Zero, ZeroPlan};
use crate::program::{BufferId, Builder, Category, Collective, Comm, DType, EventId, GroupId, Instr, Pass, StreamId};
use crate::runtime::eager::around::{Around, Place};
use crate::runtime::eager::{COMPUTE, Eager, Storage};
use crate::units::Bytes;

/// Gathers, and reductions, that the host may have issued and know nothing of.
const IN_FLIGHT: usize = 2;

/// A gather that has been issued.
#[derive(Debug)]
struct Gather {
    params: Vec<usize>,
    /// The block of all their parts, until all have been waited for; none: the one parameter's own.
    flat: Option<BufferId>,
    /// Of those nobody has waited for.
    left: usize,
    split: bool,
    /// What has crossed in eight bits.
    quantized: Option<Gathered>,
}

/// Who takes part in what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    /// All ranks.
    pub(super) all: GroupId,
    /// Those that hold parameters a second time.
    pub(super) second: GroupId,
    /// Those that gradients in four bits go through.
    pub(super) hops: Option<Hops>,
}

/// Parameters that come and go, and gradients on their way.
#[derive(Debug)]
pub(super) struct Parts {
    zero: Zero,
    groups: Groups,
    /// The rank's part, among those of a node, of each parameter that has gone once in this step.
    second: BTreeMap<usize, BufferId>,
    elements: Vec<u64>,
    /// Rows and columns of each parameter.
    shapes: Vec<(u64, u64)>,
    modules: Rc<Modules>,
    coordinator: Coordinator,
    gathers: Vec<Gather>,
    /// The gather that brings a parameter, until somebody waits for it.
    coming: BTreeMap<usize, usize>,
    here: BTreeMap<usize, BufferId>,
    gathered: VecDeque<EventId>,
    scatters: Scatters,
    large: BTreeMap<usize, Storage>,
    reduced: VecDeque<EventId>,
    /// Whether an earlier micro-batch of the step has left its part of the gradients.
    accumulates: bool,
    /// Gradients, where they cross to the host's memory.
    pub(super) away: Option<Gradients>,
}

impl Parts {
    pub(super) fn new(
        job: &ZeroPlan,
        (groups, shapes): (Groups, Vec<(u64, u64)>),
        modules: Rc<Modules>,
        order: &[usize],
    ) -> Parts {
        let zero = job.zero;
        let elements: Vec<u64> = shapes.iter().map(|(rows, columns)| rows * columns).collect();
        let coordinator = visits::coordinator(&zero, &elements, &modules, order);
        Parts {
            zero,
            groups,
            second: BTreeMap::new(),
            coordinator,
            scatters: Scatters::new(zero.bucket),
            away: zero.offload.optimizer.then(|| Gradients::new(job, &elements)),
            elements,
            shapes,
            modules,
            gathers: vec![],
            coming: BTreeMap::new(),
            here: BTreeMap::new(),
            gathered: VecDeque::new(),
            large: BTreeMap::new(),
            reduced: VecDeque::new(),
            accumulates: false,
        }
    }

    /// The stream of gathers, and that of reductions.
    fn streams(&self) -> (StreamId, StreamId) {
        if self.zero.overlap { (StreamId(1), StreamId(2)) } else { (COMPUTE, COMPUTE) }
    }

    /// The model's forward begins.
    pub(super) fn begin(&mut self, micro_batch: u32, last: bool) {
        self.coordinator.begin();
        self.accumulates = micro_batch > 0;
        if let Some(away) = &mut self.away {
            away.boundary = last;
        }
    }

    /// `fetch_sub_module`.
    fn fetch(&mut self, program: &mut Builder, module: usize, backward: bool) {
        let stream = self.streams().0;
        let own = self.modules.params[module].clone();
        let pass = program.set_pass(Pass::Communication);
        let Fetch { now, ahead, read_ahead } = self.coordinator.fetch(module, backward);
        now.into_iter().for_each(|now| self.gather(program, now));
        for param in own {
            if let Some(gather) = self.coming.remove(&param) {
                throttle(program, &mut self.gathered);
                self.wait_for(program, gather);
                self.gathered.push_back(program.record(stream));
            }
        }
        if self.zero.overlap {
            program.wait_stream(COMPUTE, stream);
        }
        ahead.into_iter().for_each(|ahead| self.gather(program, ahead));
        self.read(program, &read_ahead);
        program.set_pass(pass);
    }

    /// Parts are asked of files.
    fn read(&self, program: &mut Builder, params: &[usize]) {
        for &param in params {
            disk::file(program, PARAMETERS, files::bytes(&self.zero, self.elements[param]), false);
        }
    }

    /// `all_gather_coalesced`.
    fn gather(&mut self, program: &mut Builder, Bring { params, read, waits }: Bring) {
        self.read(program, &read);
        if waits {
            program.wait_for_host(PARAMETERS);
        }
        let stream = self.streams().0;
        let sizes: Vec<u64> = params.iter().map(|&param| self.elements[param]).collect();
        let whole = gathered_elements(&sizes, self.zero.ranks);
        let eight_bits = self.zero.quantized.weights;
        let bytes = Bytes(if eight_bits { whole } else { whole * BF16 });
        let several = params.len() > 1;
        let near = self.second.contains_key(&params[0]);
        let (group, ranks) =
            if near { (self.groups.second, self.zero.hpz) } else { (self.groups.all, self.zero.ranks) };
        let category = if several { Category::AllGatherOutput } else { Category::UnshardedParameter };
        let buffer = program.alloc(bytes, stream, category, "gathered parameters");
        let mut brought = vec![];
        for &elements in sizes.iter().filter(|_| self.zero.offload.parameters) {
            brought.push(bring(program, stream, elements.div_ceil(u64::from(self.zero.ranks)) * BF16));
        }
        let part = whole / u64::from(ranks);
        let mut quantized = None;
        let mut flat = None;
        if eight_bits {
            let own = match brought.pop() {
                Some(half) if !several => Part::Halves(half),
                last if several => {
                    let name = "aten.cat";
                    let together = program.alloc(Bytes(part * BF16), stream, Category::AllGatherOutput, name);
                    copy(program, stream, part);
                    last.into_iter().chain(brought.drain(..).rev()).for_each(|part| program.free(part));
                    Part::Together(together)
                }
                _ => Part::Here,
            };
            quantized = Some(Gathered::issue(program, stream, (buffer, own), (whole, ranks, group)));
        } else if several {
            copy(program, stream, part);
            brought.drain(..).rev().for_each(|part| program.free(part));
            flat = Some(buffer);
        } else {
            self.here.insert(params[0], buffer);
        }
        if ranks > 1 && !eight_bits {
            let comm = Comm { kind: Collective::AllGather, group, bytes, dtype: DType::Bf16 };
            program.collective(stream, comm);
        }
        brought.into_iter().for_each(|part| program.free(part));
        let gather = self.gathers.len();
        self.coming.extend(params.iter().map(|&param| (param, gather)));
        let left = params.len();
        let split = !several && quantized.is_none();
        self.gathers.push(Gather { params, flat, left, split, quantized });
    }

    /// A handle is waited for: all of what it brings is made, and its own block goes with the last that is asked for.
    fn wait_for(&mut self, program: &mut Builder, gather: usize) {
        let stream = self.streams().0;
        let gather = &mut self.gathers[gather];
        if !std::mem::replace(&mut gather.split, true) {
            if let Some(quantized) = &gather.quantized {
                gather.flat = Some(quantized.halves(program, stream));
            }
            let several = gather.params.len() > 1;
            for &param in &gather.params {
                let elements = self.elements[param];
                let bytes = Bytes(elements * BF16);
                let mut made = None;
                if several {
                    made = Some(program.alloc(bytes, stream, Category::UnshardedParameter, "aten.cat"));
                    copy(program, stream, elements);
                }
                // What has crossed in eight bits is fp16, which has as many.
                if gather.quantized.is_some() {
                    let cast = program.alloc(bytes, stream, Category::UnshardedParameter, "aten._to_copy");
                    elementwise(program, stream, "aten._to_copy", (bytes.0, bytes.0));
                    made.replace(cast).into_iter().for_each(|half| program.free(half));
                }
                self.here.extend(made.map(|made| (param, made)));
            }
        }
        gather.left -= 1;
        if gather.left == 0 {
            gather.flat.take().into_iter().for_each(|flat| program.free(flat));
            gather.quantized.take().into_iter().for_each(|quantized| quantized.free(program));
        }
    }

    fn release(&mut self, program: &mut Builder, params: Vec<usize>) {
        for param in params {
            self.keep(program, param);
            if let Some(buffer) = self.here.remove(&param) {
                program.free(buffer);
            }
        }
    }

    /// `_partition_param_sec`: before a parameter goes for the first time in a step the rank keeps its part among those of a node.
    /// The host waits for it.
    pub(super) fn keep(&mut self, program: &mut Builder, param: usize) {
        if self.zero.hpz == 1 || self.second.contains_key(&param) {
            return;
        }
        let part = gathered_elements(&[self.elements[param]], self.zero.ranks) / u64::from(self.zero.hpz);
        let buffer = program.alloc(Bytes(part * BF16), COMPUTE, Category::Parameter, "secondary partition");
        elementwise(program, COMPUTE, "aten.zero_", (0, part * BF16));
        copy(program, COMPUTE, part);
        program.wait_for_host(COMPUTE);
        self.second.insert(param, buffer);
    }

    /// The optimizer has stepped: what the rank kept is stale.
    pub(super) fn stepped(&mut self, program: &mut Builder) {
        self.coordinator.stepped();
        if !self.second.is_empty() {
            program.wait_for_host(COMPUTE);
        }
        std::mem::take(&mut self.second).into_values().for_each(|part| program.free(part));
    }

    /// `reduce_independent_p_g_buckets_and_remove_grads`.
    fn arrived(&mut self, eager: &mut Eager, param: usize) {
        let Some((gradient, _)) = eager.take_leaf(param) else { return };
        let full = self.scatters.ready(param, self.elements[param]);
        self.reduce(eager, full);
        let stream = self.streams().1;
        if self.zero.overlap {
            eager.program.wait_stream(stream, COMPUTE);
        }
        if self.elements[param] > self.zero.bucket {
            self.large.insert(param, gradient);
            return;
        }
        let pass = eager.program.set_pass(Pass::Communication);
        let (elements, wide) = (self.elements[param], self.zero.reduced().bytes());
        elementwise(&mut eager.program, stream, "aten.copy_", (elements * BF16, elements * wide));
        eager.program.set_pass(pass);
        eager.release(gradient);
    }

    /// `__reduce_and_partition_ipg_grads`.
    fn reduce(&mut self, eager: &mut Eager, params: Vec<usize>) {
        if params.is_empty() {
            return;
        }
        let stream = self.streams().1;
        let program = &mut eager.program;
        let pass = program.set_pass(Pass::Communication);
        throttle(program, &mut self.reduced);
        let ranks = u64::from(self.zero.ranks);
        let blocks = match self.groups.hops {
            None => self.scatter(program, stream, &params),
            Some(hops) => {
                let shapes: Vec<(u64, u64)> = params.iter().map(|&param| self.shapes[param]).collect();
                hops.reduce(program, stream, &shapes)
            }
        };
        for &param in &params {
            let part = self.elements[param].div_ceil(ranks);
            let half = self.groups.hops.is_some_and(|hops| hops.quantizes(self.shapes[param]));
            if let Some(away) = &mut self.away {
                away.send(program, stream, (param, part), (self.accumulates, half));
            } else if self.accumulates {
                let cast = half.then(|| made(program, stream, "aten._to_copy", (part * BF16, part * BF16)));
                elementwise(program, stream, "aten.add_", (2 * part * BF16, part * BF16));
                cast.into_iter().for_each(|cast| program.free(cast));
            } else {
                copy(program, stream, part);
            }
        }
        let mut large: Vec<Storage> = params.iter().filter_map(|param| self.large.remove(param)).collect();
        // What has been exchanged in four bits, or cast, is not part of the gradient, which goes first.
        if self.groups.hops.is_some() || self.zero.reduced() != DType::Bf16 {
            large.drain(..).for_each(|gradient| eager.release(gradient));
        }
        let program = &mut eager.program;
        if let Some(away) = &mut self.away {
            away.reduced(program, stream);
        }
        self.reduced.push_back(program.record(stream));
        program.set_pass(pass);
        large.into_iter().for_each(|gradient| eager.release(gradient));
        blocks.into_iter().flatten().for_each(|block| eager.program.free(block));
    }

    /// `reduce_scatter_coalesced`: gradients are interleaved, divided and reduced at once. One whose parts are equal is reduced where
    /// it lies. Where they are reduced in fp32 they lie so in the bucket, one that is not there is cast, and parts are cast back.
    fn scatter(&self, program: &mut Builder, stream: StreamId, params: &[usize]) -> Vec<Option<BufferId>> {
        let sizes: Vec<u64> = params.iter().map(|&param| self.elements[param]).collect();
        let ranks = u64::from(self.zero.ranks);
        let whole = gathered_elements(&sizes, self.zero.ranks);
        let dtype = self.zero.reduced();
        let bytes = Bytes(whole * dtype.bytes());
        let casts = dtype != DType::Bf16;
        let large = params.iter().filter(|param| casts && self.large.contains_key(param));
        let cast = |&param: &usize| {
            let narrow = self.elements[param] * BF16;
            made(program, stream, "aten._to_copy", (narrow, self.elements[param] * dtype.bytes()))
        };
        let wide: Vec<BufferId> = large.map(cast).collect();
        let flat = (params.len() > 1 || !sizes[0].is_multiple_of(ranks)).then(|| {
            let flat = program.alloc(bytes, stream, Category::ReduceScatterInput, "interleaved gradients");
            elementwise(program, stream, "aten.cat", (bytes.0, bytes.0));
            flat
        });
        elementwise(program, stream, "aten.div_", (bytes.0, bytes.0));
        if ranks > 1 {
            let comm = Comm { kind: Collective::ReduceScatter, group: self.groups.all, bytes, dtype };
            program.collective(stream, comm);
        }
        if !casts {
            return vec![flat];
        }
        let back = |&elements: &u64| {
            let part = elements.div_ceil(ranks);
            Some(made(program, stream, "aten._to_copy", (part * dtype.bytes(), part * BF16)))
        };
        let parts: Vec<Option<BufferId>> = sizes.iter().map(back).collect();
        flat.into_iter().chain(wide).for_each(|block| program.free(block));
        parts.into_iter().rev().collect()
    }

    /// The end of a backward: what is left is reduced and waited for, then modules whose end nobody saw let go.
    fn ended(&mut self, eager: &mut Eager) {
        let left = self.scatters.flush();
        self.reduce(eager, left);
        eager.program.wait_for_host(self.streams().1);
        let gone = self.coordinator.finish();
        self.release(&mut eager.program, gone);
    }
}

/// Waits for the oldest, if too many are under way.
fn throttle(program: &mut Builder, events: &mut VecDeque<EventId>) {
    if events.len() > IN_FLIGHT
        && let Some(event) = events.pop_front()
    {
        program.push(Instr::HostWait { event });
    }
}

/// Parameters and gradients, which the hooks and the step both reach.
#[derive(Clone, Debug)]
pub(super) struct Shared(pub(super) Rc<RefCell<Parts>>);

impl Shared {
    pub(super) fn ended(&self, eager: &mut Eager) {
        self.0.borrow_mut().ended(eager);
    }
}

impl Around for Shared {
    fn begins(&mut self, eager: &mut Eager, at: Place) {
        let parts = &mut *self.0.borrow_mut();
        let modules = Rc::clone(&parts.modules);
        for module in modules.begin(at) {
            parts.fetch(&mut eager.program, module, at.backward);
        }
    }

    fn ended(&mut self, eager: &mut Eager, at: Place) {
        let parts = &mut *self.0.borrow_mut();
        let modules = Rc::clone(&parts.modules);
        for module in modules.end(at) {
            let gone = parts.coordinator.release(module);
            parts.release(&mut eager.program, gone);
        }
    }

    fn arrived(&mut self, eager: &mut Eager, param: usize) {
        self.0.borrow_mut().arrived(eager, param);
    }
}
