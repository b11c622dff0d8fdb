//! Arrows between the members of a collective, from the lowest rank on.
//!
//! The engine lets the members of a group meet once per collective and stream, in order; so what belongs together is
//! found by counting: the n-th collective of a copy of a group on a stream is one and the same for all its members.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::json::{Events, Value};
use super::{Trace, Window};
use crate::engine::What;
use crate::units::Time;

/// Writes the arrows; slices must have been written before, for viewers to find what the arrows are bound to.
pub(super) fn write<W: Write>(events: &mut Events<W>, trace: &Trace<'_>, window: &Window) -> io::Result<()> {
    let ranks = trace.timeline.breakdown.len() as u32;
    if ranks < 2 {
        return Ok(());
    }
    // How often each (rank, stream, group) has met; spans come in order of time on each stream.
    let mut met = BTreeMap::<(u32, u8, u16), u64>::new();
    for span in &trace.timeline.spans {
        let What::Comm(id) = span.what else { continue };
        let program = trace.program(span.rank);
        let comm = program.comm(id);
        let turn = met.entry((span.rank, span.stream.0, comm.group.0)).or_default();
        *turn += 1;
        let group = &program.groups[comm.group.0 as usize];
        if group.size < 2 || !window.shows(span) {
            continue;
        }
        let Some(lowest) = group.members(span.rank).next() else { continue };
        let highest = lowest + (group.size - 1) * group.stride;
        let place = (u64::from(comm.group.0) * u64::from(ranks) + u64::from(lowest)) << 8 | u64::from(span.stream.0);
        let places = (program.groups.len() as u64 * u64::from(ranks)) << 8;
        let phase = match span.rank {
            rank if rank == lowest => "s",
            rank if rank == highest => "f",
            _ => "t",
        };
        // In the middle of the slice, where no neighbour can be meant.
        let middle = Time(span.start.0 + (span.end.0 - span.start.0) / 2);
        events.event(&[
            ("ph", Value::Text(phase)),
            ("bp", Value::Text("e")),
            ("id", Value::Number((*turn * places + place).into())),
            ("pid", Value::Number(super::process(span.rank).into())),
            ("tid", Value::Number(super::track(span.stream).into())),
            ("ts", Value::Micros(window.at(middle))),
            ("name", Value::Text("collective")),
            ("cat", Value::Text("collective")),
        ])?;
    }
    Ok(())
}
