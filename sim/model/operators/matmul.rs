//! Matmuls of PyTorch's own.

use super::row::{Autocast, Of, Parameters, Row, Saved, Selective, Stop, Strides};

const MATMUL: Row = Row {
    kernel: "aten.mm",
    saves: &[Of::Input(0)],
    stop: Stop::Before,
    unpacks: true,
    policy: None,
    selective: Selective::Never,
    autocast: Ok(Autocast::LOW),
    strides: Strides::Together,
    parameters: Parameters::Own,
    compiles: Ok(()),
};

/// `y = x·Wᵀ (+ b)`, of so many parameters and inputs: under autocast weight and bias are inputs.
pub(super) const fn linear(params: usize, inputs: usize) -> Row {
    let biased = params > 1 || inputs > 2;
    Row {
        kernel: if biased { "aten.addmm" } else { "aten.mm" },
        saves: if inputs > 1 { &[Of::Input(1), Of::Input(0)] } else { &[Of::Input(0)] },
        policy: if params == 1 { Some(Saved::Mm) } else { None },
        selective: match params {
            0 => Selective::Never,
            1 => Selective::EverySecond,
            2.. => Selective::Always,
        },
        ..MATMUL
    }
}

/// Products of pairs of matrices; keeps both.
pub(super) const BMM: Row =
    Row { kernel: "aten.bmm", saves: &[Of::Input(1), Of::Input(0)], stop: Stop::After, ..MATMUL };
