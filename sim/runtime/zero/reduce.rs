//! ZeRO-1's and ZeRO-2's gradients (`stage_1_and_2.py`): parameters lie one after the other, and each rank owns an equal
//! part.
//!
//! A gradient that is ready goes to the open bucket; if it does not fit, what is there is reduced first. A bucket is cut
//! where owners change, pieces of one owner side by side are one, and pieces are sent together, up to more than a bucket's
//! size at a time. They are all-reduced, and every rank keeps its own (`use_multi_rank_bucket_allreduce`): a reduction
//! moves as much as an all-reduce, not a reduce-scatter. A parameter larger than a bucket goes on its own.
//!
//! ZeRO-3 fills buckets alike ([`Scatters`]), but reduces one with a single reduce-scatter (`stage3.py`): each parameter
//! is cut into equal parts, one for each rank.
//!
//! Under ZeRO-1 and 2 parameters are gathered in one piece after the step, whatever `allgather_bucket_size` says: that is
//! for a PyTorch that has no `all_gather_into_tensor`.

use crate::plan::zero::Zero;
use std::ops::RangeInclusive;

/// Each rank's part begins at a multiple of so many elements (`nccl_start_alignment_factor`).
const ALIGNMENT: u64 = 2;

/// What decides on reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// Data-parallel ranks.
    pub ranks: u32,
    /// `reduce_bucket_size` \[elements\].
    pub bucket: u64,
    /// `contiguous_gradients`: gradients are copied into a buffer of the bucket's size, or two where reductions overlap.
    pub contiguous: bool,
    /// `round_robin_gradients`: parameters are dealt out to ranks before they are laid one after the other.
    pub round_robin: bool,
}

impl Zero {
    /// What decides on reductions.
    pub fn reduction(&self) -> Reduction {
        Reduction { ranks: self.ranks, bucket: self.bucket, contiguous: true, round_robin: self.round_robin }
    }
}

/// Who owns which elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    settings: Reduction,
    /// Elements of each parameter, and where it lies \[elements\].
    elements: Vec<u64>,
    starts: Vec<u64>,
    each: u64,
}

impl Partition {
    /// Of parameters of `elements`, in the order of registration.
    pub fn new(settings: Reduction, elements: &[u64]) -> Partition {
        let ranks = settings.ranks as usize;
        let dealt = if settings.round_robin { ranks.max(1) } else { 1 };
        let mut starts = vec![0; elements.len()];
        let mut end = 0;
        for param in (0..dealt).flat_map(|rank| (rank..elements.len()).step_by(dealt)) {
            starts[param] = end;
            end += elements[param];
        }
        let ranks = u64::from(settings.ranks).max(1);
        let each = end.next_multiple_of(ALIGNMENT * ranks) / ranks;
        Partition { settings, elements: elements.to_vec(), starts, each }
    }

    /// Elements of each rank's part, padding included: what it steps, and an even share of what is gathered.
    pub fn each(&self) -> u64 {
        self.each
    }

    /// What a rank owns of each parameter of which it owns anything, in the order they lie \[elements\].
    pub fn of_rank(&self, rank: u64) -> Vec<(usize, u64)> {
        let mut order: Vec<usize> = (0..self.elements.len()).collect();
        order.sort_by_key(|&param| self.starts[param]);
        order.into_iter().filter_map(|param| Some((param, self.owned(param, rank)?))).collect()
    }

    /// The rank that holds most when it steps: gradients of all parameters that it owns pieces of, whole, beside eleven
    /// bytes for each element of a piece that is looked through, or six for each of its part. Of several the last, whose
    /// gradients come first. With an optimizer on the host nothing is kept: the rank that looks through the largest gradient.
    pub fn fullest(&self, on_host: bool) -> u64 {
        let mut held = vec![Held::default(); self.settings.ranks.max(1) as usize];
        for (param, &whole) in self.elements.iter().enumerate() {
            for (rank, elements) in self.owners(param) {
                held[rank as usize].add(whole, elements);
            }
        }
        let holds = |held: &Held| match on_host {
            true => held.looked_through,
            false => (2 * held.wholes + (11 * held.largest).max(6 * self.each), 0),
        };
        let ranks = held.iter().map(holds).enumerate();
        ranks.max_by_key(|&(_, holds)| holds).map_or(0, |(rank, _)| rank as u64)
    }

    /// Elements of a parameter that a rank owns, if it owns any place of it.
    fn owned(&self, param: usize, rank: u64) -> Option<u64> {
        let part = self.places(param);
        part.contains(&rank).then(|| self.of_owner(param, rank))
    }

    /// The ranks that own a parameter, with the elements of each.
    fn owners(&self, param: usize) -> impl Iterator<Item = (u64, u64)> {
        self.places(param).map(move |rank| (rank, self.of_owner(param, rank)))
    }

    /// The ranks in whose parts a parameter lies.
    fn places(&self, param: usize) -> RangeInclusive<u64> {
        let (begin, end) = (self.starts[param], self.starts[param] + self.elements[param]);
        begin / self.each..=end.saturating_sub(1) / self.each
    }

    /// Elements of a parameter that one of those owns.
    fn of_owner(&self, param: usize, rank: u64) -> u64 {
        let (begin, end) = (self.starts[param], self.starts[param] + self.elements[param]);
        end.min((rank + 1) * self.each) - begin.max(rank * self.each)
    }
}

/// What a rank owns, as its memory sees it \[elements\].
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Of all parameters of which it owns a piece, whole.
    wholes: u64,
    /// Of its largest piece.
    largest: u64,
    /// Of the largest such parameter, whole, and of its piece.
    looked_through: (u64, u64),
}

impl Held {
    fn add(&mut self, whole: u64, piece: u64) {
        self.wholes += whole;
        self.largest = self.largest.max(piece);
        self.looked_through = self.looked_through.max((whole, piece));
    }
}

/// One all-reduce of a bucket's pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllReduce {
    /// Elements of each piece; several are copied into one block before.
    pub pieces: Vec<u64>,
    /// The owner of each.
    pub owners: Vec<u64>,
}

impl AllReduce {
    /// Elements of all pieces.
    pub fn elements(&self) -> u64 {
        self.pieces.iter().sum()
    }

    /// Elements that a rank keeps of it.
    pub fn kept_by(&self, rank: u64) -> u64 {
        self.pieces.iter().zip(&self.owners).filter(|&(_, &owner)| owner == rank).map(|(elements, _)| elements).sum()
    }
}

/// Gradients on their way to being reduced.
#[derive(Clone, Debug)]
pub struct Buckets {
    partition: Partition,
    open: Vec<usize>,
    elements: u64,
}

impl Buckets {
    /// None yet.
    pub fn new(partition: &Partition) -> Buckets {
        Buckets { partition: partition.clone(), open: vec![], elements: 0 }
    }

    /// Whether a gradient does not fit beside what the bucket holds, which is then reduced first.
    pub fn full(&self, param: usize) -> bool {
        self.elements + self.partition.elements[param] > self.partition.settings.bucket
    }

    /// Parameters whose gradients the bucket holds, and their elements.
    pub fn open(&self) -> (&[usize], u64) {
        (&self.open, self.elements)
    }

    /// A parameter's gradient is there; returns the all-reduces that are issued before it takes its place.
    pub fn ready(&mut self, param: usize) -> Vec<AllReduce> {
        let issued = if self.full(param) { self.flush() } else { vec![] };
        self.open.push(param);
        self.elements += self.partition.elements[param];
        issued
    }

    /// Reduces what is there; returns the all-reduces.
    pub fn flush(&mut self) -> Vec<AllReduce> {
        let (open, elements) = (std::mem::take(&mut self.open), std::mem::take(&mut self.elements));
        if !self.partition.settings.contiguous {
            let all = AllReduce { pieces: vec![elements], owners: vec![0] };
            return if elements > 0 { vec![all] } else { vec![] };
        }
        let mut pieces: Vec<(u64, u64)> = vec![];
        for (rank, elements) in open.into_iter().flat_map(|param| self.partition.owners(param)) {
            match pieces.last_mut() {
                Some(last) if last.0 == rank => last.1 += elements,
                _ => pieces.push((rank, elements)),
            }
        }
        let (mut issued, mut together, mut sent) = (vec![], AllReduce::default(), 0);
        for (owner, elements) in pieces {
            together.owners.push(owner);
            together.pieces.push(elements);
            sent += elements;
            if sent > self.partition.settings.bucket {
                issued.push(std::mem::take(&mut together));
                sent = 0;
            }
        }
        issued.extend((!together.pieces.is_empty()).then_some(together));
        issued
    }
}

/// ZeRO-3's gradients on their way to being reduced.
#[derive(Clone, Debug, Default)]
pub struct Scatters {
    bucket: u64,
    open: Vec<usize>,
    elements: u64,
}

impl Scatters {
    /// None yet; `bucket` is `reduce_bucket_size` \[elements\].
    pub fn new(bucket: u64) -> Scatters {
        Scatters { bucket, ..Scatters::default() }
    }

    /// A gradient of `elements` is there; returns the parameters whose gradients are reduced before it takes its place. One
    /// that is larger than a bucket waits for the next.
    pub fn ready(&mut self, param: usize, elements: u64) -> Vec<usize> {
        let full = self.elements + elements > self.bucket && self.elements > 0;
        let reduced = if full { self.flush() } else { vec![] };
        self.open.push(param);
        self.elements += elements;
        reduced
    }

    /// Reduces what is there; returns the parameters.
    pub fn flush(&mut self) -> Vec<usize> {
        self.elements = 0;
        let mut reduced = std::mem::take(&mut self.open);
        reduced.sort_unstable();
        reduced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Reduction = Reduction { ranks: 4, bucket: 10, contiguous: true, round_robin: false };

    #[test]
    fn every_rank_owns_an_equal_part_and_the_last_the_padding() {
        let partition = Partition::new(SETTINGS, &[5, 6, 8]);
        assert_eq!(partition.each(), 6);
        let owners = |param| partition.owners(param).collect::<Vec<_>>();
        assert_eq!(owners(0), [(0, 5)]);
        assert_eq!(owners(1), [(0, 1), (1, 5)]);
        assert_eq!(owners(2), [(1, 1), (2, 6), (3, 1)]);
    }

    #[test]
    fn a_bucket_is_reduced_when_the_next_gradient_does_not_fit() {
        let partition = Partition::new(SETTINGS, &[4, 4, 4]);
        let mut buckets = Buckets::new(&partition);
        let mut sizes = |param| buckets.ready(param).iter().map(AllReduce::elements).collect::<Vec<_>>();
        assert_eq!([2, 1, 0].map(&mut sizes), [vec![], vec![], vec![8]]);
        assert_eq!(buckets.flush().iter().map(AllReduce::elements).collect::<Vec<_>>(), [4]);
        assert!(buckets.flush().is_empty());
    }

    #[test]
    fn all_elements_are_reduced_once_however_large_buckets_are() {
        let elements = [32, 3, 17, 64, 5, 5, 1];
        for (bucket, round_robin) in [(1, false), (20, true), (64, false), (1000, true)] {
            let partition = Partition::new(Reduction { bucket, round_robin, ..SETTINGS }, &elements);
            let mut buckets = Buckets::new(&partition);
            let mut issued: Vec<AllReduce> = (0..elements.len()).rev().flat_map(|param| buckets.ready(param)).collect();
            issued.extend(buckets.flush());
            assert_eq!(issued.iter().map(AllReduce::elements).sum::<u64>(), elements.iter().sum::<u64>());
        }
    }
}
