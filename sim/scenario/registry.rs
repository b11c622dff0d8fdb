//! The runtimes that a scenario can name. To add one: a reader with its [`Entry`](super::entry::Entry), a name, and a line in
//! [`Runtime::ALL`].

use super::entry::Runtime;
use super::{internevo, megatron, names, nanotron, train, xla, zero};
use crate::near::nearest;

impl Runtime {
    /// All runtimes: the registry.
    pub const ALL: [Runtime; 11] = [
        train::FSDP2,
        train::FSDP1,
        train::DDP,
        train::SINGLE_DEVICE,
        megatron::MEGATRON,
        megatron::DEEPSPEED,
        zero::DEEPSPEED_ZERO,
        internevo::INTERNEVO,
        nanotron::NANOTRON,
        xla::XLA,
        xla::TORCH_XLA,
    ];

    /// The runtime that a scenario names so.
    pub fn find(written: &str) -> Option<Runtime> {
        Self::ALL.into_iter().find(|runtime| runtime.written() == written)
    }

    /// The runtime that goes by a name that no scenario may write.
    pub(super) fn called(name: &str) -> Option<Runtime> {
        let name = name.to_lowercase().replace(['_', ' '], "-");
        Self::ALL.into_iter().find(|runtime| runtime.written() == name || runtime.0.also.contains(&name.as_str()))
    }

    /// The runtime of which a name, or what else it goes by, is nearest to one that nobody knows.
    pub(super) fn near(name: &str) -> Option<Runtime> {
        let names = |runtime: Runtime| std::iter::once(runtime.0.written).chain(runtime.0.also.iter().copied());
        let near = nearest(name, Self::ALL.into_iter().flat_map(names))?;
        Self::called(near)
    }

    /// Whether every device has the whole model as PyTorch made it.
    pub(super) fn keeps_whole(self) -> bool {
        self == names::SINGLE_DEVICE || self == names::DDP
    }

    /// Whether its meshes have XLA's axes, and its step is one program.
    pub(crate) fn is_compiled(self) -> bool {
        self == names::XLA || self == names::TORCH_XLA
    }

    /// Whether it trains modules that predict tokens further ahead.
    pub(super) fn has_multi_token(self) -> bool {
        self == names::MEGATRON
    }
}
