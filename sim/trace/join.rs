//! Lists of a draft, joined: parents of operators, launches of kernels, forward operators, modules, collectives, steps.
//!
//! A kernel belongs to the call with its correlation id, and the call to the innermost operator of its thread that contains it.
//! That is the one rule which holds in every release of PyTorch's profiler (`tests/traces/README.md`, 1.4).

use std::collections::BTreeMap;

use super::draft::{Draft, DraftCall, DraftKernel, DraftOp, Module, ZERO};
use super::error::Stop;
use super::id::Id;
use super::intern::Interner;
use super::notes::{self, Launches};
use super::parts::{Call, CallKind, Kernel, Name, Op, Scope, Thread, Trace};
use super::{nccl, steps};

/// Joins all lists.
pub(super) fn join(mut draft: Draft) -> Result<Trace, Stop> {
    if draft.kernels.is_empty() {
        return Err(Stop::Empty {
            what: "kernel",
            remedy: "Profile with the device's activities on: ProfilerActivity.CUDA, nsys --trace=cuda,nvtx, or jax.profiler on a device",
        });
    }
    number_processes(&mut draft.trace.threads);
    draft.ops.sort_by_key(|op| (op.op.thread, op.op.start, std::cmp::Reverse(op.op.duration)));
    nest(&mut draft.ops);
    let launches = launch(&mut draft);
    find_operators(&mut draft.trace, &draft.ops, &mut draft.kernels);
    link_forward(&draft.trace.threads, &mut draft.ops);
    name_modules(&mut draft);
    nccl::describe(&mut draft);
    let is_graph =
        |call: Option<Id<Call>>, calls: &[Call]| call.is_some_and(|id| calls[id.at()].kind == CallKind::Graph);
    for at in &mut draft.kernels {
        at.kernel.in_graph |= is_graph(at.kernel.launch, &draft.trace.calls);
    }
    notes::write(&mut draft, launches);
    let Draft { mut trace, names, ops, kernels, marks, .. } = draft;
    trace.ops = ops.into_iter().map(|op| op.op).collect();
    trace.kernels = kernels.into_iter().map(|kernel| kernel.kernel).collect();
    trace.names = names.finish();
    let marks = steps::find(&trace, marks);
    let zero = from_first(&mut trace);
    steps::assign(&mut trace, marks, zero);
    Ok(trace)
}

fn number_processes(threads: &mut [Thread]) {
    let mut pids: Vec<i64> = threads.iter().map(|thread| thread.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    for thread in threads {
        thread.process = pids.binary_search(&thread.pid).map_or(0, |at| at as u32);
    }
}

/// The deepest that operators nest: what is deeper belongs to the last that counts, so that no chain of parents is long.
const DEEPEST: usize = 1000;
/// The deepest that modules nest.
const DEEPEST_MODULE: usize = 100;

/// Finds the parent of every operator. Operators of old files begin and end on whole microseconds, so a child may stick out.
fn nest(ops: &mut [DraftOp]) {
    let mut open: Vec<usize> = vec![];
    for at in 0..ops.len() {
        let (thread, start, is_instant) = (ops[at].op.thread, ops[at].op.start, ops[at].op.duration == 0);
        while let Some(&top) = open.last() {
            let top = &ops[top].op;
            let is_over = top.end() < start || top.end() == start && !is_instant;
            if top.thread == thread && !is_over {
                break;
            }
            open.pop();
        }
        ops[at].op.parent = open.last().map(|&top| Id::new(top));
        if open.len() < DEEPEST {
            open.push(at);
        }
    }
}

/// Joins kernels with the calls that launched them, and keeps those calls and the waits.
fn launch(draft: &mut Draft) -> Launches {
    let process: BTreeMap<i64, u32> = draft.trace.threads.iter().map(|thread| (thread.pid, thread.process)).collect();
    let threads = &draft.trace.threads;
    let mut calls = std::mem::take(&mut draft.calls);
    calls.sort_by_key(|call| (call.call.thread, call.call.start));
    let are_told = draft.kernels.iter().any(|kernel| kernel.pid.is_some());
    let key = |call: &DraftCall| {
        let process = if are_told { threads[call.call.thread.at()].process } else { 0 };
        call.correlation.map(|correlation| (process, correlation))
    };
    let mut by_key: Vec<((u32, u64), u32)> =
        calls.iter().enumerate().filter_map(|(at, call)| Some((key(call)?, at as u32))).collect();
    by_key.sort_unstable();
    let repeated = by_key.windows(2).filter(|pair| pair[0].0 == pair[1].0).count();
    let mut is_used = vec![false; calls.len()];
    let mut without = 0;
    draft.kernels.sort_by_key(|kernel| (kernel.kernel.start, kernel.kernel.device, kernel.kernel.stream));
    for DraftKernel { kernel, pid, correlation } in &mut draft.kernels {
        let process = pid.and_then(|pid| process.get(&pid)).copied().unwrap_or(0);
        let found = correlation.and_then(|correlation| {
            let place = by_key.partition_point(|&(key, _)| key < (process, correlation));
            by_key.get(place).filter(|&&(key, _)| key == (process, correlation))
        });
        kernel.launch = found.map(|&(_, at)| Id::new(at as usize));
        match found {
            Some(&(_, at)) => is_used[at as usize] = true,
            None => without += 1,
        }
    }
    let kept = |at: usize, call: &DraftCall| is_used[at] || call.call.kind == CallKind::Wait;
    // Where each kept call goes.
    let mut place = vec![0u32; calls.len()];
    let mut next = 0;
    for (at, call) in calls.iter().enumerate() {
        place[at] = next;
        next += u32::from(kept(at, call));
    }
    for kernel in &mut draft.kernels {
        kernel.kernel.launch = kernel.kernel.launch.map(|id| Id::new(place[id.at()] as usize));
    }
    let mut at = 0;
    calls.retain(|call| {
        at += 1;
        kept(at - 1, call)
    });
    draft.trace.calls = calls.into_iter().map(|call| call.call).collect();
    Launches { without, repeated }
}

/// Walks along a thread's spans, which are sorted and nested, and knows the innermost one around a moment that only grows.
struct Walk {
    next: usize,
    inner: Option<usize>,
}

impl Walk {
    /// The innermost op of `thread` around this moment.
    fn to(&mut self, ops: &[DraftOp], thread: Id<Thread>, start: u64, end: u64) -> Option<usize> {
        if self.inner.is_some_and(|inner| ops[inner].op.thread != thread) {
            self.inner = None;
        }
        while ops.get(self.next).is_some_and(|op| (op.op.thread, op.op.start) <= (thread, start)) {
            self.inner = (ops[self.next].op.thread == thread).then_some(self.next);
            self.next += 1;
        }
        let contains = |op: &Op| end <= op.end() || start < op.end();
        while let Some(inner) = self.inner.filter(|&inner| !contains(&ops[inner].op)) {
            self.inner = ops[inner].op.parent.map(Id::at);
        }
        self.inner
    }
}

/// The innermost operator and range around each launch.
fn find_operators(trace: &mut Trace, ops: &[DraftOp], kernels: &mut [DraftKernel]) {
    let mut walk = Walk { next: 0, inner: None };
    let inner: Vec<Option<Id<Op>>> =
        trace.calls.iter().map(|call| walk.to(ops, call.thread, call.start, call.end()).map(Id::new)).collect();
    let up_to = |from: Option<Id<Op>>, scope: Scope| {
        let mut at = from;
        while let Some(id) = at.filter(|id| ops[id.at()].op.scope != scope) {
            at = ops[id.at()].op.parent;
        }
        at
    };
    for DraftKernel { kernel, .. } in kernels {
        let around = kernel.launch.and_then(|launch| inner[launch.at()]);
        kernel.op = up_to(around, Scope::Operator);
        kernel.range = up_to(around, Scope::Range);
    }
}

/// Joins backward operators with their forward ones. Several operators may carry one number: the last to begin made the node of the
/// graph. Numbers are looked for before the backward operator, for a file may hold several runs.
fn link_forward(threads: &[Thread], ops: &mut [DraftOp]) {
    let process = |op: &Op| threads[op.thread.at()].process;
    let mut forward: Vec<(u32, u32, u64, u32)> = ops
        .iter()
        .enumerate()
        .filter(|(_, op)| !op.is_backward)
        .filter_map(|(at, op)| Some((process(&op.op), op.op.sequence?, op.op.start, at as u32)))
        .collect();
    forward.sort_unstable();
    for op in ops.iter_mut().filter(|op| op.is_backward) {
        let Some(sequence) = op.op.sequence else { continue };
        let key = (process(&op.op), sequence);
        let after = forward.partition_point(|&(process, sequence, start, _)| {
            (process, sequence) < key || (process, sequence) == key && start < op.op.start
        });
        let found = after.checked_sub(1).and_then(|last| forward.get(last));
        op.op.forward =
            found.filter(|&&(process, sequence, ..)| (process, sequence) == key).map(|&(.., at)| Id::new(at as usize));
    }
}

/// Gives every operator the path of modules around it, and backward operators that of their forward.
fn name_modules(draft: &mut Draft) {
    if draft.modules.is_empty() {
        return;
    }
    draft.modules.sort_by_key(|module| (module.thread, module.start, std::cmp::Reverse(module.end)));
    let modules = paths(&draft.modules, &mut draft.names);
    let mut open: Vec<(&Module, Id<Name>)> = vec![];
    let mut next = 0;
    for at in 0..draft.ops.len() {
        let op = &draft.ops[at].op;
        let (thread, start) = (op.thread, op.start);
        while let Some(&(module, path)) =
            modules.get(next).filter(|(module, _)| (module.thread, module.start) <= (thread, start))
        {
            close(&mut open, module.thread, module.start);
            open.push((module, path));
            next += 1;
        }
        close(&mut open, thread, start);
        draft.ops[at].op.module = open.last().map(|&(_, path)| path);
    }
    for at in 0..draft.ops.len() {
        let op = &draft.ops[at].op;
        let of = |id: Id<Op>| draft.ops[id.at()].op.module;
        let module = op.forward.and_then(of).or(op.module).or(op.parent.and_then(of));
        draft.ops[at].op.module = module;
    }
}

/// Modules with their paths, such as "Model_0/Block_3/Linear_7".
fn paths<'a>(modules: &'a [Module], names: &mut Interner) -> Vec<(&'a Module, Id<Name>)> {
    let mut open: Vec<(&Module, Id<Name>)> = vec![];
    let mut all = vec![];
    for module in modules {
        close(&mut open, module.thread, module.start);
        if open.len() == DEEPEST_MODULE {
            continue;
        }
        let outer = open.last().map_or(String::new(), |&(_, path)| format!("{}/", names.get(path)));
        let path = names.id(&(outer + names.get(module.name)));
        open.push((module, path));
        all.push((module, path));
    }
    all
}

/// Drops modules of other threads, and those that have ended at this time.
fn close(open: &mut Vec<(&Module, Id<Name>)>, thread: Id<Thread>, start: u64) {
    open.retain(|(outer, _)| outer.thread == thread && outer.end > start);
}

/// Makes times count from the first event, and returns where that was.
fn from_first(trace: &mut Trace) -> u64 {
    let ops = trace.ops.iter().map(|op| op.start);
    let calls = trace.calls.iter().map(|call| call.start);
    let kernels = trace.kernels.iter().map(|kernel| kernel.start);
    let zero = ops.chain(calls).chain(kernels).min().unwrap_or(ZERO);
    trace.ops.iter_mut().for_each(|op| op.start -= zero);
    trace.calls.iter_mut().for_each(|call| call.start -= zero);
    trace.kernels.iter_mut().for_each(|kernel| kernel.start -= zero);
    let ends = trace.ops.iter().map(Op::end).chain(trace.calls.iter().map(Call::end));
    trace.duration = ends.chain(trace.kernels.iter().map(Kernel::end)).max().unwrap_or(0);
    trace.epoch = trace.epoch.map(|epoch| epoch + i128::from(zero) - i128::from(ZERO));
    zero
}
