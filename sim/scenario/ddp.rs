//! The table `[ddp]` as understood, and the replicas of `runtime = "ddp"`.

use toml::Spanned;

use super::entry::Runtime;
use super::error::ScenarioError;
use super::names::DDP;
use super::reader::Reader;
use super::written::{self, CommHook};
use crate::hardware::Topology;
use crate::plan::torch::ddp::Ddp;
use crate::program::DType;

/// A mebibyte, in which PyTorch counts buckets.
const MIB: u64 = 1 << 20;

/// Replicas: all chips, each of which has the whole model.
pub(super) fn replicas(
    reader: &mut Reader<'_>,
    mesh: &Spanned<written::Mesh>,
    topology: &Topology,
) -> Result<u32, ScenarioError> {
    let chips = topology.ranks();
    let Some(at) = &mesh.get_ref().dp_replicate else {
        reader.assume_for("mesh.dp_replicate", (), u64::from(chips), "all chips");
        return Ok(chips);
    };
    let replicas = reader.count(&written::Mesh::dp_replicate, at)?;
    if replicas != u64::from(chips) {
        let problem = format!(
            "every chip has a replica of the model, so there are {chips} ({} of {}), and mesh.dp_replicate = {replicas}",
            topology.size_in_words(),
            topology.name
        );
        let remedy = format!("write mesh.dp_replicate = {chips}, or change the topology's size");
        return Err(reader.plan(at, problem, remedy));
    }
    Ok(chips)
}

/// Settings of `DistributedDataParallel`, if that is the runtime.
pub(super) fn settings(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    runtime: Runtime,
) -> Result<Option<Ddp>, ScenarioError> {
    if runtime != DDP {
        return match &scenario.ddp {
            None => Ok(None),
            Some(at) => {
                let problem = "[ddp] has arguments of DistributedDataParallel, and the runtime is another";
                Err(reader.plan(at, problem, "remove the table, or write runtime = \"ddp\""))
            }
        };
    }
    let empty = written::Ddp::default();
    let table = scenario.ddp.as_ref().map_or(&empty, |at| at.get_ref());
    let (bucket_cap, first_bucket) = match &table.bucket_cap_mb {
        // Of a size that somebody has chosen, the first bucket is no smaller.
        Some(at) => {
            let bytes = reader.count(&written::Ddp::bucket_cap_mb, at)? * MIB;
            (bytes, bytes)
        }
        None => {
            let cap = Ddp::DEFAULT_CAP;
            reader.note(format!(
                "buckets of gradients are of {cap} MiB or more, and the first of 1 MiB, as PyTorch makes them where bucket_cap_mb is left out"
            ));
            (cap * MIB, Ddp::FIRST_BUCKET)
        }
    };
    let compressed = match table.comm_hook {
        None => None,
        Some(CommHook::Bf16CompressHook) => Some(DType::Bf16),
        Some(CommHook::Fp16CompressHook) => Some(DType::Fp16),
    };
    Ok(Some(Ddp {
        bucket_cap,
        first_bucket,
        gradient_as_bucket_view: reader.flag(&written::Ddp::gradient_as_bucket_view, table.gradient_as_bucket_view),
        static_graph: reader.flag(&written::Ddp::static_graph, table.static_graph),
        find_unused_parameters: reader.flag(&written::Ddp::find_unused_parameters, table.find_unused_parameters),
        broadcast_buffers: reader.flag(&written::Ddp::broadcast_buffers, table.broadcast_buffers),
        batched_grad_copy: table.batched_grad_copy.unwrap_or(false),
        lazy_bucket_allocation: table.lazy_bucket_allocation.unwrap_or(false),
        compressed,
    }))
}
