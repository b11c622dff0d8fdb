//! Pointwise functions of the feed-forward: their names in configs, and the kernels that they are.
//!
//! To add one: an entry in the table at the end of this file.

use super::pointwise;
use super::row::{Autocast, Fused, Gradient, Gradients, Of, Reads, Saved, Simple, Space, Step, Strides};
use crate::program::MemoryKind;

/// What is asked of an activation.
struct Row {
    /// Hugging Face's names for it, as `hidden_act` has them.
    names: &'static [&'static str],
    /// Names that are read as well, but not proposed.
    also: &'static [&'static str],
    /// The kernels that it is, one after the other.
    kernels: &'static [&'static Simple],
}

/// A kernel each way, by their names in ATen. It keeps one tensor, which its backward reads.
macro_rules! kernel {
    ($forward:literal, $backward:literal, $kept:expr) => {
        Simple {
            label: "Act",
            kernel: $forward,
            memory: MemoryKind::Elementwise,
            saves: &[$kept],
            gradients: Gradients::Made(&[Gradient {
                of: 0,
                temporaries: &[],
                result: Step { kernel: $backward, reads: Reads::Tensors(2) },
                with: &[$kept],
            }]),
            fused: Fused {
                forward: "triton_act",
                backward: "triton_act_backward",
                memory: MemoryKind::Elementwise,
                space: Space::Input,
                mask: false,
            },
            autocast: Autocast::WIDEST,
            policy: None,
            module: true,
            strides: Strides::Together,
        }
    };
}

const SILU: Simple = Simple { policy: Some(Saved::Silu), ..kernel!("aten.silu", "aten.silu_backward", Of::Input(0)) };
const GELU: Simple = kernel!("aten.gelu", "aten.gelu_backward", Of::Input(0));
const PLAIN_RELU: Simple = kernel!("aten.relu", "aten.threshold_backward", Of::Output);
/// Its mask takes one byte where its input takes two or four.
const RELU: Simple = Simple { fused: Fused { forward: "triton_relu", mask: true, ..PLAIN_RELU.fused }, ..PLAIN_RELU };

/// The enum of activations, and the row of each.
macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident => $row:expr,)*) => {
        /// Pointwise function of the feed-forward.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
        pub enum Activation {
            $($(#[$doc])* $name,)*
        }

        impl Activation {
            /// All of them.
            const ALL: &[Activation] = &[$(Activation::$name),*];

            const fn row(self) -> Row {
                match self {
                    $(Activation::$name => $row,)*
                }
            }
        }
    };
}

impl Activation {
    /// The activation that Hugging Face calls so, if any.
    pub fn find(name: &str) -> Option<Activation> {
        let called = |act: &&Activation| act.row().names.contains(&name) || act.row().also.contains(&name);
        Activation::ALL.iter().find(called).copied()
    }

    /// Hugging Face's names of all of them.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Activation::ALL.iter().flat_map(|act| act.row().names).copied()
    }

    /// The kernels that it is, one after the other, where nobody writes it out in another way.
    pub fn kernels(self) -> &'static [&'static Simple] {
        self.row().kernels
    }
}

activations! {
    /// `x·sigmoid(x)`.
    Silu => Row { names: &["silu"], also: &["swish"], kernels: &[&SILU] },
    /// GELU with the error function.
    Gelu => Row { names: &["gelu"], also: &[], kernels: &[&GELU] },
    /// GELU, tanh approximation, which Hugging Face's GPT-2 writes out in eight operators (`gelu_new`); elsewhere one kernel.
    GeluNew => Row { names: &["gelu_new", "gelu_fast"], also: &[], kernels: &[&GELU] },
    /// GELU, tanh approximation.
    GeluTanh => Row { names: &["gelu_pytorch_tanh"], also: &[], kernels: &[&GELU] },
    /// `max(x, 0)`.
    Relu => Row { names: &["relu"], also: &[], kernels: &[&RELU] },
    /// `max(x, 0)²`.
    ReluSquared => Row { names: &["relu2"], also: &[], kernels: &[&RELU, &pointwise::SQUARE] },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_activation_is_found_by_each_of_its_names() {
        for &act in Activation::ALL {
            for name in act.row().names.iter().chain(act.row().also) {
                assert_eq!(Activation::find(name), Some(act), "{name}");
            }
        }
        assert_eq!(Activation::find("tanhshrink"), None);
    }
}
