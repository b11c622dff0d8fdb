//! What every row states in the same words: machine, mesh and batch.

use serde_json::Value;
use toml::Value as Key;

use super::Reason;
use super::keys::Gathered;
use crate::hardware::{Size, Topology};
use crate::receipt::machines::machine as machine_of;
use crate::receipt::row::{Row, degree};
use crate::scenario::Runtime;

/// Chips of a node of every shipped CUDA machine.
const NODE: u64 = 8;

fn integer(value: u64) -> Key {
    Key::Integer(value as i64)
}

fn assumed(yes: bool, why: &str) -> Option<String> {
    yes.then(|| why.to_owned())
}

fn missing(what: &str) -> Reason {
    Reason::Uncovered(format!("states no {what}"))
}

/// Writes what a run is called, and returns its chips.
pub(super) fn described(row: &Row, keys: &mut Gathered) -> Result<u64, Reason> {
    let count = row.hardware.count.ok_or_else(|| missing("number of chips"))?;
    let model = row.model.name.as_deref().unwrap_or("a model");
    let (hardware, family) =
        (row.hardware.name.as_deref().unwrap_or("?"), row.framework.name.as_deref().unwrap_or("?"));
    keys.stated("description", format!("{model}, {count} × {hardware}, {family}"));
    Ok(count)
}

/// Writes machine, mesh and batch as `runtime` has them.
pub(super) fn stated(row: &Row, runtime: &str, keys: &mut Gathered) -> Result<(), Reason> {
    let count = described(row, keys)?;
    if row.vendor() == "google" {
        let ranks = slices(row, count, keys)?;
        let others = row.parallel.tp.unwrap_or(1).max(1);
        if others > 1 {
            keys.stated("mesh.tensor", integer(others));
        }
        keys.stated("mesh.fsdp", integer(ranks / others));
        if let Some(sequence) = row.sequence() {
            keys.stated("batch.sequence", integer(sequence));
        }
        // A batch of so many for each chip is shared by those that split the model.
        if let Some(micro) = row.micro() {
            keys.stated("batch.micro", integer(micro.saturating_mul(row.parallel.tp.unwrap_or(1).max(1))));
        }
        return Ok(());
    }
    machine(row, count, keys)?;
    if runtime == "xla" {
        named_axes(row, count, keys)?;
        return batch(row, keys);
    }
    if Runtime::find(runtime).is_some_and(Runtime::splits_model) {
        split_model(row, count, keys)?;
    } else {
        sharded(row, count, keys)?;
    }
    batch(row, keys)
}

/// The topology that the row's slices are of, by the chips they have, of a 2D torus and of a 3D one; returns the ranks of one.
pub(super) fn slices(row: &Row, count: u64, keys: &mut Gathered) -> Result<u64, Reason> {
    const FLAT: [(u64, &str); 8] =
        [(1, "1x1"), (4, "2x2"), (8, "2x4"), (16, "4x4"), (32, "4x8"), (64, "8x8"), (128, "8x16"), (256, "16x16")];
    const SOLID: [(u64, &str); 12] = [
        (4, "2x2x1"),
        (8, "2x2x2"),
        (16, "2x2x4"),
        (32, "2x4x4"),
        (64, "4x4x4"),
        (128, "4x4x8"),
        (192, "4x4x12"),
        (256, "4x8x8"),
        (512, "8x8x8"),
        (1024, "8x8x16"),
        (2048, "8x16x16"),
        (4096, "16x16x16"),
    ];
    let machine = row.hardware.name.as_deref().and_then(|name| machine_of(name, None));
    if let Some(machine) = machine {
        keys.stated("topology.name", machine.topology);
    }
    let topology = machine.and_then(|machine| Topology::load(machine.topology, &Size::Smallest).ok());
    let flat = matches!(row.family(), "v5e" | "v6e");
    let shapes: &[(u64, &str)] = if flat { &FLAT } else { &SOLID };
    let slices = row.hardware.slices.unwrap_or(1).max(1);
    let chips = count / slices;
    let shape = shapes.iter().find(|(size, _)| *size == chips && chips * slices == count);
    let Some((_, shape)) = shape else {
        return Err(Reason::Uncovered(format!("{slices} slices of {count} chips in all, and none has as many")));
    };
    keys.stated("topology.slice", *shape);
    if slices > 1 {
        keys.stated("topology.slices", integer(slices));
    }
    Ok(chips * topology.map_or(1, |topology| u64::from(topology.chip.devices)))
}

/// The topology that the row's hardware is, and how much of it.
pub(super) fn machine(row: &Row, count: u64, keys: &mut Gathered) -> Result<(), Reason> {
    let hardware = &row.hardware;
    let names = [hardware.name.as_deref(), hardware.device_name.as_deref(), row.hw_family.as_deref()];
    let found = names.into_iter().flatten().find_map(|name| machine_of(name, hardware.memory_gb));
    if let Some(machine) = found {
        let source = assumed(machine.assumed, "the memory is not stated: the larger of what this chip has");
        keys.put("topology.name", machine.topology, source);
    }
    let domain = found
        .and_then(|machine| Topology::load(machine.topology, &Size::Smallest).ok())
        .map(|t| u64::from(t.node.chips));
    if let Some(domain) = domain.filter(|&domain| domain > NODE) {
        return domains(count, domain, keys);
    }
    let per_node = hardware.gpus_per_node.unwrap_or(NODE);
    if count == 0 || per_node == 0 {
        return Err(Reason::Contradiction(format!("hardware.count = {count} on nodes of gpus_per_node = {per_node}")));
    }
    if per_node < NODE && (per_node..=NODE).contains(&count) {
        let why = format!("the run's nodes have {per_node} chips, the topology's {NODE}: one node of these");
        keys.put("topology.chips", integer(count), assumed(count > per_node, &why));
    } else if count < per_node {
        keys.stated("topology.chips", integer(count));
    } else if count.is_multiple_of(per_node) {
        let source = assumed(hardware.gpus_per_node.is_none(), "no size of a node is stated: eight chips");
        keys.put("topology.nodes", integer(count / per_node), source);
        if per_node < NODE {
            keys.stated("topology.chips", integer(per_node));
        }
    } else {
        return Err(Reason::Uncovered(format!("{count} chips do not fill nodes of {per_node}")));
    }
    Ok(())
}

/// As few domains as hold all chips, each with as many of them: of 72, a job of 128 takes 64 of two.
fn domains(count: u64, domain: u64, keys: &mut Gathered) -> Result<(), Reason> {
    if count == 0 {
        return Err(Reason::Contradiction("hardware.count = 0".to_owned()));
    }
    let fewest = count.div_ceil(domain);
    let nodes = (fewest..=count).find(|&nodes| count.is_multiple_of(nodes)).unwrap_or(count);
    let each = count / nodes;
    let source = |yes| {
        assumed(
            yes,
            &format!("which racks the job ran on is not stated: as few NVLink domains of {domain} as hold it, evenly"),
        )
    };
    if nodes > 1 {
        keys.put("topology.nodes", integer(nodes), source(true));
    }
    if each < domain || nodes == 1 {
        keys.put("topology.chips", integer(each), source(nodes > 1));
    }
    Ok(())
}

/// FSDP, and tensor parallelism within it.
fn sharded(row: &Row, count: u64, keys: &mut Gathered) -> Result<(), Reason> {
    let tp = row.parallel.tp.unwrap_or(1);
    let cp = row.parallel.cp.unwrap_or(1).max(1);
    // Ranks that share a sequence shard parameters too: a row's degree of FSDP counts them.
    let stated = match degree(&row.parallel.fsdp) {
        Some(ranks) if ranks.is_multiple_of(cp) => Some(ranks / cp),
        _ => degree(&row.parallel.dp),
    };
    let tp = tp.saturating_mul(cp);
    let shard = stated.unwrap_or(count.checked_div(tp).unwrap_or(0));
    if shard == 0 || tp == 0 || !count.is_multiple_of(shard.saturating_mul(tp)) {
        let over = if tp > 1 { format!("shards over {shard} × {tp}") } else { format!("shards over {shard}") };
        return Err(Reason::Uncovered(format!("{over} of {count} chips")));
    }
    let source = assumed(stated.is_none() && count > 1, "no degree is stated: shards over all chips");
    keys.put("mesh.dp_shard", integer(shard), source);
    keys.stated("mesh.dp_replicate", integer(count / (shard * tp)));
    if let Some(ep) = row.parallel.ep.filter(|&ep| ep > 1) {
        keys.stated("mesh.ep", integer(ep));
    }
    if cp > 1 {
        keys.stated("mesh.cp", integer(cp));
    }
    if tp > cp {
        keys.stated("mesh.tp", integer(tp / cp));
        if let Some(sequence) = row.parallel.sp {
            keys.stated("tensor_parallel.sequence", sequence);
        }
    }
    Ok(())
}

/// Axes of a mesh as JAX has them. What a row leaves open its framework's table says, or the scenario's defaults do.
fn named_axes(row: &Row, count: u64, keys: &mut Gathered) -> Result<(), Reason> {
    let tensor = row.parallel.tp.unwrap_or(1).max(1);
    if tensor > 1 {
        keys.stated("mesh.tensor", integer(tensor));
    }
    let Some(fsdp) = degree(&row.parallel.fsdp) else { return Ok(()) };
    let ranks = fsdp.saturating_mul(tensor);
    if ranks == 0 || !count.is_multiple_of(ranks) {
        return Err(Reason::Contradiction(format!("fsdp·tp = {fsdp}·{tensor} on {count} chips")));
    }
    keys.stated("mesh.fsdp", integer(fsdp));
    keys.stated("mesh.data", integer(count / ranks));
    Ok(())
}

/// Megatron's axes; replicas are what is left.
fn split_model(row: &Row, count: u64, keys: &mut Gathered) -> Result<(), Reason> {
    let p = &row.parallel;
    let mut ranks: u64 = 1;
    for (name, degree) in [("tp", p.tp), ("cp", p.cp), ("pp", p.pp)] {
        let source = assumed(degree.is_none(), &format!("no {name} is stated: one rank"));
        keys.put(&format!("mesh.{name}"), integer(degree.unwrap_or(1)), source);
        ranks = ranks.saturating_mul(degree.unwrap_or(1));
    }
    if ranks == 0 || !count.is_multiple_of(ranks) {
        return Err(Reason::Contradiction(format!("a replica of {ranks} ranks on {count} chips")));
    }
    // A row may name a model with experts, and leave their number to the name.
    let experts = row.model.n_experts.is_some_and(|experts| experts > 1);
    for (name, degree) in [("ep", p.ep), ("etp", p.etp)] {
        if let Some(degree) = degree.filter(|&degree| experts || degree > 1) {
            keys.stated(&format!("mesh.{name}"), integer(degree));
        }
    }
    if let Some(stages) = p.vpp.as_ref().and_then(Value::as_u64).filter(|stages| *stages > 1) {
        keys.stated("pipeline.virtual_stages", integer(stages));
    }
    if let (Some(sequence), true) = (p.sp, p.tp.is_some_and(|tp| tp > 1)) {
        keys.stated("tensor_parallel.sequence", sequence);
    }
    Ok(())
}

fn batch(row: &Row, keys: &mut Gathered) -> Result<(), Reason> {
    keys.stated("batch.sequence", integer(row.sequence().ok_or_else(|| missing("sequence length"))?));
    if let Some(micro) = row.micro() {
        keys.stated("batch.micro", integer(micro));
    }
    Ok(())
}

/// Micro-batches of a step, once the micro-batch is known.
pub(super) fn accumulation(row: &Row, keys: &mut Gathered) -> Result<(), Reason> {
    let micro = keys.get("batch.micro").and_then(Key::as_integer).and_then(|micro| u64::try_from(micro).ok());
    let micro = micro.ok_or_else(|| missing("micro-batch"))?;
    // Where chips share sequences, the row's count of chips says nothing about its batch.
    let shared = keys.get("mesh.context").or(keys.get("mesh.tensor")).is_some();
    let accumulation = if shared { Some(1) } else { row.accumulation_of(micro) };
    if let (None, Some(global)) = (accumulation, row.batch.global_batch) {
        return Err(Reason::Contradiction(format!(
            "global_batch = {global} is no multiple of the ranks' micro-batches"
        )));
    }
    if keys.get("batch.accumulation").is_some() {
        return Ok(());
    }
    let source = assumed(accumulation.is_none(), "neither accumulation nor a global batch is stated");
    keys.put("batch.accumulation", integer(accumulation.unwrap_or(1)), source);
    Ok(())
}
