//! Which sizes are believed: bounds far above any run, so that no sum of bytes, tokens or picoseconds overflows. How long a
//! program may be is `length.rs`.
//!
//! Tokens of a step of the whole job: 2³⁰ in a micro-batch × 2¹⁶ micro-batches × 2¹⁷ ranks = 2⁶³. Activations of a
//! micro-batch: at most some 64 tensors of a block, each no larger than its share of 2⁵⁴ B. How long a step may be is `length.rs`, too.

use toml::Spanned;

use super::error::ScenarioError;
use super::reader::{MOST_RANKS, Reader};
use super::written;
use crate::runtime::{Parts, Plan, spmd};

/// Ranks of a job.
const RANKS: u64 = MOST_RANKS as u64;
/// Tokens in one micro-batch of a rank.
const TOKENS: u64 = 1 << 30;
/// Bytes of one tensor for each block and of the logits: 16 PiB.
const ACTIVATIONS: u128 = 1 << 54;
/// Blocks that all iterations of a compiled pipeline run.
const PASSES: u64 = 1 << 15;

/// Checks the sizes of a job before anything is computed from them.
pub(super) fn check(reader: &Reader<'_>, written: &written::Scenario, job: &Plan) -> Result<(), ScenarioError> {
    let (batch, model) = (&written.batch, job.model());
    let ranks = job.ranks();
    if ranks > RANKS {
        let at = written.topology.nodes.as_ref().map_or_else(|| reader.place(&written.mesh), |at| reader.place(at));
        let problem = format!("{ranks} chips are more than the {RANKS} that are simulated");
        return Err(ScenarioError::Plan { code: None, problem, place: at, remedy: "rent fewer nodes".to_owned() });
    }
    let tokens = job.batch() * job.seq();
    if tokens > TOKENS {
        let problem = format!("{} sequences × {} tokens are {tokens} tokens in a micro-batch", job.batch(), job.seq());
        let remedy = format!("write at most {TOKENS} tokens: a shorter batch.sequence or a smaller batch.micro");
        return Err(reader.plan(&batch.sequence, problem, remedy));
    }
    let routed = model.experts().map_or(0, |experts| experts.top_k * model.width.max(experts.width));
    let widest = model.width.max(model.feed_forward_width()).max(model.heads() * model.head_dim()).max(routed);
    let row = (model.layers.count() + model.mtp_layers) * widest + model.vocab;
    let bytes = u128::from(tokens) * u128::from(row) * 4;
    if bytes > ACTIVATIONS {
        let problem = format!(
            "{tokens} tokens through {} blocks of {} make more than 16 PiB of activations",
            model.layers.count(),
            model.name
        );
        let remedy = "no device holds a millionth of that: write a shorter batch.sequence or a smaller batch.micro";
        return Err(reader.plan(&batch.sequence, problem, remedy));
    }
    if let Parts::Compiled(job) = job.parts() {
        check_iterations(reader, written, job)?;
    }
    Ok(())
}

/// Checks a pipeline on XLA, whose iterations are written out one after the other.
fn check_iterations(
    reader: &Reader<'_>,
    written: &written::Scenario,
    job: &spmd::XlaPlan,
) -> Result<(), ScenarioError> {
    let Some(pipeline) = job.pipeline else { return Ok(()) };
    let outside = job.model.layers.count() - pipeline.layers;
    let passes = pipeline.iterations() * pipeline.layers_per_stage + outside;
    if passes <= PASSES {
        return Ok(());
    }
    let problem = format!(
        "{} iterations × {} blocks of a stage + {outside} blocks outside are {passes} blocks to run in a step, and at most \
         {PASSES} are simulated",
        pipeline.iterations(),
        pipeline.layers_per_stage
    );
    let table = written.xla.as_ref().map(Spanned::get_ref);
    let least = pipeline.stages * if pipeline.delay { 2 } else { 1 };
    let most = (PASSES.saturating_sub(outside) / pipeline.layers_per_stage).saturating_sub(pipeline.wasted());
    let most = most / pipeline.repeats / pipeline.stages * pipeline.stages;
    Err(match table.and_then(|table| table.num_pipeline_microbatches.as_ref()) {
        Some(at) if most >= least => {
            let remedy =
                format!("write num_pipeline_microbatches = {most} or less: every further one adds the same time");
            reader.plan(at, problem, remedy)
        }
        _ => reader.plan(&written.mesh, problem, "write fewer stages, or a model of fewer layers"),
    })
}
