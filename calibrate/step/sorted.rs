//! Experts with as many rows as they get: MaxText's `sparse_matmul` with megablox (`layers/moe.py`).
//!
//! Each chip has all experts' weights, and runs its own tokens: k copies of each are sorted by their experts, multiplied in
//! groups of rows by a kernel, and put back. Arrays of all chips' rows stand one behind the other along the first axis.
//! The kernel's stand-in has the rows, the weights and the sizes of groups; a processor, which has no kernel, multiplies every
//! row with every expert and adds up what its group is.

use super::experts::{from_end, softmax, softmax_backward};
use super::operators::{Gradients, Made};
use super::{Logical, Writer, kernel};
use crate::stablehlo::{Comparison, Element, Function, Meeting, Reduction, Spec, Type, Value};

/// What a sort found of every chip's copies: which of them stands where, and how many each expert gets.
#[derive(Clone, Debug)]
pub struct Sorted {
    order: Value,
    sizes: Value,
}

/// A product in groups of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grouped {
    /// Rows with their expert's weight: R N of R M.
    Forward,
    /// With its transpose: R M of R N.
    Backward,
    /// Rows with rows of the same expert: E M N.
    Weight,
}

impl Writer<'_> {
    /// Arrays of every chip's rows.
    fn rows(&self, axes: usize) -> Spec {
        self.layout.spec(&[&[Logical::Batch], &vec![Logical::Whole; axes - 1][..]].concat())
    }

    /// A part that each chip runs on its own rows, and on all of a weight if there is one, which comes last.
    fn on_rows(
        &mut self,
        inputs: &[&Value],
        weight: Option<&Value>,
        outputs: &[Spec],
        body: impl FnOnce(&mut Function, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let mut specs: Vec<Spec> = inputs.iter().map(|value| self.rows(value.of.dims.len())).collect();
        specs.extend(weight.map(|weight| Spec::replicated(weight.of.dims.len())));
        let given: Vec<(&Value, &Spec)> = inputs.iter().copied().chain(weight).zip(&specs).collect();
        self.main.manual(&self.layout.mesh, &given, outputs, body)
    }

    /// Copies of tokens in the order of their experts, from tokens and the router's scores. The residual is the order.
    pub fn sort(&mut self, tokens: &Value, scores: &Value) -> Made {
        let (count, top_k) = (self.experts().count, self.experts().top_k);
        let outputs = [self.rows(2), self.rows(1), self.rows(1)];
        let made = self.on_rows(&[tokens, scores], None, &outputs, |main, pieces| {
            let [_, chosen] = main.top_k(&pieces[1], top_k);
            let copies = chosen.of.dims.iter().product::<u64>();
            let chosen = main.reshape(&chosen, &[copies]);
            let order = main.argsort(&chosen);
            let sizes = sizes(main, &chosen, count);
            let width = pieces[0].of.dims[2];
            let rows = main.reshape(&pieces[0], &[copies / top_k, width]);
            let rows = main.broadcast(&rows, &[copies / top_k, top_k, width], &[0, 2]);
            let rows = main.reshape(&rows, &[copies, width]);
            let sent = ordered(main, &rows, &order);
            vec![sent, order, sizes]
        });
        let [sent, order, sizes] = &made[..] else { unreachable!("three results were asked for") };
        self.sorted = Some(Sorted { order: order.clone(), sizes: sizes.clone() });
        Made { output: sent.clone(), residuals: vec![order.clone()] }
    }

    /// The gradient of the tokens; the choice has none.
    pub fn sort_backward(&mut self, order: &Value, gradient: &Value) -> Value {
        let (top_k, tokens) = (self.experts().top_k, self.job.seq);
        let outputs = [self.rows(3)];
        let made = self.on_rows(&[gradient, order], None, &outputs, |main, pieces| {
            let (rows, width) = (pieces[0].of.dims[0], pieces[0].of.dims[1]);
            let back = main.argsort(&pieces[1]);
            let copies = ordered(main, &pieces[0], &back);
            let copies = main.reshape(&copies, &[rows / top_k, top_k, width]);
            let sum = main.reduce(Reduction::Sum, &copies, &[1]);
            vec![main.reshape(&sum, &[rows / top_k / tokens, tokens, width])]
        });
        made[0].clone()
    }

    /// A product of each expert's rows with its weight. Residuals: the rows, the weight, and the sizes of groups.
    pub fn sorted_linear(&mut self, x: &Value, weight: &Value) -> Made {
        let weight = self.main.convert(weight, Element::Bf16);
        let sizes = self.sorted.as_ref().expect("rows are sorted before they are multiplied").sizes.clone();
        let (kernels, outputs) = (self.options.kernels, [self.rows(2)]);
        let made = self.on_rows(&[&sizes, x], Some(&weight), &outputs, |main, pieces| {
            let [sizes, x, weight] = pieces else { unreachable!("as many as given") };
            vec![product(main, Grouped::Forward, [sizes, x, weight], kernels)]
        });
        Made { output: made[0].clone(), residuals: vec![x.clone(), weight, sizes] }
    }

    /// Gradients of the rows, and of the weight: the sum of all chips'.
    pub fn sorted_linear_backward(&mut self, residuals: &[Value], gradient: &Value) -> Gradients {
        let [x, weight, sizes] = residuals else { unreachable!("a product in groups has three residuals") };
        let (kernels, mesh) = (self.options.kernels, self.layout.mesh.clone());
        let (chips, outputs) = (self.layout.spec(&[Logical::Batch]), [self.rows(2), Spec::replicated(3)]);
        let made = self.on_rows(&[sizes, gradient, x], Some(weight), &outputs, |main, pieces| {
            let [sizes, gradient, x, weight] = pieces else { unreachable!("as many as given") };
            let of_x = product(main, Grouped::Backward, [sizes, gradient, weight], kernels);
            let of_weight = product(main, Grouped::Weight, [sizes, x, gradient], kernels);
            vec![of_x, main.sum_over(&of_weight, &chips.0[0], &mesh)]
        });
        Gradients { inputs: vec![made[0].clone()], weight: Some(self.main.convert(&made[1], Element::F32)) }
    }

    /// Results back in the order of tokens and added up by the router's weights. Residuals: places in the order, weights and
    /// results in fp32, the choice, and the softmax's.
    pub fn unsort(&mut self, made: &Value, scores: &Value) -> Made {
        let top_k = self.experts().top_k;
        let order = self.sorted.as_ref().expect("rows are sorted before they are put back").order.clone();
        let outputs = [3, 1, 2, 3, 4, 3, 3, 3].map(|axes| self.rows(axes));
        let made = self.on_rows(&[made, scores, &order], None, &outputs, |main, pieces| {
            let [top, chosen] = main.top_k(&pieces[1], top_k);
            let column = main.reshape(&chosen, &[&chosen.of.dims[..], &[1]].concat());
            let soft = softmax(main, &top);
            let back = main.argsort(&pieces[2]);
            let results = ordered(main, &pieces[0], &back);
            let (rows, width) = (results.of.dims[0] / top_k, results.of.dims[1]);
            let results = main.reshape(&results, &[rows, top_k, width]);
            let results = main.convert(&results, Element::F32);
            let weights = main.reshape(&soft.shares, &[rows, top_k]);
            let weights = main.convert(&weights, Element::F32);
            let sum = main.dot(&results, &weights, (&[0], &[0]), (&[1], &[1]), Element::F32);
            let sum = main.reshape(&sum, &[&chosen.of.dims[..2], &[width]].concat());
            let sum = main.convert(&sum, Element::Bf16);
            vec![sum, back, weights, results, column, soft.slope, soft.powers, soft.sum]
        });
        Made { output: made[0].clone(), residuals: made[1..].to_vec() }
    }

    /// Gradients of the results and of the router's scores.
    pub fn unsort_backward(&mut self, residuals: &[Value], gradient: &Value) -> [Value; 2] {
        let count = self.experts().count;
        let given: Vec<&Value> = std::iter::once(gradient).chain(residuals).collect();
        let outputs = [self.rows(2), self.rows(3)];
        let made = self.on_rows(&given, None, &outputs, |main, pieces| {
            let [gradient, back, weights, results, column, slope, powers, sum] = pieces else {
                unreachable!("putting back has seven residuals")
            };
            let [rows, top_k, width] = results.of.dims[..] else { unreachable!("rows, copies and numbers") };
            let wide = main.convert(gradient, Element::F32);
            let wide = main.reshape(&wide, &[rows, width]);
            let of_weights = main.dot(&wide, results, (&[0], &[0]), (&[1], &[2]), Element::F32);
            let of_results = main.dot(&wide, weights, (&[0], &[0]), (&[], &[]), Element::F32);
            let of_results = main.transpose(&of_results, &[0, 2, 1]);
            let of_weights = main.convert(&of_weights, Element::Bf16);
            let of_weights = main.reshape(&of_weights, &powers.of.dims);
            let of_results = main.convert(&of_results, Element::Bf16);
            let of_results = main.reshape(&of_results, &[rows * top_k, width]);
            let order = main.argsort(back);
            let of_results = ordered(main, &of_results, &order);
            let of_top = softmax_backward(main, [slope, powers, sum], &of_weights);
            let scores = Type::new(Element::Bf16, [&powers.of.dims[..2], &[count]].concat());
            let empty = main.fill(0.0, &scores);
            vec![of_results, main.put_many(&empty, column, &of_top)]
        });
        [made[0].clone(), made[1].clone()]
    }
}

/// How many of the chosen each expert is.
fn sizes(main: &mut Function, chosen: &Value, count: u64) -> Value {
    let none = main.fill(0.0, &Type::new(Element::I32, [count]));
    let zero = main.fill(0.0, &chosen.of);
    let places = main.zip("maximum", &zero, chosen);
    let places = from_end(main, &places, count);
    let places = main.broadcast(&places, &[places.of.dims[0], 1], &[0]);
    let one = main.fill(1.0, &chosen.of);
    main.put_at(Meeting::Added, &none, &places, &one)
}

/// Rows in an order.
fn ordered(main: &mut Function, rows: &Value, order: &Value) -> Value {
    let places = from_end(main, order, rows.of.dims[0]);
    main.take_rows(rows, &places)
}

/// A product in groups, by the kernel's stand-in or in whole products.
fn product(main: &mut Function, kind: Grouped, [sizes, a, b]: [&Value; 3], kernels: bool) -> Value {
    let (rows, experts) = (a.of.dims[0], sizes.of.dims[0]);
    let (name, dims) = match kind {
        Grouped::Forward => ("gmm", vec![rows, b.of.dims[2]]),
        Grouped::Backward => ("gmm_transposed", vec![rows, b.of.dims[1]]),
        Grouped::Weight => ("tgmm", vec![experts, a.of.dims[1], b.of.dims[1]]),
    };
    if kernels {
        return kernel::call(main, name, &[sizes, a, b], vec![Type::new(Element::Bf16, dims)])[0].clone();
    }
    let all = [rows, experts, a.of.dims[1]];
    let own = own(main, sizes, rows);
    let own = main.broadcast(&own, &all, &[0, 1]);
    let spread = main.broadcast(a, &all, &[0, 2]);
    let spread = main.zip("multiply", &spread, &own);
    match kind {
        Grouped::Forward => main.dot(&spread, b, (&[], &[]), (&[1, 2], &[0, 1]), Element::Bf16),
        Grouped::Backward => main.dot(&spread, b, (&[], &[]), (&[1, 2], &[0, 2]), Element::Bf16),
        Grouped::Weight => main.dot(&spread, b, (&[], &[]), (&[0], &[0]), Element::Bf16),
    }
}

/// One where a row is in an expert's group, zero elsewhere: R E.
fn own(main: &mut Function, sizes: &Value, rows: u64) -> Value {
    let all = Type::new(Element::I32, [rows, sizes.of.dims[0]]);
    let ends = main.running_sum(sizes, 0);
    let starts = main.zip("subtract", &ends, sizes);
    let [starts, ends] = [&starts, &ends].map(|places| main.broadcast(places, &all.dims, &[1]));
    let row = main.iota(all, 0);
    let after = main.compare(Comparison::AtLeast, &row, &starts);
    let before = main.compare(Comparison::Less, &row, &ends);
    let own = main.zip("and", &after, &before);
    main.convert(&own, Element::Bf16)
}
