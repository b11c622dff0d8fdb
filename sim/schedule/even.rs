//! Layers over stages, in their order, so that the stage with the most to compute has as little as can be.
//!
//! The least that the largest stage can have is found by halving: layers fit into a number of stages under a limit if filling one stage after
//! the other takes no more of them. Of the divisions under the least limit we take the one whose stages are most alike, by the sum of squares.

/// How many layers each stage has; none if there are fewer layers than stages, or no stages. Every stage has a layer.
pub fn most_even(costs: &[u64], stages: usize) -> Option<Vec<u64>> {
    if stages == 0 || costs.len() < stages {
        return None;
    }
    let limit = least_limit(costs, stages);
    most_alike(costs, stages, limit)
}

/// The least that the largest of so many stages can have.
fn least_limit(costs: &[u64], stages: usize) -> u128 {
    let wide = || costs.iter().map(|&cost| u128::from(cost));
    let (mut low, mut high) = (wide().max().unwrap_or(0), wide().sum());
    while low < high {
        let middle = low + (high - low) / 2;
        if filled(costs, middle) <= stages { high = middle } else { low = middle + 1 }
    }
    low
}

/// Stages that are filled one after the other under a limit that no layer exceeds.
fn filled(costs: &[u64], limit: u128) -> usize {
    let (mut stages, mut sum) = (1, 0);
    for cost in costs.iter().map(|&cost| u128::from(cost)) {
        if sum + cost > limit {
            (stages, sum) = (stages + 1, 0);
        }
        sum += cost;
    }
    stages
}

/// The division of which no stage exceeds the limit and whose sum of squares is least: the first of several.
fn most_alike(costs: &[u64], stages: usize, limit: u128) -> Option<Vec<u64>> {
    let layers = costs.len();
    // By stages and layers so far: the least sum of squares, and layers of the last stage.
    let mut best: Vec<Option<f64>> = vec![None; layers + 1];
    best[0] = Some(0.0);
    let mut last = vec![vec![0; layers + 1]; stages];
    for last in &mut last {
        let mut next = vec![None; layers + 1];
        for end in 1..=layers {
            let mut sum = 0;
            for begin in (0..end).rev() {
                sum += u128::from(costs[begin]);
                if sum > limit {
                    break;
                }
                let Some(before) = best[begin] else { continue };
                let squares = before + (sum as f64) * (sum as f64);
                if next[end].is_none_or(|known| squares < known) {
                    (next[end], last[end]) = (Some(squares), end - begin);
                }
            }
        }
        best = next;
    }
    best[layers]?;
    let (mut end, mut division) = (layers, vec![0; stages]);
    for (stage, last) in division.iter_mut().zip(&last).rev() {
        *stage = last[end] as u64;
        end -= last[end];
    }
    Some(division)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn largest(costs: &[u64], division: &[u64]) -> u128 {
        let mut left = costs;
        let stage = |&layers: &u64| {
            let (own, rest) = left.split_at(layers as usize);
            left = rest;
            own.iter().map(|&cost| u128::from(cost)).sum::<u128>()
        };
        division.iter().map(stage).max().unwrap_or(0)
    }

    /// All divisions of layers over stages that have one each at least.
    fn all(layers: u64, stages: usize) -> Vec<Vec<u64>> {
        if stages == 1 {
            return vec![vec![layers]];
        }
        let rest =
            |first: u64| all(layers - first, stages - 1).into_iter().map(move |rest| [&[first][..], &rest].concat());
        (1..=layers - (stages as u64 - 1)).flat_map(rest).collect()
    }

    #[test]
    fn alike_layers_are_divided_alike() {
        assert_eq!(most_even(&[5; 12], 4), Some(vec![3; 4]));
        let mut uneven = most_even(&[5; 12], 5).expect("there are enough");
        uneven.sort_unstable();
        assert_eq!(uneven, [2, 2, 2, 3, 3]);
        assert_eq!(most_even(&[1, 1, 9], 2), Some(vec![2, 1]));
        assert_eq!(most_even(&[u64::MAX; 6], 3), Some(vec![2; 3]));
        assert_eq!(most_even(&[0; 4], 2).map(|stages| stages.iter().sum()), Some(4_u64));
        assert_eq!((most_even(&[1, 2], 3), most_even(&[1], 0)), (None, None));
    }

    proptest! {
        #[test]
        fn no_division_of_layers_in_a_row_has_a_smaller_largest_stage(
            costs in prop::collection::vec(0u64..50, 1..10),
            stages in 1usize..6,
        ) {
            let found = most_even(&costs, stages);
            prop_assert_eq!(found.is_some(), costs.len() >= stages);
            if let Some(found) = found {
                prop_assert_eq!(found.iter().sum::<u64>(), costs.len() as u64);
                prop_assert!(found.len() == stages && found.iter().all(|&layers| layers > 0));
                let ours = largest(&costs, &found);
                for other in all(costs.len() as u64, stages) {
                    prop_assert!(ours <= largest(&costs, &other), "{costs:?} over {stages}: {found:?}, but {other:?}");
                }
            }
        }
    }
}
