//! Something that lasts, on a track.

use std::io::{self, Write};

use super::json::{Events, Field, Value};
use crate::units::Time;

/// Something with a beginning and an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice<'a> {
    pub(super) process: u32,
    pub(super) track: u32,
    pub(super) name: &'a str,
    pub(super) category: &'a str,
    pub(super) args: &'a [Field<'a>],
}

impl Slice<'_> {
    pub(super) fn write<W: Write>(&self, events: &mut Events<W>, start: Time, end: Time) -> io::Result<()> {
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
