//! Parameters in files (`swap_tensor/partitioned_param_swapper.py`): which parts are read before a gather, and which ahead of it.
//!
//! The rank's part of a parameter is a file if it has at least 1 MiB, and groups before it fill what the host's memory may hold. A
//! gather first has what it lacks read into pinned buffers, one for each part; a buffer is free again when the parameter goes.
//! Beside a gather ahead of time more parts are read (`__prefetch_nvme_param_partitions`): the next ones in the queue, until they
//! have more than twice the elements that are being gathered, or no buffer is left.

/// Where a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the host's memory, or the device's, for good.
    Memory,
    File,
    Coming,
    Buffer,
}

/// What ends a run with an assertion of DeepSpeed's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// So many buffers are wanted at once.
    Buffers(u64),
    /// The same part is asked for twice, as little else is on its way.
    Twice,
}

/// Buffers, and what is in them.
#[derive(Clone, Debug, PartialEq)]
pub struct Shelf {
    places: Vec<Place>,
    buffers: u64,
    taken: u64,
    trouble: Option<Trouble>,
}

impl Shelf {
    /// Parameters, of which some are in files, and so many buffers.
    pub fn new(files: &[bool], buffers: u64) -> Shelf {
        let places = files.iter().map(|&file| if file { Place::File } else { Place::Memory }).collect();
        Shelf { places, buffers, taken: 0, trouble: None }
    }

    /// What would end the run.
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble
    }

    /// Whether a part is in a file alone.
    pub(super) fn lacks(&self, param: usize) -> bool {
        self.places[param] == Place::File
    }

    fn take(&mut self, params: &[usize]) {
        self.taken += params.len() as u64;
        if self.taken > self.buffers {
            let most = match self.trouble {
                Some(Trouble::Buffers(most)) => most.max(self.taken),
                _ => self.taken,
            };
            self.trouble = Some(Trouble::Buffers(most));
        }
    }

    /// Parts are about to be gathered: those that are read now, and whether the host waits for what is read.
    pub(super) fn ensure(&mut self, params: &[usize]) -> (Vec<usize>, bool) {
        let read: Vec<usize> = params.iter().copied().filter(|&param| self.lacks(param)).collect();
        self.take(&read);
        let waits = !read.is_empty() || params.iter().any(|&param| self.places[param] == Place::Coming);
        if waits {
            read.iter().for_each(|&param| self.places[param] = Place::Coming);
            self.places.iter_mut().filter(|place| **place == Place::Coming).for_each(|place| *place = Place::Buffer);
        }
        (read, waits)
    }

    /// Parts that are read ahead, of those in the queue with the elements of their parameters, beside gathers of so many.
    pub(super) fn ahead(&mut self, queue: impl Iterator<Item = (usize, u64)>, gathered: u64) -> Vec<usize> {
        let (mut read, mut considered) = (vec![], 0);
        for (param, elements) in queue {
            if considered > 2 * gathered || self.taken + read.len() as u64 >= self.buffers {
                break;
            }
            if self.lacks(param) {
                if read.contains(&param) {
                    self.trouble = self.trouble.or(Some(Trouble::Twice));
                } else {
                    read.push(param);
                }
            }
            considered += elements;
        }
        self.take(&read);
        read.iter().for_each(|&param| self.places[param] = Place::Coming);
        read
    }

    /// A parameter has gone: its buffer is free.
    pub(super) fn let_go(&mut self, param: usize) {
        if self.places[param] == Place::Buffer {
            self.places[param] = Place::File;
            self.taken -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_ahead_is_waited_for_when_it_is_gathered() {
        let mut shelf = Shelf::new(&[true, true, false], 2);
        assert_eq!(shelf.ahead([(0, 10), (1, 10)].into_iter(), 0), [0]);
        assert_eq!(shelf.ensure(&[0]), (vec![], true));
        assert_eq!(shelf.ensure(&[2]), (vec![], false));
        assert_eq!(shelf.ensure(&[1]), (vec![1], true));
        shelf.let_go(0);
        assert!(shelf.lacks(0) && shelf.trouble().is_none());
    }

    #[test]
    fn more_parts_at_once_than_buffers_end_the_run() {
        let mut shelf = Shelf::new(&[true, true], 1);
        shelf.ensure(&[0, 1]);
        assert_eq!(shelf.trouble(), Some(Trouble::Buffers(2)));
    }
}
