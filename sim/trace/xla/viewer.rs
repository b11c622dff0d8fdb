//! The trace viewer's JSON of XLA's profiler, whose planes are processes and whose lines are threads.
//!
//! Names of processes and threads may stand behind their events, so events wait until all are known.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::error::Stop;
use super::super::id::Id;
use super::super::intern::Interner;
use super::super::kineto::{Event, integer, plain, span};
use super::super::parts::{Format, Name, Trace};
use super::super::split::{Parts, split};
use super::{Line, Planes, device, line};

/// The writer keeps about this many events: a file of as many may be thinned.
const CAP: usize = 990_000;

/// Reads the whole file.
pub(in super::super) fn read(from: impl Read) -> Result<Trace, Stop> {
    let mut reader = Reader::default();
    split(from, &mut reader)?;
    let Reader { planes: names, lines: of_threads, texts, events } = reader;
    let texts = texts.finish();
    let mut planes = Planes::default();
    let mut lines: BTreeMap<(i64, i64), Line> = BTreeMap::new();
    for (number, plane) in &names {
        if let Some((device, _)) = device(plane) {
            let described = super::super::parts::Device { number: device, ..Default::default() };
            planes.draft.trace.machine.devices.push(described);
        }
        for (&(pid, tid), name) in of_threads.range((*number, i64::MIN)..=(*number, i64::MAX)) {
            let of = match device(plane) {
                Some((device, is_gpu)) => line(device, is_gpu, name),
                None if plane.starts_with("/host:CPU") => {
                    let thread = planes.draft.thread(pid, tid);
                    planes.draft.trace.threads[thread.at()].name = Some(name.clone());
                    Line::Host { thread }
                }
                None => Line::Other,
            };
            lines.insert((pid, tid), of);
        }
    }
    if events.len() >= CAP {
        planes.draft.note(
            "the trace viewer's file keeps about a million events, and may lack some: read the xplane.pb beside it"
                .to_owned(),
        );
    }
    for held in &events {
        let Some(&line) = lines.get(&(held.pid, held.tid)) else { continue };
        let [hlo_op, program, path, category, kernel, copy, long] =
            held.texts.map(|text| text.map(|text| texts.get(text)));
        let name = texts.get(held.name);
        let event = super::Event {
            name: long.filter(|text| text.starts_with('%')).unwrap_or(name),
            display: name,
            start: held.start,
            end: held.end,
            correlation: held.correlation,
            hlo_op,
            program,
            path,
            category,
            kernel,
            copy,
            step: held.step,
            flops: held.flops,
            bytes: held.bytes,
        };
        planes.add(line, event);
    }
    planes.finish(Format::XlaViewer)
}

#[derive(Default)]
struct Reader {
    /// Names of planes by process.
    planes: BTreeMap<i64, String>,
    /// Names of lines by process and thread.
    lines: BTreeMap<(i64, i64), String>,
    /// What events say, once: the same few hundred texts again and again.
    texts: Interner,
    events: Vec<Held>,
}

/// An event whose line is not known yet.
struct Held {
    pid: i64,
    tid: i64,
    name: Id<Name>,
    start: u64,
    end: u64,
    correlation: Option<u64>,
    step: Option<u64>,
    flops: Option<u64>,
    bytes: Option<u64>,
    /// hlo_op, hlo_module, path, category, kernel_details, memcpy_details, long_name.
    texts: [Option<Id<Name>>; 7],
}

/// Arguments of an event: strings, even where they are numbers.
#[derive(Default, Deserialize)]
struct Args<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    hlo_op: Option<Cow<'a, str>>,
    hlo_module: Option<Cow<'a, str>>,
    tf_op: Option<Cow<'a, str>>,
    hlo_category: Option<Cow<'a, str>>,
    kernel_details: Option<Cow<'a, str>>,
    memcpy_details: Option<Cow<'a, str>>,
    memset_details: Option<Cow<'a, str>>,
    long_name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    correlation_id: Option<&'a RawValue>,
    #[serde(borrow)]
    step_num: Option<&'a RawValue>,
    #[serde(borrow)]
    flops: Option<&'a RawValue>,
    #[serde(borrow)]
    bytes_accessed: Option<&'a RawValue>,
}

impl Parts for Reader {
    fn wants(&mut self, _: &str) -> bool {
        false
    }

    fn value(&mut self, _: &str, _: &[u8]) -> Result<(), serde_json::Error> {
        Ok(())
    }

    fn event(&mut self, json: &[u8]) -> Result<(), serde_json::Error> {
        let event: Event<'_> = serde_json::from_slice(json)?;
        let args: Args<'_> = event.args.map_or(Ok(Args::default()), |args| serde_json::from_str(args.get()))?;
        let (pid, tid) = (event.pid.and_then(integer).unwrap_or(-1), event.tid.and_then(integer).unwrap_or(-1));
        match (event.ph.as_ref(), event.name.as_ref()) {
            ("M", "process_name") => drop(self.planes.insert(pid, args.name.unwrap_or_default().into_owned())),
            ("M", "thread_name") => drop(self.lines.insert((pid, tid), args.name.unwrap_or_default().into_owned())),
            // Calls of Python functions are most of the events, and are not used.
            ("X", name) if !name.starts_with('$') => {
                let (start, duration) = span(&event)?;
                let number = |value: Option<&RawValue>| value.and_then(|value| plain(value).parse().ok());
                let texts = &mut self.texts;
                let mut once = |text: Option<Cow<'_, str>>| text.map(|text| texts.id(&text));
                let path = args.name.or(args.tf_op.filter(|path| path != "XlaModule:"));
                let said = [
                    once(args.hlo_op),
                    once(args.hlo_module),
                    once(path),
                    once(args.hlo_category),
                    once(args.kernel_details),
                    once(args.memcpy_details.or(args.memset_details)),
                    once(args.long_name),
                ];
                let name = self.texts.id(name);
                self.events.push(Held {
                    pid,
                    tid,
                    name,
                    start,
                    end: start + duration,
                    correlation: number(args.correlation_id),
                    step: number(args.step_num),
                    flops: number(args.flops),
                    bytes: number(args.bytes_accessed),
                    texts: said,
                });
            }
            _ => {}
        }
        Ok(())
    }
}
