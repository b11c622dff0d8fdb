//! Which modules are units of `fully_shard`, and when each lets go of its parameters after forward.

use toml::Spanned;

use super::error::ScenarioError;
use super::reader::{MOST_SMALL, Reader};
use super::{gate, written};
use crate::model::{Gating, ModelConfig};
use crate::runtime::fsdp::{Inner, Reshard, Version, Wrap};

/// Why the root's parameters stay gathered after forward.
const ROOT_KEEPS: &str = "fully_shard keeps the root's parameters";

fn reshard(reader: &Reader<'_>, at: &Spanned<written::Reshard>, shard: u32) -> Result<Reshard, ScenarioError> {
    match *at.get_ref() {
        written::Reshard::Flag(true) => Ok(Reshard::Always),
        written::Reshard::Flag(false) => Ok(Reshard::Never),
        written::Reshard::Ranks(ranks) => gate::post_forward(reader, at, ranks, shard),
    }
}

/// What is wrapped.
pub(super) fn wrap(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    model: &ModelConfig,
    (shard, version, pipelined): (u32, Version, bool),
) -> Result<Wrap, ScenarioError> {
    let written = &scenario.fsdp;
    let layers = model.layers.count() as usize;
    let root_only = matches!(written.wrap.as_ref().map(Spanned::get_ref), Some(written::Wrap::Root));
    let policy = match &written.reshard_after_forward {
        Some(at) => reshard(reader, at, shard)?,
        None if root_only && version == Version::Two => {
            reader.assume_for("fsdp.reshard_after_forward", Reshard::Never, false, ROOT_KEEPS)
        }
        // torchtitan's default: no gathering for each micro-batch.
        None if pipelined => reader.assume("fsdp.reshard_after_forward", Reshard::Never, false),
        None => reader.assume("fsdp.reshard_after_forward", Reshard::Always, true),
    };
    let root = match &written.root_reshard_after_forward {
        Some(at) => reshard(reader, at, shard)?,
        // `fully_shard(model, reshard_after_forward=…)` with nothing else wrapped: the argument is the root's.
        None if root_only && written.reshard_after_forward.is_some() => policy,
        // FSDP1 has one sharding strategy for all units; fully_shard keeps the root's parameters by default.
        None if version != Version::Two => policy,
        None => reader.assume_for("fsdp.root_reshard_after_forward", Reshard::Never, false, ROOT_KEEPS),
    };
    let mut wrap = Wrap::of_blocks(vec![Some(policy); layers], root);
    match &written.wrap {
        None => {
            reader.assume("fsdp.wrap", (), "block");
        }
        Some(at) => match at.get_ref() {
            written::Wrap::Block => {}
            written::Wrap::Root => wrap.blocks.fill(None),
            written::Wrap::Torchtitan => {
                wrap.embedding = Some(policy);
                // In a pipeline only "always" reshards, and does so here too.
                wrap.head = Some(if pipelined { policy } else { Reshard::Never });
            }
            written::Wrap::LlmFoundry if version == Version::Two => {
                let problem = "llm-foundry wraps its modules with fsdp1; fsdp2 keeps tied tables in the root's group";
                return Err(reader.plan(at, problem, "write wrap = \"block\", or runtime = \"fsdp1\""));
            }
            written::Wrap::LlmFoundry => {
                (wrap.embedding, wrap.head, wrap.apart) = (Some(policy), Some(policy), true);
            }
            written::Wrap::Every(every) => {
                let every = (*every).clamp(0, MOST_SMALL) as usize;
                if every == 0 {
                    return Err(reader.plan(at, "fsdp.wrap.every = 0 wraps nothing", "write 1 or more, or \"root\""));
                }
                for (layer, block) in wrap.blocks.iter_mut().enumerate() {
                    *block = layer.is_multiple_of(every).then_some(policy);
                }
            }
            written::Wrap::Blocks(blocks) => {
                wrap.blocks.fill(None);
                if blocks.is_empty() {
                    return Err(reader.plan(at, "fsdp.wrap.blocks names no block", "name some, or write \"root\""));
                }
                for &layer in blocks {
                    wrap.blocks[known(reader, at, model, layer)?] = Some(policy);
                }
            }
            written::Wrap::Together(many) => {
                let many = usize::try_from(*many).ok().filter(|many| (2..=layers).contains(many)).ok_or_else(|| {
                    let problem = format!("fsdp.wrap.together = {many}, and {} has {layers} layers", model.name);
                    reader.plan(at, problem, format!("write 2 to {layers}, or wrap = \"block\""))
                })?;
                let all: Vec<usize> = (0..layers).collect();
                wrap.lists = all.chunks(many).filter(|list| list.len() > 1).map(<[usize]>::to_vec).collect();
            }
            written::Wrap::Lists(lists) => {
                wrap.blocks.fill(None);
                wrap.lists = listed(reader, at, model, (lists, policy), &mut wrap.blocks)?;
            }
            written::Wrap::Modules(names) => modules(reader, names, model, policy, &mut wrap)?,
        },
    }
    if let Some(at) = &written.ends {
        ends(reader, written, at, (model, policy), &mut wrap)?;
    }
    if let Some(at) = &written.head_reshard_after_forward {
        if wrap.head.is_none() || wrap.apart {
            let problem = "the head is no unit of its own, so it has no policy of its own";
            return Err(reader.plan(at, problem, "write fsdp.ends = [\"norm_and_head\"], or remove the key"));
        }
        wrap.head = Some(reshard(reader, at, shard)?);
    }
    fits(reader, scenario, model, (version, pipelined), &wrap)?;
    for change in &written.overrides {
        let (first, end) = *change.blocks.get_ref();
        if first < 0 || first >= end || end > layers as i64 {
            let problem = format!("blocks [{first}, {end}] is not a range of the {layers} blocks");
            return Err(reader.plan(&change.blocks, problem, "write [first, one after the last]"));
        }
        let policy = reshard(reader, &change.reshard_after_forward, shard)?;
        let range = &mut wrap.blocks[first as usize..end as usize];
        if range.iter().any(Option::is_none) {
            let problem = format!("blocks [{first}, {end}] are not all wrapped, so they have no policy of their own");
            return Err(reader.plan(&change.blocks, problem, "wrap them, or override only wrapped blocks"));
        }
        range.fill(Some(policy));
    }
    let differs = |list: &&Vec<usize>| list.iter().any(|&block| wrap.blocks[block] != wrap.blocks[list[0]]);
    if let (Some(list), Some(change)) = (wrap.lists.iter().find(differs), written.overrides.first()) {
        let problem = format!("blocks {list:?} are one unit, and overrides give them several policies");
        return Err(reader.plan(&change.blocks, problem, "override all blocks of a unit, or none"));
    }
    Ok(wrap)
}

/// A block that a list names.
fn known(
    reader: &Reader<'_>,
    at: &Spanned<written::Wrap>,
    model: &ModelConfig,
    layer: i64,
) -> Result<usize, ScenarioError> {
    usize::try_from(layer).ok().filter(|&layer| (layer as u64) < model.layers.count()).ok_or_else(|| {
        let problem = format!("fsdp.wrap names block {layer}, and {} has {}", model.name, model.layers.count());
        reader.plan(at, problem, format!("name blocks 0 to {}", model.layers.count() - 1))
    })
}

/// Units that a file lists one by one: a block, or several together.
fn listed(
    reader: &Reader<'_>,
    at: &Spanned<written::Wrap>,
    model: &ModelConfig,
    (lists, policy): (&[written::Unit], Reshard),
    blocks: &mut [Option<Reshard>],
) -> Result<Vec<Vec<usize>>, ScenarioError> {
    let mut together = vec![];
    for unit in lists {
        let named: &[i64] = match unit {
            written::Unit::One(block) => std::slice::from_ref(block),
            written::Unit::Together(blocks) => blocks,
        };
        let mut list = vec![];
        for &layer in named {
            let block = known(reader, at, model, layer)?;
            if blocks[block].replace(policy).is_some() {
                let problem = format!("fsdp.wrap names block {block} twice, and fully_shard takes a module once");
                return Err(reader.plan(at, problem, "name each block once"));
            }
            list.push(block);
        }
        list.sort_unstable();
        if list.is_empty() {
            return Err(reader.plan(at, "fsdp.wrap.lists has an empty list", "name blocks in it, or remove it"));
        }
        if list.len() > 1 {
            together.push(list);
        }
    }
    if lists.is_empty() {
        return Err(reader.plan(at, "fsdp.wrap.lists names no block", "name some, or write \"root\""));
    }
    Ok(together)
}

/// Modules inside every block.
const MODULES: [&str; 9] = [
    "attention",
    "attention.wq",
    "attention.wk",
    "attention.wv",
    "attention.wo",
    "feed_forward",
    "feed_forward.w1",
    "feed_forward.w2",
    "feed_forward.w3",
];

fn modules(
    reader: &Reader<'_>,
    names: &[Spanned<String>],
    model: &ModelConfig,
    policy: Reshard,
    wrap: &mut Wrap,
) -> Result<(), ScenarioError> {
    wrap.blocks.fill(None);
    for (at, name) in names.iter().enumerate() {
        let refuse = |problem: String, remedy: &str| Err(reader.plan(name, problem, remedy));
        let (text, earlier) = (name.get_ref().as_str(), &names[..at]);
        if text == "block" {
            wrap.blocks.fill(Some(policy));
            continue;
        }
        let fused = text.starts_with("attention.w") && text != "attention.wo" && model.fuses_qkv();
        let plain = text == "feed_forward.w3" && matches!(model.gating(), Gating::Plain(_));
        if !MODULES.contains(&text) || fused || plain || model.latent().is_some() || model.experts().is_some() {
            let remedy = format!("name some of \"block\", {}", MODULES.map(|name| format!("{name:?}")).join(", "));
            return refuse(
                format!("layers of {} have no module {text:?} that could be a unit here", model.name),
                &remedy,
            );
        }
        let inside = |one: &str, other: &str| {
            one.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if let Some(other) = earlier.iter().find(|other| inside(text, other.get_ref()) || inside(other.get_ref(), text))
        {
            let problem =
                format!("{text:?} beside {:?} is a unit inside a unit, which is not simulated", other.get_ref());
            return refuse(problem, "name one of the two");
        }
        let inner = |block| Inner { block, name: text.to_owned(), reshard: policy };
        wrap.modules.extend((0..wrap.blocks.len()).map(inner));
    }
    Ok(())
}

/// Units at the ends of the model.
fn ends(
    reader: &Reader<'_>,
    written: &written::Fsdp,
    at: &Spanned<Vec<Spanned<String>>>,
    (model, policy): (&ModelConfig, Reshard),
    wrap: &mut Wrap,
) -> Result<(), ScenarioError> {
    let whose = written.wrap.as_ref().map(Spanned::get_ref);
    if matches!(whose, Some(written::Wrap::Torchtitan | written::Wrap::LlmFoundry)) {
        let problem = "fsdp.wrap says what becomes of the model's ends, too";
        return Err(reader.plan(at, problem, "remove fsdp.ends, or write wrap = \"block\""));
    }
    if model.tied_head {
        let problem = "the head is the embedding's table, and tied weights must share a group: the root's";
        return Err(reader.plan(at, problem, "remove fsdp.ends"));
    }
    for end in at.get_ref() {
        let unit = match end.get_ref().as_str() {
            "embedding" => &mut wrap.embedding,
            "norm" if model.final_norm.is_some() => &mut wrap.norm,
            "head" => {
                wrap.head_has_norm = false;
                &mut wrap.head
            }
            "norm_and_head" => &mut wrap.head,
            other => {
                let problem = format!("{} has no end {other:?}", model.name);
                let remedy = "name some of \"embedding\", \"norm\", \"head\" and \"norm_and_head\"";
                return Err(reader.plan(end, problem, remedy));
            }
        };
        let taken = unit.replace(policy).is_some();
        let both = at.get_ref().iter().any(|end| end.get_ref() == "norm_and_head")
            && (wrap.norm.is_some() || !wrap.head_has_norm);
        if taken || both {
            let problem = "fsdp.ends names a module twice, and fully_shard takes a module once";
            return Err(reader.plan(end, problem, "name \"norm_and_head\", or \"norm\" and \"head\", each once"));
        }
    }
    if wrap.norm.is_some() {
        wrap.head_has_norm = false;
    }
    Ok(())
}

/// Refuses units of fully_shard that another implementation does not have, or that are not simulated with what else is set.
fn fits(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    model: &ModelConfig,
    (version, pipelined): (Version, bool),
    wrap: &Wrap,
) -> Result<(), ScenarioError> {
    let written = &scenario.fsdp;
    let ends = written.ends.as_ref().map(|at| ("fsdp.ends", reader.place(at)));
    let inner = !(wrap.lists.is_empty() && wrap.modules.is_empty());
    let units = written.wrap.as_ref().filter(|_| inner).map(|at| ("these units of fsdp.wrap", reader.place(at)));
    let Some((key, place)) = units.or(ends) else { return Ok(()) };
    let prefetches = [&written.forward_prefetch, &written.backward_prefetch];
    let prefetches = prefetches.into_iter().flatten().any(|blocks| *blocks.get_ref() > 0);
    let gradients = scenario.loss.kind.as_ref().is_some_and(|at| *at.get_ref() == written::LossKind::ChunkedGradients);
    let (modules, tensor) = (!wrap.modules.is_empty(), scenario.mesh.get_ref().tp.as_ref());
    let list = [
        (version != Version::Two, "are a wrapping of fsdp2", "write runtime = \"fsdp2\""),
        (pipelined, "are not simulated in a pipeline", "write wrap = \"block\" or \"torchtitan\""),
        (
            inner && prefetches,
            "are not simulated with explicit prefetches",
            "remove fsdp.forward_prefetch and backward_prefetch",
        ),
        (
            inner && model.experts().is_some(),
            "are not simulated with experts",
            "write wrap = \"block\" or \"torchtitan\"",
        ),
        (
            modules && scenario.compile.compiles_blocks(),
            "would break compiled layers into pieces",
            "write wrap = \"block\"",
        ),
        (
            modules && tensor.is_some_and(|tp| *tp.get_ref() > 1),
            "are not simulated with tensor parallelism",
            "write wrap = \"block\"",
        ),
        (
            gradients,
            "are not simulated with torchtitan's loss by parts",
            "write wrap = \"torchtitan\", or loss.kind = \"fp32\"",
        ),
    ];
    match list.into_iter().find(|&(applies, ..)| applies) {
        None => Ok(()),
        Some((_, problem, remedy)) => {
            let problem = format!("{key} {problem}");
            Err(ScenarioError::Plan { code: None, problem, place, remedy: remedy.to_owned() })
        }
    }
}
