//! What is asked of every operator: a [`Row`] of the table, and a [`Simple`] for those that one kernel over memory is all of.

use std::fmt;

use crate::program::MemoryKind;

/// A tensor of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The value read at this place.
    Input(usize),
    /// The first value made.
    Output,
}

/// Where a recompute with early stop ends, if this is the last operator of a block that saves anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Not here: it saves nothing.
    Nowhere,
    /// Before its kernel, since its autograd node has packed what it saves by then.
    Before,
    /// When it has run.
    After,
}

/// Operators whose results a policy of one's own keeps (`create_selective_checkpoint_contexts`), by their names in ATen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Saved {
    /// `_scaled_dot_product_flash_attention` and its like.
    Attention,
    /// `mm`: linears without a bias.
    Mm,
    /// All but every second `mm`, as torchtitan counts.
    EverySecondMm,
    /// `_fused_rms_norm`.
    RmsNorm,
    /// `silu`.
    Silu,
    /// `mul`, the rotary embedding's too.
    Mul,
    /// `add`.
    Add,
    /// `_to_copy`.
    ToCopy,
}

impl Saved {
    /// All of them, by the name a file has for each.
    pub const NAMED: [(&'static str, Saved); 8] = [
        ("attention", Saved::Attention),
        ("mm", Saved::Mm),
        ("every_second_mm", Saved::EverySecondMm),
        ("rms_norm", Saved::RmsNorm),
        ("silu", Saved::Silu),
        ("mul", Saved::Mul),
        ("add", Saved::Add),
        ("to_copy", Saved::ToCopy),
    ];
}

/// Whether torchtitan's operator-level policy (`torchtitan/distributed/activation_checkpoint.py`) keeps an operator's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selective {
    /// Always.
    Always,
    /// It is an `aten.mm`, of which every second is made again.
    EverySecond,
    /// Never.
    Never,
}

/// What autocast makes of a call's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// All are cast to bf16.
    Low,
    /// All are cast to fp32.
    Full,
    /// All stay as they are.
    Same,
}

/// The type of a call's results under autocast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// What arguments are cast to, or the widest of their types.
    Widest,
    /// fp32, as parameters are.
    Fp32,
    /// What it is without autocast.
    Stated,
    /// The type that the code asks for: fp32, or what was cast to fp32 before.
    Asked,
}

/// What autocast makes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autocast {
    /// Of its arguments.
    pub arguments: Arguments,
    /// Of its results.
    pub results: Results,
}

impl Autocast {
    /// It runs in the widest type that it is given.
    pub const WIDEST: Autocast = Autocast { arguments: Arguments::Same, results: Results::Widest };
    /// It is in the list of functions that run in bf16.
    pub const LOW: Autocast = Autocast { arguments: Arguments::Low, results: Results::Widest };
    /// It is in the list of functions that run in fp32.
    pub const FULL: Autocast = Autocast { arguments: Arguments::Full, results: Results::Widest };
    /// Its result is in fp32, whatever it reads.
    pub const FP32: Autocast = Autocast { arguments: Arguments::Same, results: Results::Fp32 };
}

/// What becomes of a gradient whose elements lie apart, before an operator's backward reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strides {
    /// It is copied.
    Together,
    /// It is taken as it is, and gradients of inputs lie apart, too.
    Kept,
    /// It is taken as it is by the kernel that lays all parts together.
    Joined,
}

/// What of the gradients of its parameters a tensor-parallel rank makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameters {
    /// All of the rank's part: each is split, or read by all ranks alike.
    Own,
    /// A share of the sum over ranks, where these hold parts of the sequence.
    Partial,
    /// That of all ranks' parts, of which the rank keeps its own.
    Whole,
}

/// What is asked of every operator, whatever its rules in forward and backward are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name as PyTorch's profiler shows it.
    pub kernel: &'static str,
    /// What autograd saves of its inputs and outputs, in the order it lets go of them.
    pub saves: &'static [Of],
    /// Where a recompute with early stop ends.
    pub stop: Stop,
    /// Whether its backward unpacks something saved, for which a checkpointed block runs again.
    pub unpacks: bool,
    /// The operator that a checkpointing policy of one's own knows it by.
    pub policy: Option<Saved>,
    /// Whether torchtitan's policy keeps its result.
    pub selective: Selective,
    /// What autocast makes of it, or what is refused under autocast.
    pub autocast: Result<Autocast, &'static str>,
    /// What becomes of a gradient whose elements lie apart.
    pub strides: Strides,
    /// How tensor-parallel ranks split its parameters' gradients.
    pub parameters: Parameters,
    /// Whether there are rules for what `torch.compile` makes of it ([`crate::model::fuse`]), or what is refused there.
    pub compiles: Result<(), &'static str>,
}

/// How much a step of a backward reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// So many tensors of the size of the operator's first input.
    Tensors(u64),
    /// The gradient of the result.
    Gradient,
}

/// A kernel of a backward; it writes a tensor of the size of the operator's first input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its name as PyTorch's profiler shows it.
    pub kernel: &'static str,
    /// What it reads.
    pub reads: Reads,
}

/// How the gradient of one input is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gradient {
    /// The input.
    pub of: usize,
    /// What is made on the way and let go of, last to first.
    pub temporaries: &'static [Step],
    /// The gradient itself.
    pub result: Step,
    /// What of the operator a compiled kernel reads beside the gradient of its result.
    pub with: &'static [Of],
}

/// The backward of a [`Simple`] operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradients {
    /// Kernels, in the order in which eager PyTorch runs them.
    Made(&'static [Gradient]),
    /// The gradient of the result itself, as a view.
    Handed,
    /// Views of the gradient of the result, one for each input.
    Parts,
    /// The gradient of the result for each input, cast to its type, or summed where the input was broadcast.
    Shared,
    /// None: what it reads has no gradient.
    Nothing,
}

/// Elements that a compiled kernel runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Those of the first input.
    Input,
    /// Those of the result.
    Output,
}

/// What a compiler makes of a [`Simple`] operator: one result per element, computed inside whatever kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fused {
    /// The name of its kernel, if it comes to be one.
    pub forward: &'static str,
    /// The name of its backward's.
    pub backward: &'static str,
    /// Family of kernels.
    pub memory: MemoryKind,
    /// Elements it runs over.
    pub space: Space,
    /// Whether backward reads a mask of one byte for each element, in the place of what eager execution saves.
    pub mask: bool,
}

/// An operator that is one kernel over memory, from its inputs to its one output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Simple {
    /// What it is called in descriptions of a model.
    pub label: &'static str,
    /// Its name as PyTorch's profiler shows it.
    pub kernel: &'static str,
    /// Family of kernels.
    pub memory: MemoryKind,
    /// What autograd saves, in the order it lets go of it.
    pub saves: &'static [Of],
    /// Its backward.
    pub gradients: Gradients,
    /// What a compiler makes of it.
    pub fused: Fused,
    /// What autocast makes of it.
    pub autocast: Autocast,
    /// The operator that a checkpointing policy of one's own knows it by.
    pub policy: Option<Saved>,
    /// Whether it is a module of its own (`nn.SiLU`), though it has no parameters.
    pub module: bool,
    /// What becomes of a gradient whose elements lie apart.
    pub strides: Strides,
}

impl fmt::Debug for Simple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label)
    }
}

impl Simple {
    /// What is asked of every operator.
    pub const fn row(&self) -> Row {
        let stop = match self.saves {
            [] => Stop::Nowhere,
            [Of::Output, ..] => Stop::After,
            [Of::Input(_), ..] => Stop::Before,
        };
        Row {
            kernel: self.kernel,
            saves: self.saves,
            stop,
            unpacks: !matches!(self.gradients, Gradients::Shared),
            policy: self.policy,
            selective: Selective::Never,
            autocast: Ok(self.autocast),
            strides: self.strides,
            parameters: Parameters::Own,
            compiles: Ok(()),
        }
    }
}
