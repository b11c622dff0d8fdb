//! How a chunk's parameters lie in one buffer, and how that is cut into buckets
//! (`core/distributed/param_and_grad_buffer.py`, `_ParamAndGradBuffer`, 0.16.1).
//!
//! Parameters lie in reverse order of registration, the order in which backward makes their gradients. With the
//! distributed optimizer each begins at a multiple of 64 and each bucket ends at a multiple of the data-parallel ranks
//! and of 128; a shared embedding has a bucket of its own, so that both its stages cut it alike.

use std::ops::Range;

use num_integer::lcm;

/// A parameter as the buffer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Elements of the rank's part.
    pub elements: u64,
    /// Whether two stages hold it: the tied embedding of a pipeline.
    pub shared: bool,
    /// Whether it is kept in fp8: it lies in another buffer than the rest.
    pub fp8: bool,
    /// Whether it is an expert's that other ranks do not have: it lies in buffers of its own.
    pub expert: bool,
    /// Whether it is trained: if not, it lies in no buffer.
    pub trained: bool,
}

/// What decides the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Data-parallel ranks.
    pub ranks: u64,
    /// Whether the optimizer is distributed over them.
    pub distributed: bool,
    /// Parameters that fill a bucket; none: all are one.
    pub bucket: Option<u64>,
    /// Whether the buffers are those of experts.
    pub experts: bool,
}

/// A run of a buffer that is reduced, and gathered, at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Elements of the buffer.
    pub elements: Range<u64>,
    /// Its parameters, by registration, in the buffer's order.
    pub params: Vec<usize>,
}

/// Buckets that are reduced, and gathered, in one call: those of the parameters in fp8, and those of the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Together {
    /// In fp8.
    pub fp8: Vec<Bucket>,
    /// In the type of the activations.
    pub plain: Vec<Bucket>,
}

impl Together {
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Bucket> {
        self.fp8.iter().chain(&self.plain)
    }

    /// Elements in fp8, and of the rest.
    pub fn elements(&self) -> [u64; 2] {
        [&self.fp8, &self.plain].map(|buckets| buckets.iter().map(Bucket::len).sum())
    }
}

/// Cuts the buffers of a chunk, and says which buckets go together: without fp8 each is alone; with it all that is not
/// fp8 goes with the last bucket that is, which is the first that forward reads (`partition_buckets`).
pub fn group(slots: &[Slot], rules: Rules) -> Vec<Together> {
    let inside = |slot: &Slot, fp8: bool| slot.trained && slot.fp8 == fp8 && slot.expert == rules.experts;
    let buffer = |fp8: bool| cut(slots, rules, |slot| inside(slot, fp8));
    let (fp8, plain) = (buffer(true), buffer(false));
    if fp8.is_empty() {
        return plain.into_iter().map(|bucket| Together { fp8: vec![], plain: vec![bucket] }).collect();
    }
    let mut groups: Vec<Together> =
        fp8.into_iter().map(|bucket| Together { fp8: vec![bucket], plain: vec![] }).collect();
    if let Some(last) = groups.last_mut() {
        last.plain = plain;
    }
    groups
}

impl Bucket {
    /// Elements, padding included.
    pub fn len(&self) -> u64 {
        self.elements.end - self.elements.start
    }
}

/// Cuts the buffer of those parameters that are in it.
fn cut(slots: &[Slot], rules: Rules, inside: impl Fn(&Slot) -> bool) -> Vec<Bucket> {
    let pad = |number: u64, to: u64| if rules.distributed { number.next_multiple_of(to) } else { number };
    let end_of = |end: u64| pad(end, lcm(rules.ranks, 128));
    let (mut buckets, mut params): (Vec<Bucket>, Vec<usize>) = (vec![], vec![]);
    let (mut begin, mut at) = (0, 0);
    for (param, slot) in slots.iter().enumerate().rev().filter(|(_, slot)| inside(slot)) {
        let alone = slot.shared && rules.distributed;
        at = pad(at, 64);
        if alone && !params.is_empty() {
            at = end_of(at);
            buckets.push(Bucket { elements: begin..at, params: std::mem::take(&mut params) });
            begin = at;
        }
        at += slot.elements;
        params.push(param);
        if alone || rules.bucket.is_some_and(|most| at - begin >= most) {
            at = end_of(at);
            buckets.push(Bucket { elements: begin..at, params: std::mem::take(&mut params) });
            begin = at;
        }
    }
    if !params.is_empty() {
        buckets.push(Bucket { elements: begin..end_of(at), params });
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(elements: &[u64]) -> Vec<Slot> {
        elements
            .iter()
            .map(|&elements| Slot { elements, shared: false, fp8: false, expert: false, trained: true })
            .collect()
    }

    #[test]
    fn without_a_bucket_size_all_parameters_are_one_bucket_in_reverse() {
        let rules = Rules { ranks: 3, distributed: true, bucket: None, experts: false };
        let buckets = cut(&slots(&[10, 100, 7]), rules, |_| true);
        // 7 at 0, 100 at 64, 10 at 192 (164 rounded up to 64s): 202 rounded up to lcm(3, 128).
        assert_eq!(buckets, [Bucket { elements: 0..384, params: vec![2, 1, 0] }]);
    }

    #[test]
    fn a_bucket_closes_with_the_parameter_that_fills_it() {
        let rules = Rules { ranks: 2, distributed: false, bucket: Some(100), experts: false };
        let buckets = cut(&slots(&[10, 60, 60, 150]), rules, |_| true);
        let runs: Vec<_> = buckets.iter().map(|bucket| (bucket.elements.clone(), bucket.params.clone())).collect();
        assert_eq!(runs, [(0..150, vec![3]), (150..270, vec![2, 1]), (270..280, vec![0])]);
    }

    #[test]
    fn parameters_in_fp8_have_a_buffer_of_their_own_and_the_rest_goes_with_its_last_bucket() {
        let mut all = slots(&[8, 100, 8, 100]);
        all[1].fp8 = true;
        all[3].fp8 = true;
        let groups = group(&all, Rules { ranks: 1, distributed: false, bucket: Some(100), experts: false });
        let params = |buckets: &[Bucket]| buckets.iter().map(|bucket| bucket.params.clone()).collect::<Vec<_>>();
        let both: Vec<_> = groups.iter().map(|group| (params(&group.fp8), params(&group.plain))).collect();
        assert_eq!(both, [(vec![vec![3]], vec![]), (vec![vec![1]], vec![vec![2, 0]])]);
        assert_eq!(groups[1].elements(), [100, 16]);
    }

    #[test]
    fn what_is_frozen_lies_in_no_buffer() {
        let mut all = slots(&[100, 16, 100, 8]);
        all[0].trained = false;
        all[2].trained = false;
        let groups = group(&all, Rules { ranks: 1, distributed: false, bucket: None, experts: false });
        assert_eq!(groups[0].plain, [Bucket { elements: 0..24, params: vec![3, 1] }]);
    }

    #[test]
    fn a_shared_embedding_is_a_bucket_of_its_own_only_where_the_optimizer_is_distributed() {
        let mut all = slots(&[256, 64, 128]);
        all[0].shared = true;
        let lens = |distributed| {
            let rules = Rules { ranks: 4, distributed, bucket: None, experts: false };
            cut(&all, rules, |_| true).iter().map(Bucket::len).collect::<Vec<_>>()
        };
        assert_eq!(lens(true), [256, 256]);
        assert_eq!(lens(false), [448]);
    }
}
