//! What a program is compiled with, in the encoding that plugins read: XLA's `CompileOptionsProto`.
//!
//! Only fields that are set here are declared; the others keep their defaults. Numbers and names are those of
//! `xla/pjrt/proto/compile_options.proto` and `xla/xla_data.proto` (OpenXLA). To set one more: declare it with its number.

use std::collections::BTreeMap;

use prost::Message;

/// How a program is spread over devices, and the compiler's flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options<'a> {
    /// Devices that a program is partitioned over, by their numbers.
    pub devices: Vec<i64>,
    /// Whether it carries Shardy's annotations (`sdy.…`); else GSPMD's (`mhlo.sharding`).
    pub shardy: bool,
    /// Whether the compiler says how results are sharded: of GSPMD's programs that say nothing of them, as PyTorch/XLA's.
    pub results_left: bool,
    /// The compiler's flags, without dashes.
    pub flags: &'a BTreeMap<String, String>,
}

impl Options<'_> {
    /// As plugins read them.
    pub fn encode(&self) -> Vec<u8> {
        let device = |&id: &i64| ComputationDevice { replica_device_ids: vec![id] };
        let build = BuildOptions {
            device_ordinal: -1,
            num_replicas: 1,
            num_partitions: self.devices.len() as i64,
            use_spmd_partitioning: true,
            device_assignment: Some(DeviceAssignment {
                replica_count: 1,
                computation_count: self.devices.len() as i32,
                computation_devices: self.devices.iter().map(device).collect(),
            }),
            allow_spmd_sharding_propagation_to_output: if self.results_left { vec![true] } else { vec![] },
            use_shardy_partitioner: self.shardy,
        };
        let flags = self.flags.iter().map(|(name, value)| (name.clone(), Flag { value: Some(typed(value)) })).collect();
        CompileOptions { build: Some(build), flags }.encode_to_vec()
    }
}

/// A flag's value, by what it looks like: the compiler converts numbers and texts, but not texts to `bool`.
fn typed(text: &str) -> FlagValue {
    match text {
        "true" | "false" => FlagValue::Bool(text == "true"),
        _ => text
            .parse()
            .map(FlagValue::Int)
            .or_else(|_| text.parse().map(FlagValue::Double))
            .unwrap_or_else(|_: std::num::ParseFloatError| FlagValue::Text(text.to_owned())),
    }
}

#[derive(Clone, PartialEq, Message)]
struct CompileOptions {
    #[prost(message, optional, tag = "3")]
    build: Option<BuildOptions>,
    #[prost(btree_map = "string, message", tag = "7")]
    flags: BTreeMap<String, Flag>,
}

#[derive(Clone, PartialEq, Message)]
struct BuildOptions {
    #[prost(int64, tag = "1")]
    device_ordinal: i64,
    #[prost(int64, tag = "4")]
    num_replicas: i64,
    #[prost(int64, tag = "5")]
    num_partitions: i64,
    #[prost(bool, tag = "6")]
    use_spmd_partitioning: bool,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<DeviceAssignment>,
    #[prost(bool, repeated, tag = "12")]
    allow_spmd_sharding_propagation_to_output: Vec<bool>,
    #[prost(bool, tag = "19")]
    use_shardy_partitioner: bool,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceAssignment {
    #[prost(int32, tag = "1")]
    replica_count: i32,
    #[prost(int32, tag = "2")]
    computation_count: i32,
    #[prost(message, repeated, tag = "3")]
    computation_devices: Vec<ComputationDevice>,
}

#[derive(Clone, PartialEq, Message)]
struct ComputationDevice {
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Flag {
    #[prost(oneof = "FlagValue", tags = "1, 2, 3, 4")]
    value: Option<FlagValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum FlagValue {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_the_bytes_that_the_protocol_s_rules_give() {
        let flags = [("a".to_owned(), "true".to_owned())].into();
        let bytes = Options { devices: vec![0, 1], shardy: true, results_left: false, flags: &flags }.encode();
        // Wire format: (field << 3) | type, then a varint, or a length and as many bytes.
        let assignment = [0x08, 1, 0x10, 2, 0x1a, 3, 0x0a, 1, 0, 0x1a, 3, 0x0a, 1, 1];
        let mut build = vec![0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        build.extend([0x20, 1, 0x28, 2, 0x30, 1, 0x4a, assignment.len() as u8]);
        build.extend(assignment);
        build.extend([0x98, 0x01, 1]);
        let mut expected = vec![0x1a, build.len() as u8];
        expected.extend(build);
        expected.extend([0x3a, 7, 0x0a, 1, b'a', 0x12, 2, 0x10, 1]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_flag_has_the_type_that_it_looks_like() {
        let kinds = ["false", "98304", "0.5", "-1", "strategy=1"].map(typed);
        let expected = [
            FlagValue::Bool(false),
            FlagValue::Int(98304),
            FlagValue::Double(0.5),
            FlagValue::Int(-1),
            FlagValue::Text("strategy=1".to_owned()),
        ];
        assert_eq!(kinds, expected);
    }
}
