//! Experts with places: MaxText's `dense_matmul` with a capacity factor (`layers/moe.py`).
//!
//! A router picks k of E experts for each token; an expert has C places for each sequence, and a token that finds none is
//! dropped. Two masks of B S E C send tokens to places, E B C D, and bring results back, weighted. What goes over the expert
//! axis is said by constraints alone: experts' weights, or the places.

use windtunnel::model::experts::Experts;

use super::operators::{Gradients, Made};
use super::{Logical, Writer};
use crate::stablehlo::{Comparison, Element, Function, Meeting, Reduction, Type, Value};

impl Writer<'_> {
    /// The model's experts; asked for only by operators that experts have.
    pub(super) fn experts(&self) -> &Experts {
        self.job.model.experts().expect("only experts have routers")
    }

    /// Tokens lie as their batch does, whole but for that.
    fn as_batch(&mut self, value: &Value) -> Value {
        let others = vec![Logical::Whole; value.of.dims.len() - 1];
        let spec = self.layout.spec(&[&[Logical::Batch], &others[..]].concat());
        self.main.constrain(value, &spec)
    }

    /// Places, E B C and numbers: with their experts if these stay where they are, else with their sequences.
    fn as_places(&mut self, value: &Value, numbers: Logical) -> Value {
        let at = if self.job.expert_ranks() > 1 { Logical::Expert } else { Logical::Whole };
        let spec = self.layout.spec(&[at, Logical::Batch, Logical::Whole, numbers]);
        self.main.constrain(value, &spec)
    }

    /// An expert's weight as it is multiplied with: all of it but what the tensor axis shares out.
    fn gathered(&mut self, weight: &Value, row_parallel: bool) -> Value {
        if self.job.mesh.expert == 1 {
            return weight.clone();
        }
        let [rows, columns] =
            if row_parallel { [Logical::Tensor, Logical::Whole] } else { [Logical::Whole, Logical::Tensor] };
        let spec = self.layout.spec(&[Logical::Expert, rows, columns]);
        self.main.constrain(weight, &spec)
    }

    /// What the tensor axis shares of a result.
    fn columns(row_parallel: bool) -> Logical {
        if row_parallel { Logical::Whole } else { Logical::Tensor }
    }

    /// A product of each expert's places with its weight. Residuals: the places and the weight.
    pub fn experts_linear(&mut self, x: &Value, weight: &Value, row_parallel: bool) -> Made {
        let weight = self.main.convert(weight, Element::Bf16);
        let weight = self.gathered(&weight, row_parallel);
        let product = self.main.dot(x, &weight, (&[0], &[0]), (&[3], &[1]), Element::Bf16);
        let output = self.as_places(&product, Self::columns(row_parallel));
        Made { output, residuals: vec![x.clone(), weight] }
    }

    /// Gradients of the places and of the weight.
    pub fn experts_linear_backward(&mut self, residuals: &[Value], gradient: &Value, row_parallel: bool) -> Gradients {
        let [x, weight] = residuals else { unreachable!("a linear has two residuals") };
        let gradient = self.as_places(gradient, Self::columns(row_parallel));
        let product = self.main.dot(&gradient, x, (&[0], &[0]), (&[1, 2], &[1, 2]), Element::Bf16);
        let of_weight = self.main.transpose(&product, &[0, 2, 1]);
        let of_x = self.main.dot(&gradient, weight, (&[0], &[0]), (&[3], &[2]), Element::Bf16);
        let of_weight = self.gathered(&of_weight, row_parallel);
        Gradients { inputs: vec![of_x], weight: Some(self.main.convert(&of_weight, Element::F32)) }
    }

    /// The mask of weights from the router's scores: B S E C (`generate_masks`). Residuals: the choice, the softmax's share,
    /// powers and sum, places among scores, where a score was the last one put at its place, which tokens found a place, and
    /// where each stands, from one on.
    pub fn masks(&mut self, scores: &Value) -> Made {
        let (count, top_k) = (self.experts().count, self.experts().top_k);
        let places = self.job.places(self.experts()) / count;
        let scores = self.as_batch(scores);
        let dims = scores.of.dims.clone();
        let [top, chosen] = self.main.top_k(&scores, top_k);
        let column = self.main.reshape(&chosen, &[&chosen.of.dims[..], &[1]].concat());
        let soft = softmax(&mut self.main, &top);
        let index = self.places_of(&chosen, &dims);
        let (weights, last) = put_scores(&mut self.main, &soft.shares, &index, &dims);
        // Of each choice which expert it is, and how many chose that before.
        let main = &mut self.main;
        let hot = one_hot(main, &chosen, count);
        let fused = main.reshape(&hot, &[dims[0], dims[1] * top_k, count]);
        let fused = self.as_batch(&fused);
        let counted = self.main.running_sum(&fused, 1);
        let before = self.main.reshape(&counted, &hot.of.dims);
        let before = self.as_batch(&before);
        let main = &mut self.main;
        let limit = main.fill(places as f64, &before.of);
        let found = main.compare(Comparison::AtMost, &before, &limit);
        let found = main.convert(&found, Element::I32);
        let kept = main.zip("multiply", &hot, &found);
        let kept = main.reduce(Reduction::Sum, &kept, &[2]);
        let keeps = main.convert(&kept, Element::Bf16);
        let weights = main.zip("multiply", &weights, &keeps);
        let position = main.zip("multiply", &fused, &counted);
        let position = main.reshape(&position, &hot.of.dims);
        let position = main.reduce(Reduction::Sum, &position, &[2]);
        let position = main.zip("multiply", &position, &kept);
        let weights = main.broadcast(&weights, &[&dims[..], &[1]].concat(), &[0, 1, 2]);
        let stands = one_hot(main, &position, places + 1);
        let stands = main.convert(&stands, Element::Bf16);
        let weights = main.broadcast(&weights, &stands.of.dims, &[0, 1, 2, 3]);
        let combine = main.zip("multiply", &weights, &stands);
        let output = main.slice(&combine, 3, 1, places + 1);
        let residuals = vec![column, soft.slope, soft.powers, soft.sum, index, last, keeps, stands];
        Made { output, residuals }
    }

    /// The gradient of the router's scores.
    pub fn masks_backward(&mut self, residuals: &[Value], gradient: &Value) -> Value {
        let [column, slope, powers, sum, index, last, keeps, stands] = residuals else {
            unreachable!("masks have eight residuals")
        };
        let gradient = self.as_batch(gradient);
        let main = &mut self.main;
        let padded = main.pad(&gradient, 3, 1);
        let along = main.zip("multiply", &padded, stands);
        let along = main.reduce(Reduction::Sum, &along, &[3]);
        let along = main.reshape(&along, &[&keeps.of.dims[..], &[1]].concat());
        let along = main.reduce(Reduction::Sum, &along, &[3]);
        let of_weights = main.zip("multiply", &along, keeps);
        // A place outside reads nothing.
        let ends: Vec<u64> = keeps.of.dims.iter().map(|length| length - 1).collect();
        let ends = main.numbers(&ends, Element::I32);
        let zero = main.fill(0.0, &index.of);
        let above = main.compare(Comparison::AtLeast, index, &zero);
        let ends = main.broadcast(&ends, &[1, 1, 1, 3], &[3]);
        let ends = main.broadcast(&ends, &index.of.dims, &[0, 1, 2, 3]);
        let below = main.compare(Comparison::AtMost, index, &ends);
        let inside = main.zip("and", &above, &below);
        let inside = main.reduce(Reduction::All, &inside, &[3]);
        let of_top = main.take_at(&of_weights, index);
        let nothing = main.fill(0.0, &of_top.of);
        let of_top = main.select(&inside, &of_top, &nothing);
        let nothing = main.fill(0.0, &of_top.of);
        let of_top = main.select(last, &of_top, &nothing);
        let of_top = softmax_backward(main, [slope, powers, sum], &of_top);
        let empty = main.fill(0.0, &keeps.of);
        let of_scores = main.put_many(&empty, column, &of_top);
        self.as_batch(&of_scores)
    }

    /// Places of the chosen among scores of B S E: B S K 3.
    fn places_of(&mut self, chosen: &Value, dims: &[u64]) -> Value {
        let all = chosen.of.dims.clone();
        let sequence = self.main.iota(Type::new(Element::I32, [all[0]]), 0);
        let sequence = self.main.broadcast(&sequence, &[all[0], 1, 1], &[0]);
        let sequence = self.as_batch(&sequence);
        let main = &mut self.main;
        let token = main.iota(Type::new(Element::I32, [all[1]]), 0);
        let token = main.broadcast(&token, &[all[1], 1], &[0]);
        let [sequence, token, expert] = [(&sequence, dims[0]), (&token, dims[1]), (chosen, dims[2])]
            .map(|(places, length)| from_end(main, places, length));
        let sequence = main.broadcast(&sequence, &all, &[0, 1, 2]);
        let token = main.broadcast(&token, &all, &[1, 2]);
        let columns =
            [&sequence, &token, &expert].map(|part| main.broadcast(part, &[&all[..], &[1]].concat(), &[0, 1, 2]));
        main.concatenate(&columns.each_ref(), 3)
    }

    /// Tokens at their places: E B C D. The residual is where the mask says anything.
    pub fn dispatch(&mut self, tokens: &Value, combine: &Value) -> Made {
        let nothing = self.main.fill(0.0, &combine.of);
        let says = self.main.compare(Comparison::Unequal, combine, &nothing);
        let says = self.as_batch(&says);
        let mask = self.main.convert(&says, Element::Bf16);
        let sent = self.main.dot(&mask, tokens, (&[0], &[0]), (&[1], &[1]), Element::Bf16);
        let sent = self.main.transpose(&sent, &[1, 0, 2, 3]);
        Made { output: self.as_places(&sent, Logical::Whole), residuals: vec![says] }
    }

    /// The gradient of the tokens; the mask has none.
    pub fn dispatch_backward(&mut self, says: &Value, gradient: &Value) -> Value {
        let gradient = self.as_places(gradient, Logical::Whole);
        let gradient = self.main.transpose(&gradient, &[1, 0, 2, 3]);
        let mask = self.main.convert(says, Element::Bf16);
        let of_tokens = self.main.dot(&gradient, &mask, (&[0], &[0]), (&[1, 2], &[2, 3]), Element::Bf16);
        self.main.transpose(&of_tokens, &[0, 2, 1])
    }

    /// Results of all places added up for each token: B S D. Residuals: the results and the mask.
    pub fn combine(&mut self, made: &Value, combine: &Value) -> Made {
        let combine = self.as_batch(combine);
        let output = self.main.dot(&combine, made, (&[0], &[1]), (&[3, 2], &[2, 0]), Element::Bf16);
        Made { output: self.constrain_hidden(&output), residuals: vec![made.clone(), combine] }
    }

    /// Gradients of the results and of the mask.
    pub fn combine_backward(&mut self, residuals: &[Value], gradient: &Value) -> [Value; 2] {
        let [made, combine] = residuals else { unreachable!("combining has two residuals") };
        let gradient = self.constrain_hidden(gradient);
        let of_made = self.main.dot(&gradient, combine, (&[0], &[0]), (&[1], &[1]), Element::Bf16);
        let of_made = self.main.transpose(&of_made, &[2, 0, 3, 1]);
        let of_combine = self.main.dot(&gradient, made, (&[0], &[1]), (&[2], &[3]), Element::Bf16);
        [of_made, of_combine]
    }
}

/// A softmax over the last axis, in fp32.
pub struct Softmax {
    /// In bf16.
    pub shares: Value,
    /// One over the sum's square, for each row.
    pub slope: Value,
    /// Of e.
    pub powers: Value,
    /// Of the powers, for each row.
    pub sum: Value,
}

/// The softmax of B S K.
pub fn softmax(main: &mut Function, scores: &Value) -> Softmax {
    let wide = main.convert(scores, Element::F32);
    let dims = wide.of.dims.clone();
    let column = [&dims[..2], &[1]].concat();
    let most = main.reduce(Reduction::Max, &wide, &[2]);
    let least = main.fill(f64::NEG_INFINITY, &most.of);
    let most = main.zip("maximum", &least, &most);
    let most = main.broadcast(&most, &column, &[0, 1]);
    let most = main.broadcast(&most, &dims, &[0, 1, 2]);
    let less = main.zip("subtract", &wide, &most);
    let powers = main.map("exponential", &less);
    let sum = main.reduce(Reduction::Sum, &powers, &[2]);
    let sum = main.broadcast(&sum, &column, &[0, 1]);
    let spread = main.broadcast(&sum, &dims, &[0, 1, 2]);
    let shares = main.zip("divide", &powers, &spread);
    let square = main.zip("multiply", &sum, &sum);
    let one = main.fill(1.0, &square.of);
    let slope = main.zip("divide", &one, &square);
    Softmax { shares: main.convert(&shares, Element::Bf16), slope, powers, sum }
}

/// The gradient of a softmax's scores, in bf16. Of a share p = e/Σ: dp/Σ through e, and −Σ dp·e/Σ² through the sum.
pub fn softmax_backward(main: &mut Function, [slope, powers, sum]: [&Value; 3], gradient: &Value) -> Value {
    let gradient = main.convert(gradient, Element::F32);
    let dims = gradient.of.dims.clone();
    let spread = main.broadcast(slope, &dims, &[0, 1, 2]);
    let along = main.zip("multiply", &gradient, &spread);
    let along = main.zip("multiply", &along, powers);
    let along = main.reduce(Reduction::Sum, &along, &[2]);
    let along = main.reshape(&along, &sum.of.dims);
    let along = main.map("negate", &along);
    let spread = main.broadcast(sum, &dims, &[0, 1, 2]);
    let straight = main.zip("divide", &gradient, &spread);
    let along = main.reduce(Reduction::Sum, &along, &[2]);
    let along = main.broadcast(&along, &dims, &[0, 1]);
    let of_powers = main.zip("add", &straight, &along);
    let of_scores = main.zip("multiply", &of_powers, powers);
    main.convert(&of_scores, Element::Bf16)
}

/// Shares put among zeros by their places, and which of them stand there: JAX's gradient of `at[…].set` numbers them, puts
/// the numbers, and looks which it finds again.
fn put_scores(main: &mut Function, shares: &Value, index: &Value, dims: &[u64]) -> (Value, Value) {
    let weights = Type::new(Element::Bf16, dims);
    let empty = main.fill(0.0, &weights);
    let all = shares.of.dims.iter().product::<u64>();
    let number = main.iota(Type::new(Element::I32, [all]), 0);
    let number = main.reshape(&number, &shares.of.dims);
    let one = main.fill(1.0, &number.of);
    let number = main.zip("add", &number, &one);
    let none = main.fill(0.0, &weights.of(Element::I32));
    let put = main.put_at(Meeting::Replaced, &none, index, &number);
    let found = main.take_at(&put, index);
    let free = main.compare(Comparison::Equal, &put, &none);
    let nothing = main.fill(0.0, &weights);
    let rest = main.select(&free, &empty, &nothing);
    let last = main.compare(Comparison::Equal, &number, &found);
    let nothing = main.fill(0.0, &shares.of);
    let standing = main.select(&last, shares, &nothing);
    (main.put_at(Meeting::Added, &rest, index, &standing), last)
}

/// Places, of which negative ones are counted from the end.
pub fn from_end(main: &mut Function, places: &Value, length: u64) -> Value {
    let zero = main.fill(0.0, &places.of);
    let negative = main.compare(Comparison::Less, places, &zero);
    let length = main.fill(length as f64, &places.of);
    let after = main.zip("add", places, &length);
    main.select(&negative, &after, places)
}

/// One where a number is that of its place along a new last axis, zero elsewhere.
fn one_hot(main: &mut Function, numbers: &Value, length: u64) -> Value {
    let axes = numbers.of.dims.len();
    let (before, all): (Vec<usize>, Vec<usize>) = ((0..axes).collect(), (0..=axes).collect());
    let column = main.broadcast(numbers, &[&numbers.of.dims[..], &[1]].concat(), &before);
    let mut row = vec![1; axes + 1];
    row[axes] = length;
    let row = main.iota(Type::new(Element::I32, row), axes);
    let dims = [&numbers.of.dims[..], &[length]].concat();
    let [column, row] = [&column, &row].map(|part| main.broadcast(part, &dims, &all));
    let equal = main.compare(Comparison::Equal, &column, &row);
    main.convert(&equal, Element::I32)
}
