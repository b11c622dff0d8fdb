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

mod filing;

use std::collections::VecDeque;
use std::num::NonZeroU32;

use super::calls::DeviceCalls;
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

/// No block.
const NONE: u32 = u32::MAX;
/// Bins of a pool.
const BINS: usize = u128::BITS as usize;
/// Blocks that a search passes in a bin before it leaves a signpost.
const APART: u32 = 16;

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
    /// Its neighbours in the segment.
    previous: u32,
    next: u32,
    /// Its neighbours in the bin, while it is free.
    before: u32,
    after: u32,
    pool: u16,
    free: bool,
    /// Whether it is a signpost of its bin.
    sign: bool,
}

/// Free blocks of one stream and size class. Few are of like sizes, so they are filed in short bins by size, four to each
/// power of two, and lie there in order of (size, address), each linked to the next: what is taken, split, freed and joined
/// moves no other. Where many are of like sizes, signposts among them keep searches short.
#[derive(Clone, Debug)]
struct Pool {
    /// The first block of each bin.
    bins: [u32; BINS],
    /// Of each bin the blocks at which a search may begin: size, address and index, in this order. The first go most often.
    signs: [VecDeque<(u64, u64, u32)>; BINS],
    /// The bins that hold any, a bit each.
    filled: u128,
    /// The last block of the growing range, with expandable segments.
    tail: u32,
    mapped_end: u64,
    reserved: u64,
}

/// The allocator's state.
#[derive(Clone, Debug)]
pub struct Allocator {
    settings: Settings,
    /// The first stream whose segments, like those of all after it, never go back to the device: CUDA graphs know their addresses.
    kept: Option<usize>,
    blocks: Vec<Block>,
    idle: Vec<u32>,
    pools: Vec<Pool>,
    next_address: u64,
    allocated: u64,
    reserved: u64,
    retries: u32,
    calls: DeviceCalls,
}
#[inline]
fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

/// A request rounded up, and whether the small pool serves it.
#[inline]
fn rounded_size(bytes: Bytes) -> (u64, bool) {
    let size = round_up(bytes.0.max(1), MIN_BLOCK);
    (size, size <= SMALL)
}

/// The bin of a size: sizes up to 7 units of 512 B have bins of their own, those of 2 TiB and more share the last.
#[inline]
fn bin(size: u64) -> usize {
    let size = u32::try_from(size / MIN_BLOCK).unwrap_or(u32::MAX);
    let log = size.max(1).ilog2();
    if log < 2 { size as usize } else { ((log - 1) << 2 | (size >> (log - 2)) & 3) as usize }
}

impl Pool {
    const EMPTY: Pool = Pool {
        bins: [NONE; BINS],
        signs: [const { VecDeque::new() }; BINS],
        filled: 0,
        tail: NONE,
        mapped_end: 0,
        reserved: 0,
    };

    /// The first block of the bins behind one.
    #[inline]
    fn behind(&self, bin: usize) -> u32 {
        let filled = self.filled >> bin >> 1;
        if filled == 0 { NONE } else { self.bins[bin + 1 + filled.trailing_zeros() as usize] }
    }
}

impl Allocator {
    /// An empty allocator for the given number of streams.
    pub fn new(settings: Settings, streams: usize) -> Self {
        let pools = vec![Pool::EMPTY; 2 * streams];
        let (blocks, idle) = (Vec::with_capacity(4096), Vec::with_capacity(4096));
        let calls = DeviceCalls::default();
        Allocator {
            settings,
            kept: None,
            blocks,
            idle,
            pools,
            next_address: 0,
            allocated: 0,
            reserved: 0,
            retries: 0,
            calls,
        }
    }

    /// The same, which keeps the segments of a stream and of all after it for good (private pools in use).
    pub fn keeping(self, stream: Option<usize>) -> Self {
        Allocator { kept: stream, ..self }
    }

    /// Bytes in blocks handed out.
    pub fn allocated(&self) -> Bytes {
        Bytes(self.allocated)
    }

    /// How large a block is.
    #[inline]
    pub fn size(&self, block: BlockId) -> Bytes {
        Bytes(self.blocks[block.0.get() as usize - 1].size)
    }

    /// Where a block lies, and how large it is.
    pub(super) fn place(&self, block: BlockId) -> (u64, u64) {
        let Block { address, size, .. } = self.blocks[block.0.get() as usize - 1];
        (address, size)
    }

    /// Bytes taken from the device.
    pub fn reserved(&self) -> Bytes {
        Bytes(self.reserved)
    }

    /// Bytes taken from the device for one stream.
    pub fn reserved_by(&self, stream: usize) -> Bytes {
        self.reserved_by_pool(2 * stream) + self.reserved_by_pool(2 * stream + 1)
    }

    /// Bytes taken from the device for one pool.
    pub(super) fn reserved_by_pool(&self, pool: usize) -> Bytes {
        Bytes(self.pools[pool].reserved)
    }

    /// The pool that serves a request of a stream.
    #[inline]
    pub(super) fn pool(bytes: Bytes, stream: usize) -> usize {
        let (_, small) = rounded_size(bytes);
        2 * stream + usize::from(!small)
    }

    /// How often cached segments had to be given back to serve a request (`num_alloc_retries`).
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// Calls to the device for memory so far.
    pub fn calls(&self) -> DeviceCalls {
        self.calls
    }

    /// Bytes in use while a request lives that is given back before anything else happens, where a free block serves it:
    /// the allocator is afterwards as it was before. None where the device would have to be asked.
    pub fn passing(&mut self, bytes: Bytes, stream: usize) -> Option<Bytes> {
        let (size, small) = rounded_size(bytes);
        let block = self.best_fit(2 * stream + usize::from(!small), size)?;
        let found = self.blocks[block as usize].size;
        let granted = if self.splits(found - size, small) { size } else { found };
        Some(Bytes(self.allocated + granted))
    }

    /// Whether what remains of a block is worth keeping apart.
    #[inline]
    fn splits(&self, rest: u64, small: bool) -> bool {
        if small || self.settings.expandable_segments { rest >= MIN_BLOCK } else { rest > SMALL }
    }

    /// The smallest free block that fits, of several the one with the lowest address. With expandable segments the block at
    /// the end of the range counts as large as it can grow, so any other block that fits is preferred to it.
    #[inline]
    fn best_fit(&mut self, pool: usize, size: u64) -> Option<u32> {
        let mut at = self.seek(pool, (size, 0)).after;
        let pool = &self.pools[pool];
        if at == NONE {
            at = pool.behind(bin(size));
        }
        if at == NONE || at != pool.tail {
            return (at != NONE).then_some(at);
        }
        let Block { size, after, .. } = self.blocks[at as usize];
        let other = if after == NONE { pool.behind(bin(size)) } else { after };
        Some(if other == NONE { at } else { other })
    }

    /// Takes a block of at least `bytes` for a stream.
    #[inline(always)]
    pub fn alloc(&mut self, bytes: Bytes, stream: usize) -> Result<BlockId, OutOfMemory> {
        let (size, small) = rounded_size(bytes);
        let pool = 2 * stream + usize::from(!small);
        let found = self.best_fit(pool, size).or_else(|| self.grow(pool, size, small));
        let found = match found {
            Some(block) => block,
            None => {
                self.retries += 1;
                self.release_cached();
                let failed = OutOfMemory { requested: bytes, allocated: self.allocated(), reserved: self.reserved() };
                self.grow(pool, size, small).ok_or(failed)?
            }
        };
        let block = self.take(found, size, small);
        self.allocated += self.blocks[block as usize].size;
        Ok(BlockId(NonZeroU32::MIN.saturating_add(block)))
    }

    /// Hands out a free block, or its lower part: then what remains keeps its place among the free ones, mostly.
    #[inline]
    fn take(&mut self, at: u32, size: u64, small: bool) -> u32 {
        let block = self.blocks[at as usize];
        if !self.splits(block.size - size, small) {
            self.remove_free(at);
            self.blocks[at as usize].free = false;
            return at;
        }
        let taken = self.new_block(Block { size, next: at, free: false, ..block });
        if block.previous != NONE {
            self.blocks[block.previous as usize].next = taken;
        }
        self.blocks[at as usize].previous = taken;
        self.reshape(at, block.address + size, block.size - size);
        taken
    }

    /// Gives a block back.
    #[inline(always)]
    pub fn free(&mut self, block: BlockId) {
        let at = block.0.get() - 1;
        let Block { address, size, previous, next, .. } = self.blocks[at as usize];
        self.allocated -= size;
        let free = |at: u32| Some(at).filter(|&at| at != NONE && self.blocks[at as usize].free);
        match (free(previous), free(next)) {
            (None, None) => {
                self.blocks[at as usize].free = true;
                self.insert_free(at);
            }
            (Some(below), above) => {
                let mut more = size;
                if let Some(above) = above {
                    more += self.blocks[above as usize].size;
                    self.remove_free(above);
                    self.unlink(above);
                }
                self.unlink(at);
                let Block { address, size, .. } = self.blocks[below as usize];
                self.reshape(below, address, size + more);
            }
            (None, Some(above)) => {
                self.unlink(at);
                let more = self.blocks[above as usize].size;
                self.reshape(above, address, size + more);
            }
        }
    }

    /// Takes a block out of its segment: a neighbour has its room.
    #[inline]
    fn unlink(&mut self, at: u32) {
        let Block { previous, next, pool, .. } = self.blocks[at as usize];
        if previous != NONE {
            self.blocks[previous as usize].next = next;
        }
        if next != NONE {
            self.blocks[next as usize].previous = previous;
        }
        let tail = &mut self.pools[pool as usize].tail;
        if *tail == at {
            *tail = previous;
        }
        self.idle.push(at);
    }

    /// Moves the ends of a free block.
    #[inline]
    fn reshape(&mut self, at: u32, address: u64, size: u64) {
        let Block { size: known, before, after, .. } = self.blocks[at as usize];
        let key = |at: u32| (self.blocks[at as usize].size, self.blocks[at as usize].address);
        let stays = bin(size) == bin(known)
            && (before == NONE || key(before) < (size, address))
            && (after == NONE || (size, address) < key(after));
        if !stays {
            self.remove_free(at);
        } else if let Some(sign) = self.sign_of(at) {
            let Block { pool, .. } = self.blocks[at as usize];
            self.pools[pool as usize].signs[bin(size)][sign] = (size, address, at);
        }
        let block = &mut self.blocks[at as usize];
        (block.address, block.size) = (address, size);
        if !stays {
            self.insert_free(at);
        }
    }

    #[inline]
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

    /// All free blocks of a pool, in the order of its bins.
    fn all_free(&self, pool: usize) -> Vec<u32> {
        let known = |at: u32| (at != NONE).then_some(at);
        let bins = self.pools[pool].bins.iter().filter_map(|&first| known(first));
        bins.flat_map(|first| std::iter::successors(Some(first), |&at| known(self.blocks[at as usize].after))).collect()
    }

    /// Takes more memory from the device, as a free block that fits; none if it has none left.
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
        self.calls.take(1, segment);
        self.pools[pool].reserved += segment;
        let address = self.next_address;
        self.next_address += segment;
        Some(self.new_free(pool, NONE, (address, segment)))
    }

    /// Maps more of the pool's range, joined to the free block at its end.
    fn grow_range(&mut self, pool: usize, size: u64, small: bool) -> Option<u32> {
        let step = if small { SMALL_SEGMENT } else { LARGE_SEGMENT };
        let tail = self.pools[pool].tail;
        let joined = Some(tail).filter(|&tail| tail != NONE && self.blocks[tail as usize].free);
        let have = joined.map_or(0, |at| self.blocks[at as usize].size);
        let more = round_up(size.saturating_sub(have), step);
        if self.reserved + more > self.settings.capacity.0 {
            return None;
        }
        self.reserved += more;
        self.calls.take(more / step, more);
        let state = &mut self.pools[pool];
        state.reserved += more;
        let address = state.mapped_end;
        state.mapped_end += more;
        if let Some(at) = joined {
            self.reshape(at, self.blocks[at as usize].address, have + more);
            return joined;
        }
        let new = self.new_free(pool, tail, (address, more));
        if tail != NONE {
            self.blocks[tail as usize].next = new;
        }
        self.pools[pool].tail = new;
        Some(new)
    }

    /// A free block behind another, if there is one.
    fn new_free(&mut self, pool: usize, previous: u32, (address, size): (u64, u64)) -> u32 {
        let (next, before, after) = (NONE, NONE, NONE);
        let at = self.new_block(Block {
            address,
            size,
            previous,
            next,
            before,
            after,
            pool: pool as u16,
            free: true,
            sign: false,
        });
        self.insert_free(at);
        at
    }

    /// Gives every wholly free segment back to the device (`release_cached_blocks`, `torch.cuda.empty_cache`); with expandable
    /// segments, the whole granules inside free blocks.
    pub fn release_cached(&mut self) {
        let kept = self.kept;
        for pool in (0..self.pools.len()).filter(|pool| kept.is_none_or(|kept| pool / 2 < kept)) {
            for at in self.all_free(pool) {
                self.remove_free(at);
                let block = self.blocks[at as usize];
                let (size, address) = (block.size, block.address);
                let step = if pool.is_multiple_of(2) { SMALL_SEGMENT } else { LARGE_SEGMENT };
                let returned = if self.settings.expandable_segments {
                    (address + size) / step * step - round_up(address, step).min((address + size) / step * step)
                } else if block.previous == NONE && block.next == NONE {
                    size
                } else {
                    0
                };
                self.reserved -= returned;
                let segments =
                    if self.settings.expandable_segments { returned / step } else { u64::from(returned > 0) };
                self.calls.give_back(segments, returned);
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
mod tests;
