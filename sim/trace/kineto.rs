//! JSON of PyTorch's profiler (Kineto), of every release since 2021.
//!
//! Events come in any order, and what describes the machine stands before or after them. `tests/traces/README.md` says what was found
//! in which release.

mod event;
mod finite;
mod machine;
mod unused;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;

use serde::de::Error as _;
use serde_json::value::RawValue;

use super::draft::{Draft, DraftCall, DraftKernel, DraftOp, Module, ZERO};
use super::error::Stop;
use super::id::Id;
use super::join::join;
use super::nccl;
use super::parts::{Call, CallKind, Collective, Format, Kernel, Kind, Op, Scope, Thread, Trace};
use super::signature::{Written, element_bytes};
use super::split::{Parts, split};

use event::{CallArgs, CommArgs, KernelArgs, OpArgs};
pub(super) use event::{Event, integer, nanoseconds, plain};
use machine::Top;

/// Reads the whole file.
pub(super) fn read(from: impl Read) -> Result<Trace, Stop> {
    let mut reader = Reader::default();
    split(from, &mut reader)?;
    let Reader { mut draft, top, skipped, full_queue, .. } = reader;
    draft.trace.format = Format::Kineto;
    top.describe(&mut draft);
    if full_queue > 0 {
        draft.note(format!("{full_queue} times the launch queue was full, and the host waited for the device"));
    }
    if !skipped.is_empty() {
        let all: Vec<String> = skipped.iter().take(12).map(|(kind, count)| format!("{count} of {kind:?}")).collect();
        draft.note(format!("events of kinds that are not known were left out: {}", all.join(", ")));
    }
    join(draft)
}

/// Kinds of events that say nothing which others do not say better: flows, memory, the profiler's own.
const SKIPPED: [&str; 11] = [
    "ac2g",
    "async_cpu_to_gpu",
    "async",
    "fwdbwd",
    "cpu_instant_event",
    "gpu_user_annotation",
    "Trace",
    "overhead",
    "cuda_profiler_range",
    "cuda_sync",
    "collective_comm",
];

#[derive(Default)]
struct Reader {
    draft: Draft,
    top: Top,
    /// The thread of the last event, which the next one often shares.
    last: Option<((i64, i64), Id<Thread>)>,
    /// Kinds of events that are not known, and how many.
    skipped: BTreeMap<String, u64>,
    /// Times that the launch queue was full.
    full_queue: u64,
}

impl Parts for Reader {
    fn wants(&mut self, key: &str) -> bool {
        self.top.wants(key)
    }

    fn value(&mut self, key: &str, json: &[u8]) -> Result<(), serde_json::Error> {
        self.top.value(key, json)
    }

    fn event(&mut self, json: &[u8]) -> Result<(), serde_json::Error> {
        if unused::is_unused(json) {
            return Ok(());
        }
        match serde_json::from_slice(json) {
            Ok(event) => self.take(&event),
            Err(error) => {
                let Some(text) = finite::finite(json) else { return Err(error) };
                let Ok(event) = serde_json::from_slice(&text) else { return Err(error) };
                self.take(&event)
            }
        }
    }
}

impl Reader {
    /// Takes what is used of an event.
    fn take(&mut self, event: &Event<'_>) -> Result<(), serde_json::Error> {
        match (event.ph.as_ref(), event.cat.as_ref()) {
            ("X", "cpu_op" | "Operator") => {
                let is_step = event.name.starts_with("ProfilerStep#");
                self.op(event, if is_step { Scope::Range } else { Scope::Operator })
            }
            ("X", "user_annotation") => self.op(event, Scope::Range),
            ("X", "cuda_runtime" | "cuda_driver" | "Runtime" | "hip_runtime" | "xpu_runtime") => self.call(event),
            ("X", "kernel" | "Kernel") => self.kernel(event, Kind::Compute),
            ("X", "gpu_memcpy" | "Memcpy") => self.kernel(event, Kind::Copy),
            ("X", "gpu_memset" | "Memset") => self.kernel(event, Kind::Set),
            ("X", "python_function") => self.module(event),
            ("X", "overhead") => {
                self.full_queue += u64::from(event.name == "Command Buffer Full");
                Ok(())
            }
            ("M", _) if event.name == "thread_name" => self.thread_name(event),
            ("M" | "s" | "t" | "f" | "i" | "I" | "C", _) | ("", "") => Ok(()),
            (_, known) if SKIPPED.contains(&known) => Ok(()),
            (ph, cat) => {
                let kind = if ph == "X" { cat.to_owned() } else { format!("{ph} {cat}") };
                if self.skipped.len() < 1000 || self.skipped.contains_key(&kind) {
                    *self.skipped.entry(kind).or_default() += 1;
                }
                Ok(())
            }
        }
    }
}

/// An error about a field of an event; its place is that of the event.
fn wrong(event: &Event<'_>, field: &str, found: Option<&RawValue>) -> serde_json::Error {
    let found = found.map_or("nothing", RawValue::get);
    let (name, found): (String, String) = (event.name.chars().take(60).collect(), found.chars().take(60).collect());
    serde_json::Error::custom(format!("{field} of {name:?}: expected a number of microseconds, found {found}"))
}

/// Arguments of an event; none are as good as empty ones.
fn args<'a, T: serde::Deserialize<'a> + Default>(event: &Event<'a>) -> Result<T, serde_json::Error> {
    match event.args {
        None => Ok(T::default()),
        Some(args) => serde_json::from_str(args.get()).map_err(|error| {
            let text = error.to_string();
            let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
            let name: String = event.name.chars().take(60).collect();
            serde_json::Error::custom(format!("args of {name:?}: {what}"))
        }),
    }
}

/// What some versions write for an event that had not ended: -1 µs.
const UNENDED: i128 = -1000;

/// The begin and the length of an event.
pub(super) fn span(event: &Event<'_>) -> Result<(u64, u64), serde_json::Error> {
    let start = event.ts.and_then(|ts| nanoseconds(ts.get())).and_then(|ns| u64::try_from(ns + i128::from(ZERO)).ok());
    let start = start.ok_or_else(|| wrong(event, "ts", event.ts))?;
    let duration = match event.dur {
        None => 0,
        Some(dur) => {
            let ns = nanoseconds(dur.get()).ok_or_else(|| wrong(event, "dur", event.dur))?;
            let ns = if ns == UNENDED { 0 } else { ns };
            u64::try_from(ns).ok().filter(|&ns| ns < ZERO).ok_or_else(|| wrong(event, "dur", event.dur))?
        }
    };
    start.checked_add(duration).map(|_| (start, duration)).ok_or_else(|| wrong(event, "dur", event.dur))
}

fn call_kind(name: &str) -> CallKind {
    match name {
        _ if name.contains("GraphLaunch") => CallKind::Graph,
        _ if name.contains("Synchronize") => CallKind::Wait,
        _ => CallKind::Launch,
    }
}

impl Reader {
    fn thread(&mut self, event: &Event<'_>) -> Id<Thread> {
        let number = |value: Option<&RawValue>| value.and_then(integer).unwrap_or(-1);
        let key = (number(event.pid), number(event.tid));
        match self.last {
            Some((last, id)) if last == key => id,
            _ => {
                let id = self.draft.thread(key.0, key.1);
                self.last = Some((key, id));
                id
            }
        }
    }

    fn op(&mut self, event: &Event<'_>, scope: Scope) -> Result<(), serde_json::Error> {
        let (start, duration) = span(event)?;
        let args: OpArgs<'_> = args(event)?;
        let written = Written { dims: args.dims, types: args.types, strides: args.strides, values: args.values };
        let signature = self.draft.signature(written)?;
        let collective = args.collective.map(|_| self.comms(event)).transpose()?;
        let op = Op {
            name: self.draft.names.id(&event.name),
            thread: self.thread(event),
            start,
            duration,
            parent: None,
            scope,
            signature,
            sequence: args.sequence.and_then(|number| u32::try_from(number).ok()),
            forward: None,
            module: None,
        };
        let is_backward = args.forward_thread.is_some_and(|thread| thread > 0);
        self.draft.ops.push(DraftOp { op, is_backward, collective });
        Ok(())
    }

    fn call(&mut self, event: &Event<'_>) -> Result<(), serde_json::Error> {
        let (start, duration) = span(event)?;
        let args: CallArgs = args(event)?;
        let correlation = args.correlation.and_then(|number| u64::try_from(number).ok()).filter(|&number| number > 0);
        let kind = call_kind(&event.name);
        if correlation.is_none() && kind != CallKind::Wait {
            return Ok(());
        }
        let call = Call { name: self.draft.names.id(&event.name), kind, thread: self.thread(event), start, duration };
        self.draft.calls.push(DraftCall { call, correlation });
        Ok(())
    }

    fn kernel(&mut self, event: &Event<'_>, kind: Kind) -> Result<(), serde_json::Error> {
        let (start, duration) = span(event)?;
        let args: KernelArgs<'_> = args(event)?;
        let number = |value: Option<&RawValue>| value.and_then(integer);
        let device = args.device.or_else(|| number(event.pid)).and_then(|number| u32::try_from(number).ok());
        let stream = number(args.stream).or_else(|| number(event.tid)).and_then(|number| u32::try_from(number).ok());
        let collective = args.collective.map(|_| self.comms(event)).transpose()?;
        let kernel = Kernel {
            name: self.draft.names.id(&event.name),
            kind,
            in_graph: false,
            device: device.unwrap_or(0),
            stream: stream.unwrap_or(0),
            start,
            duration,
            grid: args.grid.unwrap_or_default(),
            block: args.block.unwrap_or_default(),
            bytes: args.bytes,
            launch: None,
            op: None,
            range: None,
            step: None,
            collective,
            instruction: None,
        };
        let correlation = args.correlation.and_then(|number| u64::try_from(number).ok()).filter(|&number| number > 0);
        self.draft.kernels.push(DraftKernel { kernel, pid: None, correlation });
        Ok(())
    }

    /// What an event says of a collective.
    fn comms(&mut self, event: &Event<'_>) -> Result<Id<Collective>, serde_json::Error> {
        let args: CommArgs<'_> = args(event)?;
        let size = element_bytes(&args.dtype);
        let bytes = |elements: Option<u64>| elements.zip(size).and_then(|(elements, size)| elements.checked_mul(size));
        let group = args.group.or(args.group_id).map(|name| self.draft.group(plain(name)));
        if let Some(group) = group.and_then(|id| self.draft.trace.groups.get_mut(id.at())) {
            if group.purpose.is_none() && !args.purpose.is_empty() {
                group.purpose = Some(args.purpose.clone().into_owned());
            }
            group.size = group.size.or(args.group_size);
            // A list that was cut ends in "...".
            if group.ranks.is_empty() {
                group.ranks = serde_json::from_str(&args.ranks).unwrap_or_default();
            }
        }
        let collective = Collective {
            kind: nccl::kind(&args.name),
            bytes_in: bytes(args.elements_in),
            bytes_out: bytes(args.elements_out),
            dtype: (!args.dtype.is_empty()).then(|| self.draft.names.id(&args.dtype)),
            group,
            group_size: args.group_size,
            sequence: args.sequence.and_then(|number| u64::try_from(number).ok()),
        };
        Ok(self.draft.collective(collective))
    }

    fn module(&mut self, event: &Event<'_>) -> Result<(), serde_json::Error> {
        let Some(name) = event.name.strip_prefix("nn.Module: ") else { return Ok(()) };
        let (start, duration) = span(event)?;
        let name = self.draft.names.id(name);
        let thread = self.thread(event);
        self.draft.modules.push(Module { name, thread, start, end: start + duration });
        Ok(())
    }

    fn thread_name(&mut self, event: &Event<'_>) -> Result<(), serde_json::Error> {
        #[derive(Default, serde::Deserialize)]
        struct Named<'a> {
            #[serde(borrow, default)]
            name: Cow<'a, str>,
        }
        let args: Named<'_> = args(event)?;
        if args.name.starts_with("stream ") || args.name.is_empty() {
            return Ok(());
        }
        let (Some(pid), Some(tid)) = (event.pid.and_then(integer), event.tid.and_then(integer)) else { return Ok(()) };
        self.top.threads.push(((pid, tid), args.name.into_owned()));
        Ok(())
    }
}
