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
pub(crate) mod json;
pub(super) mod memory;
pub(crate) mod slice;
mod slow;
#[cfg(test)]
mod tests;
pub(super) mod view;
mod walk;

pub use view::Trace;
pub use walk::Ran;

use std::io::{self, BufWriter, Write};

use self::json::{Events, Field, Value};
use self::slice::Slice;
use self::view::{HOST, PHASES, Window, process, track};
use crate::engine::{Simulated, Span, What};
use crate::program::{Direction, Mark, StreamId};
use crate::units::Time;

impl Trace<'_> {
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
        slow::write(&mut events, self, &window)?;
        flow::write(&mut events, self, &window)?;
        for class in 0..self.programs.len() {
            let Some(rank) = self.watched(class as u32) else { continue };
            self.phases(&mut events, &window, rank)?;
            let times: Vec<Time> = self.timeline.host_times[class].iter().map(|&time| window.at(time)).collect();
            memory::write(&mut events, self.programs[class], process(rank), HOST, &times)?;
        }
        events.end()
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
