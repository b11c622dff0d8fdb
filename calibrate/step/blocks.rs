//! The two loops over blocks: forward stores what backward will find, backward makes the rest again.

use windtunnel::runtime::spmd::{Attention, Keep, Kind, Op, Policy, ROUTER, Tensor};

use super::Writer;
use super::attention::MADE_BY_KERNEL;
use super::operators::Made;
use crate::stablehlo::{Element, Function, Memory, Type, Value};

/// Something of a block's forward that backward finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// A tensor of the block.
    Tensor(Tensor),
    /// What an operator's backward reads: operator, and place.
    Residual(usize, usize),
}

/// What all blocks saved of one thing.
#[derive(Clone, Debug)]
pub struct Stack {
    what: Vec<Saved>,
    keep: Keep,
    value: Value,
}

/// A block that has run forward.
pub struct Ran {
    /// Its tensors.
    pub values: Vec<Value>,
    residuals: Vec<Vec<Value>>,
}

impl Ran {
    /// Something of it.
    pub fn get(&self, what: Saved) -> &Value {
        match what {
            Saved::Tensor(tensor) => &self.values[tensor],
            Saved::Residual(op, place) => &self.residuals[op][place],
        }
    }
}

impl Writer<'_> {
    /// Runs all blocks in a loop; gives the last one's result, and what all have saved.
    pub fn forward(&mut self, input: Value, parameters: &[Value]) -> (Value, Vec<Stack>) {
        let (weights, layers) = (self.stacked(parameters), self.job.model.layers.count());
        let mut stacks = self.stacks(&input.of);
        // In JAX's order, which the compiler's choices depend on: what does not change, the input, what is stacked.
        let count = weights.len();
        let mut carried = weights;
        carried.push(input);
        carried.extend(stacks.iter().map(|stack| stack.value.clone()));
        let whats: Vec<(Saved, Keep)> = stacks.iter().map(|stack| (stack.what[0], stack.keep)).collect();
        let after = self.repeat(layers, &carried, |writer, turn, carried| {
            let (stacked, input) = (&carried[..count], &carried[count]);
            let weights = writer.of_block(stacked, turn);
            let ran = writer.run(input, &weights, &[]);
            let mut next = stacked.to_vec();
            next.push(ran.values[ran.values.len() - 1].clone());
            for (&(what, keep), stack) in whats.iter().zip(&carried[count + 1..]) {
                // The input as it came: where it lies is said where it is used.
                let value = if what == Saved::Tensor(0) { input.clone() } else { ran.get(what).clone() };
                let value = match keep {
                    Keep::Offload => writer.main.place(&value, Memory::Host),
                    _ => value,
                };
                next.push(writer.store(stack, &value, turn));
            }
            next
        });
        for (stack, value) in stacks.iter_mut().zip(&after[count + 1..]) {
            stack.value = value.clone();
        }
        (after[count].clone(), stacks)
    }

    /// From the gradient of the last block's result to that of the first one's input, and gradients of parameters.
    pub fn backward(&mut self, gradient: Value, saved: &[Stack], parameters: &[Value]) -> (Value, Vec<Option<Value>>) {
        let (weights, layers) = (self.stacked(parameters), self.job.model.layers.count());
        let zeros: Vec<Value> = weights.iter().map(|weight| self.main.fill(0.0, &weight.of)).collect();
        let (found, count) = (saved.len(), saved.len() + zeros.len());
        let mut carried: Vec<Value> = saved.iter().map(|stack| stack.value.clone()).chain(weights).collect();
        carried.push(gradient);
        carried.extend(zeros);
        let after = self.repeat(layers, &carried, |writer, turn, carried| {
            let last = writer.main.constant(layers as f64 - 1.0, turn.of.clone());
            let turn = writer.main.zip("subtract", &last, turn);
            let weights = writer.of_block(&carried[found..count], &turn);
            let mut kept = vec![];
            for (stack, values) in saved.iter().zip(&carried[..found]) {
                let value = writer.load(values, &turn);
                let value = match stack.keep {
                    Keep::Offload => writer.main.place(&value, Memory::Device),
                    _ => value,
                };
                kept.extend(stack.what.iter().map(|&what| (what, value.clone())));
            }
            let (gradient, gradients) = writer.block_backward(&carried[count], &weights, &kept);
            let mut next = carried[..count].to_vec();
            next.push(gradient);
            for (gradient, stack) in gradients.iter().zip(&carried[count + 1..]) {
                next.push(writer.store(stack, gradient, &turn));
            }
            next
        });
        let mut gradients: Vec<Option<Value>> = vec![None; self.weights.len()];
        let stacked = (0..self.weights.len()).filter(|&at| self.weights[at].op.is_some());
        for (at, value) in stacked.zip(&after[count + 1..]) {
            gradients[at] = Some(value.clone());
        }
        (after[count].clone(), gradients)
    }

    /// A block backward: gradients of its input, and of its weights in order.
    pub fn block_backward(
        &mut self,
        gradient: &Value,
        weights: &[Value],
        found: &[(Saved, Value)],
    ) -> (Value, Vec<Value>) {
        let block = self.block.clone();
        let residuals = match self.job.remat {
            Policy::None => self.found_residuals(found),
            Policy::Names(_) => {
                let input = found.iter().find(|(what, _)| *what == Saved::Tensor(0));
                let input = input.map(|(_, value)| value.clone()).expect("a block's input is always kept");
                self.run(&input, weights, found).residuals
            }
        };
        let mut gradients: Vec<Option<Value>> = vec![None; block.tensors.len()];
        let last = gradients.len() - 1;
        gradients[last] = Some(gradient.clone());
        let mut of_weights: Vec<Option<Value>> = vec![None; weights.len()];
        for (at, op) in block.ops.iter().enumerate().rev() {
            let mut gradient = gradients[op.output].take().expect("a block has no result that nobody reads");
            if self.is_routed(op.output) {
                gradient = self.constrain_hidden(&gradient);
            }
            let contracted = self.weight_of(at).map_or(0, |weight| self.weights[weight].contracted);
            let made = self.op_backward(op, &residuals[at], &gradient, contracted);
            if let (Some(place), Some(gradient)) = (self.place_of(at), made.weight) {
                of_weights[place] = Some(gradient);
            }
            for (&input, new) in op.inputs.iter().zip(made.inputs) {
                gradients[input] = Some(match gradients[input].take() {
                    Some(first) => self.main.zip("add", &first, &new),
                    None => new,
                });
            }
        }
        let of_weights = of_weights.into_iter().flatten().collect();
        let gradient = gradients[0].take().expect("a block reads its input");
        (self.constrain_hidden(&gradient), of_weights)
    }

    /// Runs a block's operators; what is found is taken instead of what they make, and the compiler drops what is then not
    /// read.
    pub fn run(&mut self, input: &Value, weights: &[Value], found: &[(Saved, Value)]) -> Ran {
        let block = self.block.clone();
        let find = |what: Saved| found.iter().find(|(known, _)| *known == what).map(|(_, value)| value.clone());
        let mut values: Vec<Option<Value>> = vec![None; block.tensors.len()];
        values[0] = Some(self.constrain_hidden(input));
        let mut residuals = vec![];
        for (at, op) in block.ops.iter().enumerate() {
            let inputs: Vec<Value> = op.inputs.iter().filter_map(|&tensor| values[tensor].clone()).collect();
            let weight = self.weight_of(at).map(|weight| self.weights[weight].contracted);
            let weight = weight.zip(self.place_of(at)).map(|(contracted, place)| (&weights[place], contracted));
            let mut made = self.op(op, &inputs, weight);
            for (place, residual) in made.residuals.iter_mut().enumerate() {
                if let Some(value) = find(Saved::Residual(at, place)) {
                    *residual = value;
                }
            }
            if self.is_kernel(op.kind) && find(Saved::Residual(at, MADE_BY_KERNEL[0])).is_some() {
                made.output = self.splash_output(&made.residuals[MADE_BY_KERNEL[0]]);
            }
            if self.is_routed(op.output) {
                made.output = self.constrain_hidden(&made.output);
            }
            let Made { output, residuals: of_op } = made;
            residuals.push(of_op);
            values[op.output] = Some(find(Saved::Tensor(op.output)).unwrap_or(output));
        }
        Ran { values: values.into_iter().flatten().collect(), residuals }
    }

    /// Whether a router reads a tensor: where what experts get lies is said.
    fn is_routed(&self, tensor: Tensor) -> bool {
        let router = |op: &Op| matches!(op.kind, Kind::Linear(index) if self.block.weights[index].name == ROUTER);
        self.block.ops.iter().any(|op| router(op) && op.inputs[0] == tensor)
    }

    fn is_kernel(&self, kind: Kind) -> bool {
        matches!((kind, self.job.attention), (Kind::Attention(_), Attention::Splash { .. }))
    }

    /// With nothing made again, what backward reads is what it finds.
    fn found_residuals(&self, found: &[(Saved, Value)]) -> Vec<Vec<Value>> {
        let mut residuals = vec![vec![]; self.block.ops.len()];
        for (op, list) in residuals.iter_mut().enumerate() {
            while let Some((_, value)) = found.iter().find(|(what, _)| *what == Saved::Residual(op, list.len())) {
                list.push(value.clone());
            }
        }
        residuals
    }

    /// Arrays for what blocks will save, empty. Their shapes are those that a block makes, so one is run for nothing.
    fn stacks(&mut self, input: &Type) -> Vec<Stack> {
        let mut trial = Self { main: Function::new(), ..Self::new(self.job, self.options) };
        let weights: Vec<Value> = trial
            .weights
            .clone()
            .iter()
            .filter(|weight| weight.op.is_some())
            .map(|weight| trial.main.parameter(Type::new(weight.of.element, &weight.of.dims[1..]), None))
            .collect();
        let input = trial.main.parameter(input.clone(), None);
        let ran = trial.run(&input, &weights, &[]);
        let mut stacks: Vec<(Value, Stack)> = vec![];
        for (what, keep) in self.saved(&ran) {
            let value = if what == Saved::Tensor(0) { &input } else { ran.get(what) };
            match stacks.iter_mut().find(|(known, _)| known == value) {
                Some((_, stack)) => stack.what.push(what),
                None => {
                    let of =
                        Type::new(value.of.element, [&[self.job.model.layers.count()], &value.of.dims[..]].concat());
                    let empty = self.main.fill(0.0, &of);
                    stacks.push((value.clone(), Stack { what: vec![what], keep, value: empty }));
                }
            }
        }
        stacks.into_iter().map(|(_, stack)| stack).collect()
    }

    /// What of a block backward finds, and where.
    pub fn saved(&self, ran: &Ran) -> Vec<(Saved, Keep)> {
        let Policy::Names(_) = self.job.remat else {
            let places =
                |(op, list): (usize, &Vec<Value>)| (0..list.len()).map(move |place| Saved::Residual(op, place));
            return ran.residuals.iter().enumerate().flat_map(places).map(|what| (what, Keep::Device)).collect();
        };
        let mut saved = vec![];
        for (tensor, keep) in self.job.remat.kept(&self.block) {
            let made = self.block.ops.iter().position(|op| op.output == tensor && self.is_kernel(op.kind));
            match made {
                // The kernel's own name for what it leaves behind is the tensor's.
                Some(op) => saved.extend(MADE_BY_KERNEL.map(|place| (Saved::Residual(op, place), keep))),
                None => saved.push((Saved::Tensor(tensor), keep)),
            }
        }
        saved
    }

    /// The parameter that an operator has.
    fn weight_of(&self, op: usize) -> Option<usize> {
        self.weights.iter().position(|weight| weight.op == Some(op))
    }

    /// Its place among blocks' parameters.
    fn place_of(&self, op: usize) -> Option<usize> {
        self.weights.iter().filter(|weight| weight.op.is_some()).position(|weight| weight.op == Some(op))
    }

    /// Blocks' parameters.
    fn stacked(&self, parameters: &[Value]) -> Vec<Value> {
        let all = self.weights.iter().zip(parameters);
        all.filter(|(weight, _)| weight.op.is_some()).map(|(_, value)| value.clone()).collect()
    }

    /// Those of one block.
    fn of_block(&mut self, stacks: &[Value], turn: &Value) -> Vec<Value> {
        stacks.iter().map(|stack| self.load(stack, turn)).collect()
    }

    /// One block's part of a stack.
    pub fn load(&mut self, stack: &Value, turn: &Value) -> Value {
        let dims = stack.of.dims.clone();
        let at = self.first(&dims, turn);
        let part = self.main.dynamic_slice(stack, &at.iter().collect::<Vec<_>>(), &[&[1], &dims[1..]].concat());
        self.main.reshape(&part, &dims[1..])
    }

    /// The stack with one block's part in it.
    pub fn store(&mut self, stack: &Value, value: &Value, turn: &Value) -> Value {
        let dims = stack.of.dims.clone();
        let axes: Vec<usize> = (1..dims.len()).collect();
        let part = self.main.broadcast(value, &[&[1], &dims[1..]].concat(), &axes);
        let at = self.first(&dims, turn);
        self.main.dynamic_update_slice(stack, &part, &at.iter().collect::<Vec<_>>())
    }

    /// Indices of a block's part.
    fn first(&mut self, dims: &[u64], turn: &Value) -> Vec<Value> {
        let zero = self.main.constant(0.0, Type::scalar(Element::I32));
        std::iter::once(turn.clone()).chain(dims[1..].iter().map(|_| zero.clone())).collect()
    }

    /// A loop whose body is written by this writer.
    pub fn repeat(
        &mut self,
        turns: u64,
        carried: &[Value],
        body: impl FnOnce(&mut Self, &Value, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let mut main = std::mem::take(&mut self.main);
        let after = main.repeat(turns, carried, |inner, turn, carried| {
            self.main = std::mem::take(inner);
            let next = body(self, turn, carried);
            *inner = std::mem::take(&mut self.main);
            next
        });
        self.main = main;
        after
    }
}
