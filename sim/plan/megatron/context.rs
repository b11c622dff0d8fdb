//! How ranks share a sequence.

use strum::VariantArray;

/// What ranks have parts of while they attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Parts {
    /// Of the tokens.
    Tokens,
    /// Of the heads.
    Heads,
    /// Those of an inner group of the heads, and such groups of the tokens.
    Both,
}

/// `--cp-comm-type`: what ranks that share a sequence exchange. The first is Megatron's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, VariantArray, serde::Serialize)]
pub enum CpCommType {
    /// `p2p`.
    #[default]
    P2p,
    /// `all_gather`.
    AllGather,
    /// `a2a`.
    A2a,
    /// `a2a+p2p`.
    A2aP2p,
}

impl CpCommType {
    /// All of them.
    pub const ALL: &[CpCommType] = CpCommType::VARIANTS;

    /// As Megatron's argument names it.
    pub fn name(self) -> &'static str {
        match self {
            CpCommType::P2p => "p2p",
            CpCommType::AllGather => "all_gather",
            CpCommType::A2a => "a2a",
            CpCommType::A2aP2p => "a2a+p2p",
        }
    }

    /// The one of a name, if there is one.
    pub fn find(name: &str) -> Option<CpCommType> {
        CpCommType::ALL.iter().copied().find(|one| one.name() == name)
    }

    /// What it is, in a line.
    pub fn about(self) -> &'static str {
        match self {
            CpCommType::P2p => "keys and values go round a ring",
            CpCommType::AllGather => "keys and values of all are gathered first",
            CpCommType::A2a => "each has some heads of all tokens",
            CpCommType::A2aP2p => "heads in groups, a ring between them",
        }
    }

    /// What each rank has parts of.
    pub fn parts(self) -> Parts {
        match self {
            CpCommType::P2p | CpCommType::AllGather => Parts::Tokens,
            CpCommType::A2a => Parts::Heads,
            CpCommType::A2aP2p => Parts::Both,
        }
    }

    /// Whether it knows sliding windows (`attn_forward_func_with_cp`).
    pub fn has_windows(self) -> bool {
        matches!(self, CpCommType::AllGather | CpCommType::A2a)
    }
}

/// How ranks share a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Sharing {
    /// `--cp-comm-type`.
    pub comm_type: CpCommType,
    /// Over how many of them heads are spread in attention: `--hierarchical-context-parallel-sizes`' first, all under `a2a`.
    pub heads: u32,
}

impl Sharing {
    /// Megatron's default; also for ranks that share nothing.
    pub fn ring() -> Sharing {
        Sharing { comm_type: CpCommType::P2p, heads: 1 }
    }
}
