//! Messages of `xplane.proto`, by hand: only fields that are read (openxla/xla, third_party/tsl/tsl/profiler/protobuf/xplane.proto,
//! f33d2e163dd7ae52277766e372e5738cb8cc8852).

/// A value of an event, a kind of event or a plane.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Stat {
    /// What it is: an id among the plane's kinds of values.
    #[prost(int64, tag = "1")]
    pub metadata_id: i64,
    #[prost(oneof = "Value", tags = "2, 3, 4, 5, 7")]
    pub value: Option<Value>,
}

/// The value itself.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Value {
    #[prost(double, tag = "2")]
    Double(f64),
    #[prost(uint64, tag = "3")]
    Unsigned(u64),
    #[prost(int64, tag = "4")]
    Signed(i64),
    #[prost(string, tag = "5")]
    Text(String),
    /// The name of this kind of value is the value.
    #[prost(uint64, tag = "7")]
    Reference(u64),
}

/// An event.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Event {
    #[prost(int64, tag = "1")]
    pub metadata_id: i64,
    /// From the line's begin \[ps\].
    #[prost(int64, tag = "2")]
    pub offset_ps: i64,
    #[prost(int64, tag = "3")]
    pub duration_ps: i64,
    #[prost(message, repeated, tag = "4")]
    pub stats: Vec<Stat>,
}

/// A kind of event.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct EventKind {
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub display_name: String,
    #[prost(message, repeated, tag = "5")]
    pub stats: Vec<Stat>,
}

/// A kind of value.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StatKind {
    #[prost(string, tag = "2")]
    pub name: String,
}

/// An entry of a plane's map of kinds of events.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct EventEntry {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(message, optional, tag = "2")]
    pub value: Option<EventKind>,
}

/// An entry of a plane's map of kinds of values.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StatEntry {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(message, optional, tag = "2")]
    pub value: Option<StatKind>,
}
