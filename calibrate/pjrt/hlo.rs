//! A compiled program: XLA's `HloModuleProto`, as far as it is looked at.
//!
//! Plugins hand programs out in protobuf; numbers are those of `xla/service/hlo.proto` and `xla/xla_data.proto` (OpenXLA).
//! [`flow`] says how often each instruction runs, [`flops`] and [`collectives`] what runs, [`cycles`] what
//! the compiler expects of it, [`remat`] what it computes again for want of memory, [`mod@print`] shows it.

pub mod collectives;
pub mod cycles;
pub mod flops;
pub mod flow;
pub mod print;
pub mod remat;
mod sound;

use std::collections::BTreeMap;

use prost::Message;

use super::error::PjrtError;

/// The formats that programs come in, by the plugins' names.
const FORMATS: [&str; 2] = ["hlo", "hlo_with_config"];

/// Reads a program that a plugin gave.
///
/// # Errors
/// Another format, or bytes that are none.
pub fn read(bytes: &[u8], format: &str) -> Result<Module, PjrtError> {
    let nonsense = |why: prost::DecodeError| PjrtError::Nonsense(format!("the compiled program cannot be read: {why}"));
    match format {
        "hlo" => sound::sound(Module::decode(bytes).map_err(nonsense)?),
        "hlo_with_config" => sound::sound(WithConfig::decode(bytes).map_err(nonsense)?.module.unwrap_or_default()),
        other => Err(PjrtError::Nonsense(format!("the compiled program is {other:?}, not one of {FORMATS:?}"))),
    }
}

#[derive(Clone, PartialEq, Message)]
struct WithConfig {
    #[prost(message, optional, tag = "1")]
    module: Option<Module>,
}

/// A program.
#[derive(Clone, PartialEq, Message)]
pub struct Module {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its functions; those called come before those that call.
    #[prost(message, repeated, tag = "3")]
    pub computations: Vec<Computation>,
    /// The one that runs.
    #[prost(int64, tag = "6")]
    pub entry: i64,
    /// The order in which instructions run.
    #[prost(message, optional, tag = "7")]
    pub schedule: Option<Schedule>,
}

impl Module {
    /// A function by its number.
    pub fn computation(&self, id: i64) -> Option<&Computation> {
        self.computations.iter().find(|computation| computation.id == id)
    }
}

/// The order in which instructions run, by function.
#[derive(Clone, PartialEq, Message)]
pub struct Schedule {
    /// Numbers of instructions, by the function's number.
    #[prost(btree_map = "int64, message", tag = "1")]
    pub sequences: BTreeMap<i64, Sequence>,
}

/// Instructions in the order in which they run.
#[derive(Clone, PartialEq, Message)]
pub struct Sequence {
    /// Their numbers.
    #[prost(int64, repeated, tag = "1")]
    pub instructions: Vec<i64>,
}

/// A function.
#[derive(Clone, PartialEq, Message)]
pub struct Computation {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its instructions; operands come before their users.
    #[prost(message, repeated, tag = "2")]
    pub instructions: Vec<Instruction>,
    /// Its number.
    #[prost(int64, tag = "5")]
    pub id: i64,
    /// The instruction whose result is its own.
    #[prost(int64, tag = "6")]
    pub root: i64,
}

impl Computation {
    /// An instruction by its number.
    pub fn instruction(&self, id: i64) -> Option<&Instruction> {
        self.instructions.iter().find(|instruction| instruction.id == id)
    }

    /// An instruction's operand by its place.
    pub fn operand(&self, of: &Instruction, at: usize) -> Option<&Instruction> {
        self.instruction(*of.operands.get(at)?)
    }
}

/// An instruction.
#[derive(Clone, PartialEq, Message)]
pub struct Instruction {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What it does, as `dot` or `all-gather-start`.
    #[prost(string, tag = "2")]
    pub opcode: String,
    /// Its result.
    #[prost(message, optional, tag = "3")]
    pub shape: Option<Shape>,
    /// Where it comes from.
    #[prost(message, optional, tag = "7")]
    pub metadata: Option<Metadata>,
    /// A constant's value.
    #[prost(message, optional, tag = "8")]
    pub literal: Option<Literal>,
    /// Which parameter.
    #[prost(int64, tag = "9")]
    pub parameter: i64,
    /// How a fusion was made: `kLoop`, `kOutput`, `kCustom`, …
    #[prost(string, tag = "11")]
    pub fusion: String,
    /// Which element of a tuple.
    #[prost(int64, tag = "13")]
    pub element: i64,
    /// Axes, as of a gather or a reduction.
    #[prost(int64, repeated, tag = "14")]
    pub dimensions: Vec<i64>,
    /// A convolution's window.
    #[prost(message, optional, tag = "15")]
    pub window: Option<Window>,
    /// A convolution's axes.
    #[prost(message, optional, tag = "16")]
    pub convolution: Option<Convolution>,
    /// A convolution's groups of features.
    #[prost(int64, tag = "50")]
    pub feature_groups: i64,
    /// A convolution's groups of the batch.
    #[prost(int64, tag = "58")]
    pub batch_groups: i64,
    /// What a custom call calls.
    #[prost(string, tag = "28")]
    pub target: String,
    /// A dot's axes.
    #[prost(message, optional, tag = "30")]
    pub dot: Option<Dot>,
    /// Its number.
    #[prost(int64, tag = "35")]
    pub id: i64,
    /// Its operands' numbers.
    #[prost(int64, repeated, tag = "36")]
    pub operands: Vec<i64>,
    /// The functions that it calls.
    #[prost(int64, repeated, tag = "38")]
    pub calls: Vec<i64>,
    /// What the compiler notes for itself; JSON in text.
    #[prost(bytes = "vec", tag = "43")]
    pub backend: Vec<u8>,
    /// Who takes part, written out.
    #[prost(message, repeated, tag = "49")]
    pub groups: Vec<Group>,
    /// Who sends to whom.
    #[prost(message, repeated, tag = "52")]
    pub pairs: Vec<Pair>,
    /// How a comparison compares: `LT`, …
    #[prost(string, tag = "63")]
    pub direction: String,
    /// Whether a list of who takes part names devices; then it is never empty.
    #[prost(bool, tag = "71")]
    pub by_device: bool,
    /// Who takes part, perhaps as a rule.
    #[prost(message, optional, tag = "87")]
    pub devices: Option<Devices>,
    /// Who takes part, as a rule (newer compilers).
    #[prost(message, optional, tag = "92")]
    pub iota: Option<Iota>,
    /// Who takes part, by axes of a mesh (newer compilers).
    #[prost(message, optional, tag = "93")]
    pub along: Option<Along>,
}

/// Where an instruction comes from.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    /// The framework's name for it, as `jit(step)/transpose(jvp())/dot_general`.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// The shape of a result.
#[derive(Clone, PartialEq, Message)]
pub struct Shape {
    /// `PrimitiveType`.
    #[prost(int32, tag = "2")]
    pub element: i32,
    /// Lengths of its axes.
    #[prost(int64, repeated, tag = "3")]
    pub dimensions: Vec<i64>,
    /// A tuple's elements.
    #[prost(message, repeated, tag = "4")]
    pub tuple: Vec<Shape>,
    /// How it lies in memory.
    #[prost(message, optional, tag = "5")]
    pub layout: Option<Layout>,
}

/// How an array lies in memory.
#[derive(Clone, PartialEq, Message)]
pub struct Layout {
    /// Axes, the fastest first.
    #[prost(int64, repeated, tag = "1")]
    pub minor_to_major: Vec<i64>,
    /// Which memory: on TPU 0 is HBM, 1 VMEM, 5 the host's.
    #[prost(int64, tag = "8")]
    pub memory: i64,
}

/// A constant, as far as it can be a loop's bound.
#[derive(Clone, PartialEq, Message)]
pub struct Literal {
    /// 32-bit numbers.
    #[prost(int32, repeated, tag = "4")]
    pub s32: Vec<i32>,
    /// 64-bit numbers.
    #[prost(int64, repeated, tag = "5")]
    pub s64: Vec<i64>,
    /// 32-bit numbers without sign.
    #[prost(uint32, repeated, tag = "6")]
    pub u32: Vec<u32>,
    /// 64-bit numbers without sign.
    #[prost(uint64, repeated, tag = "7")]
    pub u64: Vec<u64>,
}

impl Literal {
    /// The one whole number that it is.
    pub fn number(&self) -> Option<i64> {
        match (&self.s32[..], &self.s64[..], &self.u32[..], &self.u64[..]) {
            ([one], [], [], []) => Some(i64::from(*one)),
            ([], [one], [], []) => Some(*one),
            ([], [], [one], []) => Some(i64::from(*one)),
            ([], [], [], [one]) => i64::try_from(*one).ok(),
            _ => None,
        }
    }
}

/// A window that moves over an array.
#[derive(Clone, PartialEq, Message)]
pub struct Window {
    /// One for each spatial axis.
    #[prost(message, repeated, tag = "1")]
    pub dimensions: Vec<WindowDimension>,
}

/// A window along one axis.
#[derive(Clone, PartialEq, Message)]
pub struct WindowDimension {
    /// Its length.
    #[prost(int64, tag = "1")]
    pub size: i64,
    /// How far it moves.
    #[prost(int64, tag = "2")]
    pub stride: i64,
    /// Padding before the array.
    #[prost(int64, tag = "3")]
    pub low: i64,
    /// Padding after the array.
    #[prost(int64, tag = "4")]
    pub high: i64,
    /// Spacing of the window's elements.
    #[prost(int64, tag = "5")]
    pub window_dilation: i64,
    /// Spacing of the array's elements.
    #[prost(int64, tag = "6")]
    pub base_dilation: i64,
}

/// Which axis of a convolution is which.
#[derive(Clone, PartialEq, Message)]
pub struct Convolution {
    /// Batch of the input.
    #[prost(int64, tag = "7")]
    pub input_batch: i64,
    /// Features of the input.
    #[prost(int64, tag = "8")]
    pub input_feature: i64,
    /// Others of the input.
    #[prost(int64, repeated, tag = "11")]
    pub input_spatial: Vec<i64>,
    /// Features that the kernel takes.
    #[prost(int64, tag = "3")]
    pub kernel_input: i64,
    /// Features that the kernel gives.
    #[prost(int64, tag = "4")]
    pub kernel_output: i64,
    /// Others of the kernel.
    #[prost(int64, repeated, tag = "6")]
    pub kernel_spatial: Vec<i64>,
    /// Others of the output.
    #[prost(int64, repeated, tag = "12")]
    pub output_spatial: Vec<i64>,
}

/// Which axes a dot contracts.
#[derive(Clone, PartialEq, Message)]
pub struct Dot {
    /// Of the first operand.
    #[prost(int64, repeated, tag = "1")]
    pub contracted: Vec<i64>,
}

/// Devices that take part together.
#[derive(Clone, PartialEq, Message)]
pub struct Group {
    /// Their numbers.
    #[prost(int64, repeated, tag = "1")]
    pub ids: Vec<i64>,
}

/// A sender and a receiver.
#[derive(Clone, PartialEq, Message)]
pub struct Pair {
    /// Who sends.
    #[prost(int64, tag = "1")]
    pub source: i64,
    /// Who receives.
    #[prost(int64, tag = "2")]
    pub target: i64,
}

/// Who takes part in a collective.
#[derive(Clone, PartialEq, Message)]
pub struct Devices {
    /// Written out.
    #[prost(message, repeated, tag = "1")]
    pub groups: Vec<Group>,
    /// As a rule.
    #[prost(message, optional, tag = "2")]
    pub iota: Option<Iota>,
}

/// Groups as rows of numbers counted up, reshaped and transposed.
#[derive(Clone, PartialEq, Message)]
pub struct Iota {
    /// Groups.
    #[prost(int64, tag = "1")]
    pub groups: i64,
    /// Devices of each.
    #[prost(int64, tag = "2")]
    pub devices: i64,
    /// The shape of the numbers.
    #[prost(int64, repeated, tag = "3")]
    pub reshape: Vec<i64>,
    /// The order that their axes are put in.
    #[prost(int32, repeated, tag = "4")]
    pub transpose: Vec<i32>,
}

/// Groups of the devices that differ along some axes of a mesh.
#[derive(Clone, PartialEq, Message)]
pub struct Along {
    /// The mesh.
    #[prost(message, optional, tag = "1")]
    pub mesh: Option<Mesh>,
    /// The axes, the slowest first.
    #[prost(message, repeated, tag = "2")]
    pub axes: Vec<AxisRef>,
}

/// Devices along axes.
#[derive(Clone, PartialEq, Message)]
pub struct Mesh {
    /// The slowest first.
    #[prost(message, repeated, tag = "1")]
    pub axes: Vec<Axis>,
    /// The devices in order, if not counted up.
    #[prost(int64, repeated, tag = "2")]
    pub devices: Vec<i64>,
}

/// An axis of a mesh.
#[derive(Clone, PartialEq, Message)]
pub struct Axis {
    /// Its length.
    #[prost(int64, tag = "2")]
    pub size: i64,
}

/// An axis of a mesh, or a part of one.
#[derive(Clone, PartialEq, Message)]
pub struct AxisRef {
    /// Which axis.
    #[prost(int64, tag = "1")]
    pub index: i64,
    /// Which part, if not all of it.
    #[prost(message, optional, tag = "2")]
    pub part: Option<Part>,
}

/// A part of an axis that is thought of as several.
#[derive(Clone, PartialEq, Message)]
pub struct Part {
    /// The product of those before.
    #[prost(int64, tag = "1")]
    pub before: i64,
    /// Its length.
    #[prost(int64, tag = "2")]
    pub size: i64,
}

/// Names and bits of the element types, by `PrimitiveType`; token and tuple have none.
const ELEMENTS: [(i32, &str, u64); 26] = [
    (1, "pred", 8),
    (2, "s8", 8),
    (3, "s16", 16),
    (4, "s32", 32),
    (5, "s64", 64),
    (6, "u8", 8),
    (7, "u16", 16),
    (8, "u32", 32),
    (9, "u64", 64),
    (10, "f16", 16),
    (11, "f32", 32),
    (12, "f64", 64),
    (15, "c64", 64),
    (16, "bf16", 16),
    (18, "c128", 128),
    (19, "f8e5m2", 8),
    (20, "f8e4m3fn", 8),
    (21, "s4", 4),
    (22, "u4", 4),
    (23, "f8e4m3b11fnuz", 8),
    (24, "f8e5m2fnuz", 8),
    (25, "f8e4m3fnuz", 8),
    (28, "f8e4m3", 8),
    (29, "f8e3m4", 8),
    (32, "f4e2m1fn", 4),
    (33, "f8e8m0fnu", 8),
];

impl Shape {
    /// Elements of an array.
    pub fn elements(&self) -> u64 {
        self.dimensions.iter().fold(1, |all, length| all.saturating_mul(length.cast_unsigned()))
    }

    /// The element type's name, if it is an array.
    pub fn element_name(&self) -> Option<&'static str> {
        ELEMENTS.iter().find(|(number, ..)| *number == self.element).map(|(_, name, _)| *name)
    }

    /// Bytes without padding; those of all elements of a tuple.
    pub fn bytes(&self) -> u64 {
        let bits = ELEMENTS.iter().find(|(number, ..)| *number == self.element).map_or(0, |(.., bits)| *bits);
        let own = if bits == 0 { 0 } else { self.elements().saturating_mul(bits).div_ceil(8) };
        self.tuple.iter().fold(own, |all, part| all.saturating_add(part.bytes()))
    }

    /// The length of an axis.
    pub fn length(&self, axis: i64) -> Option<u64> {
        Some(self.dimensions.get(usize::try_from(axis).ok()?)?.cast_unsigned())
    }
}
