//! Collectives on a torus: what the few published runs say about a link, a sum, a hop, and the network between slices
//! (tpu_collectives.csv).

use super::super::tables::{Row, Tables};
use super::super::{ImportError, Section, evidence};
use super::Tpu;

/// Links of v7x that a chip of a 2x2 grid has \[GB/s\], one direction: 1200 GB/s both ways over six (hw_specs.csv).
const V7X_GRID: f64 = 2.0 * 100.0;
/// All four links of v6e \[GB/s\], one direction.
const V6E_LINKS: f64 = 4.0 * 90.0;
/// A v6e chip's share of its host's NICs \[GB/s\].
const V6E_NIC: f64 = 12.5;

/// The section `collectives`.
pub fn section(tables: &Tables, tpu: &Tpu) -> Result<Section, ImportError> {
    let table = tables.get("tpu_collectives.csv")?;
    let rate = |what: &str, wanted: &dyn Fn(&Row<'_>) -> bool| {
        let found = table.rows().find(wanted).and_then(|row| row.number("GBps"));
        found.ok_or_else(|| table.error(&format!("no bandwidth of {what}")))
    };
    let op = |slice: &'static str, op: &'static str, bytes: &'static str| {
        move |row: &Row<'_>| {
            row.text("slice").starts_with(slice)
                && row.text("op").starts_with(op)
                && row.text("bytes").starts_with(bytes)
        }
    };
    let gathered = rate("v7x's all-gather", &op("v7x 2x2x1", "all_gather", "67108864"))?;
    let reduced = rate("v6e's psum in a pod", &op("v6e-256", "psum over all chips", ""))?;
    let between = rate("v6e's psum between slices", &op("2x v6e-256", "psum over DCN", ""))?;
    let efficiency = gathered / V7X_GRID;
    // An all-reduce is a reduce-scatter and an all-gather of the same bytes: the one takes what the other leaves.
    // Sums are read from and written to memory.
    let adds = tpu.bandwidth / 1638.0 / (2.0 / reduced - 1.0 / (V6E_LINKS * efficiency));
    let share = between / V6E_NIC;
    let on_chip = tpu.on_chip.map_or(String::new(), |rate| format!("on_chip = \"{rate} GB/s\"\n"));
    let basis = if tpu.derived { "extrapolated" } else { "published" };
    let inside = "tpu_collectives.csv: efficiency from all-gathers of 64 MiB on v7x 2x2x1 (0.89; ppermute on v6e-8 0.96, all-gather on \
                  rings of 16 v5e 0.95), adds from a psum on v6e 16x16 (236 of 360 GB/s), hop and floor from ppermute on v6e-8";
    let outside = "tpu_collectives.csv: psum of 303 MB a chip between two v6e-256, 4.1 of 12.5 GB/s; latency assumed";
    let text = format!(
        "[collectives]\nlink = \"{} GB/s\"\n\n[collectives.torus]\nlinks = {}\n{on_chip}efficiency = {efficiency:.4}\n\
         adds = \"{adds:.1} GB/s\"\nhop = \"2.3 us\"\nfloor = \"3.4 us\"\nevidence = {}\n\n\
         [collectives.torus.slices]\nnic = \"{} GB/s\"\nefficiency = {share:.4}\nlatency = \"50 us\"\nevidence = {}\n",
        f64::from(tpu.links) * tpu.link,
        tpu.links,
        evidence(basis, 4, 0.12, if tpu.derived { 0.4 } else { 0.3 }, inside),
        tpu.nic,
        evidence(basis, 1, 0.25, 0.6, outside),
    );
    Ok(Section { text, residuals: Vec::new() })
}
