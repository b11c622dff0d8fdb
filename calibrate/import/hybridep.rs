//! Hybrid-EP's rates inside an NVLink domain.
//!
//! `hybrid_ep.csv` holds the rates that its authors publish for GB200 (deepseek-ai/DeepEP, branch `hybrid-ep`,
//! `docs/README_Hybrid-EP.md`@41cad9444): 4,096 tokens of 7,168 numbers in bf16, 8 of 8 experts a rank, 16 processors, the whole call as
//! PyTorch sees it. B200's links are GB200's; over 8 ranks B200 is published at 536 and 531 GB/s, within 3 % of it.

use super::chips::ChipSpec;
use super::{Residual, Section, evidence, fit};

const RATES: &str = include_str!("hybrid_ep.csv");
/// Rates of the first release by processors (deepseek-ai/DeepEP, pull request 420): ranks, processors, dispatch in bf16, combine.
const BY_PROCESSORS: &str = include_str!("hybrid_ep_processors.csv");
/// Processors of the later rates.
const PROCESSORS: f64 = 16.0;
/// Bytes of a row that was measured.
const ROW: u64 = 7168 * 2;

/// The numbers of each line of a table.
fn lines<const N: usize>(table: &str) -> Vec<[f64; N]> {
    let read = |line: &str| {
        let numbers: Vec<f64> = line.split(',').filter_map(|field| field.parse().ok()).collect();
        numbers.try_into().ok()
    };
    table.lines().skip(1).filter_map(read).collect()
}

/// Ranks, and the rates of dispatch and of combine \[GB/s\].
fn rates() -> Vec<[f64; 3]> {
    lines(RATES)
}

/// What more processors do not hasten over `ranks` \[GB/s\], read off the fewest and the most processors, and how far that puts the
/// number between them: `1/rate = own/processors + 1/links`.
///
/// Over 24 ranks the first release's combine is a third as fast as the same authors give later on as many processors: it is taken as over 16.
fn links(ranks: f64, way: usize) -> (f64, f64) {
    let all: Vec<[f64; 4]> = lines(BY_PROCESSORS);
    let most = if way == 2 { 16.0 } else { 24.0 };
    let nearest = all.iter().map(|row| row[0]).filter(|&known| known <= ranks.min(most)).fold(0.0, f64::max);
    let of: Vec<(f64, f64)> =
        all.iter().filter(|row| row[0] == nearest).map(|row| (row[1], 1.0 / row[1 + way])).collect();
    let ((few, slow), (between, middle), (many, fast)) = (of[0], of[1], of[2]);
    let own = (slow - fast) / (1.0 / few - 1.0 / many);
    let rest = fast - own / many;
    (1.0 / rest, libm::fabs((own / between + rest) / middle - 1.0))
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
    let beyond: Vec<f64> = [8.0, 16.0, 24.0].iter().flat_map(|&ranks| [1, 2].map(|way| links(ranks, way).1)).collect();
    let by_processors = Residual::of("hybridep, on 24 processors between 16 and 32", beyond.len(), &beyond);
    let residual = Residual::of("hybridep", 2 * rates.len(), &errors);
    let list = |column: usize| {
        rates.iter().map(|row| format!("\"{} GB/s\"", fit::rounded(row[column]))).collect::<Vec<_>>().join(", ")
    };
    let links = |way: usize| {
        let all = rates.iter().map(|row| format!("\"{} GB/s\"", fit::rounded(links(row[0], way).0)));
        all.collect::<Vec<_>>().join(", ")
    };
    let ranks = rates.iter().map(|row| row[0].to_string()).collect::<Vec<_>>().join(", ");
    let source = "deepseek-ai/DeepEP docs/README_Hybrid-EP.md@41cad9444, GB200, 16 processors, 4,096 tokens of 7,168 numbers; errors of \
                  each rank count from its neighbours; links from pull request 420 of deepseek-ai/DeepEP, GB200 on 16 to 32 processors";
    let text = format!(
        "[hybridep]\nranks = [{ranks}]\ndispatch = [{}]\ncombine = [{}]\nprocessors = {PROCESSORS}\ndispatch_links = [{}]\n\
         combine_links = [{}]\nrow = {ROW}\nevidence = {}\n",
        list(1),
        list(2),
        links(1),
        links(2),
        evidence("published", residual.points, residual.median, residual.p90, source)
    );
    Some(Section { text, residuals: vec![residual, by_processors] })
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
            assert!(section.residuals[1].p90 < 0.08, "{}", section.residuals[1].p90);
            assert!(section.residuals[0].median > 0.005 && section.residuals[0].p90 < 0.1);
        }
    }
}
