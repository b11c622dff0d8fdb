//! A machine at a size, as a plan rents it.

use toml::Value;

use crate::explore::prices::Price;
use crate::hardware::{Size, Topology};
use crate::units::thousands;

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
    /// Ranks of a job on them: a rank is a chip, or one of its devices.
    pub ranks: u64,
    /// Ranks on a node.
    pub per_node: u64,
    /// What a chip costs, where that is known.
    pub price: Option<Price>,
}

impl Site {
    /// The machine at that size.
    pub(super) fn new(name: &str, size: (&'static str, Value), machine: Topology, price: Option<Price>) -> Site {
        let [chips, ranks, per_node] = [machine.chips(), machine.ranks(), machine.ranks_per_node()].map(u64::from);
        Site { name: name.to_owned(), size, machine, chips, ranks, per_node, price }
    }

    /// `16 nodes of h200-sxm-141gb (128 chips)`, or `tpu-v6e 16x16 (256 chips)`.
    pub fn title(&self) -> String {
        let (name, chips) = (&self.machine.name, thousands(self.chips));
        let s = if self.chips == 1 { "" } else { "s" };
        match &self.size.1 {
            Value::String(slice) => format!("{name} {slice} ({chips} chip{s})"),
            Value::Integer(1) => format!("1 node of {name} ({chips} chip{s})"),
            nodes => format!("{nodes} nodes of {name} ({chips} chip{s})"),
        }
    }
}

/// Words that count chips, and words that count nodes, behind a number.
const CHIPS: [&str; 4] = ["gpus", "gpu", "chips", "chip"];
const NODES: [&str; 2] = ["nodes", "node"];

/// A size as a request writes it: nodes (`16`, `"16nodes"`), chips of nodes of so many (`"128gpus"`), or a slice of a TPU pod.
pub(super) fn size(written: &Value, per_node: u32) -> Option<((&'static str, Value), Size)> {
    let nodes = |nodes: i64| {
        let count = u32::try_from(nodes).ok().filter(|&count| count > 0)?;
        Some((("nodes", Value::from(nodes)), Size::Nodes(count)))
    };
    match written {
        Value::Integer(count) => nodes(*count),
        Value::String(text) => {
            let text = text.trim();
            let counted = |words: &[&str]| {
                let number = words.iter().find_map(|word| text.strip_suffix(word))?;
                number.trim_end().parse::<i64>().ok()
            };
            if let Ok(count) = text.parse::<i64>() {
                return nodes(count);
            }
            if let Some(count) = counted(&NODES) {
                return nodes(count);
            }
            if let Some(chips) = counted(&CHIPS) {
                let per_node = i64::from(per_node.max(1));
                return (chips % per_node == 0).then(|| nodes(chips / per_node)).flatten();
            }
            Some((("slice", Value::from(text)), Size::Slice(text.to_owned())))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_counts_nodes_unless_it_says_chips() {
        let of = |written: &str| size(&Value::from(written), 8).map(|(_, size)| size);
        assert_eq!(of("16"), Some(Size::Nodes(16)));
        assert_eq!(of("16nodes"), Some(Size::Nodes(16)));
        assert_eq!(of("128gpus"), Some(Size::Nodes(16)));
        assert_eq!(of("128 chips"), Some(Size::Nodes(16)));
        assert_eq!(of("100gpus"), None, "twelve nodes and a half");
        assert_eq!(of("16x16"), Some(Size::Slice("16x16".to_owned())));
    }
}
