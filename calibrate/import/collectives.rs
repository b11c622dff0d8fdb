//! Collectives: curves inside a node, and ring, tree and all-to-all across nodes fitted to nccl-tests logs.
//!
//! Curves are medians over repetitions of the newest NCCL in collectives_nccl_single_node.csv.gz (half precision);
//! their error is by leaving out one size at a time. Across nodes one set of protocol constants is fitted to all sites
//! whose NICs run at line rate; its error is by leaving out one site and shape (nodes, ranks) at a
//! time, over transfers above 1 MB.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use windtunnel::cost::Evidence;
use windtunnel::cost::basis::Basis;
use windtunnel::cost::collective::Protocols;
use windtunnel::cost::lines::Lines;
use windtunnel::units::Time;

use super::chips::ChipSpec;
use super::tables::Tables;
use super::{ImportError, Residual, Section, evidence, fit};

const OPS: [(&str, &str); 4] = [
    ("all_gather", "all_gather"),
    ("reduce_scatter", "reduce_scatter"),
    ("all_reduce", "all_reduce"),
    ("all_to_all", "alltoall"),
];

/// Median time \[us\] by size of one collective in a node.
fn node(tables: &Tables, system: &str, op: &str, ranks: u32) -> Result<BTreeMap<u64, f64>, ImportError> {
    let table = tables.get("collectives_nccl_single_node.csv.gz")?;
    let newest = if system == "a100_sxm" { "2.27.3" } else { "2.29.2" };
    let mut all: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for row in table.rows() {
        if row.text("system") == system
            && row.text("op") == op
            && row.text("dtype") == "half"
            && row.text("nccl_version") == newest
            && row.number("num_gpus") == Some(f64::from(ranks))
            && let (Some(bytes), Some(us)) = (row.number("bytes"), row.number("time_us"))
        {
            all.entry(bytes as u64).or_default().push(us);
        }
    }
    if all.len() < 8 {
        return Err(table.error(&format!("only {} sizes of {op} on {ranks} GPUs of {system}", all.len())));
    }
    Ok(all.into_iter().map(|(bytes, times)| (bytes, fit::median(&times))).collect())
}

/// Errors of reading each size from its neighbours.
fn interpolation_errors(points: &BTreeMap<u64, f64>) -> Vec<f64> {
    let all: Vec<(f64, f64)> = points.iter().map(|(bytes, us)| (*bytes as f64, *us)).collect();
    (1..all.len() - 1)
        .filter_map(|out| {
            let rest: Vec<_> = all.iter().enumerate().filter(|(at, _)| *at != out).map(|(_, p)| *p).collect();
            let curve = Lines::new(&rest).ok()?;
            Some(fit::error(curve.seconds(all[out].0), all[out].1))
        })
        .collect()
}

/// Bus bandwidth \[GB/s\] of the largest size.
fn peak(points: &BTreeMap<u64, f64>, f: f64) -> f64 {
    points.last_key_value().map_or(1.0, |(bytes, us)| *bytes as f64 * f / us / 1e3)
}

/// Bus bandwidth of what the largest transfer has more than half of it \[GB/s\].
fn slope(points: &BTreeMap<u64, f64>, f: f64) -> f64 {
    let last = points.last_key_value();
    let more = last.and_then(|(bytes, us)| points.get(&(bytes / 2)).map(|less| (*bytes as f64 / 2.0, us - less)));
    more.map_or(1.0, |(bytes, us)| bytes * f / us / 1e3)
}

/// A site: name in the table, chip, rate of one GPU's NICs \[GB/s\]: the line rate, or what the site's own `ib_write_bw`
/// reached (Vultr: 39.5–45 GB/s).
const SITES: [(&str, &str, f64); 7] = [
    ("xxrjun example-cluster01", "h100_sxm", 50.0),
    ("GCP GKE DWS flex-start", "h200_sxm", 50.0),
    ("GCP GKE", "b200_sxm", 50.0),
    ("Vultr HGX B200 POC", "b200_sxm", 42.5),
    ("Nebius", "h100_sxm", 50.0),
    ("Lambda 1-Click cluster", "b200_sxm", 50.0),
    ("GCP A4", "b200_sxm", 50.0),
];

/// Transfers whose error is stated \[B\].
const LARGE: f64 = 1e6;

/// One multi-node point.
struct Point {
    site: usize,
    ranks: f64,
    nodes: f64,
    x: f64,
    bandwidth: f64,
    seconds: f64,
}

/// Shares of line rate and of the node's peak that rings keep (fits_rail_scaling.csv).
struct Rails {
    efficiency: f64,
    inside: f64,
}

fn rails(tables: &Tables) -> Result<Rails, ImportError> {
    let table = tables.get("fits_rail_scaling.csv")?;
    let ring = |op: &str, column: &str| {
        table
            .rows()
            .find(|row| row.text("op") == op)
            .and_then(|row| row.number(column))
            .ok_or_else(|| table.error(&format!("no {op} at {column} GPUs a node")))
    };
    let mut per_rail = Vec::new();
    for op in ["all_gather", "reduce_scatter", "all_reduce"] {
        for (column, g) in [("1", 1.0), ("2", 2.0), ("4", 4.0)] {
            per_rail.push(ring(op, column)? / g / 50.0);
        }
    }
    let node_peak = peak(&node(tables, "h100_sxm", "all_gather", 8)?, 7.0 / 8.0);
    let inside = ring("all_gather", "8")?.min(ring("reduce_scatter", "8")?) / node_peak;
    Ok(Rails { efficiency: fit::rounded(fit::median(&per_rail)), inside: fit::rounded(inside) })
}

/// Bus bandwidth across nodes as the cost model has it [B/s].
fn bandwidth(op: &str, g: f64, nodes: f64, rail: f64, inside: [f64; 2]) -> f64 {
    let n = g * nodes;
    let f = if op == "all_reduce" { 2.0 } else { 1.0 } * (n - 1.0) / n;
    match op {
        // All chips of these sites reduce in the switch of a node, where several of them take part.
        "all_reduce" if nodes <= 2.0 && g >= 2.0 => (rail * f * g / (2.0 * (nodes - 1.0) / nodes)).min(inside[1]),
        "alltoall" => (rail * (n - 1.0) / (n - g)).min(inside[0]),
        _ => (g * rail).min(inside[0]),
    }
}

fn points(tables: &Tables, ops: &[&str], rails: &Rails) -> Result<Vec<Point>, ImportError> {
    let table = tables.get("collectives_nccltests_logs.csv.gz")?;
    let mut groups: BTreeMap<(usize, String, u64, u64, u64), Vec<f64>> = BTreeMap::new();
    for row in table.rows() {
        let Some(site) = SITES.iter().position(|(name, ..)| *name == row.text("site")) else { continue };
        let (Some(nodes), Some(n), Some(bytes), Some(us)) =
            (row.number("nodes"), row.number("num_gpus"), row.number("bytes"), row.number("time_us"))
        else {
            continue;
        };
        if ops.contains(&row.text("op")) && nodes >= 2.0 && n >= nodes && bytes >= 256.0 && us > 0.0 {
            let key = (site, row.text("op").to_owned(), nodes as u64, n as u64, bytes as u64);
            groups.entry(key).or_default().push(us * 1e-6);
        }
    }
    let mut peaks = BTreeMap::new();
    for (_, system, _) in SITES {
        let gather = peak(&node(tables, system, "all_gather", 8)?, 7.0 / 8.0) * 1e9 * rails.inside;
        let reduce = slope(&node(tables, system, "all_reduce", 8)?, 7.0 / 4.0) * 1e9;
        peaks.insert(system, [gather, reduce]);
    }
    Ok(groups
        .into_iter()
        .map(|((site, op, nodes, n, bytes), times)| {
            let (n, nodes) = (n as f64, nodes as f64);
            let (_, system, line) = SITES[site];
            let g = n / nodes;
            // A node's own limit binds only where several GPUs of it take part.
            let inside = if g >= 2.0 { peaks[system] } else { [f64::INFINITY; 2] };
            let f = if op == "all_reduce" { 2.0 } else { 1.0 } * (n - 1.0) / n;
            Point {
                site,
                ranks: n,
                nodes,
                x: bytes as f64 * f,
                bandwidth: bandwidth(&op, g, nodes, line * 1e9 * rails.efficiency, inside),
                seconds: fit::median(&times),
            }
        })
        .collect())
}

fn protocols(p: &[f64]) -> Protocols {
    Protocols {
        nodes: 1,
        evidence: Evidence { basis: Basis::Published, source: String::new(), points: 0, median: 0.0, p90: 0.0 },
        per_rank: Time::from_seconds(fit::rounded(p[0])),
        per_node: Time::from_seconds(fit::rounded(p[1])),
        low_share: fit::rounded(p[2]).min(1.0),
        middle_floor: fit::rounded(p[3]).max(1.0),
        middle_share: fit::rounded(p[4]).min(1.0),
        simple_floor: fit::rounded(p[5]).max(1.0),
    }
}

fn predicted(p: &Protocols, tree: bool, point: &Point) -> f64 {
    let floor = if tree { p.tree_floor(point.nodes) } else { p.ring_floor(point.ranks, point.nodes) };
    p.seconds(floor, point.x, point.bandwidth)
}

fn fit_protocols(points: &[&Point], tree: bool) -> Protocols {
    let start = if tree { [20e-6, 13e-6, 0.08, 1.5, 0.4, 4.0] } else { [1.2e-6, 12e-6, 0.12, 1.4, 0.5, 3.0] };
    let best = fit::positive(&start, 300, |p| {
        let protocols = protocols(p);
        let loss: f64 =
            points.iter().map(|point| libm::fabs(libm::log(predicted(&protocols, tree, point) / point.seconds))).sum();
        // A weak pull towards the start settles what too few sites leave open.
        let pull: f64 = p.iter().zip(&start).map(|(v, s)| libm::pow(libm::log(v / s), 2.0)).sum();
        loss + 0.2 * pull
    });
    protocols(&best)
}

fn write_protocols(
    text: &mut String,
    residuals: &mut Vec<Residual>,
    name: &str,
    points: &[Point],
    tree: bool,
    extrapolated: bool,
) {
    let all: Vec<&Point> = points.iter().collect();
    let fitted = fit_protocols(&all, tree);
    let mut errors = Vec::new();
    let group = |p: &Point| (p.site, p.nodes as u64, p.ranks as u64);
    let mut groups: Vec<_> = points.iter().map(group).collect();
    groups.sort_unstable();
    groups.dedup();
    for &out in &groups {
        let rest: Vec<&Point> = points.iter().filter(|p| group(p) != out).collect();
        let without = fit_protocols(&rest, tree);
        let left = points.iter().filter(|p| group(p) == out && p.x >= LARGE);
        errors.extend(left.map(|p| fit::error(predicted(&without, tree, p), p.seconds)));
    }
    let mut sites: Vec<usize> = groups.iter().map(|group| group.0).collect();
    sites.dedup();
    let nodes = groups.iter().map(|group| group.1).max().unwrap_or(1);
    let (median, p90) = (fit::median(&errors), fit::quantile(&errors, 0.9));
    let names: Vec<&str> = sites.iter().map(|&site| SITES[site].0).collect();
    let source = format!(
        "collectives_nccltests_logs.csv.gz: {}; errors above 1 MB by leaving out one site and shape at a time",
        names.join(", ")
    );
    let basis = if extrapolated { "extrapolated" } else { "published" };
    let _ = write!(
        text,
        "[collectives.across.{name}]\nnodes = {nodes}\nper_rank = \"{:.3} us\"\nper_node = \"{:.3} us\"\nlow_share = {}\n\
         middle_floor = {}\nmiddle_share = {}\nsimple_floor = {}\nevidence = {}\n\n",
        fitted.per_rank.micros(),
        fitted.per_node.micros(),
        fitted.low_share,
        fitted.middle_floor,
        fitted.middle_share,
        fitted.simple_floor,
        evidence(basis, points.len(), median, p90, &source)
    );
    residuals.push(Residual { section: format!("across nodes: {name}"), points: points.len(), median, p90 });
}

/// The section `collectives`.
pub fn section(tables: &Tables, chip: &ChipSpec) -> Result<Section, ImportError> {
    let mut text = String::new();
    let mut residuals = Vec::new();
    let mut errors = Vec::new();
    let mut curves = String::new();
    let mut sizes: Option<Vec<u64>> = None;
    for (name, op) in OPS {
        let _ = writeln!(curves, "{name} = [");
        for ranks in [2, 4, 8] {
            let points = node(tables, chip.fabric, op, ranks)?;
            errors.extend(interpolation_errors(&points));
            let sizes = sizes.get_or_insert_with(|| points.keys().copied().collect());
            let own: Vec<(f64, f64)> = points.iter().map(|(bytes, us)| (*bytes as f64, *us)).collect();
            let curve = Lines::new(&own).map_err(|why| ImportError::Table { path: op.to_owned(), why })?;
            let us: Vec<f64> = sizes.iter().map(|bytes| fit::rounded(curve.seconds(*bytes as f64))).collect();
            let _ = writeln!(curves, "  {{ ranks = {ranks}, us = {us:?} }},");
        }
        curves.push_str("]\n");
    }
    let (median, p90) = (fit::median(&errors), fit::quantile(&errors, 0.9));
    residuals.push(Residual { section: "collectives in a node".to_owned(), points: errors.len(), median, p90 });
    let rails = rails(tables)?;
    // Another chip behind the same switches: 5 % further off, assumed.
    let (basis, p90) = match chip.fabric == chip.system {
        true if !chip.derived => ("published", p90),
        true => ("extrapolated", p90),
        false => ("extrapolated", p90 + 0.05),
    };
    let _ = write!(
        text,
        "[collectives]\nlink = \"{} GB/s\"\n\n[collectives.node]\nevidence = {}\nbytes = {:?}\n{curves}\n\
         [collectives.node.pair]\nlatency = \"7 us\" # assumed: half of a two-rank all-gather's floor and a kernel\n\
         bandwidth = \"{} GB/s\"\nevidence = {}\n\n\
         [collectives.across]\nrail = \"{} Gbit/s\"\nefficiency = {}\ninside = {}\n\n",
        chip.link,
        evidence(
            basis,
            errors.len(),
            median,
            p90,
            "collectives_nccl_single_node.csv.gz (half, newest NCCL, median of repetitions); errors by leaving out one size"
        ),
        sizes.unwrap_or_default(),
        chip.pair,
        evidence("published", 1, 0.05, 0.25, "memory_bandwidth.csv: peer to peer, one direction"),
        chip.rail,
        rails.efficiency,
        rails.inside,
    );

    let other = chip.derived || chip.fabric == "a100_sxm" || chip.fabric != chip.system;
    let ring = points(tables, &["all_gather", "reduce_scatter"], &rails)?;
    write_protocols(&mut text, &mut residuals, "ring", &ring, false, other);
    let tree = points(tables, &["all_reduce"], &rails)?;
    write_protocols(&mut text, &mut residuals, "tree", &tree, true, other);
    let exchange = points(tables, &["alltoall"], &rails)?;
    write_protocols(&mut text, &mut residuals, "all_to_all", &exchange, false, other);
    Ok(Section { text: text.trim_end().to_owned() + "\n", residuals })
}
