//! What FSDP does between the micro-batches of a step, as `[batch]` and `[fsdp]` say it.

use toml::Spanned;

use super::entry::Runtime;
use super::error::ScenarioError;
use super::names::{DDP, FSDP2};
use super::reader::Reader;
use super::written;

/// What happens at each micro-batch, not only at the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Between {
    /// Gradients are reduced (`set_requires_gradient_sync`).
    pub sync_every: bool,
    /// The loop tells FSDP which micro-batch is the last (`set_is_last_backward`).
    pub marks_last: bool,
    /// Parameters stay gathered until the last (`set_reshard_after_backward`).
    pub keeps_gathered: bool,
    /// Replicas all-reduce (`set_requires_all_reduce`).
    pub all_reduce_every: bool,
}

/// Reads it off the file. A step of one micro-batch, or of a pipeline, has nothing to decide.
pub(super) fn between(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    runtime: Runtime,
    (micro_batches, replicate, pipelined): (u64, u32, bool),
) -> Result<Between, ScenarioError> {
    let batch = &scenario.batch;
    let keeps_gathered = keeps_gathered(reader, &scenario.fsdp, (runtime, pipelined))?;
    let decides = micro_batches > 1 && !pipelined;
    let flag = |at: &Option<Spanned<bool>>| at.as_ref().map(|at| *at.get_ref());
    let sync_every = match decides {
        true => reader.flag(&written::Batch::sync_every_micro_batch, flag(&batch.sync_every_micro_batch)),
        false => !pipelined,
    };
    let marks_last = match decides && runtime != DDP {
        true => reader.flag(&written::Batch::set_is_last_backward, flag(&batch.set_is_last_backward)),
        false => true,
    };
    if let Some(at) = batch.all_reduce_every_micro_batch.as_ref().filter(|at| !*at.get_ref()) {
        let refuse = |problem: &str, remedy: &str| Err(reader.plan(at, problem, remedy));
        if replicate == 1 || runtime != FSDP2 {
            let problem =
                "replicas all-reduce gradients under fsdp2 with mesh.dp_replicate above 1, and here nobody does";
            return refuse(problem, "remove batch.all_reduce_every_micro_batch");
        }
        if !sync_every {
            let problem = "gradients that are not reduced every micro-batch are not all-reduced either";
            return refuse(problem, "remove one of the two keys");
        }
    }
    let all_reduce_every = flag(&batch.all_reduce_every_micro_batch).unwrap_or(true);
    Ok(Between { sync_every, marks_last, keeps_gathered, all_reduce_every })
}

fn keeps_gathered(
    reader: &Reader<'_>,
    written: &written::Fsdp,
    (runtime, pipelined): (Runtime, bool),
) -> Result<bool, ScenarioError> {
    let Some(at) = &written.reshard_after_backward else { return Ok(false) };
    let refuse = |problem: &str, remedy: &str| Err(reader.plan(at, problem, remedy));
    if runtime != FSDP2 {
        let problem = "reshard_after_backward is a setting of fsdp2; fsdp1 frees its parameters after every backward";
        return refuse(problem, "remove the key, or write runtime = \"fsdp2\"");
    }
    if pipelined {
        let problem = "a pipeline's stages keep their parameters until their last backward, whatever the key says";
        return refuse(problem, "remove fsdp.reshard_after_backward");
    }
    match at.get_ref() {
        written::ReshardAfterBackward::Flag(true) => Ok(false),
        written::ReshardAfterBackward::Flag(false) => {
            let problem = "parameters that stay gathered over the optimizer's step are stale: the next forward does not gather \
                           what the step wrote";
            refuse(problem, "write \"last_micro_batch\", which keeps them until a step's last backward, or true")
        }
        written::ReshardAfterBackward::At(written::ReshardMoment::LastMicroBatch) => Ok(true),
    }
}
