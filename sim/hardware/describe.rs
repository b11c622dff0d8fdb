//! A topology for people to read: what it is, and every number with its source.

use std::fmt;

use super::{Axis, Fact, Topology};

impl Topology {
    /// How much is rented, in words: `2 nodes of 8 chips = 16 chips`, `slice 4x4 = 16 chips on 2 hosts`.
    pub fn size_in_words(&self) -> String {
        let several = |count: u32, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        let chips = several(self.chips(), "chip");
        match self.axes() {
            None => format!("{} of {} = {chips}", several(self.nodes, "node"), several(self.node.chips, "chip")),
            Some(axes) => {
                let shape = axes.iter().map(|axis| axis.size.to_string()).collect::<Vec<_>>().join("x");
                let devices = match self.chip.devices {
                    1 => String::new(),
                    each => format!(" of {each} devices"),
                };
                format!("slice {shape} = {chips}{devices} on {}, {}", several(self.nodes, "host"), rings(axes))
            }
        }
    }

    /// The whole topology as lines of name, value and source.
    pub fn describe(&self) -> String {
        self.to_string()
    }
}

/// Which axes close into rings, in words.
pub(super) fn rings(axes: &[Axis]) -> String {
    let rings: Vec<_> = axes.iter().filter(|axis| axis.wraps).map(|axis| axis.size.to_string()).collect();
    if rings.is_empty() { "no rings".to_owned() } else { format!("rings of {}", rings.join(" and ")) }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.name, self.description)?;
        let based = self.base.as_ref().map_or(String::new(), |base| format!("; based on {base}"));
        writeln!(f, "{}; {}; costs from profile {}{based}", self.chip.name, self.size_in_words(), self.profile)?;
        let width = |of: fn(&Fact) -> &str| self.facts.iter().map(|fact| of(fact).chars().count()).max().unwrap_or(0);
        let (names, values) = (width(|fact| &fact.name), width(|fact| &fact.value));
        for fact in &self.facts {
            writeln!(f, "  {:names$}  {:values$}  {}", fact.name, fact.value, fact.source)?;
        }
        Ok(())
    }
}
