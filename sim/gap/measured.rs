//! A step of a trace, as a side.

use std::collections::BTreeMap;

use super::kinds::{class, operator, shape, whole};
use super::side::{Class, Doing, Item, Side};
use crate::program::Pass;
use crate::trace::{CallKind, Classes, Group, Id, Kernel, Op, Scope, Step, Thread, Trace};
use crate::units::{Bytes, Time};

/// A time of a trace \[ns\].
fn time(nanoseconds: u64) -> Time {
    Time(nanoseconds.saturating_mul(1000))
}

/// One step as one device ran it; `None` if the device ran nothing of it.
pub fn measured(trace: &Trace, device: u32, step: Id<Step>) -> Option<Side> {
    let marked = &trace.steps[step.at()];
    let window = marked.windows.iter().find(|window| window.device == device)?;
    let ran = |kernel: &&Kernel| kernel.device == device && kernel.end() > window.start && kernel.start < window.end;
    let mut kernels: Vec<&Kernel> = trace.kernels.iter().filter(ran).collect();
    // In the order of launches; what was launched before recording began, or by a graph, by its start.
    kernels
        .sort_by_key(|kernel| (kernel.launch.map_or(kernel.start, |call| trace.calls[call.at()].start), kernel.start));
    let classes = Classes::new(trace);
    let mut items: Vec<Item> = Vec::with_capacity(kernels.len());
    let mut heads: BTreeMap<(Id<Op>, u32, Class), usize> = BTreeMap::new();
    for kernel in kernels {
        let mut item = item(trace, &classes, kernel, kernel.step == Some(step));
        // Kernels of one multi-tensor operator are as many launches; those of any other are one piece of work.
        if let Some(op) =
            kernel.op.filter(|_| !item.class.is_exchange() && item.class != Class::Optimizer && !kernel.in_graph)
        {
            let head = *heads.entry((op, kernel.stream, item.class)).or_insert(items.len());
            item.head = (head < items.len()).then_some(head);
        }
        items.push(item);
    }
    let threads: Vec<Id<Thread>> = launching(trace, marked);
    let host = threads.into_iter().flat_map(|thread| doing(trace, thread)).collect();
    Some(Side { begin: time(window.start), end: time(window.end), items, host })
}

fn item(trace: &Trace, classes: &Classes<'_>, kernel: &Kernel, own: bool) -> Item {
    let pass = pass(trace, kernel);
    let class = class(trace, classes, kernel);
    let launch = kernel.launch.map(|call| &trace.calls[call.at()]);
    let module = kernel.op.or(kernel.range).and_then(|op| trace.ops[op.at()].module);
    let group = kernel.collective.and_then(|known| trace.collectives[known.at()].group);
    let bytes = whole(trace, kernel, class).filter(|_| class.is_exchange()).or(kernel.bytes);
    Item {
        class,
        name: operator(trace, kernel).into(),
        head: None,
        shape: shape(trace, kernel, class),
        stream: kernel.stream,
        start: time(kernel.start),
        end: time(kernel.end()),
        waited: None,
        behind: None,
        launched: launch.map(|call| time(call.end())),
        scope: module.map_or("", |module| trace.name(module)).into(),
        pass,
        group: group.map_or(String::new(), |group| members(&trace.groups[group.at()])).into(),
        thread: launch.map_or(0, |call| call.thread.at() as u32),
        bytes: Bytes(bytes.unwrap_or(0)),
        own,
    }
}

/// A group by its name and its ranks: ranks of other groups may have one of the same name.
fn members(group: &Group) -> String {
    let ranks: Vec<String> = group.ranks.iter().map(u32::to_string).collect();
    let name = group.purpose.as_deref().unwrap_or(&group.name);
    if ranks.is_empty() { name.to_owned() } else { format!("{name} of ranks {}", ranks.join(", ")) }
}

/// The pass, by the ranges and operators around the launch.
fn pass(trace: &Trace, kernel: &Kernel) -> Option<Pass> {
    let inner = kernel.op.or(kernel.range)?;
    let mut forward = None;
    for op in trace.around(Some(inner)) {
        let name = trace.name(op.name);
        if name.starts_with("Optimizer.step") || name.starts_with("_foreach_") {
            return Some(Pass::Optimizer);
        }
        if name.starts_with("FSDP::") {
            return Some(Pass::Communication);
        }
        if name.starts_with("autograd::engine::") {
            return Some(Pass::Backward);
        }
        if op.scope == Scope::Operator {
            forward = Some(Pass::Forward);
        }
    }
    let thread = trace.threads[trace.ops[inner.at()].thread.at()].name.as_deref().unwrap_or_default();
    if thread.starts_with("pt_autograd") { Some(Pass::Backward) } else { forward }
}

/// Threads of a step's process that launched anything, the one that marked the step first.
fn launching(trace: &Trace, step: &Step) -> Vec<Id<Thread>> {
    let process = step.thread.map(|thread| trace.threads[thread.at()].process);
    let all = (0..trace.threads.len()).map(Id::<Thread>::new);
    all.filter(|thread| process.is_none_or(|process| trace.threads[thread.at()].process == process)).collect()
}

/// Something on a thread that may lie within another.
#[derive(Clone, Copy, Debug)]
struct Nested<'a> {
    start: u64,
    end: u64,
    name: &'a str,
    range: bool,
}

/// What a thread did: waits, else the outermost operators, else ranges; without overlap.
fn doing(trace: &Trace, thread: Id<Thread>) -> Vec<Doing> {
    let of = |name, start, end, range| Nested { start, end, name, range };
    let mut all: Vec<Nested<'_>> = vec![];
    let first = trace.ops.partition_point(|op| op.thread < thread);
    for op in trace.ops[first..].iter().take_while(|op| op.thread == thread) {
        let outermost = op.parent.is_none_or(|parent| trace.ops[parent.at()].scope == Scope::Range);
        if op.scope == Scope::Range || outermost {
            all.push(of(trace.name(op.name), op.start, op.end(), op.scope == Scope::Range));
        }
    }
    let first = trace.calls.partition_point(|call| call.thread < thread);
    let waits = trace.calls[first..].iter().take_while(|call| call.thread == thread);
    all.extend(
        waits
            .filter(|call| call.kind == CallKind::Wait)
            .map(|call| of(trace.name(call.name), call.start, call.end(), false)),
    );
    all.sort_by_key(|nested| (nested.start, std::cmp::Reverse(nested.end)));
    let mut flat = vec![];
    let mut open: Vec<Nested<'_>> = vec![];
    let mut at = 0;
    let mut close = |open: &mut Vec<Nested<'_>>, at: &mut u64, until: u64| {
        while let Some(&inner) = open.last() {
            let end = inner.end.min(until);
            if end > *at {
                let around = open.iter().rev().skip(1).find(|outer| outer.range);
                let within = around.map_or("", |outer| outer.name);
                let (start, end, thread) = (time(*at), time(end), thread.at() as u32);
                flat.push(Doing { thread, start, end, what: inner.name.into(), within: within.into() });
            }
            *at = (*at).max(end);
            if inner.end > until {
                return;
            }
            open.pop();
        }
    };
    for nested in all {
        close(&mut open, &mut at, nested.start);
        at = at.max(nested.start);
        open.push(nested);
    }
    close(&mut open, &mut at, u64::MAX);
    flat
}
