//! From the file as written to the machine as understood: every number positive, sourced, and consistent with the rest.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;

use super::base::{Base, Extended};
use super::uplink::OUTER;
use super::written::{self, Joins, Sourced};
use super::{Axis, Chip, Fact, HardwareError, Level, LevelKind, Node, Peak, Place, Reach, Size, Topology, Vendor};
use super::{describe, devices, price};
use crate::files::one_line;
use crate::tables::{self, Unread};
use crate::units::{Bandwidth, Bytes, FlopRate, Frequency, Power, Time, physical};

/// The largest oversubscription that is accepted: far beyond any that is built.
const MOST_OVERSUBSCRIBED: f64 = 1e6;

/// Reads, checks and sizes a topology.
pub fn read(file: &str, text: &str, size: &Size) -> Result<Topology, HardwareError> {
    let base = Base::of(file, text)?;
    let at = At { file, text, base: base.as_ref() };
    let wrong = |error: Unread| at.place(error.message().trim_end(), error.span().unwrap_or(text.len()..text.len()));
    let (written, whole) = match &base {
        None => (tables::read::<written::File>(text).map_err(wrong)?, text.to_owned()),
        Some(base) => {
            let Extended { written, text } = base.extend(text).map_err(wrong)?;
            (written, text)
        }
    };
    for (key, source) in &written.sources {
        if source.get_ref().trim().is_empty() {
            return Err(
                at.place(&format!("the source {key:?} is empty: say where the numbers come from"), source.span())
            );
        }
    }
    if written.name.get_ref().trim().is_empty() {
        return Err(at.place("the name is empty: give the topology a name", written.name.span()));
    }
    let mut numbers = Numbers { at, sources: &written.sources, facts: Vec::new() };
    let mut chip = chip(&written.chip, &mut numbers)?;
    let mut node = node(&written.node, &mut numbers)?;
    let mut fabric = fabric(&written.fabric, &mut numbers)?;
    one_switch(&written, &fabric, node.chips, at)?;
    even_devices(&written, &chip, &fabric, at)?;
    let slices = slices(&written.slice, &written.fabric, node.chips, &mut numbers)?;
    let price = written.price.as_ref().map(|price| {
        let (name, written) = ("price.usd_per_chip_hour", &price.usd_per_chip_hour);
        let value = numbers.take(name, written)?;
        match price::sensible(value) {
            Ok(()) => Ok(value),
            Err(why) => Err(at.place(&format!("{name} is {value}: {why}"), written.value.span())),
        }
    });
    let name = one_line(written.name.get_ref());
    let nodes = if slices.is_empty() {
        count_nodes(&name, &node, &fabric, size)?
    } else {
        cut_slice(&name, (&mut node, chip.cores), &mut fabric, &slices, size)?
    };
    devices::share(&mut chip, &mut fabric);
    Ok(Topology {
        name,
        description: one_line(&written.description),
        profile: written.profile.clone(),
        chip,
        node,
        nodes,
        fabric,
        usd_per_chip_hour: price.transpose()?,
        facts: numbers.facts,
        base: written.base.as_deref().map(one_line),
        text: whole,
    })
}

/// The file that errors point into.
#[derive(Clone, Copy)]
struct At<'f> {
    file: &'f str,
    text: &'f str,
    base: Option<&'f Base>,
}

impl At<'_> {
    fn place(&self, problem: &str, span: Range<usize>) -> HardwareError {
        let place = match self.base {
            Some(base) => base.place(self.file, self.text, span),
            None => Place::of(self.file, self.text, span),
        };
        HardwareError::Written { problem: problem.to_owned(), place }
    }

    /// The bytes of a span, as written.
    fn shown(&self, span: Range<usize>) -> &str {
        self.base.map_or(self.text, |base| &base.both).get(span).unwrap_or_default().trim_matches(['"', '\''])
    }
}

/// Takes numbers out of the file, each with its source: the only way for a number to get into a [`Topology`].
struct Numbers<'f> {
    at: At<'f>,
    sources: &'f BTreeMap<String, Spanned<String>>,
    facts: Vec<Fact>,
}

impl Numbers<'_> {
    fn take<T: Number>(&mut self, name: &str, written: &Sourced<T>) -> Result<T, HardwareError> {
        let value = *written.value.get_ref();
        let shown = self.at.shown(written.value.span()).to_owned();
        if !value.is_sound() {
            let problem = format!("{name} is {shown}: it must be finite and above zero");
            return Err(self.at.place(&problem, written.value.span()));
        }
        if let Some(Err(why)) = physical(&shown) {
            return Err(self.at.place(&format!("{name} is {shown}: {why}"), written.value.span()));
        }
        self.note(name, &shown, &written.source)?;
        Ok(value)
    }

    fn take_if<T: Number>(&mut self, name: &str, written: &Option<Sourced<T>>) -> Result<Option<T>, HardwareError> {
        written.as_ref().map(|written| self.take(name, written)).transpose()
    }

    fn note(&mut self, name: &str, value: &str, source: &Spanned<String>) -> Result<(), HardwareError> {
        let key = source.get_ref().trim();
        let source = match self.sources.get(key) {
            Some(reference) => reference.get_ref().trim(),
            None if key.starts_with("assumed") || key.starts_with("derived") => key,
            None => {
                let known = self.sources.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                let problem = format!(
                    "the source {key:?} of {name} is not listed under [sources] ({known}): add it there, or write \
                     \"assumed: why\" or \"derived: how\""
                );
                return Err(self.at.place(&problem, source.span()));
            }
        };
        self.facts.push(Fact { name: name.to_owned(), value: value.to_owned(), source: source.to_owned() });
        Ok(())
    }
}

/// A quantity that a file may hold.
trait Number: Copy {
    fn is_sound(self) -> bool;
}

macro_rules! number {
    ($($name:ty: $sound:expr;)*) => {$(
        impl Number for $name {
            fn is_sound(self) -> bool {
                let sound: fn($name) -> bool = $sound;
                sound(self)
            }
        }
    )*};
}
number! {
    u32: |count| count > 0;
    // A price, or a version: far from what sums lose or products exceed.
    f64: |number| (1e-6..=1e9).contains(&number);
    Bytes: |size| size.0 > 0;
    Bandwidth: |rate| rate.0.is_finite() && rate.0 > 0.0;
    FlopRate: |rate| rate.0.is_finite() && rate.0 > 0.0;
    Power: |power| power.0.is_finite() && power.0 > 0.0;
    Frequency: |clock| clock.0.is_finite() && clock.0 > 0.0;
    Time: |_| true;
}

impl Number for Joins {
    fn is_sound(self) -> bool {
        !matches!(self, Joins::Count(0))
    }
}

fn chip(written: &written::Chip, numbers: &mut Numbers<'_>) -> Result<Chip, HardwareError> {
    Ok(Chip {
        name: written.name.clone(),
        vendor: match written.vendor {
            written::Vendor::Nvidia => Vendor::Nvidia,
            written::Vendor::Google => Vendor::Google,
        },
        memory: numbers.take("chip.memory", &written.memory)?,
        memory_bandwidth: numbers.take("chip.memory_bandwidth", &written.memory_bandwidth)?,
        peak: Peak {
            bf16: numbers.take("chip.peak.bf16", &written.peak.bf16)?,
            fp16: numbers.take_if("chip.peak.fp16", &written.peak.fp16)?,
            tf32: numbers.take_if("chip.peak.tf32", &written.peak.tf32)?,
            fp32: numbers.take_if("chip.peak.fp32", &written.peak.fp32)?,
            fp8: numbers.take_if("chip.peak.fp8", &written.peak.fp8)?,
        },
        cores: numbers.take("chip.cores", &written.cores)?,
        devices: numbers.take_if("chip.devices", &written.devices)?.unwrap_or(1),
        l2: numbers.take("chip.l2", &written.l2)?,
        compute_capability: numbers.take_if("chip.compute_capability", &written.compute_capability)?,
        power: numbers.take_if("chip.power", &written.power)?,
        clock: numbers.take_if("chip.clock", &written.clock)?,
        host_bandwidth: numbers.take("chip.host_bandwidth", &written.host_bandwidth)?,
    })
}

fn node(written: &written::Node, numbers: &mut Numbers<'_>) -> Result<Node, HardwareError> {
    Ok(Node {
        chips: numbers.take("node.chips", &written.chips)?,
        host_cores: numbers.take("node.host_cores", &written.host_cores)?,
        host_memory: numbers.take_if("node.host_memory", &written.host_memory)?,
        disk_read: numbers.take_if("node.disk_read", &written.disk_read)?,
        disk_write: numbers.take_if("node.disk_write", &written.disk_write)?,
        nics: numbers.take("node.nics", &written.nics)?,
        nic_bandwidth: numbers.take("node.nic_bandwidth", &written.nic_bandwidth)?,
    })
}

/// The levels, with their reach in chips; a torus has no axes until a slice is cut.
fn fabric(written: &Spanned<Vec<written::Level>>, numbers: &mut Numbers<'_>) -> Result<Vec<Level>, HardwareError> {
    let mut fabric: Vec<Level> = Vec::new();
    for level in written.get_ref() {
        let field = |field: &str| format!("fabric.{}.{field}", level.name);
        let inner = fabric.last().map_or(Reach::Chips(1), |inner| inner.reach);
        let reach = match (inner, numbers.take(&field("size"), &level.size)?) {
            (Reach::Chips(inner), Joins::Count(count)) => inner.checked_mul(count).map(Reach::Chips),
            (Reach::Chips(_), Joins::Unbounded) => Some(Reach::Unbounded),
            (Reach::Unbounded, _) => None,
        };
        let Some(reach) = reach else {
            let problem = format!("{} lies outside a level that joins all chips already: remove it", field("size"));
            return Err(numbers.at.place(&problem, level.size.value.span()));
        };
        let kind = match level.kind.get_ref() {
            written::Kind::Switch => LevelKind::Switch,
            written::Kind::Rails => LevelKind::Rails,
            written::Kind::Torus(_) if !fabric.is_empty() => {
                let problem = format!("the torus {:?} must be the innermost level: list it first", level.name);
                return Err(numbers.at.place(&problem, level.kind.span()));
            }
            written::Kind::Torus(torus) => {
                LevelKind::Torus { axes: Vec::new(), links: numbers.take(&field("links"), &torus.links)? }
            }
        };
        let oversubscription = oversubscription(level, &kind, &field("oversubscription"), numbers)?;
        fabric.push(Level {
            name: level.name.clone(),
            kind,
            reach,
            bandwidth: numbers.take(&field("bandwidth"), &level.bandwidth)?,
            latency: numbers.take(&field("latency"), &level.latency)?,
            oversubscription,
        });
    }
    outer_levels(written, &fabric, numbers.at)?;
    if fabric.is_empty() {
        return Err(numbers.at.place("fabric is empty: list at least one level", written.span()));
    }
    Ok(fabric)
}

/// A level's oversubscription, where the file gives one.
fn oversubscription(
    level: &written::Level,
    kind: &LevelKind,
    name: &str,
    numbers: &mut Numbers<'_>,
) -> Result<f64, HardwareError> {
    let Some(written) = &level.oversubscription else { return Ok(1.0) };
    let (ratio, at) = (*written.value.get_ref(), numbers.at);
    let wrong = |problem: String| Err(at.place(&problem, written.value.span()));
    if matches!(kind, LevelKind::Torus { .. }) {
        return wrong(format!("{name} is {ratio}, and a torus has no uplinks: remove it, or lower the bandwidth"));
    }
    if !(1.0..=MOST_OVERSUBSCRIBED).contains(&ratio) {
        return wrong(format!(
            "{name} is {ratio}: expected what the chips below can send over what their uplinks carry, from 1 (none) to \
             {MOST_OVERSUBSCRIBED}, such as 2.0"
        ));
    }
    numbers.take(name, written)
}

/// Levels beyond the network of cards: not too many, each of several instances of the one below, no rails outside a switch that
/// all chips of a node share, and none around slices of a torus.
fn outer_levels(written: &Spanned<Vec<written::Level>>, fabric: &[Level], at: At<'_>) -> Result<(), HardwareError> {
    let torus = fabric.first().is_some_and(|level| matches!(level.kind, LevelKind::Torus { .. }));
    for (index, (level, place)) in fabric.iter().zip(written.get_ref()).enumerate().skip(1) {
        let below = &fabric[index - 1];
        let name = &level.name;
        if fabric[..index].iter().any(|inner| inner.name == *name) {
            let problem = format!("two levels of the fabric are named {name:?}: give each a name of its own");
            return Err(at.place(&problem, place.kind.span()));
        }
        if index >= 2 + OUTER {
            let problem = format!(
                "fabric.{name} is level {} of the fabric: expected {} at most, so leave out levels that do not limit traffic",
                index + 1,
                2 + OUTER
            );
            return Err(at.place(&problem, place.kind.span()));
        }
        if torus && index >= 2 {
            let problem = format!(
                "fabric.{name} lies outside the network between slices, which is the last level that is simulated around a torus: \
                 remove it"
            );
            return Err(at.place(&problem, place.kind.span()));
        }
        if index >= 2 && level.kind == LevelKind::Rails && below.kind != LevelKind::Rails {
            let problem = format!(
                "fabric.{name} has rails, but fabric.{} below it is one switch for all chips of a node: write kind = \"switch\", or \
                 kind = \"rails\" for both",
                below.name
            );
            return Err(at.place(&problem, place.kind.span()));
        }
    }
    Ok(())
}

/// Costs know links inside a node and the network between nodes: the innermost switch joins the chips of a node, no more and no
/// fewer. A torus crosses nodes.
fn one_switch(written: &written::File, fabric: &[Level], chips: u32, at: At<'_>) -> Result<(), HardwareError> {
    let (Some(level), Some(size)) = (fabric.first(), written.fabric.get_ref().first()) else { return Ok(()) };
    let joined = match level.reach {
        _ if matches!(level.kind, LevelKind::Torus { .. }) => return Ok(()),
        Reach::Chips(joined) if joined == chips => return Ok(()),
        Reach::Chips(joined) => joined.to_string(),
        Reach::Unbounded => "\"unbounded\"".to_owned(),
    };
    let problem = format!(
        "fabric.{}.size is {joined} and node.chips is {chips}: only a node of as many chips as its switch joins is simulated: write \
         the same number in both",
        level.name
    );
    Err(at.place(&problem, size.size.value.span()))
}

/// Devices share a chip of a torus evenly.
fn even_devices(written: &written::File, chip: &Chip, fabric: &[Level], at: At<'_>) -> Result<(), HardwareError> {
    let Some(devices) = written.chip.devices.as_ref().filter(|_| chip.devices > 1) else { return Ok(()) };
    let wrong = |problem: String| Err(at.place(&problem, devices.value.span()));
    if !fabric.first().is_some_and(|level| matches!(level.kind, LevelKind::Torus { .. })) {
        return wrong(format!(
            "chip.devices is {}: only JAX shows a chip as several devices, on slices of a torus: remove it",
            chip.devices
        ));
    }
    if !chip.cores.is_multiple_of(chip.devices) {
        return wrong(format!(
            "chip.devices is {}, which do not share chip.cores = {} evenly: correct one of them",
            chip.devices, chip.cores
        ));
    }
    Ok(())
}

/// A slice that is sold.
struct Slice {
    name: String,
    axes: Vec<Axis>,
    chips: u32,
}

/// The slices sold: there are some exactly where the innermost level is a torus, and each fits into it.
fn slices(
    written: &[written::Slice],
    fabric: &Spanned<Vec<written::Level>>,
    per_node: u32,
    numbers: &mut Numbers<'_>,
) -> Result<Vec<Slice>, HardwareError> {
    let Some(innermost) = fabric.get_ref().first() else { return Ok(Vec::new()) };
    let is_torus = matches!(innermost.kind.get_ref(), written::Kind::Torus(_));
    if is_torus && written.is_empty() {
        let problem = format!("the torus {:?} has no slices: list them as [[slice]]", innermost.name);
        return Err(numbers.at.place(&problem, innermost.kind.span()));
    }
    let mut slices = Vec::new();
    for slice in written {
        let (shape, wraps) = (slice.shape.get_ref(), slice.wraps.get_ref());
        let name = shape.iter().map(u32::to_string).collect::<Vec<_>>().join("x");
        let at = numbers.at;
        let wrong = move |problem: String| at.place(&problem, slice.shape.span());
        if !is_torus {
            let problem = format!("the slice {name} needs a torus, and {:?} is none: remove it", innermost.name);
            return Err(wrong(problem));
        }
        if shape.len() != wraps.len() {
            let counts = format!("shape has {} axes but wraps has {}", shape.len(), wraps.len());
            return Err(wrong(format!("{counts}: give one true or false for each axis")));
        }
        let chips = shape.iter().try_fold(1_u32, |chips, &size| chips.checked_mul(size)).unwrap_or(u32::MAX);
        let limit = match *innermost.size.value.get_ref() {
            Joins::Count(limit) => limit,
            Joins::Unbounded => u32::MAX - 1,
        };
        if shape.is_empty() || chips == 0 || chips > limit {
            return Err(wrong(format!(
                "the slice {name} must hold from 1 to {limit} chips, the size of {:?}",
                innermost.name
            )));
        }
        if chips > per_node && !chips.is_multiple_of(per_node) {
            let problem = format!("the slice {name} has {chips} chips, which are not whole nodes of {per_node} chips");
            return Err(wrong(format!("{problem}: remove it, or correct node.chips")));
        }
        let axes: Vec<_> = shape.iter().zip(wraps).map(|(&size, &wraps)| Axis { size, wraps }).collect();
        numbers.note(&format!("slice.{name}"), &describe::rings(&axes), &slice.source)?;
        slices.push(Slice { name, axes, chips });
    }
    Ok(slices)
}

/// Sizes a machine that is sold in nodes.
fn count_nodes(name: &str, node: &Node, fabric: &[Level], size: &Size) -> Result<u32, HardwareError> {
    let name = name.to_owned();
    let chips_per_node = node.chips;
    let nodes = match size {
        Size::Smallest => 1,
        Size::Nodes(0) => return Err(HardwareError::NoNodes { name }),
        Size::Nodes(nodes) => *nodes,
        Size::Slice(slice) => {
            return Err(HardwareError::CountedNotSliced { name, chips_per_node, slice: slice.clone() });
        }
    };
    let limit = match fabric.last().map(|outermost| outermost.reach) {
        Some(Reach::Chips(limit)) => limit,
        Some(Reach::Unbounded) | None => u32::MAX,
    };
    match nodes.checked_mul(chips_per_node) {
        Some(chips) if chips <= limit => Ok(nodes),
        _ => Err(HardwareError::TooManyNodes { name, nodes, chips_per_node, limit }),
    }
}

/// Sizes a machine that is sold in slices: gives the torus its axes, and the node what is left of it in a small slice.
fn cut_slice(
    name: &str,
    (node, cores): (&mut Node, u32),
    fabric: &mut [Level],
    slices: &[Slice],
    size: &Size,
) -> Result<u32, HardwareError> {
    let name = name.to_owned();
    let known = slices.iter().map(|slice| slice.name.as_str()).collect::<Vec<_>>().join(", ");
    let asked = match size {
        Size::Smallest => slices.iter().min_by_key(|slice| slice.chips),
        Size::Slice(asked) => {
            let chips = devices::chips_of(&name, cores, asked.trim());
            slices.iter().find(|slice| slice.name == asked.trim() || Some(slice.chips) == chips)
        }
        Size::Nodes(nodes) => {
            let example = slices.last().map_or(String::new(), |slice| slice.name.clone());
            return Err(HardwareError::SlicedNotCounted { name, nodes: *nodes, example, known });
        }
    };
    let Some(slice) = asked else {
        let slice = if let Size::Slice(asked) = size { asked.clone() } else { String::new() };
        return Err(HardwareError::NoSuchSlice { name, slice, known });
    };
    if let Some(Level { kind: LevelKind::Torus { axes, .. }, reach, .. }) = fabric.first_mut() {
        (*axes, *reach) = (slice.axes.clone(), Reach::Chips(slice.chips));
    }
    // Above one node a slice is whole nodes; below, its node is what is left of one.
    let whole = node.chips;
    node.chips = whole.min(slice.chips);
    let part = |bytes: Bytes| Bytes((u128::from(bytes.0) * u128::from(node.chips) / u128::from(whole.max(1))) as u64);
    node.host_memory = node.host_memory.map(part);
    Ok(slice.chips / node.chips)
}
