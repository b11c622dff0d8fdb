//! Tracks of slow ranks: what they meet others for, in the cluster of the middle, beside the run with all ranks alike.

use std::io::{self, Write};

use super::json::{Events, Value};
use super::slice::Slice;
use super::view::{Trace, Window};
use crate::engine::lanes::Met;
use crate::units::Time;

/// Processes of slow ranks lie behind those of all ranks.
fn process(trace: &Trace<'_>, rank: u32) -> u32 {
    trace.class_of.len() as u32 + 1 + rank
}

/// The only track of such a process.
const TRACK: u32 = 1;

/// Writes a process for each slow rank.
pub(super) fn write<W: Write>(events: &mut Events<W>, trace: &Trace<'_>, window: &Window) -> io::Result<()> {
    let Some(apart) = trace.apart else { return Ok(()) };
    for slow in &apart.slow {
        let process = process(trace, slow.rank);
        let name = format!(
            "slow rank {} (kernels +{:.1} %, links +{:.1} %)",
            slow.rank,
            100.0 * slow.kernels,
            100.0 * slow.links
        );
        for (what, name) in [("process_name", name.as_str()), ("thread_name", "meets others")] {
            events.event(&[
                ("ph", Value::Text("M")),
                ("pid", Value::Number(process.into())),
                ("tid", Value::Number(TRACK.into())),
                ("name", Value::Text(what)),
                ("args", Value::Fields(&[("name", Value::Text(name))])),
            ])?;
        }
        for met in apart.met.iter().filter(|met| met.rank == slow.rank) {
            self::met(events, trace, window, (process, met))?;
        }
    }
    Ok(())
}

/// A collective or a message: waiting for others, then running.
fn met<W: Write>(
    events: &mut Events<W>,
    trace: &Trace<'_>,
    window: &Window,
    (process, met): (u32, &Met),
) -> io::Result<()> {
    let Some(apart) = trace.apart else { return Ok(()) };
    let group = apart.met_in.get(met.group as usize).map_or("", String::as_str);
    let at = |time: i64| window.at(Time(window.begin.0.saturating_add_signed(time)));
    for (name, category, from, to) in [
        (format!("waits in {group}"), "waiting", met.came, met.began),
        (group.to_owned(), "collective", met.began, met.ended),
    ] {
        if to > from {
            let slice = Slice { process, track: TRACK, name: &name, category, args: &[] };
            slice.write(events, at(from), at(to))?;
        }
    }
    Ok(())
}
