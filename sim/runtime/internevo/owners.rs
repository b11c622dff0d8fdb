//! Who owns which parameter (`HybridZeroOptimizer._partition_param_list`, v0.1.0).
//!
//! Parameters go, largest first, each to the rank that has least so far. They stay whole, so beyond some number of ranks
//! the largest of them is the largest share, and where there are more ranks than parameters some own nothing.

/// For each rank of the group, its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    /// Parameters by rank, in the order in which they were given out.
    pub params: Vec<Vec<usize>>,
    /// Elements by rank.
    pub elements: Vec<u64>,
}

impl Owners {
    /// Gives parameters of these sizes to so many ranks.
    pub fn of(sizes: &[u64], ranks: u32) -> Owners {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|&param| std::cmp::Reverse(sizes[param]));
        let count = ranks.max(1) as usize;
        let (mut params, mut elements) = (vec![vec![]; count], vec![0; count]);
        for param in order {
            let least = (0..count).min_by_key(|&rank| elements[rank]).unwrap_or(0);
            params[least].push(param);
            elements[least] += sizes[param];
        }
        Owners { params, elements }
    }

    /// The rank that owns most, the first of several.
    pub fn largest(&self) -> usize {
        let most = self.elements.iter().max();
        self.elements.iter().position(|elements| Some(elements) == most).unwrap_or(0)
    }

    /// Elements of each rank that owns something, in order of ranks.
    pub fn shares(&self) -> impl Iterator<Item = u64> + '_ {
        self.elements.iter().copied().filter(|&elements| elements > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::Owners;

    #[test]
    fn the_largest_goes_first_and_to_whoever_has_least() {
        let owners = Owners::of(&[3, 10, 4, 4], 2);
        assert_eq!(owners.params, [vec![1], vec![2, 3, 0]]);
        assert_eq!(owners.elements, [10, 11]);
        assert_eq!(owners.largest(), 1);
    }

    #[test]
    fn more_ranks_than_parameters_leave_some_with_nothing() {
        let owners = Owners::of(&[5, 7], 4);
        assert_eq!(owners.elements, [7, 5, 0, 0]);
        assert_eq!(owners.shares().collect::<Vec<_>>(), [7, 5]);
    }
}
