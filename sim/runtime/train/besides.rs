//! What a training loop does besides training: metrics on the logits, numbers read back for the log.
//!
//! A metric is `nn.CrossEntropyLoss(reduction="sum")` on the logits, without gradient and under autocast, as Composer's
//! `LanguageCrossEntropy` and `LanguagePerplexity` compute it on every micro-batch: `cross_entropy_loss` names the
//! logits' own type to `log_softmax` (`aten/src/ATen/native/LossNLL.cpp`), which autocast leaves alone, and `nll_loss` is
//! in its fp32 list. So for each word 2 B are read and 2 written, then 2 read and 4 written, for bf16 logits. Order of
//! blocks as PyTorch 2.15 takes them. Between forward and the next forward's end the loop holds the logits by a name
//! (`composer/trainer/trainer.py`, `state.outputs`).
//!
//! A number is read back (`.item()`) after an all-reduce of it over all ranks: the host waits for everything before it,
//! so the next step begins with empty streams.

use super::training::Training;
use crate::plan::torch::KeepLogits;
use crate::program::{Category, Collective, Comm, DType, Dispatch, MemoryKind, Pass, Work};
use crate::runtime::eager::COMPUTE;
use crate::runtime::fsdp::{Narrow, float8};
use crate::units::Bytes;

impl Training<'_> {
    /// After the optimizer's step, the scales of weights that are gathered in fp8, where they are found for all at once.
    pub(super) fn find_scales(&mut self) {
        let job = self.job;
        if !job.float8.is_some_and(|float8| float8.all_gather && float8.precompute_scale) {
            return;
        }
        // Partial maxima of DTensors are reduced over one mesh axis after the other.
        let sharded = (job.fsdp.shard > 1).then_some(self.run.communicators.shard);
        let axes = [sharded, self.run.eager.framework.tensor().map(|tensor| tensor.group)];
        let element = job.fsdp.mixed_precision.storage.bytes();
        // Each part of the model is asked for its own; one without such weights has none to find.
        let mut first = 0;
        for &end in &self.layout.ends {
            let narrow = self.layout.params[first..end].iter().filter(|param| param.narrow != Narrow::No);
            let shards: Vec<u64> = narrow.map(|param| param.padded_shard(job.fsdp.shard)).collect();
            first = end;
            if !shards.is_empty() {
                let axes = axes.into_iter().flatten();
                float8::precompute(&mut self.run.eager.program, COMPUTE, &shards, element, axes);
            }
        }
    }

    /// Whether the loop holds the logits by a name: for itself, or for its metrics.
    pub(super) fn keeps_logits(&self) -> bool {
        self.job.keep_logits == KeepLogits::NextForward || self.job.training_loop.train_metrics > 0
    }

    /// All metrics of one micro-batch.
    pub(super) fn metrics(&mut self) {
        let Some(&logits) = self.graphs.head.logits.0.first() else { return };
        let (graph, eager) = (&self.graphs.head.graph, &mut self.run.eager);
        let (logits, tokens, dispatch) = (&graph.values[logits], graph.dims.tokens(), eager.settings.forward);
        let pass = eager.program.set_pass(Pass::Forward);
        let category = std::mem::replace(&mut eager.category, Category::Logits);
        let before = eager.program.enter(self.scopes.metrics);
        for _ in 0..self.job.training_loop.train_metrics {
            let targets = eager.targets(tokens);
            let log_softmax = eager.storage(logits.bytes(), "aten._log_softmax");
            eager.pointwise("aten._log_softmax", MemoryKind::LogSoftmax, logits.bytes(), logits.bytes(), dispatch);
            let wide = (logits.dtype != DType::Fp32).then(|| {
                let wide = eager.storage(4 * logits.elements, "aten._to_copy");
                let written = 4 * logits.elements;
                eager.pointwise("aten._to_copy", MemoryKind::Elementwise, logits.bytes(), written, dispatch);
                wide
            });
            let (loss, weight) = (eager.storage(4, "aten.nll_loss_forward"), eager.storage(4, "aten.nll_loss_forward"));
            eager.pointwise("aten.nll_loss_forward", MemoryKind::Gather, 12 * tokens, 8, dispatch);
            for gone in [Some(weight), wide, Some(log_softmax)].into_iter().flatten() {
                eager.release(gone);
            }
            let count = eager.count_targets(tokens);
            for _ in ["sum_loss", "total_items"] {
                eager.pointwise("aten.add_", MemoryKind::Elementwise, 12, 4, dispatch);
            }
            for gone in [loss, count, targets] {
                eager.release(gone);
            }
        }
        eager.program.enter(before);
        eager.category = category;
        eager.program.set_pass(pass);
    }

    /// Numbers reduced over all ranks and read back, one after the other.
    pub(super) fn read_back(&mut self) {
        let world = self.run.communicators.world;
        let program = &mut self.run.eager.program;
        for _ in 0..self.job.training_loop.host_syncs {
            if self.job.fsdp.shard * self.job.fsdp.replicate > 1 {
                let comm = Comm { kind: Collective::AllReduce, group: world, bytes: Bytes(4), dtype: DType::Fp32 };
                program.collective(COMPUTE, comm);
            }
            program.launch(
                COMPUTE,
                "aten._local_scalar_dense",
                Work::HostCopy { bytes: Bytes(4), to_host: true },
                Dispatch::EagerForward,
            );
            program.wait_for_host(COMPUTE);
        }
    }
}
