//! PyTorch's CUDA caching allocator (`c10/cuda/CUDACachingAllocator.cpp`, PyTorch 2.6 to 2.15), block by block.
//!
//! A request is rounded up to 512 B. Requests up to 1 MiB share 2 MiB segments, larger ones up to 10 MiB share 20 MiB
//! segments, the rest get segments of their own in steps of 2 MiB. The smallest free block that fits is taken (lowest
//! address first), and split if what remains is worth keeping: at least 512 B in the small pool, more than 1 MiB in the
//! large one. Freed blocks merge with free neighbours. Every stream has pools of its own. When the device is full, whole
//! free segments are given back before giving up. With *expandable segments* each pool of a stream is one growing range,
//! mapped in steps of 2 MiB (small) or 20 MiB (large).
//!
//! *Allocated* counts whole blocks, so it includes what a block was too small to split off.

use std::num::NonZeroU32;

use crate::units::Bytes;

const MIB: u64 = 1 << 20;
/// Rounding of every request (`kMinBlockSize`).
const MIN_BLOCK: u64 = 512;
/// Largest request of the small pool (`kSmallSize`).
const SMALL: u64 = MIB;
/// Segment of the small pool (`kSmallBuffer`).
const SMALL_SEGMENT: u64 = 2 * MIB;
/// Segment for medium requests (`kLargeBuffer`).
const LARGE_SEGMENT: u64 = 20 * MIB;
/// Smallest request with a segment of its own (`kMinLargeAlloc`).
const MIN_OWN_SEGMENT: u64 = 10 * MIB;
/// Rounding of such segments (`kRoundLarge`).
const ROUND_SEGMENT: u64 = 2 * MIB;

const NONE: u32 = u32::MAX;

/// How the allocator is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
    pub expandable_segments: bool,
    /// What the allocator may take from the device at most: its memory less what lives outside the allocator.
    pub capacity: Bytes,
}

/// A request that could not be served even after cached segments were given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested: Bytes,
    /// Bytes in use by tensors at that moment.
    pub allocated: Bytes,
    /// Bytes held by the allocator at that moment.
    pub reserved: Bytes,
}

/// A block handed out by [`Allocator::alloc`]: one more than its index, so that an absent one takes no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId(NonZeroU32);

#[derive(Clone, Copy, Debug)]
struct Block {
    address: u64,
    size: u64,
    previous: u32,
    next: u32,
    pool: u16,
    free: bool,
}

/// A free block, with its size in units of 512 B: up to 2 TiB.
#[derive(Clone, Copy, Debug)]
struct Free {
    size: u32,
    block: u32,
}

/// Free blocks of one stream and size class, in order of (size, address). Few are of like sizes, so they lie in short bins
/// by size, four to each power of two: what is taken, split, freed and joined moves nothing but a neighbour or two.
#[derive(Clone, Debug)]
struct Pool {
    bins: Vec<Vec<Free>>,
    /// The bins that hold any, a bit each.
    filled: u128,
    /// The last block of the growing range, with expandable segments.
    tail: Option<u32>,
    mapped_end: u64,
    reserved: u64,
}

/// The allocator's state.
#[derive(Clone, Debug)]
pub struct Allocator {
    settings: Settings,
    blocks: Vec<Block>,
    idle: Vec<u32>,
    pools: Vec<Pool>,
    next_address: u64,
    allocated: u64,
    reserved: u64,
    retries: u32,
}

fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

/// A block's size in units of 512 B.
fn units(size: u64) -> u32 {
    u32::try_from(size / MIN_BLOCK).unwrap_or(u32::MAX)
}

/// A request rounded up, and whether the small pool serves it.
fn rounded_size(bytes: Bytes) -> (u64, bool) {
    let size = round_up(bytes.0.max(1), MIN_BLOCK);
    (size, size <= SMALL)
}

/// The bin of a size in units of 512 B: sizes up to 7 have bins of their own.
fn bin(size: u32) -> usize {
    let log = size.max(1).ilog2();
    if log < 2 { size as usize } else { ((log - 1) << 2 | (size >> (log - 2)) & 3) as usize }
}

impl Pool {
    fn new() -> Pool {
        Pool { bins: vec![vec![]; u128::BITS as usize], filled: 0, tail: None, mapped_end: 0, reserved: 0 }
    }

    /// The first block that is filed in a bin from `bin` on.
    fn first_from(&self, bin: usize) -> Option<(usize, usize)> {
        let filled = self.filled.checked_shr(bin as u32)?;
        (filled > 0).then(|| (bin + filled.trailing_zeros() as usize, 0))
    }

    /// The block at a place, if there is one, or else the next.
    fn from(&self, (bin, at): (usize, usize)) -> Option<(usize, usize)> {
        if at < self.bins[bin].len() { Some((bin, at)) } else { self.first_from(bin + 1) }
    }

    /// Best fit. With expandable segments the block at the end of the range counts as large as it can grow, so any
    /// other block that fits is preferred to it.
    fn best_fit(&self, size: u64) -> Option<(usize, usize)> {
        let size = units(size);
        let own = bin(size);
        let smaller = self.bins[own].iter().take_while(|free| free.size < size).count();
        let (bin, at) = self.from((own, smaller))?;
        let grows = Some(self.bins[bin][at].block) == self.tail;
        let other = if grows { self.from((bin, at + 1)) } else { None };
        Some(other.unwrap_or((bin, at)))
    }

    fn insert(&mut self, bin: usize, at: usize, free: Free) {
        self.bins[bin].insert(at, free);
        self.filled |= 1 << bin;
    }

    fn remove(&mut self, (bin, at): (usize, usize)) -> Free {
        let free = self.bins[bin].remove(at);
        self.filled &= !(u128::from(self.bins[bin].is_empty()) << bin);
        free
    }
}

impl Allocator {
    /// An empty allocator for the given number of streams.
    pub fn new(settings: Settings, streams: usize) -> Self {
        let pools = vec![Pool::new(); 2 * streams];
        let (blocks, idle) = (Vec::with_capacity(4096), Vec::with_capacity(4096));
        Allocator { settings, blocks, idle, pools, next_address: 0, allocated: 0, reserved: 0, retries: 0 }
    }

    /// Bytes in blocks handed out.
    pub fn allocated(&self) -> Bytes {
        Bytes(self.allocated)
    }

    /// Bytes taken from the device.
    pub fn reserved(&self) -> Bytes {
        Bytes(self.reserved)
    }

    /// Bytes taken from the device for one stream.
    pub fn reserved_by(&self, stream: usize) -> Bytes {
        Bytes(self.pools[2 * stream].reserved + self.pools[2 * stream + 1].reserved)
    }

    /// How often cached segments had to be given back to serve a request (`num_alloc_retries`).
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// Bytes in use while a request lives that is given back before anything else happens, where a free block serves it:
    /// the allocator is afterwards as it was before. None where the device would have to be asked.
    pub fn passing(&self, bytes: Bytes, stream: usize) -> Option<Bytes> {
        let (size, small) = rounded_size(bytes);
        let pool = &self.pools[2 * stream + usize::from(!small)];
        let (bin, at) = pool.best_fit(size)?;
        let block = &self.blocks[pool.bins[bin][at].block as usize];
        let granted = if self.splits(block.size - size, small) { size } else { block.size };
        Some(Bytes(self.allocated + granted))
    }

    /// Whether what remains of a block is worth keeping apart.
    fn splits(&self, rest: u64, small: bool) -> bool {
        if small || self.settings.expandable_segments { rest >= MIN_BLOCK } else { rest > SMALL }
    }

    /// Takes a block of at least `bytes` for a stream.
    pub fn alloc(&mut self, bytes: Bytes, stream: usize) -> Result<BlockId, OutOfMemory> {
        let (size, small) = rounded_size(bytes);
        let pool = 2 * stream + usize::from(!small);
        let block = match self.pools[pool].best_fit(size) {
            Some(place) => self.pools[pool].remove(place).block,
            None => match self.grow(pool, size, small) {
                Some(block) => block,
                None => {
                    self.retries += 1;
                    self.release_cached();
                    let failed =
                        OutOfMemory { requested: bytes, allocated: self.allocated(), reserved: self.reserved() };
                    self.grow(pool, size, small).ok_or(failed)?
                }
            },
        };
        self.split(block, size, small);
        self.blocks[block as usize].free = false;
        self.allocated += self.blocks[block as usize].size;
        Ok(BlockId(NonZeroU32::MIN.saturating_add(block)))
    }

    /// Gives a block back.
    pub fn free(&mut self, block: BlockId) {
        let mut at = block.0.get() - 1;
        let Block { size, previous, next, .. } = self.blocks[at as usize];
        self.allocated -= size;
        self.blocks[at as usize].free = true;
        if previous != NONE && self.blocks[previous as usize].free {
            self.remove_free(previous);
            at = self.merge(previous, at);
        }
        if next != NONE && self.blocks[next as usize].free {
            self.remove_free(next);
            at = self.merge(at, next);
        }
        self.insert_free(at);
    }

    /// Joins two neighbours into the first.
    fn merge(&mut self, first: u32, second: u32) -> u32 {
        let gone = self.blocks[second as usize];
        let kept = &mut self.blocks[first as usize];
        kept.size += gone.size;
        kept.next = gone.next;
        let pool = kept.pool as usize;
        if gone.next != NONE {
            self.blocks[gone.next as usize].previous = first;
        }
        if self.pools[pool].tail == Some(second) {
            self.pools[pool].tail = Some(first);
        }
        self.idle.push(second);
        first
    }

    fn new_block(&mut self, block: Block) -> u32 {
        match self.idle.pop() {
            Some(index) => {
                self.blocks[index as usize] = block;
                index
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        }
    }

    fn insert_free(&mut self, at: u32) {
        let Block { size, address, pool, .. } = self.blocks[at as usize];
        let (size, pool) = (units(size), &mut self.pools[pool as usize]);
        let before = |free: &&Free| {
            free.size < size || (free.size == size && self.blocks[free.block as usize].address < address)
        };
        let bin = bin(size);
        let place = pool.bins[bin].iter().take_while(before).count();
        pool.insert(bin, place, Free { size, block: at });
    }

    fn remove_free(&mut self, at: u32) {
        let Block { size, pool, .. } = self.blocks[at as usize];
        let (bin, pool) = (bin(units(size)), &mut self.pools[pool as usize]);
        let place = pool.bins[bin].iter().position(|free| free.block == at);
        pool.remove((bin, place.expect("a free block is in its pool's list")));
    }

    /// Takes more memory from the device; none if it has none left.
    fn grow(&mut self, pool: usize, size: u64, small: bool) -> Option<u32> {
        if self.settings.expandable_segments {
            return self.grow_range(pool, size, small);
        }
        let segment = if small {
            SMALL_SEGMENT
        } else if size < MIN_OWN_SEGMENT {
            LARGE_SEGMENT
        } else {
            round_up(size, ROUND_SEGMENT)
        };
        if self.reserved + segment > self.settings.capacity.0 {
            return None;
        }
        self.reserved += segment;
        self.pools[pool].reserved += segment;
        let address = self.next_address;
        self.next_address += segment;
        let block = Block { address, size: segment, previous: NONE, next: NONE, pool: pool as u16, free: false };
        Some(self.new_block(block))
    }

    /// Maps more of the pool's range, joined to the free block at its end.
    fn grow_range(&mut self, pool: usize, size: u64, small: bool) -> Option<u32> {
        let step = if small { SMALL_SEGMENT } else { LARGE_SEGMENT };
        let tail = self.pools[pool].tail;
        let joined = tail.filter(|&at| self.blocks[at as usize].free);
        let have = joined.map_or(0, |at| self.blocks[at as usize].size);
        let more = round_up(size.saturating_sub(have), step);
        if self.reserved + more > self.settings.capacity.0 {
            return None;
        }
        if let Some(at) = joined {
            self.remove_free(at);
        }
        self.reserved += more;
        let state = &mut self.pools[pool];
        state.reserved += more;
        let address = state.mapped_end;
        state.mapped_end += more;
        let previous = tail.unwrap_or(NONE);
        let fresh = Block { address, size: more, previous, next: NONE, pool: pool as u16, free: false };
        let new = self.new_block(fresh);
        if let Some(at) = tail {
            self.blocks[at as usize].next = new;
        }
        self.pools[pool].tail = Some(new);
        Some(joined.map_or(new, |at| self.merge(at, new)))
    }

    /// Splits what is not needed off a block and makes it free.
    fn split(&mut self, at: u32, size: u64, small: bool) {
        let block = self.blocks[at as usize];
        let rest = block.size - size;
        if !self.splits(rest, small) {
            return;
        }
        let remainder =
            Block { address: block.address + size, size: rest, previous: at, next: block.next, free: true, ..block };
        let new = self.new_block(remainder);
        if block.next != NONE {
            self.blocks[block.next as usize].previous = new;
        }
        self.blocks[at as usize].size = size;
        self.blocks[at as usize].next = new;
        if self.pools[block.pool as usize].tail == Some(at) {
            self.pools[block.pool as usize].tail = Some(new);
        }
        self.insert_free(new);
    }

    /// Gives every wholly free segment back to the device (`release_cached_blocks`); with expandable segments, the
    /// whole granules inside free blocks.
    fn release_cached(&mut self) {
        for pool in 0..self.pools.len() {
            let bins = self.pools[pool].bins.iter_mut().map(std::mem::take).collect::<Vec<_>>();
            self.pools[pool].filled = 0;
            for Free { block: at, .. } in bins.into_iter().flatten() {
                let block = self.blocks[at as usize];
                let (size, address) = (block.size, block.address);
                let returned = if self.settings.expandable_segments {
                    let step = if pool.is_multiple_of(2) { SMALL_SEGMENT } else { LARGE_SEGMENT };
                    (address + size) / step * step - round_up(address, step).min((address + size) / step * step)
                } else if block.previous == NONE && block.next == NONE {
                    size
                } else {
                    0
                };
                self.reserved -= returned;
                self.pools[pool].reserved -= returned;
                if returned == 0 {
                    self.insert_free(at);
                } else if !self.settings.expandable_segments {
                    self.idle.push(at);
                }
                // With expandable segments the unmapped range stays a hole: never handed out again, never merged.
                else {
                    self.blocks[at as usize].free = false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
