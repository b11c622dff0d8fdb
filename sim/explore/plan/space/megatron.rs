//! Megatron-Core.

use toml::{Table, Value};

use super::axis::{At, Axis, MOST_LAYERS, ON, context, counts, divisors, micro, some, tensor};

/// The key of tensor-parallel ranks.
const TP: &str = "mesh.tp";
/// Of context-parallel ranks.
const CP: &str = "mesh.cp";
/// Of pipeline ranks.
const PP: &str = "mesh.pp";
/// Of stages on each.
const STAGES: &str = "pipeline.virtual_stages";
/// Modules for further tokens.
const MTP: &str = "megatron.mtp_num_layers";
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
    counts(divisors(experts.count).into_iter().filter(|&ranks| at.site.ranks.is_multiple_of(ranks)))
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
    let layers = at.layers();
    let Some(left) = at.left(&[TP, CP]) else { return vec![] };
    counts(divisors(left).into_iter().filter(|&ranks| ranks <= layers))
}

/// Modules for further tokens, which the last stage has beside the head.
fn further(at: &At<'_>) -> u64 {
    at.given(MTP, MOST_LAYERS).unwrap_or(0)
}

/// Stages on each rank: all numbers that divide the layers evenly, and one where there is no pipeline. The embedding, the head and modules
/// for further tokens may count as layers, and the embedding and the head may then be stages of their own.
fn stages(at: &At<'_>) -> Vec<Option<Value>> {
    let (layers, ranks, ends) = (at.layers(), at.count(PP), ENDS + further(at));
    if ranks == 1 {
        return vec![None];
    }
    let divides = |stages: &u64| {
        let all = ranks * stages;
        *stages == 1 || all <= layers + ENDS && (layers..=layers + ends).any(|layers| layers.is_multiple_of(all))
    };
    (1..=(layers + ends) / ranks).filter(divides).map(|stages| (stages > 1).then(|| (stages as i64).into())).collect()
}

/// Layers of each stage where they do not divide. The last stage, which has the head, is the first to get one less, and another one less
/// for each module for a further token. Then come the first stage, which has the embedding, and those before the last.
fn uneven(at: &At<'_>) -> Vec<Option<Value>> {
    let (layers, stages) = (at.layers(), at.count(PP) * at.count(STAGES));
    if layers.is_multiple_of(stages) {
        return vec![None];
    }
    let mut list = vec![layers.div_ceil(stages) as i64; stages as usize];
    let short = (stages - layers % stages) as usize;
    let last = list.len() - 1;
    let further = further(at).min(layers.div_ceil(stages) - 1) as usize;
    let order = std::iter::repeat_n(last, 1 + further).chain([0]).chain((1..last).rev());
    order.take(short).for_each(|stage| list[stage] -= 1);
    vec![some(list)]
}

/// What is recomputed: nothing, parts of each stage's layers, all layers.
fn recompute(at: &At<'_>) -> Vec<Option<Value>> {
    let layers = at.layers().div_ceil(at.count(PP) * at.count(STAGES));
    let with = |word: &str, layers: u64| some(Table::from_iter([(word.to_owned(), (layers as i64).into())]));
    let mut parts: Vec<u64> = [layers / 4, layers / 2, layers * 3 / 4].into_iter().filter(|&part| part > 0).collect();
    parts.dedup();
    let parts = parts.into_iter().filter(|&part| part < layers).map(|part| with("block", part));
    // Where the request says that the attention core runs again, that is the least.
    let modules = at.request.fixed("megatron.recompute_modules").and_then(Value::as_array);
    let core = modules.is_some_and(|modules| modules.iter().any(|module| module.as_str() == Some("core_attn")));
    let least = if core { "core_attn" } else { "none" };
    [some(least)].into_iter().chain(parts).chain([with("uniform", 1)]).collect()
}

/// How context-parallel ranks exchange keys and values.
fn sharing(at: &At<'_>) -> Vec<Option<Value>> {
    match at.count(CP) {
        1 => vec![None],
        _ => vec![some("p2p"), some("a2a")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::plan::Request;

    /// Layers of each stage of a model, some keys set, with so many stages on each of eight pipeline ranks; none if that is not tried.
    fn split(model: &str, set: &str, on_each: i64) -> Option<Vec<i64>> {
        let machine = "[[machine]]\nname = \"h100-sxm-80gb\"\nsize = 8\n[set]";
        let text = format!("model = {model:?}\nsequence = 4096\nglobal_batch = 64\n{machine}\n{set}\n");
        let request = Request::parse("request.toml", &text).expect("a request");
        let keys = vec![(PP, 8.into()), (STAGES, on_each.into())];
        let at = At { request: &request, site: &request.sites[0], keys: &keys };
        let number = |value: &Value| value.as_integer().expect("a count");
        let tried = stages(&at).iter().any(|tried| tried.as_ref().map_or(1, number) == on_each);
        tried.then(|| {
            let list = uneven(&at).pop().flatten().expect("layers do not divide");
            list.as_array().expect("a list").iter().map(number).collect()
        })
    }

    /// `ends` of a list with `inner` in its middle.
    fn list(stages: usize, first: i64, inner: i64, last: i64) -> Option<Vec<i64>> {
        let mut list = vec![inner; stages];
        (list[0], list[stages - 1]) = (first, last);
        Some(list)
    }

    #[test]
    fn ends_of_a_model_are_layers_of_the_recipes_that_nvidia_publishes() {
        assert_eq!(split("llama-3.1-405b", "", 8), list(64, 1, 2, 1));
        // Its proxy of 30 layers: the embedding and the head are stages of their own.
        assert_eq!(split("llama-3.1-405b", "\"model.layers\" = 30", 4), list(32, 0, 1, 0));
        assert_eq!(split("llama-3.1-405b", "\"model.layers\" = 30", 5), None);
        // The last stage of DeepSeek-V3 has the head and the module for a second token.
        let further = "\"megatron.mtp_num_layers\" = 1";
        assert_eq!(split("deepseek-v3", further, 1), list(8, 7, 8, 6));
        assert_eq!(split("deepseek-v3", further, 2), list(16, 3, 4, 2));
        assert_eq!(split("deepseek-v3", "", 2), None);
    }
}
