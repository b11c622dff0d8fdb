//! The two steps side by side, for Perfetto: a process for each, a track for each stream, both from zero.

use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};

use super::side::{Item, Side};
use super::text::About;
use crate::report::trace::json::{Events, Field, Value};
use crate::report::trace::slice::Slice;
use crate::units::Time;

/// The track of what the host does.
const HOST: u32 = 1;

/// Writes both steps as a Trace Event file.
pub fn write(out: impl Write, about: &About, predicted: &Side, measured: &Side) -> io::Result<()> {
    let about = [
        ("what", Value::Text("a measured step and its prediction side by side, by Windtunnel")),
        ("version", Value::Text(env!("CARGO_PKG_VERSION"))),
        ("scenario", Value::Text(&about.scenario)),
        ("trace", Value::Text(&about.trace)),
        ("step", Value::Text(&about.step)),
        ("rank", Value::Number(about.rank.into())),
    ];
    let mut events = Events::begin(BufWriter::new(out), &about)?;
    for (process, name, side) in [(1, "measured", measured), (2, "predicted", predicted)] {
        one(&mut events, process, name, side)?;
    }
    events.end()
}

fn one<W: Write>(events: &mut Events<W>, process: u32, name: &str, side: &Side) -> io::Result<()> {
    let mut describe = |what: &str, track: u32, arg: Field<'_>| {
        events.event(&[
            ("ph", Value::Text("M")),
            ("pid", Value::Number(process.into())),
            ("tid", Value::Number(track.into())),
            ("name", Value::Text(what)),
            ("args", Value::Fields(&[arg])),
        ])
    };
    describe("process_name", HOST, ("name", Value::Text(name)))?;
    describe("process_sort_index", HOST, ("sort_index", Value::Number(process.into())))?;
    let streams: BTreeSet<u32> = side.items.iter().map(|item| item.stream).collect();
    if !side.host.is_empty() {
        describe("thread_name", HOST, ("name", Value::Text("host")))?;
    }
    for &stream in &streams {
        describe("thread_name", track(stream), ("name", Value::Text(&format!("stream {stream}"))))?;
    }
    let at = |time: Time| time.clamp(side.begin, side.end) - side.begin;
    for item in side.items.iter().filter(|item| item.start < side.end && item.end > side.begin) {
        let Item { class, name, scope, pass, stream, .. } = item;
        let waited = Value::Micros(item.waited.unwrap_or(Time::ZERO));
        let pass = Value::Text(pass.map_or("", |pass| pass.name()));
        let args = [
            ("class", Value::Text(class.name())),
            ("module", Value::Text(scope)),
            ("pass", pass),
            ("waited_us", waited),
        ];
        let slice = Slice { process, track: track(*stream), name, category: class.name(), args: &args };
        slice.write(events, at(item.start), at(item.end))?;
    }
    // Of several threads the one that launches the step's first kernel is shown.
    let thread = side.items.iter().find(|item| item.own).map(|item| item.thread);
    let shown =
        |doing: &&super::side::Doing| Some(doing.thread) == thread && doing.start < side.end && doing.end > side.begin;
    for doing in side.host.iter().filter(shown) {
        let args = [("within", Value::Text(&doing.within))];
        let slice = Slice { process, track: HOST, name: &doing.what, category: "host", args: &args };
        slice.write(events, at(doing.start), at(doing.end))?;
    }
    Ok(())
}

fn track(stream: u32) -> u32 {
    stream.saturating_add(HOST + 1)
}
