//! AdamW in fp32, after the gradients' norm: β₁ 0.9, β₂ 0.95, ε 1e-8, decay 0.1, a rate of 3e-4, and clipping at 1.

use super::Writer;
use crate::stablehlo::{Element, Function, Reduction, Type, Value};

const BETAS: [f64; 2] = [0.9, 0.95];
const EPSILON: f64 = 1e-8;
const DECAY: f64 = 0.1;
const RATE: f64 = 3e-4;
const THRESHOLD: f64 = 1.0;

impl Writer<'_> {
    /// Parameters, both moments and the steps so far, after the step: `state` is the same before.
    pub fn update(&mut self, state: &[Value], gradients: &[Value]) -> Vec<Value> {
        let count = gradients.len();
        let clipped = match self.job.clip {
            true => clip(&mut self.main, gradients),
            false => gradients.to_vec(),
        };
        let main = &mut self.main;
        let one = main.constant(1.0, Type::scalar(Element::F32));
        let steps = main.zip("add", &state[3 * count], &one);
        let mut results: [Vec<Value>; 3] = Default::default();
        for (at, gradient) in clipped.iter().enumerate() {
            let made = adamw(main, [&state[at], &state[count + at], &state[2 * count + at]], gradient, &steps);
            results.iter_mut().zip(made).for_each(|(list, value)| list.push(value));
        }
        results.into_iter().flatten().chain([steps]).collect()
    }
}

/// Gradients over their norm, where that is above the threshold.
fn clip(main: &mut Function, gradients: &[Value]) -> Vec<Value> {
    let mut total: Option<Value> = None;
    for gradient in gradients {
        let squares = main.zip("multiply", gradient, gradient);
        let axes: Vec<usize> = (0..gradient.of.dims.len()).collect();
        let sum = main.reduce(Reduction::Sum, &squares, &axes);
        total = Some(match total {
            Some(before) => main.zip("add", &before, &sum),
            None => sum,
        });
    }
    let Some(total) = total else { return vec![] };
    let norm = main.map("sqrt", &total);
    let scalar = norm.of.clone();
    let [little, threshold] = [1e-6, THRESHOLD].map(|number| main.constant(number, scalar.clone()));
    let norm = main.zip("add", &norm, &little);
    let share = main.zip("divide", &threshold, &norm);
    let one = main.constant(1.0, scalar);
    let scale = main.zip("minimum", &one, &share);
    let scaled = |gradient: &Value| {
        let scale = main.broadcast(&scale, &gradient.of.dims, &[]);
        main.zip("multiply", gradient, &scale)
    };
    gradients.iter().map(scaled).collect()
}

/// A parameter and its moments, after the step. A first moment that is stored in bf16 is used as it comes.
fn adamw(main: &mut Function, [parameter, mean, square]: [&Value; 3], gradient: &Value, steps: &Value) -> [Value; 3] {
    let of = gradient.of.clone();
    let scaled = |main: &mut Function, factor: f64, value: &Value| {
        let factor = main.fill(factor, &value.of);
        main.zip("multiply", &factor, value)
    };
    let kept = scaled(main, BETAS[0], mean);
    let kept = main.convert(&kept, Element::F32);
    let stored = mean.of.element;
    let new = scaled(main, 1.0 - BETAS[0], gradient);
    let mean = main.zip("add", &kept, &new);
    let kept = scaled(main, BETAS[1], square);
    let new = scaled(main, 1.0 - BETAS[1], gradient);
    let new = main.zip("multiply", &new, gradient);
    let square = main.zip("add", &kept, &new);
    let [first, second] = [(&mean, BETAS[0]), (&square, BETAS[1])].map(|(moment, beta)| {
        let [one, beta] = [1.0, beta].map(|number| main.constant(number, Type::scalar(Element::F32)));
        let power = main.zip("power", &beta, steps);
        let share = main.zip("subtract", &one, &power);
        let share = main.broadcast(&share, &of.dims, &[]);
        main.zip("divide", moment, &share)
    });
    let root = main.map("sqrt", &second);
    let epsilon = main.fill(EPSILON, &of);
    let root = main.zip("add", &root, &epsilon);
    let step = main.zip("divide", &first, &root);
    let decay = scaled(main, DECAY, parameter);
    let step = main.zip("add", &step, &decay);
    let step = scaled(main, RATE, &step);
    [main.zip("subtract", parameter, &step), main.convert(&mean, stored), square]
}
