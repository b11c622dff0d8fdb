//! Hybrid-EP's rates inside an NVLink domain.
//!
//! `hybrid_ep.csv` holds the rates that its authors publish for GB200 (deepseek-ai/DeepEP, branch `hybrid-ep`,
//! `docs/README_Hybrid-EP.md`@41cad9444): 4,096 tokens of 7,168 numbers in bf16, 8 of 8 experts a rank, 16 processors, the whole call as
//! PyTorch sees it. B200's links are GB200's; over 8 ranks B200 is published at 536 and 531 GB/s, within 3 % of it.

use super::chips::ChipSpec;
use super::{Residual, Section, evidence, fit};

const RATES: &str = include_str!("hybrid_ep.csv");
/// Bytes of a row that was measured.
const ROW: u64 = 7168 * 2;

/// Ranks, and the rates of dispatch and of combine \[GB/s\].
fn rates() -> Vec<[f64; 3]> {
    let read = |line: &str| {
        let mut fields = line.split(',').map(str::parse);
        let mut next = || fields.next()?.ok();
        Some([next()?, next()?, next()?])
    };
    RATES.lines().skip(1).filter_map(read).collect()
}

/// The section `hybridep`; none for chips that nobody measured.
pub fn section(chip: &ChipSpec) -> Option<Section> {
    if chip.fabric != "b200_sxm" || chip.derived {
        return None;
    }
    let rates = rates();
    // Each but the first and the last from its neighbours, on the line between them.
    let between = |around: &[[f64; 3]], way: usize| {
        let [low, own, high] = [around[0], around[1], around[2]];
        let line = low[way] + (high[way] - low[way]) * (own[0] - low[0]) / (high[0] - low[0]);
        line / own[way] - 1.0
    };
    let errors: Vec<f64> =
        rates.windows(3).flat_map(|around| [1, 2].map(|way| libm::fabs(between(around, way)))).collect();
    let residual = Residual::of("hybridep", 2 * rates.len(), &errors);
    let list = |column: usize| {
        rates.iter().map(|row| format!("\"{} GB/s\"", fit::rounded(row[column]))).collect::<Vec<_>>().join(", ")
    };
    let ranks = rates.iter().map(|row| row[0].to_string()).collect::<Vec<_>>().join(", ");
    let source = "deepseek-ai/DeepEP docs/README_Hybrid-EP.md@41cad9444, GB200, 16 processors, 4,096 tokens of 7,168 numbers; errors of \
                  each rank count from its neighbours";
    let text = format!(
        "[hybridep]\nranks = [{ranks}]\ndispatch = [{}]\ncombine = [{}]\nrow = {ROW}\nevidence = {}\n",
        list(1),
        list(2),
        evidence("published", residual.points, residual.median, residual.p90, source)
    );
    Some(Section { text, residuals: vec![residual] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_whole_and_say_how_far_a_rank_count_is_from_its_neighbours() {
        assert_eq!(rates().len(), RATES.lines().count() - 1);
        let chips = super::super::chips::CHIPS;
        let sections: Vec<Section> = chips.iter().filter_map(section).collect();
        assert!(!sections.is_empty());
        for section in sections {
            assert!(section.residuals[0].median > 0.005 && section.residuals[0].p90 < 0.1);
        }
    }
}
