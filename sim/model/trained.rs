//! What of a model is trained: all of it, or some parts, or narrow matrices beside frozen weights (LoRA).
//!
//! LoRA (arXiv 2106.09685): `y = W·x + s·B·A·x`, of which A (rank by inputs) and B (outputs by rank) are trained. [`Trained::apply`]
//! writes them into a graph: it marks parameters as frozen, adds A and B behind the weight they stand beside, as modules register
//! them, and the operators that the framework's forward has for them. What then needs a gradient follows from the graph
//! ([`Graph::needs`]).
//!
//! To add a framework's adapters: a variant of [`Code`], and its operators in [`Writer::adapter`].

pub use super::packed::{BLOCK, Packed};

use super::graph::{Axis, Graph, Op, OpKind, Param, ParamId, Role, Stored, Value, ValueId};
use crate::program::DType;

/// Whose forward adapters have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Code {
    /// `LoRALinear` of torchtune (`torchtune/modules/peft/lora.py`, 0.6.1).
    Torchtune,
    /// `lora.Linear` of peft (`peft/tuners/lora/layer.py`, 0.21.2): the input is cast to the adapters' type, the sum back.
    Peft,
    /// `LoRALinear` of NeMo 2 and Megatron-Bridge (`peft/lora_layers.py`, 0.4.0), which Megatron's modules write themselves.
    Megatron,
}

/// Adapters beside linears of all layers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Lora {
    /// Rank.
    pub rank: u64,
    /// Linears that have some, by their module in a layer's graph; sorted.
    pub modules: Vec<&'static str>,
    /// Whether their input goes through dropout.
    pub dropout: bool,
    /// The type they are multiplied in.
    pub dtype: DType,
    /// Whether they are stored in that type, or in that of the model.
    pub own_type: bool,
    /// Whose forward they have.
    pub code: Code,
    /// How the linears' own weights are stored.
    pub packed: Option<Packed>,
}

/// What of a model is trained.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Trained {
    /// The embedding's tables.
    pub embedding: bool,
    /// Layers from here on, counted from 0: all of their parameters, or their adapters.
    pub layers_from: u64,
    /// The final norm.
    pub norm: bool,
    /// The head.
    pub head: bool,
    /// Whether the embedding's result gets a gradient in any case (`enable_input_require_grads`).
    pub inputs: bool,
    /// Adapters, which alone are then trained in layers.
    pub lora: Option<Lora>,
}

/// The linears of a layer that have adapters or keep weights packed: their names in checkpoints, their module in a graph, and the
/// names of the two matrices.
pub const MODULES: [(&[&str], &str, [&str; 2]); 9] = [
    (&["q_proj"], "attention.wq", ["attention.wq.lora_a.weight", "attention.wq.lora_b.weight"]),
    (&["k_proj"], "attention.wk", ["attention.wk.lora_a.weight", "attention.wk.lora_b.weight"]),
    (&["v_proj"], "attention.wv", ["attention.wv.lora_a.weight", "attention.wv.lora_b.weight"]),
    (
        &["qkv_proj", "c_attn", "Wqkv", "query_key_value", "linear_qkv"],
        "attention.wqkv",
        ["attention.wqkv.lora_a.weight", "attention.wqkv.lora_b.weight"],
    ),
    (
        &["o_proj", "output_proj", "linear_proj"],
        "attention.wo",
        ["attention.wo.lora_a.weight", "attention.wo.lora_b.weight"],
    ),
    (
        &["gate_proj", "w1", "fc1", "dense_h_to_4h", "c_fc"],
        "feed_forward.w1",
        ["feed_forward.w1.lora_a.weight", "feed_forward.w1.lora_b.weight"],
    ),
    (&["up_proj", "w3"], "feed_forward.w3", ["feed_forward.w3.lora_a.weight", "feed_forward.w3.lora_b.weight"]),
    (
        &["gate_up_proj", "linear_fc1"],
        "feed_forward.w13",
        ["feed_forward.w13.lora_a.weight", "feed_forward.w13.lora_b.weight"],
    ),
    (
        &["down_proj", "w2", "fc2", "dense_4h_to_h", "linear_fc2"],
        "feed_forward.w2",
        ["feed_forward.w2.lora_a.weight", "feed_forward.w2.lora_b.weight"],
    ),
];

/// The module of a graph that a checkpoint's name stands for.
pub fn module_of(name: &str) -> Option<&'static str> {
    MODULES.iter().find(|(names, ..)| names.contains(&name)).map(|&(_, module, _)| module)
}

/// Which part of the model a graph is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The embedding.
    Embedding,
    /// A layer, counted from 0.
    Layer(u64),
    /// Final norm, head and loss.
    Head,
}

impl Trained {
    /// Whether anything of a layer is trained.
    pub fn trains_layer(&self, layer: u64) -> bool {
        layer >= self.layers_from
    }

    /// Whether what comes out of the embedding needs a gradient.
    pub fn embedded_needs(&self) -> bool {
        self.embedding || self.inputs
    }

    /// Whether the input of a part needs a gradient: something before it is trained.
    pub fn input_needs(&self, which: Which) -> bool {
        match which {
            Which::Embedding => false,
            Which::Layer(layer) => self.embedded_needs() || layer > self.layers_from,
            Which::Head => unreachable!("the head asks with the number of layers"),
        }
    }

    /// A part of the model with what is frozen marked, adapters added and what needs a gradient found. `layers`: how many the
    /// model has.
    pub fn apply(&self, graph: Graph, which: Which, layers: u64) -> Graph {
        let graph = match (which, &self.lora) {
            (Which::Layer(_), Some(lora)) => Writer::write(graph, lora),
            _ => graph,
        };
        let mut graph = self.mark(graph, which, layers);
        if which == Which::Embedding && self.inputs {
            // Nothing of it is trained: its result is a leaf that asks for a gradient.
            graph.needs = vec![false; graph.values.len()];
            graph.needs[graph.output] = true;
        }
        graph
    }

    /// A part of the model, with adapters if it has some, with what is frozen marked and what needs a gradient found.
    pub fn mark(&self, mut graph: Graph, which: Which, layers: u64) -> Graph {
        for param in &mut graph.params {
            param.trained = match which {
                Which::Embedding => self.embedding,
                Which::Layer(layer) if self.lora.is_some() => param.role == Role::Adapter && self.trains_layer(layer),
                Which::Layer(layer) => self.trains_layer(layer),
                Which::Head if param.name == "output.weight" => self.head,
                Which::Head => self.norm,
            };
        }
        let input = match which {
            Which::Head => self.embedded_needs() || layers > self.layers_from,
            which => self.input_needs(which),
        };
        graph.find_needs(input);
        graph
    }
}

/// Writes a layer anew with adapters in it.
struct Writer<'l> {
    lora: &'l Lora,
    graph: Graph,
    /// Where parameters of the layer as it was have gone.
    moved: Vec<ParamId>,
}

/// Two names of a module's matrices, where it has adapters.
fn names(module: &str) -> Option<[&'static str; 2]> {
    MODULES.iter().find(|&&(_, known, _)| known == module).map(|&(.., names)| names)
}

impl Writer<'_> {
    fn write(mut graph: Graph, lora: &Lora) -> Graph {
        let (ops, params) = (std::mem::take(&mut graph.ops), std::mem::take(&mut graph.params));
        let mut writer = Writer { lora, graph, moved: vec![] };
        // Modules register A and B behind what the linear has itself.
        let mut added = vec![];
        for (at, mut param) in params.into_iter().enumerate() {
            let reader = ops.iter().find(|op| op.params.contains(&at) && op.kind.is_linear());
            if let (Some(packed), Some(OpKind::Linear { .. }), Role::Matrix) =
                (lora.packed, reader.map(|op| op.kind), param.role)
            {
                param.stored = Stored::Packed(packed);
            }
            writer.moved.push(writer.graph.params.len());
            writer.graph.params.push(param);
            let Some(op) = reader.filter(|op| lora.modules.contains(&op.module) && op.params.last() == Some(&at))
            else {
                continue;
            };
            let (OpKind::Linear { inputs, outputs }, Some(names)) = (op.kind, names(op.module)) else { continue };
            let first = writer.graph.params.len();
            for (name, shape) in names.into_iter().zip([(lora.rank, inputs), (outputs, lora.rank)]) {
                let stored = if lora.own_type { Stored::As(lora.dtype) } else { Stored::Plain };
                let adapter = Param { stored, ..Param::of(name, shape, Role::Adapter) };
                writer.graph.params.push(Param { role: Role::Adapter, ..adapter });
            }
            added.push((op.module, first));
        }
        for mut op in ops {
            op.params.iter_mut().for_each(|param| *param = writer.moved[*param]);
            let adapter = added.iter().find(|&&(module, _)| module == op.module && op.kind.is_linear());
            match (op.kind, adapter) {
                (OpKind::Linear { inputs, outputs }, Some(&(_, first))) => writer.adapter(op, (inputs, outputs), first),
                _ => writer.graph.ops.push(op),
            }
        }
        writer.graph
    }

    fn value(&mut self, (name, shape): (&'static str, &'static [Axis]), elements: u64, dtype: DType) -> ValueId {
        self.graph.values.push(Value { name, shape, elements, dtype });
        self.graph.values.len() - 1
    }

    /// An operator of one input and one result, after which `drops` go.
    fn push(
        &mut self,
        like: &Op,
        kind: OpKind,
        (inputs, params): (&[ValueId], &[ParamId]),
        output: ValueId,
        drops: &[ValueId],
    ) {
        self.graph.ops.push(Op {
            kind,
            module: like.module,
            inputs: inputs.to_vec(),
            outputs: vec![output],
            params: params.to_vec(),
            drops: drops.to_vec(),
            side_stream: like.side_stream,
            owner: like.owner,
        });
    }

    /// A linear with its adapter, whose two parameters begin at `first`.
    fn adapter(&mut self, mut op: Op, (inputs, outputs): (u64, u64), first: ParamId) {
        let (rank, dtype, code) = (self.lora.rank, self.lora.dtype, self.lora.code);
        let (x, result) = (op.inputs[0], op.outputs[0]);
        let [of_x, of_result] = [x, result].map(|value| self.graph.values[value].clone());
        let tokens = of_x.elements / inputs;
        let mut after = std::mem::take(&mut op.drops);
        let base = self.value(("base", of_result.shape), of_result.elements, of_result.dtype);
        op.outputs[0] = base;
        let like = op.clone();
        self.graph.ops.push(op);
        // What the function names until it returns.
        let mut held = vec![];
        let mut base = base;
        if self.lora.packed.is_some() {
            // "We need to defensively clone here" (`peft/tuners/lora/bnb.py`).
            let clone = self.value(("base_clone", of_result.shape), of_result.elements, of_result.dtype);
            self.push(&like, OpKind::CONTIGUOUS, (&[base], &[]), clone, &[base]);
            base = clone;
        }
        let mut input = x;
        if of_x.dtype != dtype {
            input = self.value(("lora_x", of_x.shape), of_x.elements, dtype);
            self.push(&like, OpKind::CAST, (&[x], &[]), input, &[]);
            held.push(input);
        }
        let mut drop = vec![];
        if self.lora.dropout {
            let dropped = self.value(("lora_x_dropped", of_x.shape), of_x.elements, dtype);
            self.push(&like, OpKind::Dropout, (&[input], &[]), dropped, &[]);
            input = dropped;
            drop.push(dropped);
        }
        let narrow = self.value(("lora_a", of_x.shape), tokens * rank, dtype);
        self.push(&like, OpKind::Linear { inputs, outputs: rank }, (&[input], &[first]), narrow, &drop);
        let wide = self.value(("lora_b", of_result.shape), of_result.elements, dtype);
        // torchtune names what A makes.
        let gone: &[ValueId] = if code == Code::Peft { &[narrow] } else { &[] };
        self.push(&like, OpKind::Linear { inputs: rank, outputs }, (&[narrow], &[first + 1]), wide, gone);
        let scaled = self.value(("lora_scaled", of_result.shape), of_result.elements, dtype);
        let gone: &[ValueId] = if code == Code::Peft { &[wide] } else { &[wide, narrow] };
        self.push(&like, OpKind::SCALE, (&[wide], &[]), scaled, gone);
        let mut addend = scaled;
        if self.lora.packed.is_some() && dtype != of_result.dtype {
            // With a packed base the product is cast before it is added.
            addend = self.value(("lora_narrow", of_result.shape), of_result.elements, of_result.dtype);
            self.push(&like, OpKind::CAST, (&[scaled], &[]), addend, &[scaled]);
        }
        let sum = self.graph.values[addend].dtype;
        if sum == of_result.dtype {
            let last =
                if code == Code::Peft && self.lora.packed.is_none() { vec![addend, base] } else { vec![base, addend] };
            held.splice(0..0, last);
            held.append(&mut after);
            self.push(&like, OpKind::ADD, (&[base, addend], &[]), result, &held);
        } else {
            let wide = self.value(("lora_sum", of_result.shape), of_result.elements, sum);
            self.push(&like, OpKind::ADD, (&[base, addend], &[]), wide, &[addend, base]);
            held.insert(0, wide);
            held.append(&mut after);
            self.push(&like, OpKind::CAST, (&[wide], &[]), result, &held);
        }
    }
}
