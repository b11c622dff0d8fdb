//! A rank's part of a vocabulary that is sharded over pipeline ranks (sail-sg/VocabularyParallelism@6191c3bf,
//! `core/tensor_parallel/vocab_input.py`, `vocab_output.py`, `cross_entropy.py`).
//!
//! With T tokens and V/p words, one block of T·V/p numbers in fp32 holds first the logits, then their exponentials, then the
//! softmax over the rank's own words; maximum and sum of each token are corrected for the other ranks' words later. The
//! gradient of the head's input is made in forward, from that softmax and from the targets' rows apart, where both are
//! corrected and reduced together; else in backward.

use super::super::shape::MatmulShape;
use super::super::{COMPUTE, Eager, Storage};
use crate::model::graph::{Param, Role};
use crate::program::{Category, Collective, Comm, DType, GroupId, MatmulLayout, MemoryKind, StreamId};
use crate::units::Bytes;

/// Bytes of an index, of a number and of a truth.
const INDEX: u64 = 8;
const NUMBER: u64 = 4;
const TRUTH: u64 = 1;

/// Sizes of a rank's part.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// T: tokens of a micro-batch.
    pub tokens: u64,
    /// D: width of the hidden state.
    pub width: u64,
    /// V/p: words of the rank.
    pub words: u64,
    /// Type of parameters and activations.
    pub dtype: DType,
}

impl Part {
    /// Bytes of a hidden state.
    pub fn hidden(self) -> u64 {
        self.tokens * self.width * self.dtype.bytes()
    }

    /// Bytes of one number a token, in fp32.
    pub fn numbers(self) -> u64 {
        self.tokens * NUMBER
    }

    fn logits(self, dtype: DType) -> u64 {
        self.tokens * self.words * dtype.bytes()
    }
}

/// When ranks meet over the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meet {
    /// Afterwards: statistics and gradients of the input, made in forward, are reduced together.
    Together,
    /// Afterwards: statistics are reduced after forward, gradients of the input after backward.
    Apart,
    /// At once, on this communicator.
    AtOnce(GroupId, StreamId),
}

/// What a part of the head leaves for its backward.
#[derive(Clone, Debug)]
pub struct HeadFrame {
    input: Storage,
    softmax: Storage,
    /// Which targets other ranks have, the rows of the others, and what the rank's own statistics were.
    small: Vec<Storage>,
}

/// What a part of the head hands on, besides that.
#[derive(Clone, Debug, Default)]
pub struct HeadResults {
    /// Statistics, one number a token: maximum, sum, the target's logit, and whether another rank has the target.
    pub statistics: Vec<Storage>,
    /// The gradient of the input: the softmax's share and the targets', where it is made in forward.
    pub gradients: Vec<Storage>,
}

/// What a part of the embedding leaves for its backward.
#[derive(Clone, Copy, Debug)]
pub struct WordsFrame {
    elsewhere: Storage,
    rows: Storage,
}

/// A change of type.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    /// The type before.
    pub from: DType,
    /// The type after.
    pub to: DType,
}

impl Eager {
    fn small_block(&mut self, bytes: u64, name: &'static str) -> Storage {
        self.made(name, bytes, bytes, self.settings.forward)
    }

    /// A kernel that changes a block in place.
    fn in_place(&mut self, name: &'static str, kind: MemoryKind, bytes: u64) {
        self.pointwise(name, kind, bytes, bytes, self.settings.forward);
    }

    fn meet(&mut self, meet: Meet, bytes: u64, dtype: DType) {
        let Meet::AtOnce(group, stream) = meet else { return };
        self.program.wait_stream(stream, COMPUTE);
        self.program.collective(stream, Comm { kind: Collective::AllReduce, group, bytes: Bytes(bytes), dtype });
        self.program.wait_stream(COMPUTE, stream);
    }

    /// Forward of the rank's part of the head, from the last stage's result, which it takes over. Where ranks meet at
    /// once, the results' one block is the loss of every token.
    pub fn part_of_head(&mut self, part: Part, input: Storage, meet: Meet) -> (HeadFrame, HeadResults) {
        let (dispatch, tokens) = (self.settings.forward, part.tokens);
        let (wide, narrow, numbers) = (part.logits(DType::Fp32), part.logits(part.dtype), part.numbers());
        let dummy = self.small_block(tokens * part.dtype.bytes(), "aten.zeros");
        let logits = self.storage_as(narrow, Category::Logits, "aten.mm");
        self.matmul(
            "aten.mm",
            MatmulShape { m: tokens, n: part.words, k: part.width },
            part.dtype,
            MatmulLayout::Forward,
            dispatch,
        );
        let softmax = self.storage_as(wide, Category::Logits, "aten._to_copy");
        self.pointwise("aten._to_copy", MemoryKind::Elementwise, narrow, wide, dispatch);
        let largest = self.storage(numbers, "aten.max");
        let at = self.storage(tokens * INDEX, "aten.max");
        self.pointwise("aten.max", MemoryKind::Softmax, wide, numbers + tokens * INDEX, dispatch);
        self.release(at);
        self.release(logits);
        self.meet(meet, numbers, DType::Fp32);
        self.in_place("aten.sub_", MemoryKind::Elementwise, wide);
        let (elsewhere, rows) = self.masked_rows(tokens);
        let every = self.small_block(tokens * INDEX, "aten.arange");
        let found = self.small_block(numbers, "aten.index");
        let picked = self.small_block(numbers, "aten.clone");
        self.release(found);
        self.in_place("aten.masked_fill_", MemoryKind::Elementwise, numbers);
        self.in_place("aten.exp_", MemoryKind::Elementwise, wide);
        let sum = self.storage(numbers, "aten.sum");
        self.pointwise("aten.sum", MemoryKind::Softmax, wide, numbers, dispatch);
        self.release(every);
        self.meet(meet, numbers, DType::Fp32);
        self.meet(meet, numbers, DType::Fp32);
        if let Meet::AtOnce(..) = meet {
            let log = self.small_block(numbers, "aten.log");
            let losses = self.small_block(numbers, "aten.sub");
            self.release(log);
            self.in_place("aten.div_", MemoryKind::Elementwise, wide);
            for storage in [largest, picked, sum, dummy] {
                self.release(storage);
            }
            let frame = HeadFrame { input, softmax, small: vec![elsewhere, rows] };
            return (frame, HeadResults { statistics: vec![losses], gradients: vec![] });
        }
        self.in_place("aten.div_", MemoryKind::Elementwise, wide);
        let mut gradients = vec![];
        if meet == Meet::Together {
            let hidden = part.hidden();
            let cast = self.storage_as(narrow, Category::Logits, "aten._to_copy");
            self.pointwise("aten._to_copy", MemoryKind::Elementwise, wide, narrow, dispatch);
            gradients.push(self.storage(hidden, "aten.mm"));
            let shape = MatmulShape { m: tokens, n: part.width, k: part.words };
            self.matmul("aten.mm", shape, part.dtype, MatmulLayout::DataGradient, dispatch);
            gradients.push(self.storage(hidden, "aten.index"));
            self.pointwise("aten.index", MemoryKind::Gather, hidden + tokens * INDEX, hidden, dispatch);
            self.in_place("aten.masked_fill_", MemoryKind::Elementwise, hidden);
            self.release(cast);
        }
        let own = ["aten.clone"; 2].map(|name| self.small_block(numbers, name));
        let mask = self.small_block(tokens * TRUTH, "aten.clone");
        self.release(dummy);
        let small = vec![elsewhere, rows, own[0], own[1]];
        (HeadFrame { input, softmax, small }, HeadResults { statistics: vec![largest, sum, picked, mask], gradients })
    }

    /// Backward of the rank's part of the head: the weight's gradient goes to `param`. Returns the gradient of the input:
    /// where it is made in forward, zeros in its place.
    pub fn part_of_head_backward(&mut self, part: Part, frame: HeadFrame, meet: Meet, param: usize) -> Storage {
        let (dispatch, tokens) = (self.settings.backward, part.tokens);
        let (wide, narrow, numbers) = (part.logits(DType::Fp32), part.logits(part.dtype), part.numbers());
        let before = std::mem::replace(&mut self.category, Category::BackwardTemporary);
        let change = |this: &mut Self, name, kind, bytes| this.pointwise(name, kind, bytes, bytes, dispatch);
        let zeros = (meet == Meet::Together).then(|| {
            let zeros = self.storage(part.hidden(), "aten.zeros");
            self.pointwise("aten.zeros", MemoryKind::Copy, 0, part.hidden(), dispatch);
            zeros
        });
        if !matches!(meet, Meet::AtOnce(..)) {
            for name in ["aten.div_", "aten.sub_", "aten.exp", "aten.mul_"] {
                change(self, name, MemoryKind::Elementwise, numbers);
            }
            change(self, "aten.mul_", MemoryKind::Elementwise, wide);
        }
        let every = self.small_block(tokens * INDEX, "aten.arange");
        let mask = self.small_block(numbers, "aten._to_copy");
        let update = self.small_block(numbers, "aten.rsub");
        self.release(mask);
        let found = self.small_block(numbers, "aten.index");
        change(self, "aten.sub_", MemoryKind::Elementwise, numbers);
        change(self, "aten.index_put_", MemoryKind::Scatter, numbers);
        self.release(found);
        change(self, "aten.mul_", MemoryKind::Elementwise, wide);
        let gradient = self.storage(narrow, "aten._to_copy");
        self.pointwise("aten._to_copy", MemoryKind::Elementwise, wide, narrow, dispatch);
        let result = zeros.unwrap_or_else(|| {
            let made = self.storage(part.hidden(), "aten.mm");
            let shape = MatmulShape { m: tokens, n: part.width, k: part.words };
            self.matmul("aten.mm", shape, part.dtype, MatmulLayout::DataGradient, dispatch);
            made
        });
        if let Meet::AtOnce(group, stream) = meet {
            self.program.wait_stream(stream, COMPUTE);
            let comm = Comm { kind: Collective::AllReduce, group, bytes: Bytes(part.hidden()), dtype: part.dtype };
            self.program.collective(stream, comm);
        }
        let weight = self.made_weight_gradient(MatmulShape { m: part.words, n: part.width, k: tokens }, part.dtype);
        if let Meet::AtOnce(_, stream) = meet {
            self.program.wait_stream(COMPUTE, stream);
        }
        let held = [every, update, gradient, frame.softmax, frame.input];
        for storage in held.into_iter().chain(frame.small) {
            self.release(storage);
        }
        self.category = before;
        match weight {
            Some(weight) => self.store_leaf(param, weight, part.dtype),
            None => self.gradient_arrived(param),
        }
        result
    }

    /// Forward of the rank's part of the embedding: its own words' rows, the others zero.
    pub fn part_of_words(&mut self, part: Part) -> (WordsFrame, Storage) {
        let (elsewhere, rows) = self.masked_rows(part.tokens);
        let found = self.looked_up(part.tokens, part.hidden());
        self.in_place("aten.masked_fill_", MemoryKind::Elementwise, part.hidden());
        let copy = self.copied(found, part.hidden());
        (WordsFrame { elsewhere, rows }, copy)
    }

    /// Backward of the rank's part of the embedding, from a gradient which it takes over; the table's goes to `param`.
    pub fn part_of_words_backward(&mut self, part: Part, frame: WordsFrame, gradient: Storage, param: usize) {
        let whole = part.hidden();
        let filled = self.pointwise_gradient("aten.masked_fill", whole, whole + part.tokens * TRUTH);
        self.release(gradient);
        self.release(frame.elsewhere);
        let table = Param::of("word_embeddings.weight", (part.words, part.width), Role::Table);
        let made = self.dense_gradient(part.tokens, &table, part.dtype, whole);
        self.release(filled);
        self.release(frame.rows);
        self.store_leaf(param, made, part.dtype);
    }

    /// A copy of a block in another type, in the place of the block. `elements`: of both.
    pub fn cast(&mut self, storage: Storage, elements: u64, Cast { from, to }: Cast) -> Storage {
        let cast = self.made("aten._to_copy", elements * to.bytes(), elements * from.bytes(), self.settings.forward);
        self.release(storage);
        cast
    }

    /// A copy of a block.
    pub fn clone_of(&mut self, bytes: u64) -> Storage {
        let copy = self.storage(bytes, "aten.clone");
        self.pointwise("aten.clone", MemoryKind::Copy, bytes, bytes, self.settings.forward);
        copy
    }
}
