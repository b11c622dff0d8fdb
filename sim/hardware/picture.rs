//! A machine's fabric as a picture of lines: each level with its instances, and the links by which one reaches the next.

use std::fmt::Write;

use super::{LevelKind, Reach, Topology};
use crate::units::Bandwidth;

/// A level as a picture shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// Its name.
    pub name: String,
    /// Instances of it in the machine as rented.
    pub instances: u32,
    /// What one instance is, such as `8 rails of 2 nodes`.
    pub what: String,
    /// What leads up into it: how much, from how many chips, how shared, and how long a message takes.
    pub links: String,
}

impl Topology {
    /// The levels from the outermost inwards, each with what leads up into it.
    pub fn drawn(&self) -> Vec<Drawn> {
        let (chips, devices) = (self.chips().max(1), self.chip.devices);
        let of_chip = |of_rank: Bandwidth| Bandwidth(of_rank.0 * f64::from(devices));
        let uplinks = self.uplinks();
        let mut below = 1;
        let mut levels = vec![];
        for (index, level) in self.fabric.iter().enumerate() {
            let reach = match level.reach {
                Reach::Chips(reach) => (reach / devices).min(chips),
                Reach::Unbounded => chips,
            };
            let instances = chips.div_ceil(reach.max(1));
            let count = reach.div_ceil(below);
            let joined = match index {
                0 => several(count, "chip"),
                1 => several(count, "node"),
                _ => format!("joins {count} × {}", self.fabric[index - 1].name),
            };
            let what = match &level.kind {
                LevelKind::Switch => joined,
                LevelKind::Rails => format!("{}, each {joined}", several(self.node.chips, "rail")),
                LevelKind::Torus { .. } => format!("a torus of {}", several(reach, "chip")),
            };
            let shared = uplinks.iter().find(|uplink| uplink.level == index);
            let latency = level.latency;
            let over = match level.oversubscription == 1.0 {
                true => String::new(),
                false => format!(", oversubscribed {} to 1", level.oversubscription),
            };
            let links = match shared {
                None if index == 1 => format!("{} a chip ({}){over}, {latency}", of_chip(self.rail()), cards(self)),
                None => format!("{} a chip{over}, {latency}", of_chip(level.carries())),
                Some(uplink) => {
                    let each = if uplink.positions == 1 { "one uplink" } else { "an uplink for each rail" };
                    format!(
                        "{each} of {}, for {}{over}, {latency}",
                        uplink.capacity,
                        several(below / uplink.positions, "chip")
                    )
                }
            };
            levels.push(Drawn { name: level.name.clone(), instances, what, links });
            below = reach;
        }
        levels.reverse();
        levels
    }

    /// The fabric as lines of text.
    pub fn picture(&self) -> String {
        let mut picture = format!("{}: {}\n\n", self.name, self.size_in_words());
        let levels = self.drawn();
        let width = levels.iter().map(|level| level.name.chars().count()).max().unwrap_or(0).max("chips".len());
        for level in &levels {
            let boxes = boxes(level.instances);
            let count = if level.instances == 1 { String::new() } else { format!("{} × ", level.instances) };
            // A String takes all that is written.
            let _ = writeln!(picture, "  {:width$}  {boxes}  {count}{}", level.name, level.what);
            let lines = boxes.chars().map(|c| if c == '┬' { '│' } else { ' ' }).collect::<String>();
            let _ = writeln!(picture, "  {:width$}  {lines}  ↕ {}", "", level.links);
        }
        let _ = writeln!(picture, "  {:width$}  {}  {}", "chips", leaves(), several(self.chips(), "chip"));
        picture
    }
}

/// Instances of a level as boxes of one width: one across, two halves, or three and dots.
fn boxes(instances: u32) -> String {
    match instances {
        1 => "[────┬────┬──────────┬────┬────]",
        2 => "[────┬────┬───] [───┬────┬────]",
        _ => "[──┬──┬──] [──┬──┬──]  ···  [──┬──┬──]",
    }
    .chars()
    .chain(std::iter::repeat(' '))
    .take(WIDE)
    .collect()
}

/// Characters of a row of boxes.
const WIDE: usize = 38;

/// The chips below all levels.
fn leaves() -> String {
    format!("{:WIDE$}", "▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪  ···  ▪ ▪ ▪ ▪ ▪ ▪")
}

/// A count and its noun.
fn several(count: u32, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// The network cards of a node.
fn cards(topology: &Topology) -> String {
    let node = &topology.node;
    format!("{} of {} for {}", several(node.nics, "card"), node.nic_bandwidth, several(node.chips, "chip"))
}
