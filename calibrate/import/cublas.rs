//! Older cuBLAS on Hopper: its time over the table's at the same shape.
//!
//! `cublas.csv` holds the single points that are public; the release after a point's own, of which nothing is known,
//! gets the same factor.

use std::fmt::Write as _;

use super::chips::ChipSpec;
use super::tables::Tables;
use super::{ImportError, evidence};

const POINTS: &str = include_str!("cublas.csv");

/// What is known of batched matmuls on A100 in the year before CUDA 11.7.
const UNALIGNED: &str = "bf16: as the measured release, nobody compared them. \
                         batched: attention that is not fused, rows of 197 numbers, takes 1.23 times as long backward in fp16 as in fp32 on \
                         A100 (facebookresearch/xformers#587, 2260.9 and 1841.9 us): no \
                         tensor cores; carried over to rows of multiples of 4 and 8 bytes and to this release";

/// The entries `[[cublas]]`; empty for chips of which nothing is known.
pub fn section(tables: &Tables, chip: &ChipSpec) -> Result<String, ImportError> {
    let mut text = String::new();
    if chip.matmul == "a100" {
        let e = evidence("extrapolated", 1, 0.25, 0.5, UNALIGNED);
        let _ = write!(
            text,
            "[[cublas]]\nversions = [\"11.5\"]\nbf16 = 1.0000\nunaligned_batched = \"fp32\"\nevidence = {e}\n\n"
        );
    }
    if !matches!(chip.matmul, "h100" | "h200") {
        return Ok(text);
    }
    let table = tables.get("gemm_h100.csv.gz")?;
    for line in POINTS.lines().skip(1) {
        let fields: Vec<&str> = line.splitn(8, ',').collect();
        let [_, version, carried, m, n, k, rate, source] = fields[..] else {
            return Err(table.error("calibrate/import/cublas.csv has a line without eight fields"));
        };
        let same = |row: &super::tables::Row<'_>| {
            row.text("dtype") == "bfloat16" && [("m", m), ("n", n), ("k", k)].iter().all(|(c, v)| row.text(c) == *v)
        };
        let now = table.rows().find(same).and_then(|row| row.number("tflops"));
        let (Some(now), Ok(then)) = (now, rate.parse::<f64>()) else {
            return Err(table.error(&format!("no row for {m} x {n} x {k}, which cublas.csv compares with")));
        };
        let source = format!("{source}, over gemm_h100.csv.gz at the same shape; {carried}: as {version}");
        let _ = write!(
            text,
            "[[cublas]]\nversions = [\"{version}\", \"{carried}\"]\nbf16 = {:.4}\nevidence = {}\n\n",
            now / then,
            evidence("extrapolated", 1, 0.03, 0.08, &source)
        );
    }
    Ok(text)
}
