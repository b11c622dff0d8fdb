//! The tables `[loss]` and `[loop]` as understood, and steps inside backward.

use toml::Spanned;

use super::change::Change;
use super::entry::Runtime;
use super::error::ScenarioError;
use super::keys::row::Key;
use super::names::SINGLE_DEVICE;
use super::reader::Reader;
use super::written;
use crate::model::head::Loss;
use crate::runtime::train::{KeepLogits, Loop};

/// The loss, compiled or not.
pub(super) fn loss(
    reader: &mut Reader<'_>,
    written: &written::Loss,
    compile: &written::Compile,
) -> Result<Loss, ScenarioError> {
    let mut loss = kind(reader, written)?;
    match (&mut loss, compile.loss.as_ref().filter(|at| *at.get_ref())) {
        (
            Loss::Fp32CrossEntropy { compiled }
            | Loss::Bf16CrossEntropy { compiled }
            | Loss::ChunkedOutput { compiled, .. }
            | Loss::ChunkedGradients { compiled, .. },
            Some(_),
        ) => *compiled = true,
        (_, Some(at)) => {
            let problem = "compile.loss applies to the losses \"fp32\", \"bf16\", \"chunked_output\" and \"chunked_gradients\", and this \
                 is another";
            return Err(reader.plan(at, problem, "remove compile.loss, or write loss.kind = \"fp32\""));
        }
        _ => {}
    }
    Ok(loss)
}

fn kind(reader: &mut Reader<'_>, written: &written::Loss) -> Result<Loss, ScenarioError> {
    let chunks = |reader: &mut Reader<'_>| {
        reader.count_or(&written::Loss::chunks, written.chunks.as_ref(), 8).map(|chunks| chunks as u32)
    };
    let loss = match written.kind.as_ref().map(|at| *at.get_ref()) {
        None => reader.assume_for("loss.kind", Loss::default(), "fp32", "logits cast to fp32"),
        Some(kind) => match kind {
            written::LossKind::Fp32 => Loss::Fp32CrossEntropy { compiled: false },
            written::LossKind::Bf16 => Loss::Bf16CrossEntropy { compiled: false },
            written::LossKind::FlashCrossEntropy => Loss::FlashCrossEntropy,
            written::LossKind::ChunkedOutput => Loss::ChunkedOutput { chunks: chunks(reader)?, compiled: false },
            written::LossKind::ChunkedLinear => Loss::ChunkedLinear { chunks: chunks(reader)? },
            written::LossKind::ChunkedGradients => Loss::ChunkedGradients {
                chunks: chunks(reader)?,
                compiled: false,
                unshards: reader.flag_or(
                    "loss.unshards_head",
                    written.unshards_head.as_ref().map(|at| *at.get_ref()),
                    false,
                ),
            },
            written::LossKind::FusedLinear => Loss::FusedLinear,
            written::LossKind::VocabularyChunked => {
                let words = reader.count_or(&written::Loss::words, written.words.as_ref(), 2048)?;
                Loss::VocabularyChunked { words: words as u32 }
            }
        },
    };
    let chunked =
        matches!(loss, Loss::ChunkedOutput { .. } | Loss::ChunkedLinear { .. } | Loss::ChunkedGradients { .. });
    if let Some(at) = written.words.as_ref().filter(|_| !matches!(loss, Loss::VocabularyChunked { .. })) {
        let remedy = "remove loss.words, or write loss.kind = \"vocabulary_chunked\"";
        return Err(reader.plan(at, "this loss does not cut the vocabulary", remedy));
    }
    if let Some(at) = written.unshards_head.as_ref().filter(|_| !matches!(loss, Loss::ChunkedGradients { .. })) {
        let remedy = "remove loss.unshards_head, or write loss.kind = \"chunked_gradients\"";
        return Err(reader.plan(at, "this loss leaves the head's parameters to the head", remedy));
    }
    let casts = matches!(loss, Loss::Fp32CrossEntropy { .. });
    let names = written.keep_logits.is_none();
    if let Some(at) = written.unnamed_logits.as_ref().filter(|at| *at.get_ref() && !(casts && names)) {
        let problem = "logits that go once they are cast are those of loss.kind = \"fp32\" without loss.keep_logits";
        return Err(reader.plan(at, problem, "remove loss.unnamed_logits"));
    }
    match &written.chunks {
        Some(chunks) if !chunked => {
            Err(reader.plan(chunks, "this loss is not chunked", "remove loss.chunks, or choose a chunked loss.kind"))
        }
        _ => Ok(loss),
    }
}

/// Whether the model computes the loss itself.
pub(super) fn inside_model(reader: &mut Reader<'_>, scenario: &written::Scenario) -> Result<bool, ScenarioError> {
    let Some(at) = &scenario.loss.inside_model else { return Ok(false) };
    if let (true, Some(_)) = (*at.get_ref(), &scenario.precision.output) {
        let problem = "precision.output casts what the model returns, which is the loss where the model computes it";
        return Err(reader.plan(at, problem, "remove precision.output, or write loss.inside_model = false"));
    }
    Ok(*at.get_ref())
}

/// How long the loop holds the logits.
pub(super) fn keep_logits(written: &written::Loss) -> KeepLogits {
    match written.keep_logits {
        None | Some(written::KeepLogits::Flag(false)) => KeepLogits::No,
        Some(written::KeepLogits::Flag(true)) => KeepLogits::NextForward,
        Some(written::KeepLogits::Until(written::Until::Backward)) => KeepLogits::Backward,
    }
}

/// What the training loop does besides; nothing unless the file says so.
pub(super) fn training_loop(
    reader: &Reader<'_>,
    written: &written::Scenario,
    loss: Loss,
) -> Result<Loop, ScenarioError> {
    let at = &written.training_loop;
    let small = |key: &Key, at: &Option<Spanned<i64>>| match at {
        Some(at) => reader.count(key, at).map(|count| count as u32),
        None => Ok(0),
    };
    let train_metrics = small(&written::Loop::train_metrics, &at.train_metrics)?;
    if let Some(at) = at.train_metrics.as_ref().filter(|_| train_metrics > 0 && !loss.sees_whole_logits()) {
        let problem = "metrics are computed on whole logits, and this loss takes them in parts or not at all";
        return Err(reader.plan(at, problem, "remove loop.train_metrics, or write loss.kind = \"fp32\""));
    }
    Ok(Loop { train_metrics, host_syncs: small(&written::Loop::host_syncs_per_step, &at.host_syncs_per_step)? })
}

/// Whether each parameter is stepped as soon as its gradient is there.
pub(super) fn in_backward(
    reader: &Reader<'_>,
    written: &written::Optimizer,
    (runtime, accumulation): (Runtime, u64),
) -> Result<bool, ScenarioError> {
    let Some(at) = written.in_backward.as_ref().filter(|at| *at.get_ref()) else { return Ok(false) };
    if runtime != SINGLE_DEVICE || accumulation > 1 || written.clip_grad_norm != Some(false) {
        let problem = "a step inside backward sees one gradient at a time: no sharding, accumulation or clipping";
        let alone = Change::set("batch.accumulation", 1).and(Change::set("optimizer.clip_grad_norm", false));
        let remedy = match runtime == SINGLE_DEVICE {
            true => reader.remedy(&[
                (Change::remove("optimizer.in_backward"), "remove the key"),
                (alone, "write batch.accumulation = 1 and optimizer.clip_grad_norm = false"),
            ]),
            false => {
                "remove the key: only one device does it (runtime = \"single_device\" on topology.chips = 1)".to_owned()
            }
        };
        return Err(reader.plan(at, problem, remedy));
    }
    Ok(true)
}
