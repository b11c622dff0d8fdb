//! How a free block is filed in its bin, and taken out: in order of (size, address), with signposts so that a bin of thousands is
//! not walked from its beginning.

use super::{APART, Allocator, Block, NONE, bin};

/// Where a free block belongs.
pub(super) struct Place {
    bin: usize,
    /// Its neighbours in the bin.
    before: u32,
    pub(super) after: u32,
}

impl Allocator {
    /// The place of a block of this size and address in its bin. A search that passes many blocks leaves signposts on its way, so
    /// that the next one does not.
    #[inline]
    pub(super) fn seek(&mut self, pool: usize, key: (u64, u64)) -> Place {
        let bin = bin(key.0);
        let pool = &mut self.pools[pool];
        let signs = &mut pool.signs[bin];
        // Most bins have none.
        let mut sign = match signs.is_empty() {
            true => 0,
            false => signs.partition_point(|&(size, address, _)| (size, address) < key),
        };
        let (mut before, mut after) = match sign.checked_sub(1).map(|last| signs[last]) {
            Some((.., near)) => (near, self.blocks[near as usize].after),
            None => (NONE, pool.bins[bin]),
        };
        let mut passed = 0;
        while let Some(block) = self.blocks.get_mut(after as usize).filter(|block| (block.size, block.address) < key) {
            (before, after) = (after, block.after);
            passed += 1;
            if passed > APART {
                block.sign = true;
                signs.insert(sign, (block.size, block.address, before));
                (sign, passed) = (sign + 1, 0);
            }
        }
        Place { bin, before, after }
    }

    /// Where a block stands among the signposts of its bin, if it is one.
    #[inline]
    pub(super) fn sign_of(&self, at: u32) -> Option<usize> {
        let Block { size, address, pool, sign, .. } = self.blocks[at as usize];
        let signs = &self.pools[pool as usize].signs[bin(size)];
        sign.then(|| signs.partition_point(|&(known, lies, _)| (known, lies) < (size, address)))
    }

    /// Files a free block.
    #[inline]
    pub(super) fn insert_free(&mut self, at: u32) {
        let Block { size, address, pool, .. } = self.blocks[at as usize];
        let Place { bin, before, after } = self.seek(pool as usize, (size, address));
        let pool = &mut self.pools[pool as usize];
        match before {
            NONE => {
                pool.bins[bin] = at;
                pool.filled |= 1 << bin;
            }
            _ => self.blocks[before as usize].after = at,
        }
        if after != NONE {
            self.blocks[after as usize].before = at;
        }
        let block = &mut self.blocks[at as usize];
        (block.before, block.after, block.sign) = (before, after, false);
    }

    /// Takes a free block out of its bin. Where it is a signpost, the block before it becomes one in its stead.
    #[inline]
    pub(super) fn remove_free(&mut self, at: u32) {
        let sign = self.sign_of(at);
        let Block { size, pool, before, after, .. } = self.blocks[at as usize];
        if after != NONE {
            self.blocks[after as usize].before = before;
        }
        let pool = &mut self.pools[pool as usize];
        let bin = bin(size);
        if let Some(sign) = sign {
            self.blocks[at as usize].sign = false;
            match self.blocks.get_mut(before as usize).filter(|before| !before.sign) {
                Some(block) => {
                    block.sign = true;
                    pool.signs[bin][sign] = (block.size, block.address, before);
                }
                None => _ = pool.signs[bin].remove(sign),
            }
        }
        if before != NONE {
            self.blocks[before as usize].after = after;
            return;
        }
        pool.bins[bin] = after;
        pool.filled &= !(u128::from(after == NONE) << bin);
    }
}
