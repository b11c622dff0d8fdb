//! Machines of a request, as written and at their sizes.

use serde::Deserialize;
use toml::{Spanned, Value};

use super::error::PlanError;
use super::site::{self, Site};
use crate::explore::prices::{self, Price};
use crate::hardware::{Size, Topology, Vendor};
use crate::near::did_you_mean;
use crate::scenario::relative;

/// A machine of a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Machine {
    /// A shipped name, or the path of a topology file.
    name: Spanned<String>,
    /// Its size, or several to try: nodes, chips of whole nodes (`"128gpus"`), or slices of a TPU pod.
    size: Option<Spanned<Value>>,
    /// What a chip costs for an hour, such as `"2.99 USD"`.
    price: Option<Spanned<String>>,
}

/// The most nodes that are tried where a request gives no size.
const MOST_NODES: u32 = 4_096;

/// The most machines with a size that a request may name: a catalogue of every cloud has fewer.
const MOST_SITES: usize = 1_000;

/// The machines of a request at their sizes, with what a chip costs; `most` chips where a machine has no size.
pub(super) fn sites(
    file: &str,
    machines: &[Machine],
    (prices, most): (&[Price], Option<u64>),
    money: Option<&(f64, String)>,
    notes: &mut Vec<String>,
) -> Result<Vec<Site>, PlanError> {
    if machines.is_empty() {
        return Err(PlanError::request("the request names no machine", "write [[machine]] with name and size"));
    }
    let mut sites = vec![];
    let many = || {
        let problem = format!("the request names more than {MOST_SITES} machines, each of its sizes counted");
        PlanError::request(problem, "ask in several requests")
    };
    if machines.len() > MOST_SITES {
        return Err(many());
    }
    for machine in machines {
        let name = relative(file, machine.name.get_ref());
        let load = |size: &Size| {
            Topology::load(&name, size).map_err(|error| PlanError::Unknown(format!("machine {name:?}: {error}")))
        };
        let least = load(&Size::Smallest)?;
        let price = match &machine.price {
            None => prices::own(&least).or_else(|| prices.iter().find(|price| price.machine == least.name).cloned()),
            Some(at) => {
                let (per_chip_hour, currency) = prices::written(at.get_ref()).ok_or_else(|| {
                    let problem = format!("the price {:?} of {name} is no amount of money", at.get_ref());
                    PlanError::request(problem, "write price = \"2.99 USD\", for one chip and one hour")
                })?;
                let (date, source) = (String::new(), "the request".to_owned());
                Some(Price { machine: least.name.clone(), per_chip_hour, currency, date, source })
            }
        };
        if let (Some((_, asked)), Some(known)) = (money, &price)
            && *asked != known.currency
        {
            let problem = format!("limits.money is in {asked}, and the price of {} in {}", least.name, known.currency);
            return Err(PlanError::request(problem, "write both in one currency"));
        }
        let written: Vec<Value> = match machine.size.as_ref().map(Spanned::get_ref) {
            Some(Value::Array(sizes)) => sizes.clone(),
            Some(one) => vec![one.clone()],
            None => sizes_within(&least, most)?,
        };
        if machine.size.is_none() {
            let sizes: Vec<String> = written.iter().map(Value::to_string).collect();
            notes.push(format!("{} has no size: {} are tried", least.name, sizes.join(", ")));
        }
        if sites.len() + written.len() > MOST_SITES {
            return Err(many());
        }
        for size in written {
            let (written, size) = site::size(&size, least.node.chips).ok_or_else(|| {
                let problem = format!("{size} is no size of {name}, whose nodes have {} chips", least.node.chips);
                let remedy = "write size = 16, in nodes, \"16nodes\", \"128gpus\", which whole nodes have, or \"16x16\", a slice of a TPU pod";
                PlanError::request(problem, remedy)
            })?;
            sites.push(Site::new(machine.name.get_ref(), written, load(&size)?, price.clone()));
        }
    }
    if let (Some(_), Some(site)) = (money, sites.iter().find(|site| site.price.is_none())) {
        let hint = did_you_mean(&site.machine.name, prices.iter().map(|price| price.machine.as_str()));
        let problem = format!("limits.money asks what {} costs, and it has no price{hint}", site.machine.name);
        return Err(PlanError::request(problem, "write its price, such as --price 2.99"));
    }
    Ok(sites)
}

/// Nodes in powers of two, as many as a budget of chips allows.
fn sizes_within(machine: &Topology, most: Option<u64>) -> Result<Vec<Value>, PlanError> {
    let Some(most) = most else {
        let problem = format!("{} has no size, and the request no budget of chips", machine.name);
        return Err(PlanError::request(problem, "write size = 16, in nodes, or limits.chips = 1024"));
    };
    if machine.chip.vendor == Vendor::Google {
        let problem = format!("{} is rented as slices, and the request names none", machine.name);
        return Err(PlanError::request(problem, "write size = [\"4x8\", \"8x8\"]"));
    }
    let per_node = u64::from(machine.node.chips);
    let nodes: Vec<Value> = std::iter::successors(Some(1_u32), |nodes| nodes.checked_mul(2))
        .take_while(|&nodes| nodes <= MOST_NODES && u64::from(nodes) * per_node <= most)
        .map(|nodes| Value::from(i64::from(nodes)))
        .collect();
    if nodes.is_empty() {
        let problem = format!("limits.chips = {most} is less than one node of {}, which has {per_node}", machine.name);
        return Err(PlanError::request(problem, format!("write limits.chips = {per_node} or more")));
    }
    Ok(nodes)
}
