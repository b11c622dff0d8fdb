//! Layers that one turn of the scan runs, and that one `jax.checkpoint` is around.
//!
//! A scan needs turns that are alike. Where layers differ in a pattern (local and global attention, experts in every other layer, rotary
//! embedding in three of four), MaxText scans over the shortest pattern that repeats. Its sources are `layers/nnx_decoders.py`,
//! `GptOssScannableBlock`, `Llama4ScannableBlock`, `Olmo3ScannableBlock` and Gemma 3's blocks of six. Backward then computes all
//! layers of a turn again before the last one's gradients, and forward keeps the input of each turn alone. Layers of a kind that comes first
//! and never again, as DeepSeek's dense ones, have a scan of their own.

use std::ops::Range;

/// The longest pattern that is looked for.
const LONGEST: usize = 8;

/// Turns over layers of these kinds, in order; layers that are left over at the end are a turn, too.
pub(super) fn turns(kinds: &[usize]) -> Vec<Range<usize>> {
    let first = kinds.first().map_or(0, |first| kinds.iter().take_while(|kind| *kind == first).count());
    let again = kinds.get(first..).unwrap_or_default().contains(&kinds[..first].first().copied().unwrap_or(usize::MAX));
    let apart = if again { 0 } else { first };
    let rest = &kinds[apart..];
    let repeats = |period: &usize| rest.iter().enumerate().all(|(at, kind)| *kind == rest[at % period]);
    let period = (1..=LONGEST.min(rest.len())).find(repeats).unwrap_or(1);
    let single = (0..apart).map(|at| at..at + 1);
    single.chain((apart..kinds.len()).step_by(period).map(|at| at..(at + period).min(kinds.len()))).collect()
}

#[cfg(test)]
mod tests {
    use super::turns;

    fn lengths(kinds: &[usize]) -> Vec<usize> {
        turns(kinds).iter().map(ExactSizeIterator::len).collect()
    }

    #[test]
    fn a_turn_is_the_shortest_pattern_that_repeats() {
        assert_eq!(lengths(&[0; 5]), [1; 5]);
        assert_eq!(lengths(&[0, 1, 0, 1]), [2, 2]);
        // Gemma 3: five local layers and a global one; eight layers leave two.
        assert_eq!(lengths(&[0, 0, 0, 0, 0, 1, 0, 0]), [6, 2]);
        // Llama 4 Maverick: experts in every other layer, rotary embedding in three of four.
        assert_eq!(lengths(&[0, 1, 0, 2, 0, 1, 0, 2]), [4, 4]);
        assert!(turns(&[]).is_empty());
    }

    #[test]
    fn a_kind_that_comes_first_and_never_again_has_a_scan_of_its_own() {
        assert_eq!(lengths(&[0, 1, 1, 1]), [1; 4]);
        assert_eq!(lengths(&[0, 0, 0, 1, 2, 1, 2]), [1, 1, 1, 2, 2]);
    }

    #[test]
    fn layers_without_a_pattern_are_turns_of_one() {
        assert_eq!(lengths(&[0, 1, 2, 3, 0, 4, 5, 6, 7, 0]), [1; 10]);
    }
}
