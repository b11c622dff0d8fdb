//! Numbers that stand for what a program lists once: kernels, groups, streams, buffers and the like.

/// Index of a [`Kernel`](super::Kernel) in [`Program::kernels`](super::Program::kernels).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelId(pub u32);

/// Index of a [`Comm`](super::Comm) in [`Program::comms`](super::Program::comms).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

/// Index of a [`Transfer`](super::Transfer) in [`Program::transfers`](super::Program::transfers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u32);

/// Index of a group of transfers in [`Program::exchanges`](super::Program::exchanges).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExchangeId(pub u32);

/// Index of a [`Group`](super::Group) in [`Program::groups`](super::Program::groups).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

/// Index of a stream in [`Program::streams`](super::Program::streams); the allocator keeps one pool per stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct StreamId(pub u8);

/// Index of an event: a mark on a stream that other streams or the host can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u32);

/// Index of a [`Buffer`](super::Buffer) in [`Program::buffers`](super::Program::buffers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// Index of a module or region name in [`Program::scopes`](super::Program::scopes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(pub u16);

/// Index of a [`Rename`](super::Rename) in [`Program::renames`](super::Program::renames).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RenameId(pub u32);
