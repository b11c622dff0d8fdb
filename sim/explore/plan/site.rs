//! A machine at a size, as a plan rents it.

use toml::Value;

use crate::explore::prices::Price;
use crate::hardware::{Size, Topology};

/// A machine at a size.
#[derive(Clone, Debug)]
pub struct Site {
    /// As the request names it: a shipped name or a path.
    pub name: String,
    /// The key of its size in `[topology]`, with its value: `nodes = 16`, or `slice = "16x16"`.
    pub size: (&'static str, Value),
    /// The machine.
    pub machine: Topology,
    /// Its chips.
    pub chips: u64,
    /// Chips of a node.
    pub per_node: u64,
    /// What a chip costs, where that is known.
    pub price: Option<Price>,
}

impl Site {
    /// The machine at that size.
    pub(super) fn new(name: &str, size: (&'static str, Value), machine: Topology, price: Option<Price>) -> Site {
        let (chips, per_node) = (u64::from(machine.chips()), u64::from(machine.node.chips));
        Site { name: name.to_owned(), size, machine, chips, per_node, price }
    }

    /// `16 × h200-sxm-141gb`, or `tpu-v6e 16x16`.
    pub fn title(&self) -> String {
        match &self.size.1 {
            Value::String(slice) => format!("{} {slice}", self.machine.name),
            nodes => format!("{nodes} × {}", self.machine.name),
        }
    }
}

/// A size as a request writes it: nodes, or a slice of a TPU pod.
pub(super) fn size(written: &Value) -> Option<((&'static str, Value), Size)> {
    let nodes = |nodes: i64| {
        let count = u32::try_from(nodes).ok().filter(|&count| count > 0)?;
        Some((("nodes", Value::from(nodes)), Size::Nodes(count)))
    };
    match written {
        Value::Integer(count) => nodes(*count),
        Value::String(text) => match text.trim().parse::<i64>() {
            Ok(count) => nodes(count),
            Err(_) => Some((("slice", Value::from(text.trim())), Size::Slice(text.trim().to_owned()))),
        },
        _ => None,
    }
}
