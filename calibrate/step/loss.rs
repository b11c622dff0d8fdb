//! The embedding, and from the last block's result to the loss and back.

use windtunnel::runtime::spmd::Targets;

use super::Writer;
use super::operators::{Gradients, linear, linear_backward, norm, norm_backward};
use crate::stablehlo::{Comparison, Element, Function, Reduction, Type, Value};

/// What the loss gives.
pub struct Loss {
    /// The mean over all tokens.
    pub value: Value,
    /// Gradient of the last block's result.
    pub gradient: Value,
    /// Gradients of parameters, by their place.
    pub gradients: Vec<(usize, Value)>,
}

impl Writer<'_> {
    /// B S D of the words.
    pub fn embed(&mut self, table: &Value, tokens: &Value) -> Value {
        let table = self.main.convert(table, Element::Bf16);
        let embedded = match self.job.iota_embed {
            true => {
                let rows = self.one_hot(tokens, Element::Bf16);
                self.main.dot(&rows, &table, (&[], &[]), (&[2], &[0]), Element::Bf16)
            }
            false => self.main.take_rows(&table, tokens),
        };
        let scaled = match self.job.model.scaled_embedding {
            true => {
                let root = self.main.fill((self.job.model.width as f64).sqrt(), &embedded.of);
                self.main.zip("multiply", &embedded, &root)
            }
            false => embedded,
        };
        self.constrain_hidden(&scaled)
    }

    /// The table's gradient, in fp32.
    pub fn embed_backward(&mut self, gradient: &Value, tokens: &Value, table: &Value) -> Value {
        let mut gradient = self.constrain_hidden(gradient);
        if self.job.model.scaled_embedding {
            let root = self.main.fill((self.job.model.width as f64).sqrt(), &gradient.of);
            gradient = self.main.zip("multiply", &gradient, &root);
        }
        let of_table = match self.job.iota_embed {
            true => {
                let rows = self.one_hot(tokens, Element::Bf16);
                let product = self.main.dot(&gradient, &rows, (&[], &[]), (&[0, 1], &[0, 1]), Element::Bf16);
                self.main.transpose(&product, &[1, 0])
            }
            false => {
                let empty = self.main.fill(0.0, &table.of.of(Element::Bf16));
                self.main.add_rows(&empty, tokens, &gradient)
            }
        };
        self.main.convert(&of_table, Element::F32)
    }

    /// One where a token is the word, zero elsewhere: B S V.
    fn one_hot(&mut self, tokens: &Value, element: Element) -> Value {
        let main = &mut self.main;
        let dims = [&tokens.of.dims[..], &[self.job.model.vocab]].concat();
        let spread = spread(main, tokens, &dims);
        let words = main.iota(Type::new(Element::I32, [1, 1, dims[2]]), 2);
        let words = main.broadcast(&words, &dims, &[0, 1, 2]);
        let equal = main.compare(Comparison::Equal, &spread, &words);
        main.convert(&equal, element)
    }

    /// The last norm, the head and the loss, forward and backward.
    pub fn loss(&mut self, hidden: &Value, parameters: &[Value], targets: &Value) -> Loss {
        let last = self.weights.len() - 1;
        let normed = self.job.model.final_norm.then(|| norm(&mut self.main, hidden, &parameters[last]));
        let input = normed.as_ref().map_or(hidden, |made| &made.output);
        let tied = self.job.model.tied_head;
        let head = match tied {
            // The embedding, on its side.
            true => self.main.transpose(&parameters[0], &[1, 0]),
            false => parameters[1].clone(),
        };
        let made = linear(&mut self.main, input, &head, 1);
        let logits = self.constrain_wide(&made.output);
        let (value, gradient) = self.cross_entropy(&logits, targets);
        let gradient = self.main.convert(&gradient, Element::Bf16);
        let gradient = self.constrain_wide(&gradient);
        let of_head = linear_backward(&mut self.main, &made.residuals, &gradient, 1);
        let mut of_weight = of_head.weight.expect("a linear has a weight");
        if tied {
            of_weight = self.main.transpose(&of_weight, &[1, 0]);
        }
        let mut gradients = vec![(usize::from(!tied), of_weight)];
        let mut gradient = of_head.inputs[0].clone();
        if let Some(made) = normed {
            let Gradients { inputs, weight } = norm_backward(&mut self.main, &made.residuals, &gradient);
            gradients.extend(weight.map(|weight| (last, weight)));
            gradient = inputs[0].clone();
        }
        Loss { value, gradient, gradients }
    }

    /// The mean cross-entropy of logits of B S V, in fp32, and its gradient by them.
    fn cross_entropy(&mut self, logits: &Value, targets: &Value) -> (Value, Value) {
        let wide = self.main.convert(logits, Element::F32);
        let (wide, cap) = self.capped(&wide);
        // As JAX has it: what backward reads of forward is found there, and spread over words through an axis of one.
        let rows = (self.job.targets == Targets::OneHot).then(|| self.one_hot(targets, Element::F32));
        let main = &mut self.main;
        let all = wide.of.dims.clone();
        let most = main.reduce(Reduction::Max, &wide, &[2]);
        let spread_most = spread(main, &most, &all);
        let less = main.zip("subtract", &wide, &spread_most);
        let powers = main.map("exponential", &less);
        let sum = main.reduce(Reduction::Sum, &powers, &[2]);
        let count = (targets.of.dims[0] * targets.of.dims[1]) as f64;
        let (losses, gradient) = match rows {
            None => {
                let logarithm = main.map("log", &sum);
                let whole = main.zip("add", &logarithm, &most);
                let right = main.pick(&wide, targets);
                let losses = main.zip("subtract", &whole, &right);
                let empty = main.fill(0.0, &wide.of);
                let share = main.fill(1.0 / count, &sum.of);
                let minus = main.map("negate", &share);
                let of_right = main.put(&empty, targets, &minus);
                let share = main.zip("divide", &share, &sum);
                let share = main.broadcast(&share, &all, &[0, 1]);
                let of_whole = main.zip("multiply", &share, &powers);
                (losses, main.zip("add", &of_right, &of_whole))
            }
            Some(rows) => {
                let column = [&all[..2], &[1]].concat();
                let sum = main.broadcast(&sum, &column, &[0, 1]);
                let logarithm = main.map("log", &sum);
                let logarithm = main.broadcast(&logarithm, &all, &[0, 1, 2]);
                let shares = main.zip("subtract", &less, &logarithm);
                let right = main.zip("multiply", &rows, &shares);
                let right = main.reduce(Reduction::Sum, &right, &[2]);
                let losses = main.map("negate", &right);
                let sum = main.broadcast(&sum, &all, &[0, 1, 2]);
                let shares = main.zip("divide", &powers, &sum);
                let off = main.zip("subtract", &shares, &rows);
                let share = main.fill(1.0 / count, &losses.of);
                let share = spread(main, &share, &all);
                (losses, main.zip("multiply", &share, &off))
            }
        };
        let main = &mut self.main;
        let total = main.reduce(Reduction::Sum, &losses, &[0, 1]);
        let count = main.constant(count, total.of.clone());
        let mean = main.zip("divide", &total, &count);
        match cap {
            Some(slope) => (mean, main.zip("multiply", &gradient, &slope)),
            None => (mean, gradient),
        }
    }

    /// `c·tanh(x/c)`, with its slope, where the model caps its logits. Any c costs the same.
    fn capped(&mut self, logits: &Value) -> (Value, Option<Value>) {
        if !self.job.model.logit_softcap {
            return (logits.clone(), None);
        }
        let main = &mut self.main;
        let cap = main.fill(30.0, &logits.of);
        let share = main.zip("divide", logits, &cap);
        let tanh = main.map("tanh", &share);
        let one = main.fill(1.0, &logits.of);
        let square = main.zip("multiply", &tanh, &tanh);
        let slope = main.zip("subtract", &one, &square);
        (main.zip("multiply", &cap, &tanh), Some(slope))
    }
}

/// A value of B S on every word: B S V.
fn spread(main: &mut Function, value: &Value, dims: &[u64]) -> Value {
    let column = main.broadcast(value, &[&dims[..2], &[1]].concat(), &[0, 1]);
    main.broadcast(&column, dims, &[0, 1, 2])
}
