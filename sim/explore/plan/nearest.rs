//! A request without an answer: what stands in the way, and the nearest request that has one.

use toml::Value;

use super::answer::OnSite;
use super::error::PlanError;
use super::request::Request;
use super::search::{Stop, Told, search};
use super::site::{Site, size};
use crate::explore::words::gib;
use crate::hardware::Topology;
use crate::scenario::predict::Floors;
use crate::units::{Bytes, thousands};

/// With which bounds nearer requests are searched, who is told, and whether to end.
type Asked<'a> = (&'a Floors, &'a Told<'a>, &'a Stop<'a>);

/// How often the size of a machine is doubled.
const DOUBLED: u32 = 6;

/// Why no plan does what is asked, with requests near it that have an answer.
pub(super) fn nothing(request: &Request, sites: &[OnSite], with: Asked<'_>) -> PlanError {
    let mut nearest = vec![];
    for (change, changed) in relaxed(request) {
        if nearest.len() < 3 && answers(&changed, with) {
            nearest.push(change);
        }
    }
    if let Some(larger) = sites.iter().find_map(|on| larger(request, &on.site, with)) {
        nearest.push(larger);
    }
    PlanError::Nothing { problem: sites.iter().map(why).collect::<Vec<_>>().join("\n"), nearest }
}

/// What became of the plans of a machine.
fn why(on: &OnSite) -> String {
    let (counts, title) = (&on.counts, on.site.title());
    let capacity = gib(on.site.machine.chip.memory);
    if counts.tried == 0 {
        return format!("no layout of {title} divides the model and the batch");
    }
    if counts.legal == 0 {
        let reasons = reasons(&on.refused);
        return format!("none of {} plans on {title} is legal{reasons}", thousands(counts.tried as u64));
    }
    let least =
        on.least.map_or(String::new(), |least| format!("; the smallest needs at least {} of {capacity}", gib(least)));
    format!("none of the {} legal plans on {title} fits{least}", counts.legal)
}

/// Reasons that are told one by one.
const TOLD: usize = 4;

/// Why plans were refused, the most frequent reasons first, and how many have another.
fn reasons(refused: &[(String, usize)]) -> String {
    let count = |count: usize| thousands(count as u64);
    let told = refused.iter().take(TOLD).map(|(why, plans)| format!("; of {}: {why}", count(*plans)));
    let rest: usize = refused.iter().skip(TOLD).map(|(_, plans)| plans).sum();
    let other = (rest > 0).then(|| format!("; of {}: other reasons, {} of them", count(rest), refused.len() - TOLD));
    told.chain(other).collect()
}

/// The request without one of its limits or one of the keys that it sets.
fn relaxed(request: &Request) -> Vec<(String, Request)> {
    let mut list = vec![];
    if request.limits.headroom > Bytes(0) {
        let mut without = request.clone();
        without.limits.headroom = Bytes(0);
        list.push(("without limits.headroom".to_owned(), without));
    }
    if request.limits.tp_inside_node {
        let mut without = request.clone();
        without.limits.tp_inside_node = false;
        list.push(("with limits.tp_inside_node = false".to_owned(), without));
    }
    for (at, (key, value)) in request.set.iter().enumerate() {
        let mut without = request.clone();
        without.set.remove(at);
        list.push((format!("without {key} = {value}"), without));
    }
    for (at, (key, _)) in request.vary.iter().enumerate() {
        let mut without = request.clone();
        without.vary.remove(at);
        list.push((format!("without values of its own for {key}"), without));
    }
    let chips = request.sites.iter().map(|site| site.ranks).max().unwrap_or(1);
    if !request.sequences.is_multiple_of(chips) {
        let mut rounded = request.clone();
        rounded.sequences = request.sequences.next_multiple_of(chips);
        list.push((format!("with global_batch = {}, in sequences", rounded.sequences), rounded));
    }
    list
}

/// Whether a request has a plan on one of its machines.
fn answers(request: &Request, (floors, told, stop): Asked<'_>) -> bool {
    let mut one = request.clone();
    one.top = 1;
    let fits = |site: &Site| !search((&one, site), floors, false, told, (stop, None)).plans.is_empty();
    request.sites.iter().any(fits)
}

/// More nodes of a machine on which a plan fits.
fn larger(request: &Request, site: &Site, with: Asked<'_>) -> Option<String> {
    let nodes = site.size.1.as_integer()?;
    (1..=DOUBLED).find_map(|doubled| {
        let more = Value::from(nodes.checked_shl(doubled)?);
        let (written, size) = size(&more, site.machine.node.chips)?;
        let machine = Topology::load(&site.name, &size).ok()?;
        let larger = Site::new(&site.name, written, machine, site.price.clone());
        let changed = Request { sites: vec![larger], ..request.clone() };
        let title = changed.sites[0].title();
        answers(&changed, with).then(|| format!("on {title}"))
    })
}
