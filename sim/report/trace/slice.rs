//! Something that lasts, on a track.

use std::io::{self, Write};

use super::json::{Events, Field, Value};
use crate::units::Time;

/// Something with a beginning and an end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice<'a> {
    pub(crate) process: u32,
    pub(crate) track: u32,
    pub(crate) name: &'a str,
    pub(crate) category: &'a str,
    pub(crate) args: &'a [Field<'a>],
}

impl Slice<'_> {
    pub(crate) fn write<W: Write>(&self, events: &mut Events<W>, start: Time, end: Time) -> io::Result<()> {
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
