//! What both files of XLA's profiler hold: planes of devices and of the host, lines of events, and what is said of each.
//!
//! GPUs have a line for each stream. TPUs have one line of instructions, in which loops and calls contain others, and one of what runs
//! beside them: copies and collectives in flight. `tests/traces/README.md`, section 3, has the names.

mod proto;
mod shape;
pub(super) mod viewer;
pub(super) mod xplane;

use std::collections::BTreeMap;

use super::draft::{Draft, DraftCall, DraftKernel, DraftOp, Mark};
use super::error::Stop;
use super::id::Id;
use super::join::join;
use super::nccl;
use super::parts::{
    Call, CallKind, Collective, CollectiveKind, Format, Instruction, Kernel, Kind, Name, Op, Scope, Thread, Trace,
};

/// What a line of events is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    /// Kernels of a stream of a GPU.
    Stream { device: u32, stream: u32 },
    /// Instructions of a TPU, one after the other.
    Instructions { device: u32 },
    /// What a TPU does beside them.
    Flying { device: u32 },
    /// Calls of compiled programs on a TPU.
    Programs { device: u32 },
    /// Steps of a TPU.
    Steps { device: u32 },
    /// A thread of the host.
    Host { thread: Id<Thread> },
    /// What repeats other lines.
    Other,
}

/// The stream of a TPU on which [`Line::Flying`] events are.
const FLYING: u32 = 1;

/// The device of a plane, and whether it is a GPU: "/device:GPU:0", "/device:TPU:3".
pub(super) fn device(plane: &str) -> Option<(u32, bool)> {
    let rest = plane.strip_prefix("/device:")?;
    let (kind, number) = rest.split_once(':')?;
    let number = number.split(' ').next()?.parse().ok()?;
    match kind {
        "GPU" => Some((number, true)),
        "TPU" => Some((number, false)),
        _ => None,
    }
}

/// What a line of a device's plane is.
pub(super) fn line(device: u32, is_gpu: bool, name: &str) -> Line {
    if is_gpu {
        let digits: String =
            name.strip_prefix("Stream #").unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
        return digits.parse().map_or(Line::Other, |stream| Line::Stream { device, stream });
    }
    match name {
        "XLA Ops" => Line::Instructions { device },
        "Async XLA Ops" => Line::Flying { device },
        "XLA Modules" => Line::Programs { device },
        "Steps" => Line::Steps { device },
        _ => Line::Other,
    }
}

/// An event with what is said of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Event<'a> {
    pub name: &'a str,
    /// A shorter name, where there is one.
    pub display: &'a str,
    pub start: u64,
    pub end: u64,
    pub correlation: Option<u64>,
    pub hlo_op: Option<&'a str>,
    pub program: Option<&'a str>,
    pub path: Option<&'a str>,
    pub category: Option<&'a str>,
    pub kernel: Option<&'a str>,
    pub copy: Option<&'a str>,
    pub step: Option<u64>,
    pub flops: Option<u64>,
    pub bytes: Option<u64>,
}

/// What tells instructions apart: programs share names.
type NameAndProgram = (Id<Name>, Option<Id<Name>>);

/// Everything that was met.
#[derive(Default)]
pub(super) struct Planes {
    pub draft: Draft,
    instructions: BTreeMap<NameAndProgram, Id<Instruction>>,
    /// Instructions on threads of the host: they are the kernels where no device ran any.
    of_host: Vec<DraftKernel>,
    programs: Vec<Mark>,
    steps: Vec<Mark>,
    host_steps: Vec<Mark>,
}

impl Planes {
    /// How many events are kept.
    fn kept(&self) -> usize {
        self.draft.kept() + self.of_host.len() + self.programs.len() + self.steps.len() + self.host_steps.len()
    }

    /// Takes an event of a line.
    pub(super) fn add(&mut self, line: Line, event: Event<'_>) {
        match line {
            Line::Stream { device, stream } => {
                let kind = match () {
                    () if event.copy.is_some() => Kind::Copy,
                    () if event.name.contains("Memset") => Kind::Set,
                    () => Kind::Compute,
                };
                let mut kernel = self.kernel(device, stream, event, kind);
                kernel.kernel.bytes = event.copy.and_then(|text| number_after(text, "size:"));
                (kernel.kernel.grid, kernel.kernel.block) = event
                    .kernel
                    .map_or(([0; 3], [0; 3]), |text| (sizes_after(text, "grid:"), sizes_after(text, "block:")));
                self.draft.kernels.push(kernel);
            }
            Line::Instructions { device } => {
                let kernel = self.instruction_on(device, 0, event);
                self.draft.kernels.push(kernel);
            }
            Line::Flying { device } => {
                let kernel = self.instruction_on(device, FLYING, event);
                self.draft.kernels.push(kernel);
            }
            Line::Programs { device } => {
                let mark = self.mark(event, None, Some(device));
                self.programs.push(mark);
            }
            Line::Steps { device } => {
                let mark = self.mark(event, None, Some(device));
                self.steps.push(mark);
            }
            Line::Host { thread } => self.host(thread, event),
            Line::Other => {}
        }
    }

    fn mark(&mut self, event: Event<'_>, thread: Option<Id<Thread>>, device: Option<u32>) -> Mark {
        let number = event.step.or_else(|| event.name.trim_start_matches("step ").trim().parse().ok());
        let name = self.draft.names.id(event.name);
        Mark { name, number, thread, device, start: event.start, end: event.end }
    }

    fn host(&mut self, thread: Id<Thread>, event: Event<'_>) {
        // Calls of Python functions, and a thread pool's own marks.
        if event.name.starts_with('$') || event.name.starts_with("ThreadpoolListener::") {
            return;
        }
        if event.step.is_some() {
            let mark = self.mark(event, Some(thread), None);
            self.host_steps.push(mark);
        }
        let (name, start, duration) = (self.draft.names.id(event.name), event.start, event.end - event.start);
        if let Some(correlation) = event.correlation {
            let kind = if event.name.contains("GraphLaunch") { CallKind::Graph } else { CallKind::Launch };
            let call = Call { name, kind, thread, start, duration };
            self.draft.calls.push(DraftCall { call, correlation: Some(correlation) });
        } else if event.name.contains("Synchronize") {
            let call = Call { name, kind: CallKind::Wait, thread, start, duration };
            self.draft.calls.push(DraftCall { call, correlation: None });
        } else if event.hlo_op.is_some() {
            let stream = thread.at() as u32;
            let kernel = self.instruction_on(0, stream, event);
            self.of_host.push(kernel);
        } else if duration > 0 {
            let op = Op {
                name,
                thread,
                start,
                duration,
                parent: None,
                scope: Scope::Range,
                signature: None,
                sequence: None,
                forward: None,
                module: None,
            };
            self.draft.ops.push(DraftOp { op, is_backward: false, collective: None });
        }
    }

    /// A kernel, with the instruction that it is part of.
    fn kernel(&mut self, device: u32, stream: u32, event: Event<'_>, kind: Kind) -> DraftKernel {
        let instruction = event.hlo_op.map(|name| self.instruction(name, "", event));
        let kernel = Kernel {
            name: self.draft.names.id(event.name),
            kind,
            in_graph: false,
            device,
            stream,
            start: event.start,
            duration: event.end - event.start,
            grid: [0; 3],
            block: [0; 3],
            bytes: None,
            launch: None,
            op: None,
            range: None,
            step: None,
            collective: None,
            instruction,
        };
        DraftKernel { kernel, pid: None, correlation: event.correlation }
    }

    /// An instruction that ran as a whole: its event's name may be its text.
    fn instruction_on(&mut self, device: u32, stream: u32, event: Event<'_>) -> DraftKernel {
        let of_text = event.name.strip_prefix('%').and_then(|text| text.split_once(" = ")).map(|(name, _)| name);
        let text = if of_text.is_some() { event.name } else { "" };
        let display = Some(event.display).filter(|name| !name.is_empty());
        let name = of_text.or(event.hlo_op).or(display).unwrap_or(event.name);
        let id = self.instruction(name, text, event);
        let category = event.category.unwrap_or("");
        let kind = kind(name, category);
        let mut kernel = self.kernel(device, stream, Event { name, hlo_op: None, ..event }, kind);
        kernel.kernel.instruction = Some(id);
        if kind == Kind::Collective {
            let what = [nccl::kind(category), nccl::kind(name)];
            let what = what.into_iter().find(|&kind| kind != CollectiveKind::Other).unwrap_or_default();
            let (results, operands) = {
                let of = &self.draft.trace.instructions[id.at()];
                (of.results, of.operands)
            };
            let collective = Collective {
                kind: what,
                bytes_in: operands.map(|id| shape::bytes(&self.draft, id)),
                bytes_out: results.map(|id| shape::bytes(&self.draft, id)),
                group_size: shape::group_size(text),
                ..Collective::default()
            };
            kernel.kernel.collective = Some(self.draft.collective(collective));
        }
        kernel
    }

    fn instruction(&mut self, name: &str, text: &str, event: Event<'_>) -> Id<Instruction> {
        let name = self.draft.names.id(name);
        let program = event.program.map(|program| self.draft.names.id(program));
        if let Some(&id) = self.instructions.get(&(name, program)) {
            return id;
        }
        let (results, operands) = shape::shapes(&mut self.draft, text);
        let mut id = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(|text| self.draft.names.id(text));
        let (path, category) = (id(event.path), id(event.category));
        let (flops, bytes) = (event.flops, event.bytes);
        let instruction = Instruction { name, program, path, category, flops, bytes, results, operands };
        self.draft.trace.instructions.push(instruction);
        let id = Id::new(self.draft.trace.instructions.len() - 1);
        self.instructions.insert((name, program), id);
        id
    }

    /// Joins what was met.
    pub(super) fn finish(mut self, format: Format) -> Result<Trace, Stop> {
        self.draft.trace.format = format;
        if self.draft.kernels.is_empty() && !self.of_host.is_empty() {
            self.draft.kernels = std::mem::take(&mut self.of_host);
            let note = "no device ran a kernel: instructions on threads of the host were read in their place";
            self.draft.note(note.to_owned());
            for mark in &mut self.host_steps {
                (mark.device, mark.thread) = (Some(0), None);
            }
        }
        let containers = leave_leaves(&mut self.draft.kernels);
        if containers > 0 {
            self.draft
                .note(format!("{containers} loops and calls were left out: the instructions inside them are counted"));
        }
        if self.draft.trace.machine.devices.is_empty() {
            self.draft.note("the file does not say which device it is about".to_owned());
        }
        self.draft.note("XLA's profiler writes no ranks".to_owned());
        self.draft.marks = match () {
            () if !self.steps.is_empty() => self.steps,
            () if !self.host_steps.is_empty() => self.host_steps,
            () => largest(self.programs),
        };
        join(self.draft)
    }
}

/// The calls of the program that takes the most time.
fn largest(programs: Vec<Mark>) -> Vec<Mark> {
    let mut time: BTreeMap<Id<Name>, u64> = BTreeMap::new();
    for mark in &programs {
        let sum = time.entry(mark.name).or_default();
        *sum = sum.saturating_add(mark.end - mark.start);
    }
    let Some((&largest, _)) = time.iter().max_by_key(|&(_, &sum)| sum) else { return vec![] };
    programs.into_iter().filter(|mark| mark.name == largest).collect()
}

/// Removes what contains another event of its line, and says how many there were.
fn leave_leaves(kernels: &mut Vec<DraftKernel>) -> usize {
    kernels.sort_by_key(|at| {
        let kernel = &at.kernel;
        (kernel.device, kernel.stream, kernel.start, std::cmp::Reverse(kernel.duration))
    });
    // A kernel of a GPU may begin before the one before it ends; it is never inside.
    let contains = |outer: &Kernel, inner: &Kernel| {
        (outer.device, outer.stream) == (inner.device, inner.stream)
            && outer.stream != FLYING
            && outer.instruction != inner.instruction
            && inner.duration > 0
            && outer.duration > inner.duration
            && inner.start >= outer.start
            && inner.end() <= outer.end()
            && outer.launch.is_none()
    };
    let is_outer: Vec<bool> = (0..kernels.len())
        .map(|at| {
            let is_launched = kernels[at].correlation.is_some();
            let next = kernels.get(at + 1);
            !is_launched && next.is_some_and(|next| contains(&kernels[at].kernel, &next.kernel))
        })
        .collect();
    let all = kernels.len();
    let mut at = 0;
    kernels.retain(|_| {
        at += 1;
        !is_outer[at - 1]
    });
    all - kernels.len()
}

/// What an instruction is, by XLA's class of it and by its name.
fn kind(name: &str, category: &str) -> Kind {
    let is = |words: &[&str]| words.iter().any(|word| category.contains(word) || name.starts_with(word));
    match () {
        () if is(&[
            "all-reduce",
            "all-gather",
            "reduce-scatter",
            "all-to-all",
            "collective-permute",
            "collective-broadcast",
        ]) =>
        {
            Kind::Collective
        }
        () if is(&["send", "recv"]) => Kind::Collective,
        () if is(&["copy-start", "copy-done", "async-copy"]) => Kind::Copy,
        () => Kind::Compute,
    }
}

/// The number after a mark: 655360 in "size:655360 dest:2".
fn number_after(text: &str, mark: &str) -> Option<u64> {
    let digits: String = text.split(mark).nth(1)?.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Three numbers after a mark: "grid:160,1,1".
fn sizes_after(text: &str, mark: &str) -> [u32; 3] {
    let mut sizes = [0; 3];
    let rest = text.split(mark).nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("");
    for (size, text) in sizes.iter_mut().zip(rest.split(',')) {
        *size = text.parse().unwrap_or(0);
    }
    sizes
}
