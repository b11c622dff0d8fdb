//! ZB-V (Qi et al. 2024, arXiv 2401.10241, section 6): zero bubble in 1F1B's memory, with stages there and back.
//!
//! Each rank runs one stage on the way there (its first chunk) and one on the way back. With F = I = W and m ≥ 2p the
//! bubble is (p−1)/(6m+p−1); 2p half-size activations are in flight. Fewer micro-batches than 2p−1 run as a part of 2p−1.

use super::super::{Action, Batching, Kind, Placement, Shape};
use super::entry::{Entry, Generate, two_stages};

/// Zero bubble, there and back.
pub const ZBV: Entry = Entry {
    name: "ZBVZeroBubble",
    about: "zero bubble with stages there and back, in 1F1B's memory",
    placement: Placement::V,
    batching: |_| Batching::Eager,
    check: |shape| two_stages("ZBVZeroBubble", shape),
    generate: Generate::Rank(write),
};

/// How far a rank is with one of its two stages.
struct Chunk {
    stage: u16,
    forwards: u32,
    inputs: u32,
    weights: u32,
}

/// A rank's two stages, and its list so far.
struct Writer<'out> {
    chunks: [Chunk; 2],
    microbatches: u32,
    out: &'out mut Vec<Action>,
}

impl Writer<'_> {
    /// The next action of a kind on a chunk; micro-batches beyond the last one are left out.
    fn next(&mut self, chunk: usize, kind: Kind) {
        let chunk = &mut self.chunks[chunk];
        let count = match kind {
            Kind::Forward => &mut chunk.forwards,
            Kind::Input => &mut chunk.inputs,
            _ => &mut chunk.weights,
        };
        if *count < self.microbatches {
            self.out.push(Action::new(chunk.stage, kind, *count));
        }
        *count += 1;
    }

    /// Both halves of a backward, one after the other.
    fn backward(&mut self, chunk: usize) {
        self.next(chunk, Kind::Input);
        self.next(chunk, Kind::Weight);
    }
}

fn write(shape: Shape, rank: u32, out: &mut Vec<Action>) {
    let (ranks, microbatches) = (shape.ranks, shape.microbatches);
    let chunk = |at| Chunk { stage: shape.stage(Placement::V, rank, at), forwards: 0, inputs: 0, weights: 0 };
    let mut w = Writer { chunks: [chunk(0), chunk(1)], microbatches, out };
    let enough = microbatches.max(2 * ranks - 1);
    for _ in 0..2 * (ranks - rank) - 1 {
        w.next(0, Kind::Forward);
    }
    for _ in 0..rank {
        w.next(1, Kind::Forward);
        w.next(0, Kind::Forward);
    }
    for _ in rank..ranks {
        w.next(1, Kind::Forward);
        w.backward(1);
    }
    while w.chunks[1].forwards < w.chunks[0].forwards || w.chunks[0].forwards < enough {
        if w.chunks[0].forwards < enough {
            w.next(0, Kind::Forward);
        }
        w.backward(0);
        w.next(1, Kind::Forward);
        w.backward(1);
    }
    for _ in 0..rank {
        w.next(0, Kind::Input);
        w.next(1, Kind::Input);
    }
    for _ in rank..ranks {
        w.backward(0);
    }
    for chunk in [1, 0] {
        while w.chunks[chunk].weights < w.chunks[chunk].inputs {
            w.next(chunk, Kind::Weight);
        }
    }
}
