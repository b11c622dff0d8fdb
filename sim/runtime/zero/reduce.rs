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

    /// The ranks that own a parameter, with the elements of each.
    fn owners(&self, param: usize) -> impl Iterator<Item = (u64, u64)> {
        let (begin, end) = (self.starts[param], self.starts[param] + self.elements[param]);
        let ranks = begin / self.each..=end.saturating_sub(1) / self.each;
        ranks.map(move |rank| (rank, end.min((rank + 1) * self.each) - begin.max(rank * self.each)))
    }
}

/// Gradients on their way to being reduced.
#[derive(Clone, Debug)]
pub struct Buckets<'p> {
    partition: &'p Partition,
    open: Vec<usize>,
    elements: u64,
}

impl Buckets<'_> {
    /// None yet.
    pub fn new(partition: &Partition) -> Buckets<'_> {
        Buckets { partition, open: vec![], elements: 0 }
    }

    /// A parameter's gradient is there; returns the elements of each all-reduce that is issued before it takes its place.
    pub fn ready(&mut self, param: usize) -> Vec<u64> {
        let elements = self.partition.elements[param];
        let full = self.elements + elements > self.partition.settings.bucket;
        let issued = if full { self.flush() } else { vec![] };
        self.open.push(param);
        self.elements += elements;
        issued
    }

    /// Reduces what is there; returns the elements of each all-reduce.
    pub fn flush(&mut self) -> Vec<u64> {
        let (open, elements) = (std::mem::take(&mut self.open), std::mem::take(&mut self.elements));
        if !self.partition.settings.contiguous {
            return if elements > 0 { vec![elements] } else { vec![] };
        }
        let mut pieces: Vec<(u64, u64)> = vec![];
        for (rank, elements) in open.into_iter().flat_map(|param| self.partition.owners(param)) {
            match pieces.last_mut() {
                Some(last) if last.0 == rank => last.1 += elements,
                _ => pieces.push((rank, elements)),
            }
        }
        let (mut issued, mut together) = (vec![], 0);
        for (_, elements) in pieces {
            together += elements;
            if together > self.partition.settings.bucket {
                issued.push(std::mem::take(&mut together));
            }
        }
        issued.extend((together > 0).then_some(together));
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
        assert_eq!([2, 1, 0].map(|param| buckets.ready(param)), [vec![], vec![], vec![8]]);
        assert_eq!(buckets.flush(), [4]);
        assert!(buckets.flush().is_empty());
    }

    #[test]
    fn all_elements_are_reduced_once_however_large_buckets_are() {
        let elements = [32, 3, 17, 64, 5, 5, 1];
        for (bucket, round_robin) in [(1, false), (20, true), (64, false), (1000, true)] {
            let partition = Partition::new(Reduction { bucket, round_robin, ..SETTINGS }, &elements);
            let mut buckets = Buckets::new(&partition);
            let mut issued: Vec<u64> = (0..elements.len()).rev().flat_map(|param| buckets.ready(param)).collect();
            issued.extend(buckets.flush());
            assert_eq!(issued.iter().sum::<u64>(), elements.iter().sum::<u64>());
        }
    }
}
