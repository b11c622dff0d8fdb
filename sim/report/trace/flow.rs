//! Arrows between the members of a collective, from the lowest rank on, and from the sender of a message to its receiver.
//!
//! What belongs together is found by counting, as the engine does: the n-th collective of a copy of a group on a stream is
//! one and the same for all its members, and the n-th message from one rank to another over a group is both ends' n-th.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::json::{Events, Value};
use super::view::{Trace, Window, process, track};
use crate::engine::{Span, What};
use crate::program::{Direction, GroupId, Instr, Program, Transfer};
use crate::units::Time;

/// Writes the arrows; slices must have been written before, for viewers to find what the arrows are bound to.
pub(super) fn write<W: Write>(events: &mut Events<W>, trace: &Trace<'_>, window: &Window) -> io::Result<()> {
    if trace.timeline.ranks.len() < 2 {
        return Ok(());
    }
    let last = collectives(events, trace, window)?;
    messages(events, trace, window, last)
}

/// One end of an arrow, at a time within a slice.
#[derive(Clone, Copy, Debug)]
struct End {
    /// `s` at the start, `t` on the way, `f` at the end.
    phase: &'static str,
    id: u64,
    at: Time,
    name: &'static str,
}

impl End {
    fn write<W: Write>(self, events: &mut Events<W>, window: &Window, span: &Span) -> io::Result<()> {
        events.event(&[
            ("ph", Value::Text(self.phase)),
            ("bp", Value::Text("e")),
            ("id", Value::Number(self.id.into())),
            ("pid", Value::Number(process(span.rank).into())),
            ("tid", Value::Number(track(span.stream).into())),
            ("ts", Value::Micros(window.at(self.at))),
            ("name", Value::Text(self.name)),
            ("cat", Value::Text(self.name)),
        ])
    }
}

/// The middle of a stretch of time, where no neighbour can be meant.
fn middle(start: Time, end: Time) -> Time {
    Time(start.0 + (end.0 - start.0) / 2)
}

/// Arrows of collectives; returns the largest number given to one.
fn collectives<W: Write>(events: &mut Events<W>, trace: &Trace<'_>, window: &Window) -> io::Result<u64> {
    let ranks = trace.class_of.len() as u64;
    let mut last = 0;
    // How often each (rank, stream, group) has met; spans come in order of time on each stream.
    let mut met = BTreeMap::<(u32, u8, u16), u64>::new();
    for span in &trace.timeline.spans {
        let What::Comm(id) = span.what else { continue };
        let program = trace.program(span.rank);
        let comm = program.comm(id);
        let turn = met.entry((span.rank, span.stream.0, comm.group.0)).or_default();
        *turn += 1;
        let members = || program.group(comm.group).members(span.rank).map(|member| trace.shown(member));
        let (Some(lowest), Some(highest)) = (members().min(), members().max()) else { continue };
        if lowest == highest || !window.shows(span) {
            continue;
        }
        let place = (u64::from(comm.group.0) * ranks + u64::from(lowest)) << 8 | u64::from(span.stream.0);
        let places = (program.groups.len() as u64 * ranks) << 8;
        let phase = match span.rank {
            rank if rank == lowest => "s",
            rank if rank == highest => "f",
            _ => "t",
        };
        let id = *turn * places + place;
        last = last.max(id);
        End { phase, id, at: middle(span.start, span.end), name: "collective" }.write(events, window, span)?;
    }
    Ok(last)
}

/// A rank that sends, the group it sends over, and how many places ahead.
type Channel = (u32, GroupId, u32);

/// Arrows of messages, numbered from `last` on.
fn messages<W: Write>(events: &mut Events<W>, trace: &Trace<'_>, window: &Window, mut last: u64) -> io::Result<()> {
    // Ends by channel and number: of the sender, and of the receiver.
    let mut ends = BTreeMap::<(Channel, u64), [Option<&Span>; 2]>::new();
    let issued: Vec<_> = trace.programs.iter().map(|program| numbered(program)).collect();
    // How many exchanges of each rank and stream have been seen.
    let mut seen = BTreeMap::<(u32, u8), usize>::new();
    for span in &trace.timeline.spans {
        let What::Exchange(_) = span.what else { continue };
        let class = trace.class_of[span.rank as usize] as usize;
        let program = trace.programs[class];
        let seen = seen.entry((span.rank, span.stream.0)).or_default();
        let of_stream = &issued[class][usize::from(span.stream.0)];
        let (step, index) = (*seen / of_stream.len(), *seen % of_stream.len());
        *seen += 1;
        for &(transfer, turn, every) in &of_stream[index] {
            let group = program.group(transfer.group);
            let Some(peer) = group.peer(span.rank, transfer.ahead) else { continue };
            let channel = match transfer.direction {
                Direction::Send => (span.rank, transfer.group, transfer.ahead),
                Direction::Receive => (trace.shown(peer), transfer.group, group.ahead(-i64::from(transfer.ahead))),
            };
            let pair = ends.entry((channel, step as u64 * every + turn)).or_default();
            pair[transfer.direction as usize] = Some(span);
        }
    }
    for pair in ends.values() {
        let [Some(sender), Some(receiver)] = *pair else { continue };
        if sender.rank == receiver.rank || !window.shows(sender) || !window.shows(receiver) {
            continue;
        }
        last += 1;
        // Both slices hold the message, so they overlap.
        let at = middle(sender.start.max(receiver.start), sender.end.min(receiver.end));
        End { phase: "s", id: last, at, name: "message" }.write(events, window, sender)?;
        End { phase: "f", id: last, at, name: "message" }.write(events, window, receiver)?;
    }
    Ok(())
}

/// A transfer, which message of its step to or from its peer it is, and how many there are.
type Numbered<'a> = (&'a Transfer, u64, u64);

/// The exchanges of a program's step, by stream, each with its transfers.
fn numbered(program: &Program) -> Vec<Vec<Vec<Numbered<'_>>>> {
    let mut counts = BTreeMap::new();
    let mut streams = vec![vec![]; program.streams.len()];
    for instr in &program.step {
        let Instr::Exchange { stream, exchange, .. } = *instr else { continue };
        let number = |transfer| {
            let count = counts.entry(channel_end(transfer)).or_insert(0u64);
            *count += 1;
            (transfer, *count - 1, 0)
        };
        streams[usize::from(stream.0)].push(program.exchange(exchange).map(number).collect::<Vec<_>>());
    }
    for (transfer, _, every) in streams.iter_mut().flatten().flatten() {
        *every = counts[&channel_end(transfer)];
    }
    streams
}

/// What is numbered together: messages one way over a group to or from one peer.
fn channel_end(transfer: &Transfer) -> (GroupId, u32, Direction) {
    (transfer.group, transfer.ahead, transfer.direction)
}
