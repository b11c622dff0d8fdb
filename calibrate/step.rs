//! A scenario's training step in StableHLO, as JAX hands it to the compiler.
//!
//! ```text
//! spmd::Block ─► a loop over blocks, forward ─► loss, whole or in parts ─► the loop back ─► AdamW, in place
//! ```
//!
//! What a block computes, and what of it backward finds, is the simulator's ([`Block`] and its policy): one description serves
//! both. What each kind of operator is in arrays, forward and backward, is written here once (`operators`, `attention`,
//! `experts`, `sorted`).
//! Types, casts and constraints are those that JAX makes of `tests/oracles/xla_step.py`, because memory depends on them.
//! Shapes: B sequences of S tokens, D wide, N query heads and K key-value heads of H, F the feed-forward's width, V words, all
//! of the whole job: the compiler shares them out.

mod apart;
mod attention;
mod blocks;
mod experts;
mod kernel;
mod layout;
mod loss;
mod operators;
mod optimizer;
mod sorted;
#[cfg(test)]
mod tests;
mod weights;

use std::borrow::Cow;

use windtunnel::model::experts::{Experts, Router, Score};
use windtunnel::model::{Activation, Gating, Layers, Position, QkNorm};
use windtunnel::runtime::spmd::{Attention, Block, Mesh, XlaPlan};

use crate::stablehlo::{Element, Function, Spec, Type, Value, module};
pub use kernel::TARGET as KERNEL;
use layout::{Layout, Logical};
use sorted::Sorted;
use weights::Weight;

/// What a step is written with, besides the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether the compiler is a TPU's, which takes kernels written by hand.
    pub kernels: bool,
}

/// A step, written.
#[derive(Clone, Debug)]
pub struct Step {
    /// StableHLO.
    pub text: String,
    /// What it takes and how that lies: parameters, first moments, second moments, steps so far, tokens, targets. It gives
    /// the first four back, and the loss.
    pub arguments: Vec<Argument>,
    /// Parameters among the arguments.
    pub parameters: usize,
}

/// An argument of a step.
#[derive(Clone, Debug)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// The whole array.
    pub of: Type,
    /// How it lies.
    pub spec: Spec,
}

impl Step {
    /// The program, below a list of what it takes.
    pub fn listing(&self) -> String {
        let kept = 3 * self.parameters + 1;
        let mut text =
            format!("// Arguments, the first {kept} of them given back in place; the last result is the loss.\n");
        for (at, argument) in self.arguments.iter().enumerate() {
            text += &format!("//   %arg{at}: {}, {}\n", argument.name, argument.of);
        }
        text + &self.text
    }
}

/// Writes a job's step.
///
/// # Errors
/// A job with something that is not written yet; the text names it.
pub fn write(job: &XlaPlan, options: Options) -> Result<Step, String> {
    if let Some(lacks) = lacks(job) {
        return Err(format!("no program is written yet for {lacks}"));
    }
    Ok(Writer::new(job, options).step())
}

/// What a job has that no step is written with.
fn lacks(job: &XlaPlan) -> Option<Cow<'static, str>> {
    let model = &job.model;
    let windows = |layers: &Layers| layers.iter().any(|layer| layer.window() != layers.at(0).window());
    let shared = job.mesh.context > 1;
    let experts = |has: fn(&Experts) -> bool| model.experts().is_some_and(has);
    let cases = [
        (job.gpu().is_some(), "steps on GPUs: set topology.name to a TPU"),
        (shared && job.attention == Attention::DotProduct, "shared sequences in dot_product attention"),
        (shared && model.experts().is_some(), "experts of shared sequences: set mesh.context = 1"),
        (model.experts().is_some() && model.dense().is_some(), "blocks with experts beside blocks without"),
        (experts(|of| !softmax(of.router)), "routers other than a softmax over the experts that are chosen"),
        (experts(|of| of.bias), "experts with biases"),
        (experts(|of| of.auxiliary_loss), "a loss that balances experts"),
        (
            job.spread_of_sorted().is_some(),
            "sorted experts over an expert axis: give MaxText's own program, by --program",
        ),
        (job.sorts_experts() && job.mesh.tensor > 1, "sorted experts on the tensor axis: set mesh.tensor = 1"),
        (job.quantization.is_some(), "quantized linears"),
        (model.qk_norm() == Some(QkNorm::Full), "norms over all heads at once"),
        (model.embedding_norm.is_some(), "a norm on the embedding"),
        (model.caps_scores() && job.attention == Attention::DotProduct, "capped scores in dot_product attention"),
        (
            windows(&model.layers) && job.attention == Attention::DotProduct,
            "windows of some blocks in dot_product attention",
        ),
        (!matches!(model.position, Position::Rope { .. }), "positions other than rotary ones"),
        (!gates(model.gating()), "feed-forwards other than those gated by SiLU or GELU"),
    ];
    let here = cases.into_iter().find(|(applies, _)| *applies).map(|(_, what)| what.into());
    here.or_else(|| job.only_simulated().map(|refusal| refusal.problem))
}

/// Whether a feed-forward is gated by a function that is written here.
fn gates(feed_forward: Gating) -> bool {
    use Activation::{Gelu, GeluNew, GeluTanh, Silu};
    matches!(feed_forward, Gating::Gated(Silu | Gelu | GeluNew | GeluTanh))
}

/// Whether a router's weights are the softmax over those it chose: a softmax over all, divided by the sum of the chosen, is
/// the same.
fn softmax(router: Router) -> bool {
    let over_chosen = match router.score {
        Score::Softmax => router.normalises,
        Score::SoftmaxOfChosen => true,
        Score::Sigmoid | Score::Sinkhorn => false,
    };
    over_chosen && !router.scales && !router.bias && !router.correction && router.groups.is_none()
}

/// The job as one chip would run it all, which sends no tokens: what the compiler is given is of the whole.
fn whole(job: &XlaPlan) -> XlaPlan {
    let batch = job.batch * u64::from(job.mesh.data_ranks());
    XlaPlan { mesh: Mesh::ONE, batch, send_tokens: false, ..job.clone() }
}

/// A step being written.
struct Writer<'j> {
    job: &'j XlaPlan,
    options: Options,
    layout: Layout,
    block: Block,
    weights: Vec<Weight>,
    main: Function,
    /// What experts' rows were last sorted by.
    sorted: Option<Sorted>,
}

impl<'j> Writer<'j> {
    fn new(job: &'j XlaPlan, options: Options) -> Self {
        let whole = whole(job);
        let block = Block::of(&whole, job.model.layers.at(0));
        let layout = Layout::of(job.mesh);
        let weights = weights::of(&job.model, &block, &layout, job.scan);
        Self { job, options, layout, block, weights, main: Function::new(), sorted: None }
    }

    fn step(mut self) -> Step {
        let (arguments, values) = self.arguments();
        let count = self.weights.len();
        let (parameters, tokens) = (&values[..count], &values[3 * count + 1..]);
        let embedded = self.embed(&parameters[0], &tokens[0]);
        let (loss, gradient, mut gradients) = match self.job.scan {
            true => {
                let (hidden, saved) = self.forward(embedded, parameters);
                let loss = self.loss(&hidden, parameters, &tokens[1]);
                let (gradient, gradients) = self.backward(loss.gradient.clone(), &saved, parameters);
                (loss, gradient, gradients)
            }
            false => {
                let (hidden, saved) = self.forward_apart(embedded, parameters);
                let loss = self.loss(&hidden, parameters, &tokens[1]);
                let (gradient, gradients) = self.backward_apart(loss.gradient.clone(), &saved, parameters);
                (loss, gradient, gradients)
            }
        };
        gradients[0] = Some(self.embed_backward(&gradient, &tokens[0], &parameters[0]));
        for (at, gradient) in loss.gradients {
            gradients[at] = Some(match gradients[at].take() {
                Some(first) => self.main.zip("add", &first, &gradient),
                None => gradient,
            });
        }
        let gradients: Vec<Value> = gradients.into_iter().flatten().collect();
        let state = &values[..3 * count + 1];
        let mut results = self.update(state, &gradients);
        results.push(loss.value);
        for (at, value) in results.iter().enumerate() {
            let scalar = Spec::replicated(0);
            let spec = arguments.get(at).filter(|_| at <= 3 * count).map_or(&scalar, |argument| &argument.spec);
            self.main.result(value, Some(spec));
        }
        Step { text: module("step", Some(&self.layout.mesh), &self.main), arguments, parameters: count }
    }

    /// Parameters, both moments, the steps so far, tokens and targets; all but the last two are given back in place.
    fn arguments(&mut self) -> (Vec<Argument>, Vec<Value>) {
        let mut all: Vec<Argument> = vec![];
        let first = if self.job.half_moment { Element::Bf16 } else { Element::F32 };
        for (prefix, element) in [("", Element::F32), ("mu.", first), ("nu.", Element::F32)] {
            all.extend(self.weights.iter().map(|weight| Argument {
                name: format!("{prefix}{}", weight.name),
                of: weight.of.of(element),
                spec: weight.spec.clone(),
            }));
        }
        let kept = all.len() + 1;
        all.push(Argument { name: "count".to_owned(), of: Type::scalar(Element::F32), spec: Spec::replicated(0) });
        let tokens = Type::new(Element::I32, [self.sequences(), self.job.seq]);
        let spec = self.layout.spec(&[Logical::Batch, Logical::Sequence]);
        for name in ["tokens", "targets"] {
            all.push(Argument { name: name.to_owned(), of: tokens.clone(), spec: spec.clone() });
        }
        let mut values = vec![];
        for (at, argument) in all.iter().enumerate() {
            let (of, spec) = (argument.of.clone(), Some(&argument.spec));
            values.push(match at < kept {
                true => self.main.donated(of, spec, at),
                false => self.main.parameter(of, spec),
            });
        }
        (all, values)
    }

    /// B.
    fn sequences(&self) -> u64 {
        self.job.batch * u64::from(self.job.mesh.data_ranks())
    }

    /// A value of B S D: tokens lie on those who share the batch, and their numbers on the tensor axis if the rules say so.
    fn constrain_hidden(&mut self, value: &Value) -> Value {
        let width = if self.job.activation_embed { Logical::Tensor } else { Logical::Whole };
        let spec = self.layout.spec(&[Logical::Batch, Logical::Sequence, width]);
        self.main.constrain(value, &spec)
    }

    /// A value of B S F, or of B S V.
    fn constrain_wide(&mut self, value: &Value) -> Value {
        let spec = self.layout.spec(&[Logical::Batch, Logical::Sequence, Logical::Tensor]);
        self.main.constrain(value, &spec)
    }

    /// The base of rotary angles; any costs the same.
    fn theta(&self) -> f64 {
        500_000.0
    }

    /// The activation of the feed-forward's gate.
    fn activation(&self) -> Activation {
        match self.job.model.gating() {
            Gating::Gated(activation) | Gating::Plain(activation) => activation,
        }
    }
}
