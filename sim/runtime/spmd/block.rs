//! A block's forward as operators on named tensors, with what each needs in backward.

mod keeps;
mod mixture;

use crate::model::latent::LatentAttention;
use crate::model::{
    Attention as Heads, FeedForward, Gating, Layer, Mixer, ModelConfig, Norm, NormPlacement, Norms, Position, QkNorm,
};
use crate::plan::xla::{Attention, XlaPlan};
use crate::program::AttentionShape;

/// A tensor of the block, by its place in [`Block::tensors`].
pub type Tensor = usize;

/// What an operator computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RMSNorm over the width, or over each head.
    Norm,
    /// A matmul with a weight, by its place in [`Block::weights`].
    Linear(usize),
    /// Rotary embedding, in fp32.
    Rope,
    /// Keys or values once for each head that reads them (`repeat_kv`).
    Repeat,
    /// Attention.
    Attention(AttentionShape),
    /// The residual sum.
    Add,
    /// `act(gate)·up`, or `act(up)` of one input.
    Gate,
    /// Which token goes to which place of which expert, from the router's scores: two masks.
    Masks,
    /// Tokens to experts' places, by a matmul with a mask of each sequence; the places of a sequence.
    Dispatch(u64),
    /// Tokens to the chips of their experts, or experts' results back, over the expert axis.
    Send,
    /// Experts' results back to tokens, the same way.
    Combine(u64),
    /// Copies of tokens in the order of their experts.
    Sort,
    /// Experts' results back in the order of tokens, and added up by the router's weights.
    Unsort,
    /// Sorted copies to the chips of their experts, or results back, over the expert axis: as many as there are, into a buffer that
    /// holds the most there can be.
    Exchange,
    /// Copies from several chips in the order of this chip's experts, or back in the order in which they came.
    Arrange,
    /// Tokens of all chips of the expert axis.
    AllTokens,
    /// What all chips of the expert axis made of this chip's tokens, added up.
    OwnTokens,
}

/// One operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// What it computes.
    pub kind: Kind,
    /// From what.
    pub inputs: Vec<Tensor>,
    /// Its result.
    pub output: Tensor,
}

impl Op {
    /// What its backward reads besides the gradient of its result. Attention also reads its own result.
    pub fn needs(&self) -> Vec<Tensor> {
        match self.kind {
            Kind::Norm | Kind::Linear(_) | Kind::Gate | Kind::Masks => self.inputs.clone(),
            // The mask, by which the other's gradient is taken; the weights in it have a gradient of their own.
            Kind::Dispatch(_) => self.inputs[1..].to_vec(),
            Kind::Combine(_) | Kind::Unsort => self.inputs.clone(),
            Kind::Attention(_) => self.inputs.iter().copied().chain([self.output]).collect(),
            Kind::Rope
            | Kind::Repeat
            | Kind::Add
            | Kind::Sort
            | Kind::Send
            | Kind::Exchange
            | Kind::Arrange
            | Kind::AllTokens
            | Kind::OwnTokens => vec![],
        }
    }

    /// Whether the compiler makes its result again within whatever reads it, where nothing bars its way, as the end of a
    /// loop's turn does.
    pub fn is_fused(&self) -> bool {
        matches!(self.kind, Kind::Norm | Kind::Gate)
    }
}

/// A tensor's name, if a policy may speak of it, and its numbers on one chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// MaxText's `checkpoint_name`.
    pub name: Option<&'static str>,
    /// Rows: tokens, or places of experts.
    pub rows: u64,
    /// Numbers of a row.
    pub width: u64,
    /// Bytes of a number.
    pub element: u64,
}

impl Named {
    /// All of its numbers.
    pub fn numbers(self) -> u64 {
        self.rows * self.width
    }
}

/// The name of the router's weight.
pub const ROUTER: &str = "gate";

/// A weight as one chip multiplies with it, gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Its name.
    pub name: &'static str,
    /// Rows that a token's numbers meet.
    pub inputs: u64,
    /// Columns.
    pub outputs: u64,
    /// How many of it there are: one, or one for each expert.
    pub copies: u64,
    /// Whether it is experts'.
    pub experts: bool,
    /// Whether its copies are spread over the expert axis, and each chip multiplies with its own.
    pub expert_parallel: bool,
    /// Whether its result is a part of a sum over the tensor axis.
    pub row_parallel: bool,
}

impl Weight {
    /// All of its numbers.
    pub fn numbers(self) -> u64 {
        self.inputs * self.outputs * self.copies
    }
}

/// A block's forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Operators, in order.
    pub ops: Vec<Op>,
    /// Tensors; the first is the block's input.
    pub tensors: Vec<Named>,
    /// Weights.
    pub weights: Vec<Weight>,
    /// Numbers in norms' weights.
    pub norms: u64,
    /// Rows of the tensors that are being written down.
    rows: u64,
    /// Numbers that a norm has for each it scales: two with a bias.
    norm_numbers: u64,
    /// Chips over which results of row-parallel weights lie.
    split: u64,
    /// Chips that experts are spread over.
    expert_ranks: u64,
    /// Whether attention runs again although its result is kept: the sums of its softmax are not.
    forgets_sums: bool,
}

impl Block {
    /// A layer of a job's model.
    pub fn of(job: &XlaPlan, layer: &Layer) -> Block {
        let (model, tensor) = (&job.model, u64::from(job.mesh.tensor));
        let mixer = &layer.mixer;
        let (heads, kv_heads) = (mixer.heads() / tensor, (mixer.kv_heads() / tensor).max(1));
        let width = model.width;
        let (q, kv) = (heads * mixer.head_dim(), kv_heads * mixer.head_dim());
        let Norms { kind, placement } = layer.norms;
        let norm_numbers = if kind == (Norm::Layer { bias: true }) { 2 } else { 1 };
        let rows = job.own_tokens();
        let mut block = Block {
            ops: vec![],
            tensors: vec![],
            weights: vec![],
            norms: 0,
            rows,
            norm_numbers,
            split: model.width / job.stream(),
            expert_ranks: job.expert_ranks(),
            forgets_sums: job.attention == Attention::Cudnn { named: false },
        };
        let around = placement == NormPlacement::PreAndPost;
        let beside = placement == NormPlacement::ParallelShared;
        // What a chip holds of the numbers between the halves of a block.
        let stream = job.stream();
        let input = block.tensor(Some("decoder_layer_input"), stream);
        block.tensors[input].element = job.residual();
        let normed = block.norm_of(input, (stream, width));
        let [query, key, value] = match mixer {
            Mixer::Attention(attention) => block.heads(normed, (model, attention), (q, kv)),
            Mixer::Latent(latent) => block.latent(normed, (width, heads), latent),
            Mixer::Mamba2(_) | Mixer::GatedDelta(_) | Mixer::None => unreachable!("other mixers are refused under XLA"),
        };
        let repeats = job.torch.is_some() && kv < q;
        let [key, value] = match repeats {
            true => [key, value].map(|tensor| block.op(Kind::Repeat, &[tensor], None, q)),
            false => [key, value],
        };
        let kv_heads = if repeats { heads } else { kv_heads };
        // Of latent attention: the mean of what scores and values are computed over, and the values' own width.
        let (head_dim, made) = match mixer {
            Mixer::Attention(attention) => (attention.head_dim, q),
            Mixer::Latent(latent) => ((latent.head_dim() + latent.value) / 2, heads * latent.value),
            Mixer::Mamba2(_) | Mixer::GatedDelta(_) | Mixer::None => (0, 0),
        };
        // Chips that share a sequence each have early and late parts of it (`context_parallel_load_balance`): as many pairs as
        // whole sequences of a share of the heads.
        let context = u64::from(job.mesh.context);
        let shape = AttentionShape {
            batch: job.batch,
            heads: job.same_heads() * heads / context,
            kv_heads: (job.same_heads() * kv_heads / context).max(1),
            queries: job.seq,
            keys: job.seq,
            head_dim,
            causal: true,
            window: layer.window(),
            squares: None,
        };
        let attended = block.op(Kind::Attention(shape), &[query, key, value], Some("context"), made);
        let mut out = block.linear(attended, Some("out_proj"), ("out", made, width, true));
        if around {
            out = block.norm_of(out, (stream, width));
        }
        let middle = block.op(Kind::Add, &[input, out], None, stream);
        // Side by side, both halves read one norm of the block's input.
        let normed = if beside { normed } else { block.norm_of(middle, (stream, width)) };
        let mut down = match &layer.feed_forward {
            FeedForward::Dense(dense) => block.feed_forward(normed, dense.gating, (width, dense.width / tensor, 1)),
            FeedForward::Experts(experts) => block.mixture(normed, job, (width, experts)),
            FeedForward::None => normed,
        };
        if around {
            down = block.norm_of(down, (stream, width));
        }
        block.op(Kind::Add, &[middle, down], None, stream);
        // Biases, and what has as many numbers, lie beside the norms' weights, and are added within matmuls.
        if let Mixer::Attention(attention) = mixer {
            block.beside([(attention.qkv_bias, q + 2 * kv), (attention.output_bias, width), (attention.sinks, heads)]);
        }
        match &layer.feed_forward {
            FeedForward::Dense(dense) => {
                block.beside([(dense.bias, dense.gating.ups() * (dense.width / tensor) + width)]);
            }
            FeedForward::Experts(experts) => {
                let each = experts.gating.ups() * experts.width / tensor + width;
                block.beside([
                    (experts.bias, experts.count * each),
                    (experts.router.bias, experts.count),
                    (experts.router.correction, experts.count),
                ]);
            }
            FeedForward::None => {}
        }
        block
    }

    /// Counts numbers that lie beside the norms' weights, where there are such.
    fn beside<const COUNT: usize>(&mut self, numbers: [(bool, u64); COUNT]) {
        self.norms += numbers.iter().filter(|(has, _)| *has).map(|(_, numbers)| numbers).sum::<u64>();
    }

    /// Queries, keys and values of heads of their own.
    fn heads(
        &mut self,
        normed: Tensor,
        (model, attention): (&ModelConfig, &Heads),
        (q, kv): (u64, u64),
    ) -> [Tensor; 3] {
        let width = model.width;
        let query = self.linear(normed, Some("query_proj"), ("query", width, q, false));
        let key = self.linear(normed, Some("key_proj"), ("key", width, kv, false));
        let value = self.linear(normed, Some("value_proj"), ("value", width, kv, false));
        let (query, key) = match attention.qk_norm {
            None => (query, key),
            Some(QkNorm::PerHead) => {
                (self.norm_of(query, (q, attention.head_dim)), self.norm_of(key, (kv, attention.head_dim)))
            }
            Some(QkNorm::Full) => (self.norm(query, q), self.norm(key, kv)),
        };
        match model.position {
            Position::Rope { .. } => {
                [self.op(Kind::Rope, &[query], None, q), self.op(Kind::Rope, &[key], None, kv), value]
            }
            _ => [query, key, value],
        }
    }

    /// Queries, keys and values of latent attention (`layers/attention_mla.py`): through short vectors with norms of their own.
    /// Keys are put together with the rotated part that all heads share, values are the rest of what keys are made with.
    fn latent(&mut self, normed: Tensor, (width, heads): (u64, u64), latent: &LatentAttention) -> [Tensor; 3] {
        let each = heads * (latent.head_dim());
        let query = match latent.query_rank {
            None => self.linear(normed, Some("query_proj"), ("query", width, each, false)),
            Some(rank) => {
                let short = self.linear(normed, None, ("wq_a", width, rank, false));
                let short = self.norm(short, rank);
                self.linear(short, Some("query_proj"), ("wq_b", rank, each, false))
            }
        };
        let short = self.linear(normed, None, ("wkv_a", width, latent.rank + latent.rotated, false));
        let short = self.norm(short, latent.rank);
        let both = heads * (latent.plain + latent.value);
        let both = self.linear(short, Some("key_proj"), ("wkv_b", latent.rank, both, false));
        [self.op(Kind::Rope, &[query], None, each), self.op(Kind::Rope, &[both], None, each), both]
    }

    /// The feed-forward, of one or of every expert.
    fn feed_forward(&mut self, input: Tensor, kind: Gating, sizes: (u64, u64, u64)) -> Tensor {
        self.feed_forward_of(input, (kind, Some("mlpwi_1")), sizes)
    }

    /// The same, with the name of what multiplies the gate.
    fn feed_forward_of(
        &mut self,
        input: Tensor,
        (kind, up): (Gating, Option<&'static str>),
        (width, ffn, copies): (u64, u64, u64),
    ) -> Tensor {
        let product = match kind {
            Gating::Gated(_) => {
                let gate = self.linear_of(input, Some("mlpwi_0"), ("wi_0", width, ffn, false), copies);
                let up = self.linear_of(input, up, ("wi_1", width, ffn, false), copies);
                self.op(Kind::Gate, &[gate, up], None, ffn)
            }
            Gating::Plain(_) => {
                let up = self.linear_of(input, Some("mlpwi"), ("wi", width, ffn, false), copies);
                self.op(Kind::Gate, &[up], None, ffn)
            }
        };
        self.linear_of(product, Some("mlpwo"), ("wo", ffn, width, true), copies)
    }

    /// Whether a gate multiplies a tensor.
    pub fn gates(&self, tensor: Tensor) -> bool {
        self.ops.iter().any(|op| op.kind == Kind::Gate && op.inputs.contains(&tensor))
    }

    /// Whether an operator is the first matmul that reads its input.
    pub fn first_reader(&self, op: &Op) -> bool {
        let reads = |other: &&Op| matches!(other.kind, Kind::Linear(_)) && other.inputs == op.inputs;
        self.ops.iter().find(reads).is_some_and(|first| first.output == op.output)
    }

    /// The tensors that backward reads.
    pub fn needed(&self) -> Vec<Tensor> {
        let mut needed: Vec<Tensor> = self.ops.iter().flat_map(Op::needs).collect();
        needed.sort_unstable();
        needed.dedup();
        needed
    }

    /// Operators that run again in backward, in order, if these tensors are found: those whose results are needed, by
    /// backward or by another that runs again.
    pub fn again(&self, found: impl Fn(Tensor) -> bool) -> Vec<usize> {
        self.again_for(self.needed(), found)
    }

    /// The same for other tensors than those that backward needs.
    pub fn again_for(&self, tensors: impl IntoIterator<Item = Tensor>, found: impl Fn(Tensor) -> bool) -> Vec<usize> {
        let mut wanted: Vec<bool> = vec![false; self.tensors.len()];
        tensors.into_iter().for_each(|tensor| wanted[tensor] = true);
        let mut again = vec![];
        for (at, op) in self.ops.iter().enumerate().rev() {
            // A kernel of attention leaves the sums of its softmax behind, which only it makes.
            let made = matches!(op.kind, Kind::Attention(_)) && (self.forgets_sums || !found(op.output));
            if (wanted[op.output] && !found(op.output)) || made {
                op.inputs.iter().for_each(|&input| wanted[input] = true);
                again.push(at);
            }
        }
        again.reverse();
        again
    }

    /// Of what runs again, what one matmul makes of what backward has anyway: sums behind a projection, and values. Each with
    /// the operators that make it.
    pub fn droppable(&self, again: &[usize]) -> Vec<(Tensor, Vec<usize>)> {
        let maker = |tensor: Tensor| again.iter().copied().find(|&at| self.ops[at].output == tensor);
        let linear = |tensor: Tensor| maker(tensor).filter(|&at| matches!(self.ops[at].kind, Kind::Linear(_)));
        let mut list = vec![];
        for &at in again {
            let op = &self.ops[at];
            match op.kind {
                Kind::Add => {
                    let made = op.inputs.iter().find_map(|&input| linear(input));
                    list.extend(made.map(|made| (op.output, vec![made, at])));
                }
                Kind::Attention(_) => {
                    let values = op.inputs.iter().filter_map(|&input| linear(input).map(|made| (input, vec![made])));
                    list.extend(values);
                }
                _ => {}
            }
        }
        list
    }

    fn tensor(&mut self, name: Option<&'static str>, width: u64) -> Tensor {
        self.tensors.push(Named { name, rows: self.rows, width, element: 2 });
        self.tensors.len() - 1
    }

    fn op(&mut self, kind: Kind, inputs: &[Tensor], name: Option<&'static str>, width: u64) -> Tensor {
        let output = self.tensor(name, width);
        if kind == Kind::Add {
            self.tensors[output].element = self.tensors[inputs[0]].element;
        }
        self.ops.push(Op { kind, inputs: inputs.to_vec(), output });
        output
    }

    fn norm(&mut self, input: Tensor, width: u64) -> Tensor {
        self.norm_of(input, (width, width))
    }

    /// A norm of `width` numbers a token with a weight of `weight` numbers.
    fn norm_of(&mut self, input: Tensor, (width, weight): (u64, u64)) -> Tensor {
        self.norms += self.norm_numbers * weight;
        self.op(Kind::Norm, &[input], None, width)
    }

    fn linear(&mut self, input: Tensor, name: Option<&'static str>, weight: (&'static str, u64, u64, bool)) -> Tensor {
        self.linear_of(input, name, weight, 1)
    }

    fn linear_of(
        &mut self,
        input: Tensor,
        name: Option<&'static str>,
        (weight, inputs, outputs, row_parallel): (&'static str, u64, u64, bool),
        copies: u64,
    ) -> Tensor {
        let experts = copies > 1;
        let expert_parallel = experts && self.expert_ranks > 1;
        let copies = if expert_parallel { copies / self.expert_ranks } else { copies };
        self.weights.push(Weight { name: weight, inputs, outputs, copies, experts, expert_parallel, row_parallel });
        let width = if row_parallel { outputs / self.split } else { outputs };
        self.op(Kind::Linear(self.weights.len() - 1), &[input], name, width)
    }
}
