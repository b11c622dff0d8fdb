//! Parameters: names, shapes, and how they lie. Those of blocks are stacked, one block behind the other, if these run in a
//! loop, and stand by themselves if they are written out.

use windtunnel::model::ModelConfig;
use windtunnel::runtime::spmd::{self, Block, Kind};

use super::layout::{Layout, Logical};
use crate::stablehlo::{Element, Spec, Type};

/// A parameter.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Its name.
    pub name: String,
    /// Its type; of stacked weights with the blocks' axis first.
    pub of: Type,
    /// How it lies.
    pub spec: Spec,
    /// The operator of the block that it belongs to.
    pub op: Option<usize>,
    /// The one block that it belongs to, if it is not all of them.
    pub layer: Option<u64>,
    /// Of a linear: how many of its axes (but the blocks') are summed over.
    pub contracted: usize,
}

/// The embedding, the head unless it is the embedding, blocks' weights by name, and the last norm's.
pub fn of(model: &ModelConfig, block: &Block, layout: &Layout, scan: bool) -> Vec<Weight> {
    let weight = |name: &str, axes: &[(u64, Logical)], op: Option<usize>, contracted: usize| {
        let (mut dims, logical): (Vec<u64>, Vec<Logical>) = axes.iter().copied().unzip();
        let mut spec = layout.spec(&logical);
        if op.is_some() && scan {
            dims.insert(0, model.layers.count());
            spec = spec.stacked();
        }
        Weight { name: name.to_owned(), of: Type::new(Element::F32, dims), spec, op, layer: None, contracted }
    };
    let (words, width) = ((model.vocab, Logical::Tensor), (model.width, Logical::Embed));
    let mut all = vec![weight("embedding", &[words, width], None, 0)];
    if !model.tied_head {
        all.push(weight("head", &[width, words], None, 1));
    }
    let (mut norms, outside) = (0, all.len());
    for (at, op) in block.ops.iter().enumerate() {
        match op.kind {
            Kind::Norm => {
                norms += 1;
                // Heads are normed one by one.
                let heads = block.ops.iter().any(|other| {
                    other.output == op.inputs[0]
                        && matches!(other.kind, Kind::Linear(index) if matches!(block.weights[index].name, "query" | "key"))
                });
                let length = if heads { model.head_dim() } else { model.width };
                all.push(weight(&format!("norm_{norms}"), &[(length, Logical::Whole)], Some(at), 0));
            }
            Kind::Linear(index) => {
                let of = block.weights[index];
                // Experts that every token passes stand beside those that are chosen.
                let name = match model.experts().is_some() && !of.experts && of.name.starts_with('w') {
                    true => format!("shared_{}", of.name),
                    false => of.name.to_owned(),
                };
                let (axes, contracted) = linear(model, of);
                all.push(weight(&name, &axes, Some(at), contracted));
            }
            _ => {}
        }
    }
    // As JAX has the entries of a dictionary: the compiler's choices depend on the order.
    all[outside..].sort_by(|one, other| one.name.cmp(&other.name));
    if !scan {
        let one = all.split_off(outside);
        let of = |layer: u64| {
            one.iter().map(move |weight| Weight {
                name: format!("layers_{layer}.{}", weight.name),
                layer: Some(layer),
                ..weight.clone()
            })
        };
        all.extend((0..model.layers.count()).flat_map(of));
    }
    if model.final_norm.is_some() {
        all.push(weight("final_norm", &[(model.width, Logical::Whole)], None, 0));
    }
    all
}

/// Axes of a linear's weight, those that are summed over first, and how many these are.
fn linear(model: &ModelConfig, of: spmd::Weight) -> (Vec<(u64, Logical)>, usize) {
    let (width, experts) = ((model.width, Logical::Embed), model.experts());
    let heads = |count| [(count, Logical::Tensor), (model.head_dim(), Logical::Whole)];
    match of.name {
        "query" => ([&[width], &heads(model.heads())[..]].concat(), 1),
        "key" | "value" => ([&[width], &heads(model.kv_heads())[..]].concat(), 1),
        "out" => ([&heads(model.heads())[..], &[width]].concat(), 2),
        spmd::ROUTER => (vec![width, (of.outputs, Logical::Whole)], 1),
        name => {
            let mlp = (if of.row_parallel { of.inputs } else { of.outputs }, Logical::Mlp);
            let sides = if name == "wo" { [mlp, width] } else { [width, mlp] };
            let count = experts.filter(|_| of.experts).map(|experts| (experts.count, Logical::Expert));
            (count.into_iter().chain(sides).collect(), 1)
        }
    }
}
