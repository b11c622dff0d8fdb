//! Which parameters are gathered and reduced together, and how much of them each replica has
//! (`megatron_fsdp/param_and_grad_buffer.py`, `_get_parameter_groups`, `build_data_parallel_buffer_index`, 0.16.1).
//!
//! A unit is one group; outside units a group is closed when it has a bucket's elements. In a group parameters with longer
//! rows come first. No replica's part begins inside a row of the longest (of the least common multiple of rows, where one does
//! not divide the other): so a group is filled up to a multiple of ranks × that, its *factor*. Parameters shorter than the factor
//! lie in gaps that others leave.

use std::ops::Range;

use num_integer::lcm;

/// A parameter as groups see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Elements.
    pub elements: u64,
    /// Elements of a row: the product of all dimensions but the first.
    pub row: u64,
    /// The unit it belongs to, if any.
    pub unit: Option<u64>,
}

/// What decides the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Replicas.
    pub ranks: u64,
    /// Whether anything is shared among them: only then groups are filled up.
    pub shares: bool,
    /// Elements that close a group outside units, if any do.
    pub bucket: Option<u64>,
}

/// Parameters that are gathered and reduced together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The unit that it is, if any.
    pub unit: Option<u64>,
    /// Its parameters, by registration, each with its place.
    pub params: Vec<(usize, Range<u64>)>,
    /// Elements, filled up.
    pub elements: u64,
}

impl Group {
    /// Elements of a replica's part.
    pub fn part(&self, ranks: u64) -> u64 {
        self.elements / ranks
    }

    /// Of each parameter, the elements in the first replica's part.
    pub fn first_part(&self, ranks: u64) -> impl Iterator<Item = (usize, u64)> {
        let part = self.part(ranks);
        self.params.iter().map(move |(param, place)| (*param, place.end.min(part).saturating_sub(place.start)))
    }
}

/// Puts parameters into groups.
pub fn cut(members: &[Member], rules: Rules) -> Vec<Group> {
    let mut units: Vec<Option<u64>> = vec![];
    for member in members {
        if !units.contains(&member.unit) {
            units.push(member.unit);
        }
    }
    let mut groups = vec![];
    for unit in units {
        let mut open: Vec<usize> = vec![];
        for (param, _) in members.iter().enumerate().filter(|(_, member)| member.unit == unit) {
            open.push(param);
            let size: u64 = open.iter().map(|&param| members[param].elements).sum();
            if unit.is_none() && rules.bucket.is_some_and(|bucket| size >= bucket) {
                groups.push(group(members, (unit, std::mem::take(&mut open)), rules));
            }
        }
        if !open.is_empty() {
            groups.push(group(members, (unit, open), rules));
        }
    }
    groups
}

fn group(members: &[Member], (unit, mut params): (Option<u64>, Vec<usize>), rules: Rules) -> Group {
    params.sort_by_key(|&param| std::cmp::Reverse(members[param].row));
    let factor = factor(&params.iter().map(|&param| members[param]).collect::<Vec<_>>());
    let (places, end) = places(&params.iter().map(|&param| members[param].elements).collect::<Vec<_>>(), factor);
    let elements = if rules.shares { end.next_multiple_of(rules.ranks * factor) } else { end };
    Group { unit, params: params.into_iter().zip(places).collect(), elements }
}

/// The longest row, or the least common multiple of rows.
fn factor(members: &[Member]) -> u64 {
    let first = members.first().map_or(1, |member| member.row);
    members.iter().fold(first, |factor, member| {
        let whole = factor.is_multiple_of(member.row) && member.elements.is_multiple_of(factor);
        let fits = member.row == factor || whole || member.elements < factor;
        if fits { factor } else { lcm(factor, member.row) }
    })
}

/// Where parameters of such sizes lie, and where the last ends.
fn places(sizes: &[u64], factor: u64) -> (Vec<Range<u64>>, u64) {
    let (mut short, mut long): (Vec<usize>, Vec<usize>) = (0..sizes.len()).partition(|&at| sizes[at] < factor);
    let mut places = vec![0..0; sizes.len()];
    let mut end = 0;
    while !long.is_empty() {
        let at = long.remove(0);
        let size = sizes[at];
        places[at] = end..end + size;
        let rest = size % factor;
        if rest == 0 {
            end += size;
            continue;
        }
        let mut gap = end + size;
        let mut room = factor - rest;
        end += size.next_multiple_of(factor);
        // Another that is no multiple either ends the row that this one has begun.
        let other = long.iter().position(|&other| {
            let rest_of_other = sizes[other] % factor;
            rest_of_other > 0 && rest + rest_of_other <= factor
        });
        if let Some(other) = other.map(|other| long.remove(other)) {
            let rest_of_other = sizes[other] % factor;
            places[other] = end - rest_of_other..end - rest_of_other + sizes[other];
            room -= rest_of_other;
            end += sizes[other] / factor * factor;
        }
        short.retain(|&at| {
            let fits = sizes[at] <= room;
            if fits {
                places[at] = gap..gap + sizes[at];
                room -= sizes[at];
                gap += sizes[at];
            }
            !fits
        });
    }
    for at in short {
        places[at] = end..end + sizes[at];
        end += sizes[at];
    }
    (places, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(rows: u64, row: u64, unit: Option<u64>) -> Member {
        Member { elements: rows * row, row, unit }
    }

    const SHARED: Rules = Rules { ranks: 8, shares: true, bucket: None };

    #[test]
    fn a_block_is_filled_up_to_ranks_times_its_longest_row() {
        // Four linears of a block of width 1,024: 4,096 is the longest row.
        let block: Vec<Member> = [(1024, 1024), (3072, 1024), (4096, 1024), (1024, 4096), (1024, 1)]
            .map(|(rows, row)| member(rows, row, Some(0)))
            .to_vec();
        let groups = cut(&block, SHARED);
        let sum: u64 = block.iter().map(|member| member.elements).sum();
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].elements, sum.next_multiple_of(8 * 4096));
        // The longest rows come first, then the others as registered.
        assert_eq!(groups[0].params.iter().map(|(param, _)| *param).collect::<Vec<_>>(), [3, 0, 1, 2, 4]);
    }

    #[test]
    fn without_sharing_nothing_is_filled_up() {
        let groups = cut(&[member(3, 5, None), member(10, 1, None)], Rules { shares: false, ..SHARED });
        assert_eq!(groups[0].elements, 25);
    }

    #[test]
    fn outside_units_a_group_closes_with_the_parameter_that_fills_it_and_a_unit_never_does() {
        let members = [(None, 60), (Some(0), 300), (Some(0), 300), (None, 50), (None, 10)]
            .map(|(unit, rows)| member(rows, 1, unit));
        let groups = cut(&members, Rules { bucket: Some(100), ..SHARED });
        let of = |group: &Group| (group.unit, group.params.iter().map(|(param, _)| *param).collect::<Vec<_>>());
        let all: Vec<_> = groups.iter().map(of).collect();
        assert_eq!(all, [(None, vec![0, 3]), (None, vec![4]), (Some(0), vec![1, 2])]);
    }

    #[test]
    fn rows_that_do_not_divide_one_another_make_their_least_common_multiple_the_factor() {
        let members = [member(10, 6, None), member(10, 4, None)];
        assert_eq!(factor(&members), 12);
        assert_eq!(cut(&members, SHARED)[0].elements, 192);
    }

    #[test]
    fn short_parameters_lie_in_the_gaps_that_long_ones_leave() {
        // 25 leaves a gap of 5 before 30; 3 and 2 fit, 4 does not and comes last.
        let (places, end) = places(&[25, 3, 4, 2, 20], 10);
        assert_eq!(places, [0..25, 25..28, 50..54, 28..30, 30..50]);
        assert_eq!(end, 54);
    }

    #[test]
    fn every_replica_has_as_much_and_the_first_what_lies_first() {
        let groups = cut(&[member(8, 16, None), member(16, 1, None)], Rules { ranks: 4, ..SHARED });
        let group = &groups[0];
        assert_eq!((group.elements, group.part(4)), (192, 48));
        assert_eq!(group.first_part(4).collect::<Vec<_>>(), [(0, 48), (1, 0)]);
    }
}
