//! The embedding, and from the last block's result to the loss and back.

use windtunnel::runtime::spmd::Targets;

use super::operators::{Gradients, linear, linear_backward, norm, norm_backward};
use super::{Logical, Writer};
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

/// Weights outside the blocks that the loss is computed with, or gradients of them.
struct Outside {
    /// The last norm's, if there is one.
    scale: Option<Value>,
    /// The head's, D V.
    head: Value,
}

/// What some tokens give: the sum of their losses, and gradients of them and of the weights.
struct Sum {
    value: Value,
    gradient: Value,
    of: Outside,
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

    /// One where a token is the word, zero elsewhere: the tokens' axes and V.
    fn one_hot(&mut self, tokens: &Value, element: Element) -> Value {
        let main = &mut self.main;
        let (axes, words) = (tokens.of.dims.len(), self.job.model.vocab);
        let dims = [&tokens.of.dims[..], &[words]].concat();
        let spread = spread(main, tokens, &dims);
        let mut row = vec![1; axes + 1];
        row[axes] = words;
        let words = main.iota(Type::new(Element::I32, row), axes);
        let words = main.broadcast(&words, &dims, &(0..=axes).collect::<Vec<_>>());
        let equal = main.compare(Comparison::Equal, &spread, &words);
        main.convert(&equal, element)
    }

    /// The last norm, the head and the loss, forward and backward.
    pub fn loss(&mut self, hidden: &Value, parameters: &[Value], targets: &Value) -> Loss {
        let (last, tied) = (self.weights.len() - 1, self.job.model.tied_head);
        let scale = self.job.model.final_norm.map(|_| parameters[last].clone());
        let head = match tied {
            // The embedding, on its side.
            true => self.main.transpose(&parameters[0], &[1, 0]),
            false => parameters[1].clone(),
        };
        let weights = Outside { scale, head };
        let mut made = match self.job.vocab_tiling.max(1) {
            1 => {
                let count = (targets.of.dims[0] * targets.of.dims[1]) as f64;
                let mut made = self.loss_of(hidden, &weights, targets, 1.0 / count);
                let count = self.main.constant(count, made.value.of.clone());
                made.value = self.main.zip("divide", &made.value, &count);
                made
            }
            parts => self.loss_in_parts(hidden, &weights, targets, parts),
        };
        if tied {
            made.of.head = self.main.transpose(&made.of.head, &[1, 0]);
        }
        let mut gradients = vec![(usize::from(!tied), made.of.head)];
        gradients.extend(made.of.scale.map(|scale| (last, scale)));
        Loss { value: made.value, gradient: made.gradient, gradients }
    }

    /// The sum of the losses of some tokens, and gradients of `share` of it.
    fn loss_of(&mut self, hidden: &Value, weights: &Outside, targets: &Value, share: f64) -> Sum {
        let normed = weights.scale.as_ref().map(|scale| norm(&mut self.main, hidden, scale, self.job.norm_by_product));
        let input = normed.as_ref().map_or(hidden, |made| &made.output);
        let made = linear(&mut self.main, input, &weights.head, 1);
        let logits = self.constrain_words(&made.output);
        let (value, gradient) = self.cross_entropy(&logits, targets, share);
        let gradient = self.main.convert(&gradient, Element::Bf16);
        let gradient = self.constrain_words(&gradient);
        let Gradients { inputs, weight } = linear_backward(&mut self.main, &made.residuals, &gradient, 1);
        let head = weight.expect("a linear has a weight");
        let Some(normed) = normed else {
            return Sum { value, gradient: inputs[0].clone(), of: Outside { scale: None, head } };
        };
        let Gradients { inputs, weight } = norm_backward(&mut self.main, &normed.residuals, &inputs[0]);
        Sum { value, gradient: inputs[0].clone(), of: Outside { scale: weight, head } }
    }

    /// Numbers of every word: of B S V, or of the tokens of a part and V.
    fn constrain_words(&mut self, value: &Value) -> Value {
        if value.of.dims.len() == 3 {
            return self.constrain_wide(value);
        }
        let spec = self.layout.spec(&[Logical::Tokens, Logical::Tensor]);
        self.main.constrain(value, &spec)
    }

    /// The loss in parts of the tokens (MaxText's `utils/vocabulary_tiling.py`): the head gathered once for all, forward part by
    /// part, then backward with each part's logits made again; gradients of the weights are added up whole, in fp32.
    fn loss_in_parts(&mut self, hidden: &Value, weights: &Outside, targets: &Value, parts: u64) -> Sum {
        let weights = self.whole(weights);
        let count = targets.of.dims.iter().product::<u64>();
        let cut = [parts, count / parts];
        let mut in_parts = |value: &Value| {
            let dims = [&cut[..], &value.of.dims[2..]].concat();
            let value = self.main.reshape(value, &dims);
            let axes = [&[Logical::Whole, Logical::Tokens][..], &vec![Logical::Whole; dims.len() - 2]].concat();
            let spec = self.layout.spec(&axes);
            self.main.constrain(&value, &spec)
        };
        let (hidden_parts, targets) = (in_parts(hidden), in_parts(targets));
        let scale = weights.scale.clone();
        let mut carried = vec![hidden_parts.clone(), targets, weights.head.clone()];
        carried.extend(scale.clone());
        let fixed = carried.len();
        let of =
            |carried: &[Value]| Outside { scale: scale.as_ref().map(|_| carried[3].clone()), head: carried[2].clone() };
        let mut forward = carried.clone();
        forward.push(self.main.constant(0.0, Type::scalar(Element::F32)));
        let after = self.repeat(parts, &forward, |writer, turn, carried| {
            let (hidden, targets) = writer.part(carried, turn);
            let made = writer.loss_of(&hidden, &of(carried), &targets, 1.0);
            let sum = writer.main.zip("add", &carried[fixed], &made.value);
            [&carried[..fixed], &[sum]].concat()
        });
        let scalar = after[fixed].of.clone();
        let [one, count] = [1.0, count as f64].map(|number| self.main.constant(number, scalar.clone()));
        let value = self.main.zip("divide", &after[fixed], &count);
        let share = self.main.zip("divide", &one, &count);
        let mut backward = carried.clone();
        backward.extend(carried[2..].iter().chain([&hidden_parts]).map(|value| self.main.fill(0.0, &value.of)));
        let after = self.repeat(parts, &backward, |writer, turn, carried| {
            let (hidden, targets) = writer.part(carried, turn);
            let made = writer.loss_of(&hidden, &of(carried), &targets, 1.0);
            let of_weights = std::iter::once(&made.of.head).chain(&made.of.scale);
            let mut next = carried[..fixed].to_vec();
            next.extend(of_weights.zip(&carried[fixed..]).map(|(new, sum)| writer.main.zip("add", sum, new)));
            let spec = writer.layout.spec(&[Logical::Tokens, Logical::Whole]);
            let gradient = writer.main.constrain(&made.gradient, &spec);
            next.push(writer.store(&carried[carried.len() - 1], &gradient, turn));
            next
        });
        let scaled: Vec<Value> = after[fixed..]
            .iter()
            .map(|sum| {
                let wide = self.main.convert(sum, Element::F32);
                let share = self.main.broadcast(&share, &wide.of.dims, &[]);
                self.main.zip("multiply", &wide, &share)
            })
            .collect();
        let last = scaled.len() - 1;
        let gradient = self.main.reshape(&scaled[last], &hidden.of.dims);
        let gradient = self.constrain_hidden(&gradient);
        let gradient = self.main.convert(&gradient, Element::Bf16);
        let of = Outside { head: scaled[0].clone(), scale: scale.map(|_| scaled[1].clone()) };
        Sum { value, gradient, of: self.whole(&of) }
    }

    /// Weights, or their gradients, that every chip has whole but for the tensor axis.
    fn whole(&mut self, weights: &Outside) -> Outside {
        let spec = self.layout.spec(&[Logical::Whole, Logical::Tensor]);
        let head = self.main.constrain(&weights.head, &spec);
        let scale = weights.scale.as_ref().map(|scale| {
            let spec = self.layout.spec(&[Logical::Whole]);
            self.main.constrain(scale, &spec)
        });
        Outside { scale, head }
    }

    /// A part's tokens and their targets.
    fn part(&mut self, carried: &[Value], turn: &Value) -> (Value, Value) {
        let (hidden, targets) = (self.load(&carried[0], turn), self.load(&carried[1], turn));
        let [wide, narrow] =
            [&[Logical::Tokens, Logical::Whole][..], &[Logical::Tokens]].map(|axes| self.layout.spec(axes));
        (self.main.constrain(&hidden, &wide), self.main.constrain(&targets, &narrow))
    }

    /// The sum of cross-entropies of logits, whose last axis are words, in fp32, and the gradient of `share` of it.
    fn cross_entropy(&mut self, logits: &Value, targets: &Value, share: f64) -> (Value, Value) {
        let wide = self.main.convert(logits, Element::F32);
        let (wide, cap) = self.capped(&wide);
        // As JAX has it: what backward reads of forward is found there, and spread over words through an axis of one.
        let rows = (self.job.targets == Targets::OneHot).then(|| self.one_hot(targets, Element::F32));
        let main = &mut self.main;
        let all = wide.of.dims.clone();
        let last = all.len() - 1;
        let (before, every): (Vec<usize>, Vec<usize>) = ((0..last).collect(), (0..=last).collect());
        let most = main.reduce(Reduction::Max, &wide, &[last]);
        let spread_most = spread(main, &most, &all);
        let less = main.zip("subtract", &wide, &spread_most);
        let powers = main.map("exponential", &less);
        let sum = main.reduce(Reduction::Sum, &powers, &[last]);
        let (losses, gradient) = match rows {
            None => {
                let logarithm = main.map("log", &sum);
                let whole = main.zip("add", &logarithm, &most);
                let right = main.pick(&wide, targets);
                let losses = main.zip("subtract", &whole, &right);
                let empty = main.fill(0.0, &wide.of);
                let share = main.fill(share, &sum.of);
                let minus = main.map("negate", &share);
                let of_right = main.put(&empty, targets, &minus);
                let share = main.zip("divide", &share, &sum);
                let share = main.broadcast(&share, &all, &before);
                let of_whole = main.zip("multiply", &share, &powers);
                (losses, main.zip("add", &of_right, &of_whole))
            }
            Some(rows) => {
                let column = [&all[..last], &[1]].concat();
                let sum = main.broadcast(&sum, &column, &before);
                let logarithm = main.map("log", &sum);
                let logarithm = main.broadcast(&logarithm, &all, &every);
                let shares = main.zip("subtract", &less, &logarithm);
                let right = main.zip("multiply", &rows, &shares);
                let right = main.reduce(Reduction::Sum, &right, &[last]);
                let losses = main.map("negate", &right);
                let sum = main.broadcast(&sum, &all, &every);
                let shares = main.zip("divide", &powers, &sum);
                let off = main.zip("subtract", &shares, &rows);
                let share = main.fill(share, &losses.of);
                let share = spread(main, &share, &all);
                (losses, main.zip("multiply", &share, &off))
            }
        };
        let main = &mut self.main;
        let total = main.reduce(Reduction::Sum, &losses, &before);
        match cap {
            Some(slope) => (total, main.zip("multiply", &gradient, &slope)),
            None => (total, gradient),
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

/// Numbers of tokens on every word.
fn spread(main: &mut Function, value: &Value, dims: &[u64]) -> Value {
    let last = dims.len() - 1;
    let column = main.broadcast(value, &[&dims[..last], &[1]].concat(), &(0..last).collect::<Vec<_>>());
    main.broadcast(&column, dims, &(0..=last).collect::<Vec<_>>())
}
