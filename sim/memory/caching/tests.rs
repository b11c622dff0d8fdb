//! The allocator's rules by example, and against the obvious slow one.

use super::*;
use proptest::prelude::*;

fn plain() -> Allocator {
    Allocator::new(Settings { expandable_segments: false, capacity: Bytes(1 << 40) }, 2)
}

#[test]
fn small_medium_and_large_requests_take_segments_of_2_20_and_their_own_size() {
    let mut a = plain();
    a.alloc(Bytes(1), 0).expect("fits");
    assert_eq!((a.allocated(), a.reserved()), (Bytes(512), Bytes(2 * MIB)));
    a.alloc(Bytes(MIB + 1), 0).expect("fits");
    assert_eq!(a.reserved(), Bytes(22 * MIB));
    a.alloc(Bytes(30 * MIB + 1024), 0).expect("fits");
    assert_eq!(a.reserved(), Bytes(54 * MIB));
}

#[test]
fn a_remainder_of_a_mebibyte_is_not_worth_splitting_off_in_the_large_pool() {
    let mut a = plain();
    let block = a.alloc(Bytes(20 * MIB), 0).expect("fits");
    a.free(block);
    a.alloc(Bytes(19 * MIB), 0).expect("fits");
    assert_eq!(a.allocated(), Bytes(20 * MIB));
}

#[test]
fn freed_neighbours_merge_and_serve_a_larger_request() {
    let mut a = plain();
    let blocks: Vec<_> = (0..4).map(|_| a.alloc(Bytes(5 * MIB), 0).expect("fits")).collect();
    assert_eq!(a.reserved(), Bytes(20 * MIB));
    for block in blocks {
        a.free(block);
    }
    a.alloc(Bytes(20 * MIB), 0).expect("fits");
    assert_eq!(a.reserved(), Bytes(20 * MIB));
}

#[test]
fn a_full_device_gets_back_no_segment_that_graphs_know() {
    let settings = Settings { expandable_segments: false, capacity: Bytes(60 * MIB) };
    let mut allocator = Allocator::new(settings, 2).keeping(Some(1));
    for stream in [0, 1] {
        let block = allocator.alloc(Bytes(20 * MIB), stream).expect("there is room");
        allocator.free(block);
    }
    assert!(allocator.alloc(Bytes(41 * MIB), 0).is_err(), "the graphs' 20 MiB stay");
    assert!(allocator.alloc(Bytes(40 * MIB), 0).is_ok(), "the default stream's went back");
    assert_eq!(allocator.reserved_by(1), Bytes(20 * MIB));
}

#[test]
fn a_stream_never_reuses_another_streams_block() {
    let mut a = plain();
    let block = a.alloc(Bytes(64 * MIB), 0).expect("fits");
    a.free(block);
    a.alloc(Bytes(64 * MIB), 1).expect("fits");
    assert_eq!(a.reserved(), Bytes(128 * MIB));
}

#[test]
fn a_full_device_gives_cached_segments_back_before_it_refuses() {
    let mut a = Allocator::new(Settings { expandable_segments: false, capacity: Bytes(100 * MIB) }, 1);
    let first = a.alloc(Bytes(60 * MIB), 0).expect("fits");
    a.free(first);
    a.alloc(Bytes(80 * MIB), 0).expect("fits once the cached 60 MiB are given back");
    assert_eq!((a.reserved(), a.retries()), (Bytes(80 * MIB), 1));
    let refused = a.alloc(Bytes(40 * MIB), 0).expect_err("80 of 100 MiB are in use");
    assert_eq!(refused.allocated, Bytes(80 * MIB));
}

#[test]
fn an_expandable_range_grows_by_its_step_and_never_fragments_at_its_end() {
    let mut a = Allocator::new(Settings { expandable_segments: true, capacity: Bytes(1 << 40) }, 1);
    let first = a.alloc(Bytes(30 * MIB), 0).expect("fits");
    assert_eq!(a.reserved(), Bytes(40 * MIB));
    a.free(first);
    a.alloc(Bytes(50 * MIB), 0).expect("fits");
    assert_eq!((a.allocated(), a.reserved()), (Bytes(50 * MIB), Bytes(60 * MIB)));
}

/// A block of the slow allocator.
#[derive(Clone, Copy, PartialEq)]
struct Plain {
    pool: usize,
    segment: u64,
    address: u64,
    size: u64,
    free: bool,
}

/// The same rules without any bookkeeping: all blocks in order of pool and address, and everything is looked for among them.
struct Slow {
    settings: Settings,
    blocks: Vec<Plain>,
    next_address: u64,
}

impl Slow {
    fn sum(&self, of: impl Fn(&Plain) -> bool) -> u64 {
        self.blocks.iter().filter(|block| of(block)).map(|block| block.size).sum()
    }

    /// Hands a block out and says where it begins.
    fn alloc(&mut self, bytes: u64, stream: usize) -> Option<(usize, u64)> {
        let size = bytes.max(1).next_multiple_of(512);
        let small = size <= MIB;
        let pool = 2 * stream + usize::from(!small);
        if self.fit(pool, size).is_none() && !self.grow(pool, size, small) {
            let alone = |kept: &Plain| self.blocks.iter().filter(|block| block.segment == kept.segment).count() == 1;
            self.blocks = self.blocks.iter().copied().filter(|block| !block.free || !alone(block)).collect();
            if !self.grow(pool, size, small) {
                return None;
            }
        }
        let at = self.fit(pool, size)?;
        let Plain { address, size: whole, .. } = self.blocks[at];
        self.blocks[at].free = false;
        let least = if small || self.settings.expandable_segments { 512 } else { MIB + 512 };
        if whole - size >= least {
            let rest = Plain { address: address + size, size: whole - size, free: true, ..self.blocks[at] };
            self.blocks[at].size = size;
            self.blocks.insert(at + 1, rest);
        }
        Some((pool, address))
    }

    /// The smallest block that fits, of several the first; what can still grow only where there is no other.
    fn fit(&self, pool: usize, size: u64) -> Option<usize> {
        let last = self.blocks.iter().rposition(|block| block.pool == pool);
        let grows = |at: usize| self.settings.expandable_segments && Some(at) == last;
        let all = self.blocks.iter().enumerate();
        let fits = all.filter(|(_, block)| block.pool == pool && block.free && block.size >= size);
        fits.min_by_key(|&(at, block)| (grows(at), block.size, block.address)).map(|(at, _)| at)
    }

    fn grow(&mut self, pool: usize, size: u64, small: bool) -> bool {
        let range = self.settings.expandable_segments;
        let last = self.blocks.iter().rfind(|block| block.pool == pool).copied();
        let have = last.filter(|block| range && block.free).map_or(0, |block| block.size);
        let more = match size {
            _ if small => (size - have).next_multiple_of(2 * MIB),
            size if range || size < 10 * MIB => (size - have).next_multiple_of(20 * MIB),
            size => size.next_multiple_of(2 * MIB),
        };
        if self.sum(|_| true) + more > self.settings.capacity.0 {
            return false;
        }
        let (segment, address) = match last {
            _ if !range => (self.next_address, self.next_address),
            last => (u64::MAX, last.map_or(0, |block| block.address + block.size)),
        };
        self.next_address += more;
        let at = self.blocks.partition_point(|block| block.pool <= pool);
        self.blocks.insert(at, Plain { pool, segment, address, size: more, free: true });
        self.join(at);
        true
    }

    fn free(&mut self, (pool, address): (usize, u64)) {
        let at = self.blocks.iter().position(|block| (block.pool, block.address) == (pool, address));
        let at = at.expect("it was handed out");
        self.blocks[at].free = true;
        self.join(at + 1);
        self.join(at);
    }

    /// Joins a block to the one before it, if both are free and of one segment.
    fn join(&mut self, at: usize) {
        if let Some([below, above]) = self.blocks.get(at.wrapping_sub(1)..=at).map(|pair| [pair[0], pair[1]])
            && below.free
            && above.free
            && (below.pool, below.segment) == (above.pool, above.segment)
        {
            self.blocks[at - 1].size += above.size;
            self.blocks.remove(at);
        }
    }
}

proptest! {
    /// A request of so many times a unit, on one of two streams; or what was handed out so many requests ago is given back.
    #[test]
    fn blocks_lie_where_the_slow_allocator_puts_them(
        expandable_segments: bool,
        asked in prop::collection::vec((0u64..40, prop::sample::select(vec![512, 40_000, 300_000, MIB, 3 * MIB]), 0usize..2, 0usize..12), 0..200),
    ) {
        let capacity = Bytes(if expandable_segments { 1 << 40 } else { 900 * MIB });
        let settings = Settings { expandable_segments, capacity };
        let (mut quick, mut slow) = (Allocator::new(settings, 2), Slow { settings, blocks: vec![], next_address: 0 });
        let mut held = vec![];
        for (count, unit, stream, back) in asked {
            if back < held.len() && back % 2 == 1 {
                let (block, place) = held.swap_remove(back);
                quick.free(block);
                slow.free(place);
            } else {
                let (block, place) = (quick.alloc(Bytes(count * unit), stream), slow.alloc(count * unit, stream));
                prop_assert_eq!(block.is_ok(), place.is_some());
                if let (Ok(block), Some(place)) = (block, place) {
                    let found = quick.blocks[block.0.get() as usize - 1];
                    prop_assert_eq!((found.pool as usize, found.address), place);
                    held.push((block, place));
                }
            }
            prop_assert_eq!(quick.allocated().0, slow.sum(|block| !block.free));
            prop_assert_eq!(quick.reserved().0, slow.sum(|_| true));
        }
    }
}
