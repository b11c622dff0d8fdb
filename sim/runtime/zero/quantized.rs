//! ZeRO++'s exchanges of fewer bits (`CUDAQuantizer` in `partition_parameters.py`, `coalesced_collectives.py`, and
//! `csrc/quantization/pt_binding.cpp` for the blocks that its kernels make).
//!
//! Parameters are gathered in eight bits: what a rank has of them is made fp16, cut into groups with a scale each, and both cross;
//! when they are waited for they are made fp16 again, and then bf16. Gradients of matrices are exchanged in four bits twice: among
//! the ranks of a node, which add up what they are sent, and among those of the same place in all nodes. On one node nothing of
//! that applies, nor to vectors, nor to what does not divide evenly.

use super::kernels::{BF16, copy, elementwise, made};
use crate::program::Dispatch;
use crate::program::{BufferId, Builder, Category, Collective, Comm, DType, GroupId, MemoryKind, StreamId, Work};
use crate::units::Bytes;

/// Bytes of a group's scale.
const SCALE: u64 = 4;
/// Bytes of an element in fp16.
const HALF: u64 = 2;
/// Elements of a group, if they divide so.
const GROUP: u64 = 8_000;

/// Groups that so many elements are cut into, eight of them or a multiple in each.
pub fn groups(elements: u64) -> u64 {
    let mut groups = elements.div_ceil(GROUP).max(1);
    while groups < elements && !elements.is_multiple_of(8 * groups) {
        groups += 1;
    }
    while elements.is_multiple_of(16 * groups) && elements > GROUP * groups {
        groups *= 2;
    }
    groups
}

/// What is quantised: numbers and scales.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) values: BufferId,
    pub(super) scales: BufferId,
}

fn block(program: &mut Builder, stream: StreamId, bytes: u64, name: &'static str) -> BufferId {
    program.alloc(Bytes(bytes), stream, Category::AllGatherOutput, name)
}

/// Scales and numbers, as the kernels make them.
fn numbers(program: &mut Builder, stream: StreamId, (bytes, groups): (u64, u64)) -> Numbers {
    let scales = block(program, stream, groups * SCALE, "scales");
    Numbers { scales, values: block(program, stream, bytes, "quantised") }
}

/// Two collectives of the same kind: of numbers, and of scales.
fn exchange(program: &mut Builder, stream: StreamId, kind: Collective, group: GroupId, (bytes, scales): (u64, u64)) {
    for (bytes, dtype) in [(bytes, DType::Fp8), (scales, DType::Fp32)] {
        program.collective(stream, Comm { kind, group, bytes: Bytes(bytes), dtype });
    }
}

/// The rank's part, as a gather in eight bits finds it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// In bf16, for good.
    Here,
    /// In bf16, put together of several.
    Together(BufferId),
    /// In fp16, as it came from the host's memory.
    Halves(BufferId),
}

/// The rank's part of so many elements is quantised, and what was made of it for that goes.
fn quantize(program: &mut Builder, stream: StreamId, elements: u64, part: Part) -> Numbers {
    let cast = |program: &mut Builder| made(program, stream, "aten._to_copy", (elements * BF16, elements * HALF));
    let half = match part {
        Part::Halves(half) => half,
        Part::Here => cast(program),
        Part::Together(flat) => {
            let half = cast(program);
            program.free(flat);
            half
        }
    };
    let groups = groups(elements);
    let numbers = numbers(program, stream, (elements, groups));
    elementwise(program, stream, "quantize", (elements * HALF, elements + groups * SCALE));
    program.free(half);
    numbers
}

/// Numbers of so many elements in fp16; so many scales were made by each of so many ranks.
fn dequantize(program: &mut Builder, stream: StreamId, (elements, scales): (u64, u64)) -> BufferId {
    let half = block(program, stream, elements * HALF, "dequantised");
    elementwise(program, stream, "dequantize", (elements + scales * SCALE, elements * HALF));
    half
}

/// A gather in eight bits of `elements` over so many ranks: of one parameter, or of several that were put together.
#[derive(Debug)]
pub(super) struct Gathered {
    numbers: Numbers,
    elements: u64,
    scales: u64,
}

impl Gathered {
    /// `values` is the block that all ranks' numbers go to.
    pub(super) fn issue(
        program: &mut Builder,
        stream: StreamId,
        (values, own): (BufferId, Part),
        (elements, ranks, group): (u64, u32, GroupId),
    ) -> Gathered {
        let ranks = u64::from(ranks);
        let several = matches!(own, Part::Together(_));
        let part = elements / ranks;
        let own = quantize(program, stream, part, own);
        let scales = ranks * groups(part);
        let gather = |program: &mut Builder, bytes: u64, dtype| {
            let comm = Comm { kind: Collective::AllGather, group, bytes: Bytes(bytes), dtype };
            program.collective(stream, comm);
        };
        // One parameter's numbers are on their way before there is a block for scales.
        if !several {
            gather(program, elements, DType::Fp8);
        }
        let all = block(program, stream, scales * SCALE, "gathered scales");
        if several {
            gather(program, elements, DType::Fp8);
        }
        gather(program, scales * SCALE, DType::Fp32);
        let gone = if several { [own.values, own.scales] } else { [own.scales, own.values] };
        gone.into_iter().for_each(|buffer| program.free(buffer));
        Gathered { numbers: Numbers { values, scales: all }, elements, scales }
    }

    /// It has arrived, in fp16.
    pub(super) fn halves(&self, program: &mut Builder, stream: StreamId) -> BufferId {
        dequantize(program, stream, (self.elements, self.scales))
    }

    /// Nobody needs it any more.
    pub(super) fn free(self, program: &mut Builder) {
        program.free(self.numbers.values);
        program.free(self.numbers.scales);
    }
}

/// Blocks that hold what one gradient's exchange made until the next one's is made, in the order of Python's names.
#[derive(Debug, Default)]
struct Names([Option<BufferId>; 9]);

impl Names {
    /// A name is given to a new block: the old one goes.
    fn set(&mut self, program: &mut Builder, name: usize, buffer: BufferId) {
        if let Some(old) = self.0[name].replace(buffer) {
            program.free(old);
        }
    }
}

/// Who exchanges gradients: the ranks of a node, those of the same place in all nodes, and all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hops {
    pub(super) node: GroupId,
    pub(super) across: GroupId,
    pub(super) all: GroupId,
    pub(super) nodes: u32,
    pub(super) chips: u32,
}

impl Hops {
    fn ranks(self) -> u64 {
        u64::from(self.nodes) * u64::from(self.chips)
    }

    /// Whether a gradient of so many rows and columns is quantised: its part is then fp16.
    pub(super) fn quantizes(self, (rows, columns): (u64, u64)) -> bool {
        columns > 1 && (rows * columns).is_multiple_of(2 * self.ranks())
    }

    /// `all_to_all_quant_reduce`, of gradients by rows and columns, in order; returns a block of each one's part, where it has one of
    /// its own, the last first.
    pub(super) fn reduce(
        self,
        program: &mut Builder,
        stream: StreamId,
        gradients: &[(u64, u64)],
    ) -> Vec<Option<BufferId>> {
        let mut names = Names::default();
        let mut part = |&shape: &(u64, u64)| match self.quantizes(shape) {
            true => Some(self.matrix(program, stream, shape, &mut names)),
            false => self.whole(program, stream, shape.0 * shape.1),
        };
        let mut parts: Vec<Option<BufferId>> = gradients.iter().map(&mut part).collect();
        names.0.into_iter().flatten().for_each(|buffer| program.free(buffer));
        parts.reverse();
        parts
    }

    /// A reduce-scatter of one gradient, where it lies if its parts are equal.
    fn whole(self, program: &mut Builder, stream: StreamId, elements: u64) -> Option<BufferId> {
        let whole = elements.next_multiple_of(self.ranks());
        let flat = (whole > elements).then(|| {
            let flat =
                program.alloc(Bytes(whole * BF16), stream, Category::ReduceScatterInput, "interleaved gradients");
            copy(program, stream, whole);
            flat
        });
        elementwise(program, stream, "aten.div_", (whole * BF16, whole * BF16));
        let bytes = Bytes(whole * BF16);
        program
            .collective(stream, Comm { kind: Collective::ReduceScatter, group: self.all, bytes, dtype: DType::Bf16 });
        flat
    }

    fn matrix(
        self,
        program: &mut Builder,
        stream: StreamId,
        (rows, columns): (u64, u64),
        names: &mut Names,
    ) -> BufferId {
        let (elements, chips) = (rows * columns, u64::from(self.chips));
        let groups = rows.max(columns).max(self.ranks());
        let fewer = groups / chips;
        let [nibbles, scales] = [elements / 2, groups * SCALE];
        let sent = numbers(program, stream, (nibbles, groups));
        elementwise(program, stream, "swizzle_quant", (elements * HALF, nibbles + scales));
        names.set(program, 0, sent.values);
        names.set(program, 1, sent.scales);
        for (name, bytes) in [(2, nibbles), (3, scales)] {
            let received = block(program, stream, bytes, "aten.empty_like");
            names.set(program, name, received);
        }
        exchange(program, stream, Collective::AllToAll, self.node, (nibbles, scales));
        let [nibbles_of_node, scales_of_node] = [nibbles / chips, fewer * SCALE];
        let summed = numbers(program, stream, (nibbles_of_node, fewer));
        elementwise(program, stream, "quantized_reduction", (nibbles + scales, nibbles_of_node + scales_of_node));
        names.set(program, 4, summed.values);
        names.set(program, 5, summed.scales);
        for (name, bytes) in [(6, nibbles_of_node), (7, scales_of_node)] {
            let received = block(program, stream, bytes, "aten.empty_like");
            names.set(program, name, received);
        }
        exchange(program, stream, Collective::AllToAll, self.across, (nibbles_of_node, scales_of_node));
        let wide = elements / chips * HALF;
        let half = block(program, stream, wide, "dequantised");
        elementwise(program, stream, "dequantize", (nibbles_of_node + scales_of_node, wide));
        names.set(program, 8, half);
        self.mean(program, stream, wide / u64::from(self.nodes))
    }

    /// The mean over nodes, each of whose parts has so many bytes: their sum begins with nothing.
    fn mean(self, program: &mut Builder, stream: StreamId, bytes: u64) -> BufferId {
        let mut sum = block(program, stream, bytes, "aten.add");
        elementwise(program, stream, "aten.add", (bytes, bytes));
        let mut next = |program: &mut Builder, name: &'static str, read: u64| {
            let made = block(program, stream, bytes, name);
            let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(read), written: Bytes(bytes) };
            program.launch(stream, name, work, Dispatch::EagerForward);
            program.free(std::mem::replace(&mut sum, made));
        };
        (1..self.nodes).for_each(|_| next(program, "aten.add", 2 * bytes));
        next(program, "aten.div", bytes);
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_even_and_of_at_most_eight_thousand_elements() {
        for (elements, expected) in [(4_096_000, 512), (393_216, 64), (491_520, 64), (720_896, 128), (8_454_144, 1_376)]
        {
            assert_eq!(groups(elements), expected, "{elements}");
            assert!(elements.is_multiple_of(8 * expected) && elements / expected <= GROUP);
        }
    }
}
