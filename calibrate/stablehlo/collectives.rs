//! Collectives that are written out, within a part of a function that each device runs on its own piece (`shard_map`).

use std::fmt::Write;

use super::function::{Function, Value, list};
use super::{Element, Mesh, Spec, Type};

/// A collective over all devices of a one-axis mesh, on each device's piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Everybody gets all pieces.
    AllGather,
    /// Everybody gets a piece of the sum.
    ReduceScatter,
    /// Everybody gets the sum.
    AllReduce,
    /// Everybody gets a piece of everybody's.
    AllToAll,
    /// Everybody gets the next one's.
    Permute,
}

impl Collective {
    /// What a device's piece becomes.
    fn of(self, piece: &Type, devices: u64) -> Type {
        let mut of = piece.clone();
        match self {
            Self::AllGather => of.dims[0] *= devices,
            Self::ReduceScatter => of.dims[0] /= devices,
            Self::AllReduce | Self::AllToAll | Self::Permute => {}
        }
        of
    }
}

impl Function {
    /// Runs a collective along the one axis of `mesh`, on pieces of the first axis of `value`. The result is made of what the
    /// devices end up with, one after the other.
    pub fn collective(&mut self, how: Collective, mesh: &Mesh, axis: &str, value: &Value) -> Value {
        let devices = mesh.devices();
        let cut = |of: &Type| Type::new(of.element, [&[of.dims[0] / devices], &of.dims[1..]].concat());
        let piece = cut(&value.of);
        let local = how.of(&piece, devices);
        let of = Type::new(local.element, [&[local.dims[0] * devices], &local.dims[1..]].concat());
        let mut split = Spec::replicated(of.dims.len());
        split.0[0].push(axis.to_owned());
        let lies = format!("[{}]", split.text());
        let head = format!(
            "sdy.manual_computation({value}) in_shardings={lies} out_shardings={lies} manual_axes={{{axis:?}}} (%piece: {piece}) {{"
        );
        let inside = format!(
            "      %local = {} : ({piece}) -> {local}\n      sdy.return %local : {local}\n    ",
            operation(how, devices, piece.element)
        );
        let types = format!("({}) -> {of}", value.of);
        self.line(of, &format!("{head}\n{inside}}}"), &types)
    }

    /// The sum of a value over the devices along some axes, within a part that each device runs on its own.
    pub fn sum_over(&mut self, value: &Value, axes: &[String], mesh: &Mesh) -> Value {
        let groups = mesh.groups(axes);
        let (count, each, element) = (groups.len(), groups.first().map_or(0, Vec::len), value.of.element);
        if each < 2 {
            return value.clone();
        }
        let groups: Vec<String> = groups.iter().map(|group| list(group)).collect();
        let after = format!(
            "\"stablehlo.all_reduce\"({value}) <{{{CHANNEL}, replica_groups = dense<[{}]> : tensor<{count}x{each}xi64>, use_global_device_ids}}>{}",
            groups.join(", "),
            sum(element)
        );
        let types = format!("({0}) -> {0}", value.of);
        self.line(value.of.clone(), &after, &types)
    }
}

/// That a collective goes between devices.
const CHANNEL: &str = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>";

/// The part of a collective that adds two numbers.
fn sum(element: Element) -> String {
    format!(
        " ({{\n        ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):\n          %sum = stablehlo.add %a, %b : tensor<{element}>\n          stablehlo.return %sum : tensor<{element}>\n      }})"
    )
}

/// The operation on `%piece`, but for its type.
fn operation(how: Collective, devices: u64, element: Element) -> String {
    let everybody: Vec<u64> = (0..devices).collect();
    let groups = format!("replica_groups = dense<[{}]> : tensor<1x{devices}xi64>", list(&everybody));
    let sum = sum(element);
    match how {
        Collective::AllGather => {
            format!(
                "\"stablehlo.all_gather\"(%piece) <{{all_gather_dim = 0 : i64, {CHANNEL}, {groups}, use_global_device_ids}}>"
            )
        }
        Collective::ReduceScatter => {
            format!(
                "\"stablehlo.reduce_scatter\"(%piece) <{{scatter_dimension = 0 : i64, {CHANNEL}, {groups}, use_global_device_ids}}>{sum}"
            )
        }
        Collective::AllReduce => {
            format!("\"stablehlo.all_reduce\"(%piece) <{{{CHANNEL}, {groups}, use_global_device_ids}}>{sum}")
        }
        Collective::AllToAll => format!(
            "\"stablehlo.all_to_all\"(%piece) <{{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = {devices} : i64, {CHANNEL}, {groups}}}>"
        ),
        Collective::Permute => {
            let mut pairs = String::new();
            for device in 0..devices {
                let separator = if device == 0 { "" } else { ", " };
                let _ = write!(pairs, "{separator}[{device}, {}]", (device + 1) % devices);
            }
            format!(
                "\"stablehlo.collective_permute\"(%piece) <{{{CHANNEL}, source_target_pairs = dense<[{pairs}]> : tensor<{devices}x2xi64>}}>"
            )
        }
    }
}
