//! What each kind of operator is in arrays, forward and backward.
//!
//! Forward gives a result and what backward will read (its residuals, in the order and types that JAX's rules give them):
//! a policy that keeps all of it stores these, any other has them made again.

use windtunnel::model::Activation;
use windtunnel::runtime::spmd::{Kind, Op};

use super::Writer;
use crate::stablehlo::{Element, Function, Reduction, Type, Value};

/// What forward makes.
#[derive(Clone, Debug)]
pub struct Made {
    pub output: Value,
    pub residuals: Vec<Value>,
}

/// What backward makes: gradients of inputs, in order, and of the weight, in fp32.
#[derive(Clone, Debug)]
pub struct Gradients {
    pub inputs: Vec<Value>,
    pub weight: Option<Value>,
}

impl Gradients {
    fn of(inputs: impl Into<Vec<Value>>) -> Self {
        Self { inputs: inputs.into(), weight: None }
    }
}

impl Writer<'_> {
    /// An operator forward, with its weight (of this block, in fp32) if it has one.
    pub fn op(&mut self, op: &Op, inputs: &[Value], weight: Option<(&Value, usize)>) -> Made {
        let activation = self.activation();
        let main = &mut self.main;
        match (op.kind, weight) {
            (Kind::Norm, Some((weight, _))) => norm(main, &inputs[0], weight, self.job.norm_by_product),
            (Kind::Linear(index), Some((weight, contracted))) => match self.block.weights[index] {
                of if of.experts && self.job.capacity_factor.is_none() => self.sorted_linear(&inputs[0], weight),
                of if of.experts => self.experts_linear(&inputs[0], weight, of.row_parallel),
                _ => linear(main, &inputs[0], weight, contracted),
            },
            (Kind::Rope, _) => Made { output: self.rotate(&inputs[0], false), residuals: vec![] },
            (Kind::Attention(shape), _) => self.attend(&shape, [&inputs[0], &inputs[1], &inputs[2]]),
            (Kind::Add, _) => {
                let sum = main.zip("add", &inputs[0], &inputs[1]);
                Made { output: self.constrain_hidden(&sum), residuals: vec![] }
            }
            (Kind::Gate, _) => {
                let made = gate(main, activation, &inputs[0], &inputs[1]);
                Made { output: self.constrain_product(&made.output), ..made }
            }
            (Kind::Masks, _) => self.masks(&inputs[0]),
            (Kind::Dispatch(_), _) => self.dispatch(&inputs[0], &inputs[1]),
            (Kind::Combine(_), _) => self.combine(&inputs[0], &inputs[1]),
            (Kind::Sort, _) => self.sort(&inputs[0], &inputs[1]),
            (Kind::Unsort, _) => self.unsort(&inputs[0], &inputs[1]),
            _ => unreachable!("the whole job sends nothing, and norms and linears have weights"),
        }
    }

    /// The same backward, from the gradient of its result.
    pub fn op_backward(&mut self, op: &Op, residuals: &[Value], gradient: &Value, contracted: usize) -> Gradients {
        match op.kind {
            Kind::Norm => norm_backward(&mut self.main, residuals, gradient),
            Kind::Linear(index) => match self.block.weights[index] {
                of if of.experts && self.job.capacity_factor.is_none() => {
                    self.sorted_linear_backward(residuals, gradient)
                }
                of if of.experts => self.experts_linear_backward(residuals, gradient, of.row_parallel),
                _ => linear_backward(&mut self.main, residuals, gradient, contracted),
            },
            Kind::Rope => Gradients::of([self.rotate(gradient, true)]),
            Kind::Attention(shape) => Gradients::of(self.attend_backward(&shape, residuals, gradient)),
            Kind::Add => {
                let gradient = self.constrain_hidden(gradient);
                Gradients::of([gradient.clone(), gradient])
            }
            Kind::Gate => {
                let gradient = self.constrain_product(gradient);
                Gradients::of(gate_backward(&mut self.main, residuals, &gradient))
            }
            Kind::Masks => Gradients::of([self.masks_backward(residuals, gradient)]),
            Kind::Dispatch(_) => Gradients::of([self.dispatch_backward(&residuals[0], gradient)]),
            Kind::Combine(_) => Gradients::of(self.combine_backward(residuals, gradient)),
            Kind::Sort => Gradients::of([self.sort_backward(&residuals[0], gradient)]),
            Kind::Unsort => Gradients::of(self.unsort_backward(residuals, gradient)),
            Kind::Repeat | Kind::Send | Kind::Exchange | Kind::Arrange | Kind::AllTokens | Kind::OwnTokens => {
                unreachable!("a whole job of JAX sends and repeats nothing")
            }
        }
    }

    /// A gate's result: of experts it lies as its factors do.
    fn constrain_product(&mut self, value: &Value) -> Value {
        if value.of.dims.len() == 3 { self.constrain_wide(value) } else { value.clone() }
    }

    /// Rotary embedding of B S N H in fp32: the first half of a head's numbers turned against the second, by angles that grow
    /// with the position; back by the same angles.
    fn rotate(&mut self, x: &Value, back: bool) -> Value {
        let theta = self.theta();
        let main = &mut self.main;
        let (dims, half) = (x.of.dims.clone(), x.of.dims[3] / 2);
        let (sine, cosine) = angles(main, dims[1], half, theta);
        let wide = main.convert(x, Element::F32);
        let (a, b) = (main.slice(&wide, 3, 0, half), main.slice(&wide, 3, half, 2 * half));
        let spread = |main: &mut Function, table: &Value| {
            main.broadcast(table, &[dims[0], dims[1], dims[2], half], &[0, 1, 2, 3])
        };
        let (sine, cosine) = (spread(main, &sine), spread(main, &cosine));
        let [a_cos, b_sin, b_cos, a_sin] =
            [(&a, &cosine), (&b, &sine), (&b, &cosine), (&a, &sine)].map(|(x, table)| main.zip("multiply", x, table));
        let (first, second) = match back {
            false => (main.zip("subtract", &a_cos, &b_sin), main.zip("add", &b_cos, &a_sin)),
            true => (main.zip("add", &a_cos, &b_sin), main.zip("subtract", &b_cos, &a_sin)),
        };
        let both = main.concatenate(&[&first, &second], 3);
        main.convert(&both, Element::Bf16)
    }
}

/// Sines and cosines of 1 S 1 H/2.
fn angles(main: &mut Function, tokens: u64, half: u64, theta: f64) -> (Value, Value) {
    let line = Type::new(Element::F32, [half]);
    let (place, number) = (main.iota(Type::new(Element::F32, [tokens]), 0), main.iota(line.clone(), 0));
    let [length, base, one] = [half as f64, theta, 1.0].map(|number| main.fill(number, &line));
    let share = main.zip("divide", &number, &length);
    let power = main.zip("power", &base, &share);
    let frequency = main.zip("divide", &one, &power);
    let (place, frequency) =
        (main.broadcast(&place, &[tokens, half], &[0]), main.broadcast(&frequency, &[tokens, half], &[1]));
    let angle = main.zip("multiply", &place, &frequency);
    let [sine, cosine] = ["sine", "cosine"].map(|function| {
        let table = main.map(function, &angle);
        main.broadcast(&table, &[1, tokens, 1, half], &[1, 3])
    });
    (sine, cosine)
}

/// RMSNorm's ε.
const EPSILON: f64 = 1e-5;

/// `x·rsqrt(mean(x²)+ε)` in fp32, then times the weight in bf16. Residuals: x in fp32, the root, what its square depends on x
/// by, the weight, the result before the weight, and, as `lax.square` has it, twice x; by a product it has x twice instead.
pub fn norm(main: &mut Function, x: &Value, weight: &Value, by_product: bool) -> Made {
    let wide = main.convert(x, Element::F32);
    let (dims, last) = (wide.of.dims.clone(), wide.of.dims.len() - 1);
    let (all, before): (Vec<usize>, Vec<usize>) = ((0..=last).collect(), (0..last).collect());
    let squares = main.zip("multiply", &wide, &wide);
    let twice = (!by_product).then(|| {
        let two = main.fill(2.0, &wide.of);
        main.zip("multiply", &two, &wide)
    });
    let sum = main.reduce(Reduction::Sum, &squares, &[last]);
    let column = [&dims[..last], &[1]].concat();
    let sum = main.broadcast(&sum, &column, &before);
    let number = |main: &mut Function, number: f64| main.fill(number, &Type::new(Element::F32, column.clone()));
    let length = number(main, dims[last] as f64);
    let mean = main.zip("divide", &sum, &length);
    let epsilon = number(main, EPSILON);
    let mean = main.zip("add", &mean, &epsilon);
    let root = main.map("rsqrt", &mean);
    let share = main.zip("divide", &root, &mean);
    let half = number(main, -0.5);
    let slope = main.zip("multiply", &half, &share);
    let spread = main.broadcast(&root, &dims, &all);
    let normal = main.zip("multiply", &wide, &spread);
    let normal = main.convert(&normal, Element::Bf16);
    let weight = main.convert(weight, Element::Bf16);
    let row: Vec<u64> = before.iter().map(|_| 1).chain([dims[last]]).collect();
    let weight = main.broadcast(&weight, &row, &[last]);
    let scale = main.broadcast(&weight, &dims, &all);
    let output = main.zip("multiply", &normal, &scale);
    Made { output, residuals: [wide, root, slope, weight, normal].into_iter().chain(twice).collect() }
}

/// Gradients of x, in bf16, and of the weight.
pub fn norm_backward(main: &mut Function, residuals: &[Value], gradient: &Value) -> Gradients {
    let [wide, root, slope, weight, normal, twice @ ..] = residuals else {
        unreachable!("a norm has five residuals, or six")
    };
    let (dims, last) = (wide.of.dims.clone(), wide.of.dims.len() - 1);
    let (all, before): (Vec<usize>, Vec<usize>) = ((0..=last).collect(), (0..last).collect());
    let of_weight = main.zip("multiply", normal, gradient);
    let of_weight = main.reduce(Reduction::Sum, &of_weight, &before);
    // The row that the weight was spread from is summed, too, though of axes of length one: it keeps the reduction over chips in
    // the loop.
    let of_weight = main.reshape(&of_weight, &weight.of.dims);
    let of_weight = main.reduce(Reduction::Sum, &of_weight, &before);
    let of_weight = main.convert(&of_weight, Element::F32);
    let scale = main.broadcast(weight, &dims, &all);
    let scaled = main.zip("multiply", gradient, &scale);
    let scaled = main.convert(&scaled, Element::F32);
    let along = main.zip("multiply", wide, &scaled);
    let along = main.reduce(Reduction::Sum, &along, &[last]);
    let along = main.reshape(&along, &root.of.dims);
    let spread = main.broadcast(root, &dims, &all);
    let straight = main.zip("multiply", &scaled, &spread);
    let of_mean = main.zip("multiply", &along, slope);
    let length = main.fill(dims[last] as f64, &of_mean.of);
    let of_mean = main.zip("divide", &of_mean, &length);
    let of_mean = main.broadcast(&of_mean, &dims, &all);
    let sum = match twice.first() {
        Some(twice) => {
            let of_square = main.zip("multiply", &of_mean, twice);
            main.zip("add", &straight, &of_square)
        }
        // A product has its gradient twice.
        None => {
            let once = main.zip("multiply", wide, &of_mean);
            let sum = main.zip("add", &straight, &once);
            main.zip("add", &sum, &once)
        }
    };
    Gradients { inputs: vec![main.convert(&sum, Element::Bf16)], weight: Some(of_weight) }
}

/// A product with a weight in bf16, over its first axes. Residuals: x and the weight.
pub fn linear(main: &mut Function, x: &Value, weight: &Value, contracted: usize) -> Made {
    let weight = main.convert(weight, Element::Bf16);
    let last: Vec<usize> = (x.of.dims.len() - contracted..x.of.dims.len()).collect();
    let first: Vec<usize> = (0..contracted).collect();
    let output = main.dot(x, &weight, (&[], &[]), (&last, &first), Element::Bf16);
    Made { output, residuals: vec![x.clone(), weight] }
}

/// Gradients of x and of the weight: products over the outputs, and over tokens.
pub fn linear_backward(main: &mut Function, residuals: &[Value], gradient: &Value, contracted: usize) -> Gradients {
    let [x, weight] = residuals else { unreachable!("a linear has two residuals") };
    let free = weight.of.dims.len() - contracted;
    let tokens: Vec<usize> = (0..x.of.dims.len() - contracted).collect();
    let product = main.dot(gradient, x, (&[], &[]), (&tokens, &tokens), Element::Bf16);
    let order: Vec<usize> = (free..free + contracted).chain(0..free).collect();
    let of_weight = main.transpose(&product, &order);
    let (outputs, last): (Vec<usize>, Vec<usize>) =
        ((tokens.len()..tokens.len() + free).collect(), (contracted..contracted + free).collect());
    let of_x = main.dot(gradient, weight, (&[], &[]), (&outputs, &last), Element::Bf16);
    Gradients { inputs: vec![of_x], weight: Some(main.convert(&of_weight, Element::F32)) }
}

/// `act(gate)·up`. Residuals: the gate, the activation's result, its slope, and up.
fn gate(main: &mut Function, activation: Activation, gate: &Value, up: &Value) -> Made {
    let one = main.fill(1.0, &gate.of);
    let (acted, mut residuals) = match activation {
        Activation::Silu => {
            let minus = main.map("negate", gate);
            let power = main.map("exponential", &minus);
            let sum = main.zip("add", &one, &power);
            let share = main.zip("divide", &one, &sum);
            let rest = main.zip("subtract", &one, &share);
            let slope = main.zip("multiply", &share, &rest);
            let acted = main.zip("multiply", gate, &share);
            (acted, vec![share, slope])
        }
        Activation::Gelu | Activation::GeluNew | Activation::GeluTanh => {
            let (share, slope) = gelu(main, gate, &one);
            let acted = main.zip("multiply", gate, &share);
            (acted, vec![share, slope])
        }
        other => unreachable!("a feed-forward gated by {other:?} is refused before"),
    };
    let output = main.zip("multiply", &acted, up);
    residuals.extend([gate.clone(), acted, up.clone()]);
    Made { output, residuals }
}

/// GELU by tanh is `x·s(x)`: s, `(1+tanh(√(2/π)(x+0.044715x³)))/2`, and its slope.
fn gelu(main: &mut Function, x: &Value, one: &Value) -> (Value, Value) {
    let number = |main: &mut Function, number: f64| main.fill(number, &x.of);
    let (cubic, scale, half) =
        (number(main, 0.044715), number(main, (2.0 / std::f64::consts::PI).sqrt()), number(main, 0.5));
    let square = main.zip("multiply", x, x);
    let cube = main.zip("multiply", &square, x);
    let cube = main.zip("multiply", &cubic, &cube);
    let sum = main.zip("add", x, &cube);
    let inner = main.zip("multiply", &scale, &sum);
    let tanh = main.map("tanh", &inner);
    let more = main.zip("add", one, &tanh);
    let share = main.zip("multiply", &half, &more);
    let three = number(main, 3.0 * 0.044715);
    let slope = main.zip("multiply", &three, &square);
    let slope = main.zip("add", one, &slope);
    let slope = main.zip("multiply", &scale, &slope);
    let squared = main.zip("multiply", &tanh, &tanh);
    let rest = main.zip("subtract", one, &squared);
    let slope = main.zip("multiply", &rest, &slope);
    (share, main.zip("multiply", &half, &slope))
}

/// Gradients of gate and up. Both activations are `x·s(x)`, so the slope is `s + x·s'`.
fn gate_backward(main: &mut Function, residuals: &[Value], gradient: &Value) -> [Value; 2] {
    let [share, slope, gate, acted, up] = residuals else { unreachable!("a gate has five residuals") };
    let of_up = main.zip("multiply", acted, gradient);
    let of_acted = main.zip("multiply", gradient, up);
    let grown = main.zip("multiply", gate, &of_acted);
    let straight = main.zip("multiply", &of_acted, share);
    let bent = main.zip("multiply", &grown, slope);
    [main.zip("add", &straight, &bent), of_up]
}
