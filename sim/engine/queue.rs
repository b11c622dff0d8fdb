//! The event queue: a 4-ary heap ordered by (time, sequence), so that events of one instant keep the order in which
//! they were pushed. This order is a promise: it is what makes runs reproducible.
//!
//! Four children per node halve the depth of a binary heap and lie in one or two cache lines (LaMarca and Ladner,
//! "The influence of caches on the performance of heaps", 1996); `benches/engine.rs` compares it with the standard heap.

/// A priority queue of `T` by time \[ps\], first in first out within one instant.
#[derive(Clone, Debug)]
pub struct EventQueue<T> {
    heap: Vec<Entry<T>>,
    pushed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    /// Time in the upper half, sequence number in the lower.
    key: u128,
    event: T,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        EventQueue { heap: Vec::new(), pushed: 0 }
    }
}

const CHILDREN: usize = 4;

impl<T: Copy> EventQueue<T> {
    /// Adds an event behind everything already due at `time`.
    #[inline]
    pub fn push(&mut self, time: u64, event: T) {
        let key = u128::from(time) << 64 | u128::from(self.pushed);
        self.pushed += 1;
        self.heap.push(Entry { key, event });
        self.rise(self.heap.len() - 1, Entry { key, event });
    }

    /// Time of the next event.
    #[inline]
    pub fn next_time(&self) -> Option<u64> {
        self.heap.first().map(|entry| (entry.key >> 64) as u64)
    }

    /// Takes the next event and its time.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, T)> {
        let last = self.heap.pop()?;
        let Some(&first) = self.heap.first() else {
            return Some(((last.key >> 64) as u64, last.event));
        };
        self.sink(last);
        Some(((first.key >> 64) as u64, first.event))
    }

    /// Puts `entry`, which was last, where it belongs after the root has left: the hole sinks to the bottom along the
    /// least children, then `entry` rises from there. It rarely rises far, which saves comparing it on the way down.
    #[inline]
    fn sink(&mut self, entry: Entry<T>) {
        let mut at = 0;
        loop {
            let first = at * CHILDREN + 1;
            let least = match self.heap.get(first..) {
                // Two semi-finals and a final, without branches.
                Some([a, b, c, d, ..]) => {
                    let (left, l) = if b.key < a.key { (1, b.key) } else { (0, a.key) };
                    let (right, r) = if d.key < c.key { (3, d.key) } else { (2, c.key) };
                    first + if r < l { right } else { left }
                }
                Some(few) if !few.is_empty() => (1..few.len()).fold(first, |least, child| {
                    if few[child].key < self.heap[least].key { first + child } else { least }
                }),
                _ => break,
            };
            self.heap[at] = self.heap[least];
            at = least;
        }
        self.rise(at, entry);
    }

    /// Puts `entry` where it belongs between the hole `at` and the root.
    #[inline]
    fn rise(&mut self, mut at: usize, entry: Entry<T>) {
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            if self.heap[parent].key <= entry.key {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = entry;
    }

    /// Puts all events off by as much, which leaves their order as it is, and lets `change` see to each.
    pub fn postpone(&mut self, by: u64, mut change: impl FnMut(&mut T)) {
        for entry in &mut self.heap {
            entry.key += u128::from(by) << 64;
            change(&mut entry.event);
        }
    }

    /// All events waiting with their times, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.heap.iter().map(|entry| ((entry.key >> 64) as u64, &entry.event))
    }

    /// Number of events waiting.
    #[inline]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no event waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Number of events ever pushed.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn events_of_one_instant_come_out_in_the_order_they_went_in() {
        let mut queue = EventQueue::default();
        for (time, name) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            queue.push(time, name);
        }
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, name)| name).collect();
        assert_eq!(order, "abcd");
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_standard_heap(steps in prop::collection::vec(prop::option::of(0u64..50), 1..200)) {
            let (mut queue, mut oracle, mut sequence) = (EventQueue::default(), BinaryHeap::new(), 0u64);
            for step in steps {
                match step {
                    Some(time) => {
                        queue.push(time, sequence);
                        oracle.push(Reverse((time, sequence)));
                        sequence += 1;
                    }
                    None => prop_assert_eq!(queue.pop(), oracle.pop().map(|Reverse(event)| event)),
                }
                prop_assert_eq!(queue.len(), oracle.len());
            }
        }
    }
}
