//! Batched matmuls of rows that begin at no multiple of 16 bytes: their time over that of rows that do.
//!
//! `batched.csv` holds rates of attention's two products on A100, fp16, 2,048 tokens, PyTorch 1.13 (EleutherAI/cookbook
//! @e6b8f2bf4 and @62bd5adaf, `sizing/results/transformer_data/h_sweep.out`; arXiv 2401.14489): `matrices` products of
//! 2,048 × 2,048 × `head` numbers in all, where `head` is the length of a row. A head dimension that is no multiple of
//! eight is compared with the two multiples around it.
//!
//! H100 and H200 get A100's factors, carried over. Two published traces of H100 had no part in them (`steps.csv`, `steps.rs`): rows that
//! begin at multiples of 2 bytes take 2.3 to 3.2 times as long there as aligned ones are predicted to take.

use super::chips::ChipSpec;
use super::{evidence, fit};

const POINTS: &str = include_str!("batched.csv");

/// Rows of so many numbers, of two bytes each, are loaded 16 bytes at a time.
const WHOLE: u64 = 8;

/// A point: the product, how many, the head dimension, and the rate.
type Point<'a> = (&'a str, u64, u64, f64);

fn points() -> Vec<Point<'static>> {
    let read = |line: &'static str| {
        let mut fields = line.split(',');
        let mut next = || fields.next().unwrap_or_default();
        Some((next(), next().parse().ok()?, next().parse().ok()?, next().parse().ok()?))
    };
    POINTS.lines().skip(1).filter_map(read).collect()
}

/// For each point with rows of a multiple of `bytes`, and of no larger power of two, its time over an aligned one's.
fn ratios(points: &[Point<'_>], of: impl Fn(u64) -> bool) -> Vec<f64> {
    let rate = |product: &str, matrices: u64, head: u64| {
        let same: Vec<f64> =
            points.iter().filter(|p| (p.0, p.1, p.2) == (product, matrices, head)).map(|p| p.3).collect();
        (!same.is_empty()).then(|| fit::median(&same))
    };
    let ratio = |&(product, matrices, head, own): &Point<'_>| {
        let below = head - head % WHOLE;
        let share = (head - below) as f64 / WHOLE as f64;
        let [low, high] = [rate(product, matrices, below)?, rate(product, matrices, below + WHOLE)?];
        // Times of the same arithmetic, on the line between the neighbours.
        Some(((1.0 - share) / low + share / high).recip() / own)
    };
    points.iter().filter(|point| of(point.2)).filter_map(ratio).collect()
}

/// Chips that get A100's factors: their libraries' kernels for such rows are those of older chips (`cutlass_75`, `cutlass_80`).
const CARRIED_TO: [&str; 2] = ["h100", "h200"];
/// What a factor on another chip adds to its 90th percentile: assumed.
const CARRIED_OVER: f64 = 0.15;

/// The section `batched`; empty for chips of which nothing is known.
pub fn section(chip: &ChipSpec) -> String {
    let (basis, more, carried) = match chip.matmul {
        "a100" => ("published", 0.0, ""),
        name if CARRIED_TO.contains(&name) => ("extrapolated", CARRIED_OVER, ", carried over"),
        _ => return String::new(),
    };
    let points = points();
    let [four, two] = [
        ratios(&points, |head| head % WHOLE != 0 && head.is_multiple_of(2)),
        ratios(&points, |head| !head.is_multiple_of(2)),
    ];
    let middles = [&four, &two].map(|ratios| fit::rounded(fit::median(ratios)));
    let errors: Vec<f64> = [(&four, middles[0]), (&two, middles[1])]
        .iter()
        .flat_map(|(ratios, middle)| ratios.iter().map(|ratio| fit::error(*ratio, *middle)))
        .collect();
    let source = "EleutherAI/cookbook@e6b8f2bf4 and @62bd5adaf, h_sweep.out: A100 40 GB, PyTorch 1.13, scores and context \
                  of attention in fp16 at head dimensions 64 to 256, over the multiples of eight around them";
    format!(
        "[batched]\nby_4_bytes = {}\nby_2_bytes = {}\nevidence = {}\n\n",
        middles[0],
        middles[1],
        evidence(
            basis,
            errors.len(),
            fit::median(&errors) + more / 2.0,
            fit::quantile(&errors, 0.9) + more,
            &format!("{source}{carried}")
        )
    )
}

#[cfg(test)]
mod tests {
    use windtunnel::cost::Profile;
    use windtunnel::cost::sections::Sections;

    use super::super::chips::CHIPS;
    use super::section;

    #[test]
    fn the_shipped_profiles_hold_what_the_points_make() {
        for chip in &CHIPS {
            let shipped = Sections::of(&Profile::text(chip.name).expect("a shipped profile").1);
            let shipped = shipped.get("batched").map_or("", |section| section.text.trim());
            assert_eq!(shipped, section(chip).trim(), "{}", chip.name);
        }
    }
}
