//! `xplane.pb`: planes are read one at a time, and the events of a line one at a time.

use std::collections::BTreeMap;
use std::io::Read;

use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};

use super::super::draft::ZERO;
use super::super::error::{CUT, Stop};
use super::super::parts::{Device, Format, Trace};
use super::proto::{Event, EventEntry, EventKind, Stat, StatEntry, Value};
use super::{Line, Planes, device, line};
use crate::budget::{self, EVENT, STAT};

/// The longest plane that is held \[B\].
const LONGEST: u64 = 1 << 30;
const REMEDY: &str = "Copy the file again as binary, or profile again with fewer steps";

/// Reads the whole file.
pub(in super::super) fn read(from: impl Read) -> Result<Trace, Stop> {
    let mut file = File { from, at: 0 };
    let mut planes = Planes::default();
    let mut held = Held::default();
    let mut number = 0;
    while let Some(key) = file.varint()? {
        let (field, wire) = (key >> 3, key & 7);
        let start = file.at;
        match (field, wire) {
            (1, 2) => {
                let plane = file.bytes(start)?;
                held = Held { read: held.read + plane.len() as u64, plane: plane.len() as u64 };
                read_plane(&mut planes, &mut held, &plane, &format!("plane {number} (byte {start})"))?;
                number += 1;
            }
            // Names of hosts, errors and warnings.
            (2..=100, 2) => drop(file.bytes(start)?),
            (1..=100, 0) => drop(file.varint()?),
            _ => return Err(broken(format!("byte {start}"), "expected a field of XSpace".to_owned())),
        }
    }
    planes.finish(Format::Xplane)
}

fn broken(place: String, what: String) -> Stop {
    Stop::Broken { place, what, remedy: REMEDY }
}

struct File<R> {
    from: R,
    at: u64,
}

impl<R: Read> File<R> {
    /// The next number; none at the end of the file.
    fn varint(&mut self) -> Result<Option<u64>, Stop> {
        let (start, mut value) = (self.at, 0u64);
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            if self.from.by_ref().take(1).read(&mut byte)? == 0 {
                let what = "the file ends inside a number".to_owned();
                return if shift == 0 {
                    Ok(None)
                } else {
                    Err(Stop::Broken { place: format!("byte {start}"), what, remedy: CUT })
                };
            }
            self.at += 1;
            value |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(Some(value));
            }
        }
        Err(broken(format!("byte {start}"), "a number has more than ten bytes".to_owned()))
    }

    /// The bytes of a field with a length.
    fn bytes(&mut self, start: u64) -> Result<Vec<u8>, Stop> {
        let length = self.varint()?.unwrap_or(0);
        if length > LONGEST {
            let what = format!("a plane of {length} bytes is longer than {} MiB, the most that is held", LONGEST >> 20);
            return Err(broken(format!("byte {start}"), what));
        }
        let mut bytes = vec![];
        let read = self.from.by_ref().take(length).read_to_end(&mut bytes)? as u64;
        self.at += read;
        if read < length {
            let what = format!("the file ends after {read} of the {length} bytes of a plane");
            return Err(Stop::Broken { place: format!("byte {start}"), what, remedy: CUT });
        }
        Ok(bytes)
    }
}

/// How much was read, and what the plane that is being read takes, which goes when it is.
#[derive(Default)]
struct Held {
    read: u64,
    plane: u64,
}

impl Held {
    /// Counts parts of the plane before they are kept beside its events.
    fn add(&mut self, planes: &Planes, parts: usize, takes: u64, place: &str) -> Result<(), Stop> {
        self.plane += parts as u64 * takes;
        self.affords(planes, 0).map_err(|what| broken(place.to_owned(), what))
    }

    /// Whether one more event may be kept, and so many values for as long as it is read.
    fn affords(&self, planes: &Planes, values: usize) -> Result<(), String> {
        budget::within(self.read, self.plane + planes.kept() as u64 * EVENT + values as u64 * STAT)
    }
}

/// How many fields of this number a message has. One that is broken has those before, and is told of where it is decoded.
fn count(bytes: &[u8], of: u32) -> usize {
    let mut count = 0;
    let _ = fields(bytes, "", |number, _| {
        count += usize::from(number == of);
        Ok(())
    });
    count
}

/// How many values a kind of event has, which is the value of an entry.
fn values(entry: &[u8]) -> usize {
    let mut values = 0;
    let _ = fields(entry, "", |number, field| {
        if let (2, Field::Bytes(kind)) = (number, field) {
            values += count(kind, 5);
        }
        Ok(())
    });
    values
}

/// A field of a message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Calls `each` for the fields of a message.
fn fields<'a>(
    mut rest: &'a [u8],
    place: &str,
    mut each: impl FnMut(u32, Field<'a>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let wrong = |error: prost::DecodeError| broken(place.to_owned(), error.to_string());
    while !rest.is_empty() {
        let (number, wire) = decode_key(&mut rest).map_err(wrong)?;
        let short = || broken(place.to_owned(), format!("field {number} is longer than what contains it"));
        let field = match wire {
            WireType::Varint => Field::Number(decode_varint(&mut rest).map_err(wrong)?),
            WireType::LengthDelimited => {
                let length = decode_varint(&mut rest).map_err(wrong)?;
                let length = usize::try_from(length).ok().filter(|&length| length <= rest.len()).ok_or_else(short)?;
                let (bytes, after) = rest.split_at(length);
                rest = after;
                Field::Bytes(bytes)
            }
            WireType::ThirtyTwoBit | WireType::SixtyFourBit => {
                let length = if matches!(wire, WireType::ThirtyTwoBit) { 4 } else { 8 };
                rest = rest.get(length..).ok_or_else(short)?;
                continue;
            }
            _ => {
                return Err(broken(
                    place.to_owned(),
                    format!("field {number} is a group, which xplane.proto has none of"),
                ));
            }
        };
        each(number, field)?;
    }
    Ok(())
}

/// A plane's tables, which may stand behind its lines.
#[derive(Default)]
struct Tables {
    events: BTreeMap<i64, EventKind>,
    stats: BTreeMap<i64, String>,
}

impl Tables {
    fn text<'a>(&'a self, stat: &'a Stat) -> Option<&'a str> {
        match stat.value.as_ref()? {
            Value::Text(text) => Some(text),
            Value::Reference(id) => self.stats.get(&i64::try_from(*id).ok()?).map(String::as_str),
            _ => None,
        }
    }

    fn number(&self, stat: &Stat) -> Option<u64> {
        match stat.value.as_ref()? {
            Value::Unsigned(number) => Some(*number),
            Value::Signed(number) => u64::try_from(*number).ok(),
            Value::Double(number) => Some(*number as u64),
            Value::Text(_) | Value::Reference(_) => self.text(stat)?.parse().ok(),
        }
    }

    fn name(&self, stat: &Stat) -> &str {
        self.stats.get(&stat.metadata_id).map_or("", String::as_str)
    }

    /// An event with its own values and those of its kind.
    fn event<'a>(&'a self, event: &'a Event, start: u64, end: u64) -> super::Event<'a> {
        let kind = self.events.get(&event.metadata_id);
        let mut found = super::Event { start, end, ..super::Event::default() };
        let Some(kind) = kind else { return found };
        (found.name, found.display) = (&kind.name, &kind.display_name);
        for stat in kind.stats.iter().chain(&event.stats) {
            match self.name(stat) {
                "correlation_id" => found.correlation = self.number(stat),
                "hlo_op" => found.hlo_op = self.text(stat),
                "hlo_module" => found.program = self.text(stat),
                "tf_op" if found.path.is_none() => found.path = self.text(stat).filter(|&path| path != "XlaModule:"),
                "name" => found.path = self.text(stat),
                "hlo_category" => found.category = self.text(stat),
                "kernel_details" => found.kernel = self.text(stat),
                "memcpy_details" | "memset_details" => found.copy = self.text(stat),
                "step_num" => found.step = self.number(stat),
                "flops" => found.flops = self.number(stat),
                "bytes_accessed" => found.bytes = self.number(stat),
                _ => {}
            }
        }
        found
    }
}

fn read_plane(planes: &mut Planes, held: &mut Held, plane: &[u8], place: &str) -> Result<(), Stop> {
    let mut tables = Tables::default();
    let (mut name, mut lines, mut stats) = ("", vec![], vec![]);
    let wrong = |what: &str, error: &dyn std::fmt::Display| broken(format!("{place}, {what}"), error.to_string());
    fields(plane, place, |number, field| {
        held.add(planes, 1, EVENT, place)?;
        match (number, field) {
            (2, Field::Bytes(bytes)) => name = std::str::from_utf8(bytes).map_err(|error| wrong("its name", &error))?,
            (3, Field::Bytes(bytes)) => lines.push(bytes),
            (4, Field::Bytes(bytes)) => {
                held.add(planes, values(bytes), STAT, place)?;
                let entry = EventEntry::decode(bytes).map_err(|error| wrong("a kind of event", &error))?;
                tables.events.insert(entry.key, entry.value.unwrap_or_default());
            }
            (5, Field::Bytes(bytes)) => {
                let entry = StatEntry::decode(bytes).map_err(|error| wrong("a kind of value", &error))?;
                tables.stats.insert(entry.key, entry.value.unwrap_or_default().name);
            }
            (6, Field::Bytes(bytes)) => stats.push(Stat::decode(bytes).map_err(|error| wrong("a value", &error))?),
            _ => {}
        }
        Ok(())
    })?;
    describe(planes, name, &tables, &stats);
    let of_device = device(name);
    if of_device.is_none() && !name.starts_with("/host:CPU") {
        return Ok(());
    }
    for (at, bytes) in lines.into_iter().enumerate() {
        read_line(planes, held, of_device, &tables, bytes, &format!("{place}, line {at}"))?;
    }
    Ok(())
}

fn read_line(
    planes: &mut Planes,
    held: &Held,
    of_device: Option<(u32, bool)>,
    tables: &Tables,
    bytes: &[u8],
    place: &str,
) -> Result<(), Stop> {
    let (mut id, mut name, mut start_ns) = (0i64, "", 0i64);
    fields(bytes, place, |number, field| {
        match (number, field) {
            (1, Field::Number(number)) => id = number as i64,
            (2, Field::Bytes(bytes)) => {
                name = std::str::from_utf8(bytes)
                    .map_err(|error| broken(format!("{place}, its name"), error.to_string()))?;
            }
            (3, Field::Number(number)) => start_ns = number as i64,
            _ => {}
        }
        Ok(())
    })?;
    let line = match of_device {
        Some((device, is_gpu)) => line(device, is_gpu, name),
        None => {
            let thread = planes.draft.thread(0, id);
            planes.draft.trace.threads[thread.at()].name = Some(name.to_owned());
            Line::Host { thread }
        }
    };
    if line == Line::Other {
        return Ok(());
    }
    let mut at = 0;
    fields(bytes, place, |number, field| {
        if let (4, Field::Bytes(bytes)) = (number, field) {
            let afforded = held.affords(planes, count(bytes, 4));
            afforded.map_err(|what| broken(place.to_owned(), what))?;
            read_event(planes, line, tables, bytes, start_ns, || format!("{place}, event {at}"))?;
            at += 1;
        }
        Ok(())
    })
}

fn read_event(
    planes: &mut Planes,
    line: Line,
    tables: &Tables,
    bytes: &[u8],
    start_ns: i64,
    place: impl Fn() -> String,
) -> Result<(), Stop> {
    let event = Event::decode(bytes).map_err(|error| broken(place(), error.to_string()))?;
    let start = i128::from(start_ns) * 1000 + i128::from(event.offset_ps);
    // A time in nanoseconds, rounded, so that what follows on picoseconds follows still.
    let ns = |ps: i128| {
        let ns = (ps + 500).div_euclid(1000) + i128::from(ZERO);
        u64::try_from(ns).ok().filter(|&ns| ns < 3 * ZERO)
    };
    if event.duration_ps < 0 {
        return Err(broken(place(), format!("it takes {} ps: expected zero or more", event.duration_ps)));
    }
    let times = ns(start).zip(ns(start + i128::from(event.duration_ps)));
    let Some((start, end)) = times else {
        return Err(broken(place(), format!("its time is out of range: {start} ps")));
    };
    planes.add(line, tables.event(&event, start, end));
    Ok(())
}

/// What a plane says of its device or of the program.
fn describe(planes: &mut Planes, name: &str, tables: &Tables, stats: &[Stat]) {
    let find = |name: &str| stats.iter().find(|stat| tables.name(stat) == name);
    let text = |name: &str| find(name).and_then(|stat| tables.text(stat)).map(str::to_owned);
    let number = |name: &str| find(name).and_then(|stat| tables.number(stat));
    if let Some((of, is_gpu)) = device(name) {
        let vendor = text("device_vendor").map(|vendor| format!("{vendor} GPU"));
        planes.draft.trace.machine.devices.push(Device {
            number: of,
            name: text("device_type_string").or(vendor),
            sms: number("core_count").filter(|_| is_gpu).and_then(|count| u32::try_from(count).ok()),
            memory: number("memory_size"),
        });
    }
    for (key, what) in [("jax_version", "JAX"), ("jaxlib_version", "jaxlib")] {
        if let Some(version) = text(key) {
            planes.draft.trace.machine.versions.push((what.to_owned(), version));
        }
    }
    if let Some(start) = number("profile_start_time") {
        planes.draft.trace.epoch = Some(i128::from(start));
    }
}
