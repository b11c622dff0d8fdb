//! A timeline as a Trace Event file, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
//!
//! The format is "Trace Event Format" (Google, the Catapult project); the letters in `ph` are its event types. A process
//! is a simulated rank: in a folded run the first of each class, which stands for the others. Its tracks are the host, the phases as the device goes through them, and the streams. Host,
//! phases and memory are those of the first rank of each class, which the engine watches.
//!
//! **Zero** is where the host (or, if earlier, a stream) begins the last step. The host runs ahead, so that the device may
//! still be busy with the step before: `step_begins_us` says until when, the phases show it as `before step N`, and the
//! predicted step lasts from there for `step_us`, to the end of the trace. What a device still runs of earlier steps is
//! shown only from [`Trace::from_step`] on.

mod describe;
mod flow;
mod json;
mod memory;
#[cfg(test)]
mod tests;

use std::io::{self, BufWriter, Write};

use self::json::{Events, Field, Value};
use crate::engine::{Simulated, Span, Timeline, What};
use crate::program::{Direction, Mark, Program, StreamId};
use crate::units::Time;

/// A timeline and what is needed to read it.
#[derive(Clone, Debug)]
pub struct Trace<'a> {
    /// Name of the scenario.
    pub scenario: &'a str,
    /// The programs, by class.
    pub programs: Vec<&'a Program>,
    /// The class of each rank.
    pub class_of: Vec<u32>,
    /// The run, recorded.
    pub timeline: &'a Timeline,
    /// The first step whose spans are shown, from 0; none: the last. Host and memory are those of the last step.
    pub from_step: Option<u32>,
}

/// What part of a timeline is shown.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// First step.
    step: u32,
    /// Where it begins, which becomes zero \[ps\].
    zero: Time,
    /// Where the last step begins, as reported \[ps\].
    begin: Time,
}

impl Window {
    fn of(trace: &Trace<'_>) -> Window {
        let ends = &trace.timeline.ends;
        let last = ends.len() - 1;
        let step = trace.from_step.map_or(last, |step| last.min(step as usize));
        let begin_of = |step: usize| step.checked_sub(1).map_or(Time::ZERO, |before| ends[before]);
        let spans = trace.timeline.spans.iter().filter(|span| span.step as usize >= step).map(|span| span.start);
        let hosts = trace.timeline.host_begins.iter().copied();
        let zero = spans.chain(hosts).fold(begin_of(step), Time::min);
        Window { step: step as u32, zero, begin: begin_of(last) }
    }

    fn shows(&self, span: &Span) -> bool {
        span.step >= self.step
    }

    /// A time as the trace counts it.
    fn at(&self, time: Time) -> Time {
        time.saturating_sub(self.zero)
    }
}

/// The track of what the host does.
const HOST: u32 = 1;
/// The track of the phases on the device.
const PHASES: u32 = 2;

/// The process of a rank. Some viewers take process and track 0 for an idle processor.
fn process(rank: u32) -> u32 {
    rank + 1
}

/// The track of a stream.
fn track(stream: StreamId) -> u32 {
    PHASES + 1 + u32::from(stream.0)
}

impl<'a> Trace<'a> {
    /// The last step of a run in which all ranks share one program.
    pub fn new(scenario: &'a str, program: &'a Program, timeline: &'a Timeline) -> Self {
        let class_of = vec![0; program.ranks as usize];
        Trace { scenario, programs: vec![program], class_of, timeline, from_step: None }
    }

    /// Writes the file.
    ///
    /// # Panics
    ///
    /// If the run was not recorded, or was of another program.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        assert_eq!(self.timeline.host_times.len(), self.programs.len(), "a trace needs a recorded run of its programs");
        let window = Window::of(self);
        let mut events = Events::begin(
            BufWriter::new(out),
            &[
                ("what", Value::Text("a simulated training step, by Windtunnel; nothing in it was measured on a run")),
                ("version", Value::Text(env!("CARGO_PKG_VERSION"))),
                ("scenario", Value::Text(self.scenario)),
                ("ranks", Value::Number(self.class_of.len() as u128)),
                ("ranks_simulated", Value::Number(self.timeline.ranks.len() as u128)),
                ("step_begins_us", Value::Micros(window.at(window.begin))),
                ("step_us", Value::Micros(self.timeline.step)),
            ],
        )?;
        for &simulated in &self.timeline.ranks {
            self.name_tracks(&mut events, simulated)?;
        }
        for span in self.timeline.spans.iter().filter(|span| window.shows(span)) {
            self.span(&mut events, &window, span)?;
        }
        flow::write(&mut events, self, &window)?;
        for class in 0..self.programs.len() {
            let Some(rank) = self.watched(class as u32) else { continue };
            self.phases(&mut events, &window, rank)?;
            let times: Vec<Time> = self.timeline.host_times[class].iter().map(|&time| window.at(time)).collect();
            memory::write(&mut events, self.programs[class], process(rank), HOST, &times)?;
        }
        events.end()
    }

    /// The first rank of a class, if any.
    fn watched(&self, class: u32) -> Option<u32> {
        self.class_of.iter().zip(0..).find(|&(&of, _)| of == class).map(|(_, rank)| rank)
    }

    /// The simulated rank that stands for a rank.
    fn shown(&self, rank: u32) -> u32 {
        let folded = self.timeline.ranks.len() < self.class_of.len();
        if folded { self.timeline.ranks[self.class_of[rank as usize] as usize].rank } else { rank }
    }

    fn program(&self, rank: u32) -> &'a Program {
        self.programs[self.class_of[rank as usize] as usize]
    }

    fn name_tracks<W: Write>(&self, events: &mut Events<W>, simulated: Simulated) -> io::Result<()> {
        let Simulated { rank, class, stands_for } = simulated;
        let name = match stands_for as usize {
            1 => format!("rank {rank}"),
            all if all == self.class_of.len() => format!("rank {rank} (stands for all {all})"),
            some => format!("rank {rank} (stands for {some})"),
        };
        let mut describe = |what: &str, track: u32, arg: Field<'_>| {
            events.event(&[
                ("ph", Value::Text("M")),
                ("pid", Value::Number(process(rank).into())),
                ("tid", Value::Number(track.into())),
                ("name", Value::Text(what)),
                ("args", Value::Fields(&[arg])),
            ])
        };
        describe("process_name", HOST, ("name", Value::Text(&name)))?;
        describe("process_sort_index", HOST, ("sort_index", Value::Number(rank.into())))?;
        let own = [(HOST, "host"), (PHASES, "phases")];
        let streams = self.program(rank).streams.iter().enumerate();
        let streams = streams.map(|(id, &name)| (track(StreamId(id as u8)), name));
        let own = own.into_iter().filter(|_| self.watched(class) == Some(rank));
        for (track, name) in own.chain(streams) {
            describe("thread_name", track, ("name", Value::Text(name)))?;
            describe("thread_sort_index", track, ("sort_index", Value::Number(track.into())))?;
        }
        Ok(())
    }

    /// A kernel or collective on its stream.
    fn span<W: Write>(&self, events: &mut Events<W>, window: &Window, span: &Span) -> io::Result<()> {
        let program = self.program(span.rank);
        let mut slice = |name: &str, category: &str, args: &[Field<'_>]| {
            let slice = Slice { process: process(span.rank), track: track(span.stream), name, category, args };
            slice.write(events, window.at(span.start), window.at(span.end))
        };
        let scope = ("scope", Value::Text(program.scope(span.scope)));
        let step = ("step", Value::Number(span.step.into()));
        match span.what {
            What::Kernel(id) => {
                let kernel = program.kernel(id);
                let (work, flops) = (describe::work(&kernel.work), kernel.work.flops().0);
                let args = [scope, step, ("work", Value::Text(&work)), ("flop", Value::Number(flops))];
                slice(kernel.name, kernel.pass.name(), &args[..if flops > 0 { 4 } else { 3 }])
            }
            What::Comm(id) => {
                let comm = program.comm(id);
                let group = program.group(comm.group);
                let args = [
                    scope,
                    step,
                    ("group", Value::Text(&group.name)),
                    ("ranks", Value::Number(group.size.into())),
                    ("bytes", Value::Number(comm.bytes.0.into())),
                    ("dtype", Value::Text(describe::dtype(comm.dtype))),
                    ("waited_us", Value::Micros(span.start - span.reached)),
                ];
                slice(&describe::comm(program, comm), "collective", &args)
            }
            What::Exchange(id) => {
                let bytes = |direction| -> u128 {
                    let ends = program.exchange(id).filter(|end| end.direction == direction);
                    ends.map(|end| u128::from(end.bytes.0)).sum()
                };
                let args = [
                    scope,
                    step,
                    ("sent", Value::Number(bytes(Direction::Send))),
                    ("received", Value::Number(bytes(Direction::Receive))),
                    ("waited_us", Value::Micros(span.start - span.reached)),
                ];
                slice(&describe::exchange(program, id), "message", &args)
            }
        }
    }

    /// The phases of the last step on a watched rank, as its host and its device go through them, and its hooks.
    fn phases<W: Write>(&self, events: &mut Events<W>, window: &Window, rank: u32) -> io::Result<()> {
        let (program, class) = (self.program(rank), self.class_of[rank as usize]);
        let last = self.timeline.ends.len() as u32 - 1;
        let mut marks: Vec<_> =
            self.timeline.marks.iter().filter(|mark| (mark.class, mark.step) == (class, last)).collect();
        marks.sort_by_key(|mark| mark.host);
        let process = process(rank);
        let mut host = self.timeline.host_begins[class as usize];
        // The default stream may be through with a phase before the others end the step before.
        let mut device = marks.iter().filter_map(|mark| mark.device).fold(window.begin, Time::min);
        if device > window.zero {
            let name = format!("before step {last}");
            let slice = Slice { process, track: PHASES, name: &name, category: "phase", args: &[] };
            slice.write(events, Time::ZERO, window.at(device))?;
        }
        for mark in marks {
            match &program.marks[mark.mark as usize] {
                Mark::PhaseEnd(name) => {
                    let slice = Slice { process, track: HOST, name, category: "phase", args: &[] };
                    slice.write(events, window.at(host), window.at(mark.host))?;
                    host = mark.host;
                    let Some(end) = mark.device else { continue };
                    let slice = Slice { track: PHASES, ..slice };
                    slice.write(events, window.at(device), window.at(end))?;
                    device = end;
                }
                Mark::Hook(hook, scope) => events.event(&[
                    ("ph", Value::Text("i")),
                    ("s", Value::Text("t")),
                    ("pid", Value::Number(process.into())),
                    ("tid", Value::Number(HOST.into())),
                    ("ts", Value::Micros(window.at(mark.host))),
                    ("name", Value::Text(hook)),
                    ("cat", Value::Text("hook")),
                    ("args", Value::Fields(&[("scope", Value::Text(program.scope(*scope)))])),
                ])?,
            }
        }
        Ok(())
    }
}

/// Something with a beginning and an end.
#[derive(Clone, Copy, Debug)]
struct Slice<'a> {
    process: u32,
    track: u32,
    name: &'a str,
    category: &'a str,
    args: &'a [Field<'a>],
}

impl Slice<'_> {
    fn write<W: Write>(&self, events: &mut Events<W>, start: Time, end: Time) -> io::Result<()> {
        events.event(&[
            ("ph", Value::Text("X")),
            ("pid", Value::Number(self.process.into())),
            ("tid", Value::Number(self.track.into())),
            ("ts", Value::Micros(start)),
            ("dur", Value::Micros(end - start)),
            ("name", Value::Text(self.name)),
            ("cat", Value::Text(self.category)),
            ("args", Value::Fields(self.args)),
        ])
    }
}
