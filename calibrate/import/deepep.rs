//! DeepEP's kernels in normal mode: constants of each way inside a node, and over several.
//!
//! deepep_normal_aic.csv.gz holds DeepEP's own tests, run by SGLang's containers: rows to experts are in fp8 with a scale
//! for every 128 numbers, rows back in bf16. Those on 20 processors are used, Megatron-Core's number. Inside a node 18
//! shapes are fitted, and errors are by leaving one of them out. Over several nodes there is one shape, of H100s, with NICs
//! of 400 Gbit/s; over eight nodes its times double from one size to the next, which are left out. H200's rows over
//! several nodes repeat H100's, so both profiles, and B200's, have H100's.

use std::collections::BTreeMap;

use windtunnel::program::{ExchangeLibrary, Rows, Way};

use super::chips::ChipSpec;
use super::tables::Tables;
use super::{ImportError, Residual, Section, evidence, fit};

const TABLE: &str = "deepep_normal_aic.csv.gz";

/// Numbers of processors that were measured inside a node.
const COUNTS: &[u64] = &[4, 8, 12, 16, 20, 24];
/// Megatron-Core's.
const OWN: u64 = 20;
/// Ranks of a node.
const NODE: u64 = 8;
/// Tokens from which on errors are stated.
const TOKENS: f64 = 1024.0;
/// Line rate of a GPU's NICs where several nodes were measured [B/s].
const RAIL: f64 = 50e9;

struct Point {
    shape: (u64, u64, u64),
    nodes: u64,
    tokens: f64,
    width: f64,
    reached: f64,
    out: f64,
    us: f64,
    notify: f64,
}

fn points(tables: &Tables, system: &str, way: &str) -> Result<Vec<Point>, ImportError> {
    let table = tables.get(TABLE)?;
    let mut all = vec![];
    for row in table.rows() {
        let whole = |column: &str| row.number(column).map(|value| value as u64);
        let (Some(nodes), Some(tokens), Some(hidden), Some(top_k), Some(experts), Some(us), Some(notify)) = (
            whole("node_num"),
            row.number("num_token"),
            whole("hidden_size"),
            whole("num_topk"),
            whole("num_experts"),
            row.number(&format!("{way}_transmit_us")),
            row.number(&format!("{way}_notify_us")),
        ) else {
            continue;
        };
        let newest = row.text("version") == if nodes == 1 { "0.5.12" } else { "0.5.0" };
        if row.text("system") != system || whole(&format!("{way}_sms")) != Some(OWN) || !newest {
            continue;
        }
        let width = if way == "dispatch" { hidden + hidden / 32 } else { 2 * hidden };
        let rows =
            Rows { way: Way::Dispatch, tokens: 1, experts, top_k, library: ExchangeLibrary::DeepEp, processors: None };
        let out = rows.reached(nodes) * (nodes - 1) as f64 / nodes as f64;
        let reached = rows.reached(NODE * nodes);
        all.push(Point {
            shape: (hidden, top_k, experts),
            nodes,
            tokens,
            width: width as f64,
            reached,
            out,
            us,
            notify,
        });
    }
    Ok(all)
}

/// Microseconds by the five constants of a node: launch, a token, a byte of it, a row, a byte of it.
fn model(constants: &[f64], point: &Point) -> f64 {
    let token = constants[1] + point.width * constants[2];
    let rows = point.reached * (constants[3] + point.width * constants[4]);
    constants[0] + point.tokens * token.max(rows)
}

fn fitted(points: &[&Point]) -> Vec<f64> {
    let loss = |constants: &[f64]| {
        points.iter().map(|point| libm::fabs(libm::log(model(constants, point) / point.us))).sum::<f64>()
    };
    fit::positive(&[30.0, 0.01, 6e-6, 0.004, 2.6e-6], 800, loss)
}

/// One way inside a node, and its errors.
fn inside(tables: &Tables, chip: &ChipSpec, way: &str) -> Result<(String, Residual), ImportError> {
    let all = points(tables, chip.fabric, way)?;
    let node: Vec<&Point> = all.iter().filter(|point| point.nodes == 1).collect();
    let mut shapes: BTreeMap<(u64, u64, u64), Vec<&Point>> = BTreeMap::new();
    for point in &node {
        shapes.entry(point.shape).or_default().push(point);
    }
    let mut errors = vec![];
    for (shape, left_out) in &shapes {
        let rest: Vec<&Point> = node.iter().copied().filter(|point| point.shape != *shape).collect();
        let constants = fitted(&rest);
        let large = left_out.iter().filter(|point| point.tokens >= TOKENS);
        errors.extend(large.map(|point| fit::error(model(&constants, point), point.us)));
    }
    let constants = fitted(&node);
    let rate = |at: usize| fit::rounded(1e-3 / constants[at]);
    let source = format!(
        "{TABLE} (ai-dynamo/aiconfigurator@095f58a51c4c), 20 processors, one node; errors from {TOKENS} tokens on by \
         leaving out one of {} shapes",
        shapes.len()
    );
    let residual = Residual::of(format!("deepep.{way}"), node.len(), &errors);
    let text = format!(
        "[deepep.{way}]\nlaunch = \"{} us\"\nper_token_ns = {}\ntoken = \"{} GB/s\"\nper_row_ns = {}\nrow = \"{} GB/s\"\n\
         evidence = {}\n\n",
        fit::rounded(constants[0]),
        fit::rounded(1e3 * constants[1]),
        rate(2),
        fit::rounded(1e3 * constants[3]),
        rate(4),
        evidence("published", residual.points, residual.median, residual.p90, &source)
    );
    Ok((text, residual))
}

/// Several nodes: rates inside each for both ways, launch, share of the NICs.
fn across(tables: &Tables) -> Result<(String, Residual), ImportError> {
    let ways = [points(tables, "h100_sxm", "dispatch")?, points(tables, "h100_sxm", "combine")?];
    let several =
        |at: usize| ways[at].iter().filter(|point| (2..=4).contains(&point.nodes)).map(move |point| (at, point));
    let all: Vec<(usize, &Point)> = several(0).chain(several(1)).collect();
    let model = |constants: &[f64], &(way, point): &(usize, &Point)| {
        let inner = point.reached * point.width * constants[1 + way];
        let outer = point.out * point.width * 1e6 / (constants[3] * RAIL);
        constants[0] + point.tokens * inner.max(outer)
    };
    let loss = |constants: &[f64]| {
        all.iter().map(|point| libm::fabs(libm::log(model(constants, point) / point.1.us))).sum::<f64>()
    };
    let constants = fit::positive(&[50.0, 4e-6, 4.8e-6, 0.9], 800, loss);
    let large = all.iter().filter(|point| point.1.tokens >= TOKENS);
    let errors: Vec<f64> = large.map(|point| fit::error(model(&constants, point), point.1.us)).collect();
    let notify: Vec<f64> =
        ways[0].iter().filter(|point| (2..=4).contains(&point.nodes)).map(|point| point.notify).collect();
    let residual = Residual::of("deepep.across", all.len(), &errors);
    let source = format!(
        "{TABLE} (ai-dynamo/aiconfigurator@095f58a51c4c), H100, 2 and 4 nodes, 20 processors, one shape; errors of the fit \
         from {TOKENS} tokens on"
    );
    let rate = |at: usize| fit::rounded(1e-3 / constants[at]);
    let text = format!(
        "[deepep.across]\nnodes = 4\nlaunch = \"{} us\"\nnotify = \"{} us\"\ndispatch = \"{} GB/s\"\ncombine = \"{} GB/s\"\n\
         efficiency = {}\nevidence = {}\n",
        fit::rounded(constants[0]),
        fit::rounded(fit::median(&notify)),
        rate(1),
        rate(2),
        fit::rounded(constants[3].min(1.0)),
        evidence("published", residual.points, residual.median, residual.p90, &source)
    );
    Ok((text, residual))
}

/// How much longer a node's rows take on other numbers of processors than Megatron-Core's, in the median over shapes, and how far shapes
/// lie from it.
fn processors(tables: &Tables, chip: &ChipSpec) -> Result<(String, Residual), ImportError> {
    let ways = [tables_on(tables, chip, "dispatch")?, tables_on(tables, chip, "combine")?];
    let (mut errors, mut columns) = (vec![], vec![]);
    for times in &ways {
        let mut column = vec![];
        for &count in COUNTS {
            let ratios: Vec<f64> = times
                .iter()
                .filter(|((of, _), _)| *of == count)
                .filter_map(|((_, shape), us)| times.get(&(OWN, *shape)).map(|own| us / own))
                .collect();
            let median = fit::median(&ratios);
            errors.extend(ratios.iter().map(|ratio| fit::error(median, *ratio)));
            column.push(fit::rounded(median).to_string());
        }
        columns.push(column.join(", "));
    }
    let points = ways.iter().map(BTreeMap::len).sum();
    let residual = Residual::of("deepep.processors", points, &errors);
    let counts = COUNTS.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let source = format!(
        "{TABLE} (ai-dynamo/aiconfigurator@095f58a51c4c), one node, over the time on {OWN} processors, from {TOKENS} tokens on; errors of \
         shapes from their median"
    );
    let text = format!(
        "[deepep.processors]\ncount = [{counts}]\ndispatch = [{}]\ncombine = [{}]\nevidence = {}\n\n",
        columns[0],
        columns[1],
        evidence("published", residual.points, residual.median, residual.p90, &source)
    );
    Ok((text, residual))
}

/// Hidden size, top-k, experts, tokens.
type Shape = (u64, u64, u64, u64);

/// Microseconds of a way inside a node, by processors and shape.
fn tables_on(tables: &Tables, chip: &ChipSpec, way: &str) -> Result<BTreeMap<(u64, Shape), f64>, ImportError> {
    let table = tables.get(TABLE)?;
    let mut times = BTreeMap::new();
    for row in table.rows().filter(|row| row.text("system") == chip.fabric && row.text("version") == "0.5.12") {
        let whole = |column: &str| row.number(column).map(|value| value as u64);
        let numbers = ["hidden_size", "num_topk", "num_experts", "num_token"].map(whole);
        let [Some(hidden), Some(top_k), Some(experts), Some(tokens)] = numbers else { continue };
        let (Some(1), Some(count), Some(us)) =
            (whole("node_num"), whole(&format!("{way}_sms")), row.number(&format!("{way}_transmit_us")))
        else {
            continue;
        };
        if tokens as f64 >= TOKENS {
            times.insert((count, (hidden, top_k, experts, tokens)), us);
        }
    }
    Ok(times)
}

/// The section `deepep`; none for chips that DeepEP does not run on, or nobody measured it on.
pub fn section(tables: &Tables, chip: &ChipSpec) -> Result<Option<Section>, ImportError> {
    if !["h100_sxm", "h200_sxm", "b200_sxm"].contains(&chip.fabric) || chip.derived {
        return Ok(None);
    }
    let parts = [
        inside(tables, chip, "dispatch")?,
        inside(tables, chip, "combine")?,
        processors(tables, chip)?,
        across(tables)?,
    ];
    let (texts, residuals): (Vec<String>, Vec<Residual>) = parts.into_iter().unzip();
    Ok(Some(Section { text: texts.concat(), residuals }))
}
