//! Megatron-Core.

use toml::{Table, Value};

use super::axis::{At, Axis, ON, context, counts, divisors, micro, some, tensor};

/// The key of tensor-parallel ranks.
const TP: &str = "mesh.tp";
/// Of context-parallel ranks.
const CP: &str = "mesh.cp";
/// Of pipeline ranks.
const PP: &str = "mesh.pp";
/// Of stages on each.
const STAGES: &str = "pipeline.virtual_stages";
/// Ends of a model that a stage may have in place of a layer: the embedding and the head.
const ENDS: u64 = 2;

pub(super) const AXES: &[Axis] = &[
    Axis { key: TP, values: tensor },
    Axis { key: CP, values: context },
    Axis { key: "mesh.ep", values: experts },
    Axis { key: "mesh.etp", values: expert_tensor },
    Axis { key: PP, values: pipeline },
    Axis { key: STAGES, values: stages },
    Axis { key: "pipeline.layers", values: uneven },
    Axis { key: "batch.micro", values: |at| micro(at, &[TP, CP, PP]) },
    Axis { key: "megatron.recompute", values: recompute },
    Axis { key: "megatron.cp_comm_type", values: sharing },
    Axis { key: "tensor_parallel.sequence", values: |at| vec![(at.count(TP) > 1).then(|| true.into())] },
    Axis { key: "megatron.distributed_optimizer", values: ON },
    Axis { key: "megatron.overlap_grad_reduce", values: ON },
    Axis { key: "megatron.overlap_param_gather", values: ON },
    Axis { key: "megatron.cross_entropy_loss_fusion", values: ON },
    Axis { key: "megatron.create_attention_mask_in_dataloader", values: |_| vec![some(false)] },
    Axis { key: "megatron.moe_grouped_gemm", values: with_experts },
    Axis { key: "megatron.moe_permute_fusion", values: with_experts },
    Axis { key: "megatron.moe_token_dispatcher_type", values: dispatcher },
];

fn has_experts(at: &At<'_>) -> bool {
    at.request.model.experts().is_some()
}

fn with_experts(at: &At<'_>) -> Vec<Option<Value>> {
    vec![has_experts(at).then(|| true.into())]
}

fn dispatcher(at: &At<'_>) -> Vec<Option<Value>> {
    vec![has_experts(at).then(|| "alltoall".into())]
}

/// Expert-parallel ranks: divisors of the experts.
fn experts(at: &At<'_>) -> Vec<Option<Value>> {
    let Some(experts) = at.request.model.experts() else { return vec![None] };
    counts(divisors(experts.count).into_iter().filter(|&ranks| at.site.chips.is_multiple_of(ranks)))
}

/// Ranks that share an expert: one, or as many as share the rest of a layer.
fn expert_tensor(at: &At<'_>) -> Vec<Option<Value>> {
    match (has_experts(at), at.count(TP)) {
        (false, _) => vec![None],
        (true, 1) => counts([1]),
        (true, ranks) => counts([1, ranks]),
    }
}

/// Pipeline ranks: divisors of what the other axes leave.
fn pipeline(at: &At<'_>) -> Vec<Option<Value>> {
    let layers = at.request.model.layers.count();
    let Some(left) = at.left(&[TP, CP]) else { return vec![] };
    counts(divisors(left).into_iter().filter(|&ranks| ranks <= layers))
}

/// Stages on each rank: all numbers that divide the layers evenly, and those that do so once the head, or the embedding too, counts as a
/// layer; one where there is no pipeline.
fn stages(at: &At<'_>) -> Vec<Option<Value>> {
    let (layers, ranks) = (at.request.model.layers.count(), at.count(PP));
    if ranks == 1 {
        return vec![None];
    }
    let divides = |stages: &u64| {
        let all = ranks * stages;
        *stages == 1 || all <= layers && (layers..=layers + ENDS).any(|layers| layers.is_multiple_of(all))
    };
    (1..=layers / ranks).filter(divides).map(|stages| (stages > 1).then(|| (stages as i64).into())).collect()
}

/// Layers of each stage where they do not divide. The last stage, which has the head, is the first to get one less, then the first,
/// which has the embedding, then those before the last.
fn uneven(at: &At<'_>) -> Vec<Option<Value>> {
    let (layers, stages) = (at.request.model.layers.count(), at.count(PP) * at.count(STAGES));
    if layers.is_multiple_of(stages) {
        return vec![None];
    }
    let mut list = vec![layers.div_ceil(stages) as i64; stages as usize];
    let short = (stages - layers % stages) as usize;
    let order = [list.len() - 1, 0].into_iter().chain((1..list.len() - 1).rev());
    order.take(short).for_each(|stage| list[stage] -= 1);
    vec![some(list)]
}

/// What is recomputed: nothing, parts of each stage's layers, all layers.
fn recompute(at: &At<'_>) -> Vec<Option<Value>> {
    let layers = at.request.model.layers.count().div_ceil(at.count(PP) * at.count(STAGES));
    let with = |word: &str, layers: u64| some(Table::from_iter([(word.to_owned(), (layers as i64).into())]));
    let mut parts: Vec<u64> = [layers / 4, layers / 2, layers * 3 / 4].into_iter().filter(|&part| part > 0).collect();
    parts.dedup();
    let parts = parts.into_iter().filter(|&part| part < layers).map(|part| with("block", part));
    [some("none")].into_iter().chain(parts).chain([with("uniform", 1)]).collect()
}

/// How context-parallel ranks exchange keys and values.
fn sharing(at: &At<'_>) -> Vec<Option<Value>> {
    match at.count(CP) {
        1 => vec![None],
        _ => vec![some("p2p"), some("a2a")],
    }
}
