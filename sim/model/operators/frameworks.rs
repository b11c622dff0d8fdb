//! Operators of one framework's own, and those of a mixture of experts: autograd functions and modules with rules of their own
//! in `runtime/eager`, which neither a compiler of blocks nor autocast sees.

use super::row::{Of, Parameters, Row, Selective, Stop, Strides};
use crate::model::experts::{ExpertOp, TitanOp};

const OWN: Row = Row {
    kernel: "megatron",
    saves: &[],
    stop: Stop::After,
    unpacks: true,
    policy: None,
    selective: Selective::Never,
    autocast: Err("Megatron-Core's and Transformer Engine's operators under torch.autocast"),
    strides: Strides::Together,
    parameters: Parameters::Own,
    compiles: Err("Megatron-Core's and Transformer Engine's operators in compiled blocks"),
};

/// Megatron-Core's.
pub(super) const MEGATRON: Row = OWN;
/// InternLM's.
pub(super) const INTERNLM: Row = Row {
    kernel: "internlm",
    autocast: Err("InternLM's operators under torch.autocast"),
    compiles: Err("InternLM's operators in compiled blocks"),
    ..OWN
};
/// nanotron's.
pub(super) const NANOTRON: Row = Row {
    kernel: "nanotron",
    autocast: Err("nanotron's operators under torch.autocast"),
    compiles: Err("nanotron's operators in compiled blocks"),
    ..OWN
};

/// A mixture's. torchtitan's policy keeps what `topk` and all-to-alls make.
pub(super) const fn experts(kind: ExpertOp) -> Row {
    // What others save is their rule's.
    let saves: &[Of] = if matches!(kind, ExpertOp::Combine) { &[Of::Input(0), Of::Input(1)] } else { &[] };
    let (stop, selective) = match kind {
        ExpertOp::Combine => (Stop::Before, Selective::Never),
        ExpertOp::Titan(TitanOp::Choose | TitanOp::Count { .. } | TitanOp::Exchange) => {
            (Stop::After, Selective::Always)
        }
        ExpertOp::Titan(
            TitanOp::Gate { .. }
            | TitanOp::Sigmoid
            | TitanOp::Bias
            | TitanOp::Limit { .. }
            | TitanOp::Gather
            | TitanOp::Normalise
            | TitanOp::Map
            | TitanOp::Take
            | TitanOp::Permute
            | TitanOp::Ends
            | TitanOp::All { .. }
            | TitanOp::Unpermute
            | TitanOp::Zeros
            | TitanOp::Weigh
            | TitanOp::Scatter,
        )
        | ExpertOp::Score
        | ExpertOp::Choose
        | ExpertOp::ChooseFirst
        | ExpertOp::Sort
        | ExpertOp::Dispatch
        | ExpertOp::Offsets
        | ExpertOp::One { .. }
        | ExpertOp::All { .. }
        | ExpertOp::Pick
        | ExpertOp::Weigh
        | ExpertOp::Choice(_) => (Stop::After, Selective::Never),
    };
    let (autocast, compiles) = (Err("experts under torch.autocast"), Err("compiled blocks with experts"));
    Row { kernel: "experts", saves, stop, selective, autocast, compiles, ..OWN }
}
