//! The index of a thing in one of a trace's lists, which fits in four bytes even where there may be none.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;

/// Where a `T` stands in its list of a [`Trace`](super::Trace). `Option<Id<T>>` is as small as `Id<T>`.
pub struct Id<T: ?Sized>(NonZeroU32, PhantomData<fn() -> T>);

impl<T: ?Sized> Id<T> {
    /// The id of the thing at this index. The last of 2^32 - 1 ids stands for all later ones: readers stop before.
    pub fn new(index: usize) -> Id<T> {
        let after = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
        Id(NonZeroU32::new(after).unwrap_or(NonZeroU32::MIN), PhantomData)
    }

    /// The index in the list.
    pub fn at(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl<T: ?Sized> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Id<T> {}

impl<T: ?Sized> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: ?Sized> Eq for Id<T> {}

impl<T: ?Sized> PartialOrd for Id<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: ?Sized> Ord for Id<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl<T: ?Sized> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.at())
    }
}
