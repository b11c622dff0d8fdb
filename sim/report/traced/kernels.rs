//! Kernels of a trace's steps put together: by what they are for, by operator and shapes, and what the host did in their gaps.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::trace::{Class, Classes, Collective, Gap, Id, Kernel, Name, Op, Scope, Signature, Trace};

/// Kernels of a class.
#[derive(Clone, Debug, Serialize)]
pub struct ClassRow {
    /// What they are for.
    pub class: &'static str,
    /// How many.
    pub count: u64,
    /// Their time \[ns\]. Kernels that run beside each other count each.
    pub time_ns: u64,
}

/// Kernels of one operator with the same shapes and the same name.
#[derive(Clone, Debug, Serialize)]
pub struct KernelRow {
    /// What they are for.
    pub class: &'static str,
    /// The operator, or the collective.
    pub operator: Option<String>,
    /// Shapes of its tensors.
    pub shapes: String,
    /// The kernel's name.
    pub kernel: String,
    /// How many.
    pub count: u64,
    /// Their time \[ns\].
    pub time_ns: u64,
    /// The shortest \[ns\].
    pub least_ns: u64,
}

/// What the host was doing while a device had nothing to do.
#[derive(Clone, Debug, Serialize)]
pub struct GapRow {
    /// The outermost operator or range that launched what came next.
    pub before: String,
    /// How many gaps.
    pub count: u64,
    /// Time until the launch, of all of them \[ns\].
    pub time_ns: u64,
}

/// Kernels by what they are for, the most time first.
pub(super) fn classes(classes: &Classes<'_>, kernels: &[&Kernel]) -> Vec<ClassRow> {
    let mut found: BTreeMap<Class, (u64, u64)> = BTreeMap::new();
    for kernel in kernels {
        let row = found.entry(classes.of(kernel)).or_default();
        *row = (row.0 + 1, row.1.saturating_add(kernel.duration));
    }
    let row = |(class, (count, time_ns)): (Class, (u64, u64))| ClassRow { class: class.label(), count, time_ns };
    let mut rows: Vec<ClassRow> = found.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.time_ns));
    rows
}

/// What makes two kernels one row.
type Key = (Option<Id<Name>>, Option<Id<Signature>>, Option<Id<Name>>, String);

/// Kernels by operator, shapes and name, the most time first.
pub(super) fn kernels(trace: &Trace, classes: &Classes<'_>, kernels: &[&Kernel]) -> Vec<KernelRow> {
    let mut found: BTreeMap<Key, (KernelRow, u64)> = BTreeMap::new();
    for kernel in kernels {
        let op = kernel.op.map(|id| &trace.ops[id.at()]);
        let instruction = kernel.instruction.map(|id| &trace.instructions[id.at()]);
        let collective = kernel.collective.map(|id| &trace.collectives[id.at()]);
        let name = op.map(|op| op.name).or(instruction.map(|of| of.path.unwrap_or(of.name)));
        let signature = op.and_then(|op| op.signature).or(instruction.and_then(|of| of.operands));
        // Calls of one collective differ in their operators' arguments, and not in what they move.
        let key: Key = match collective {
            Some(collective) => (None, None, None, moved(trace, collective)),
            None => (name, signature, Some(kernel.name), String::new()),
        };
        let (row, _) = found.entry(key).or_insert_with(|| {
            let row = KernelRow {
                class: classes.of(kernel).label(),
                operator: match collective {
                    Some(of) => Some(of.kind.label().to_owned()),
                    None => name.map(|name| trace.name(name).to_owned()),
                },
                shapes: match collective {
                    Some(of) => moved(trace, of),
                    None => signature.map_or(String::new(), |id| shapes(trace, id)),
                },
                kernel: trace.name(kernel.name).to_owned(),
                count: 0,
                time_ns: 0,
                least_ns: u64::MAX,
            };
            (row, 0)
        });
        row.count += 1;
        row.time_ns = row.time_ns.saturating_add(kernel.duration);
        row.least_ns = row.least_ns.min(kernel.duration);
    }
    let mut rows: Vec<KernelRow> = found.into_values().map(|(row, _)| row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.time_ns));
    rows
}

/// What a collective moves: "151.0 MB BFloat16, group 0 (mesh_tp) of 8".
fn moved(trace: &Trace, of: &Collective) -> String {
    let mut text = match of.bytes_in.max(of.bytes_out) {
        Some(bytes) => bytes_text(bytes),
        None => "size unknown".to_owned(),
    };
    if let Some(dtype) = of.dtype {
        text += &format!(" {}", short_type(trace.name(dtype)));
    }
    if let Some(group) = of.group.map(|id| &trace.groups[id.at()]) {
        let purpose = group.purpose.as_ref().map_or(String::new(), |purpose| format!(" ({purpose})"));
        text += &format!(", group {}{purpose}", group.name);
    }
    if let Some(size) = of.group_size {
        text += &format!(" of {size}");
    }
    format!("{} {text}", of.kind.label())
}

fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// Tensors of a signature: "bf16 [16384, 768] [768, 3072]".
fn shapes(trace: &Trace, id: Id<Signature>) -> String {
    const MOST: usize = 4;
    let args = &trace.signatures[id.at()].args;
    let mut last = None;
    let mut words = vec![];
    let mut left_out = 0usize;
    for arg in args.iter().filter(|arg| !arg.tensors.is_empty()) {
        for tensor in &arg.tensors {
            if words.len() >= MOST {
                left_out += 1;
                continue;
            }
            let dims: Vec<String> = tensor.dims.iter().map(u64::to_string).collect();
            let kind = arg.kind.filter(|_| !arg.is_list).map(|kind| short_type(trace.name(kind)));
            let kind = kind.filter(|kind| last.as_ref() != Some(kind));
            let prefix = kind.as_ref().map_or(String::new(), |kind| format!("{kind} "));
            last = kind.or(last);
            words.push(format!("{prefix}[{}]", dims.join(",")));
        }
    }
    if left_out > 0 {
        words.push(format!("and {left_out} more"));
    }
    words.join(" ")
}

fn short_type(kind: &str) -> String {
    match kind {
        "c10::BFloat16" | "BFloat16" => "bf16".to_owned(),
        "c10::Half" | "Half" => "fp16".to_owned(),
        "float" | "Float" => "fp32".to_owned(),
        other => other.strip_prefix("c10::").unwrap_or(other).to_owned(),
    }
}

/// Gaps by what launched the kernel that ended them, the most time first.
pub(super) fn host_gaps(trace: &Trace, gaps: &[Gap]) -> Vec<GapRow> {
    let mut found: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let steps: BTreeSet<Id<Name>> = trace.steps.iter().filter_map(|step| step.name).collect();
    for gap in gaps {
        let Some(late) = gap.launched.map(|launched| launched - gap.start).filter(|&late| late > 0) else { continue };
        let kernel = gap.next.map(|id| &trace.kernels[id.at()]);
        let around = kernel.and_then(|kernel| outermost(trace, &steps, kernel));
        let name = match (around, kernel) {
            (Some(op), _) => trace.name(op.name).to_owned(),
            (None, Some(kernel)) => format!("a launch outside any operator: {}", trace.name(kernel.name)),
            (None, None) => continue,
        };
        let row = found.entry(name).or_default();
        *row = (row.0 + 1, row.1.saturating_add(late));
    }
    let row = |(before, (count, time_ns)): (String, (u64, u64))| GapRow { before, count, time_ns };
    let mut rows: Vec<GapRow> = found.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.time_ns));
    rows
}

/// The outermost operator or range around a launch that is no step.
fn outermost<'a>(trace: &'a Trace, steps: &BTreeSet<Id<Name>>, kernel: &Kernel) -> Option<&'a Op> {
    let ops = &trace.ops;
    let inner = kernel.op.into_iter().chain(kernel.range).max_by_key(|id| ops[id.at()].start)?;
    let chain = std::iter::successors(Some(&ops[inner.at()]), |op| op.parent.map(|id| &ops[id.at()]));
    let is_step = |op: &Op| op.scope == Scope::Range && steps.contains(&op.name);
    chain.take_while(|op| !is_step(op)).last()
}
