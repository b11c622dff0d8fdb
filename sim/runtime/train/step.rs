//! One step of the loop: forward, loss and backward of each micro-batch, then clipping, the optimizer, zeroing.

use super::training::Training;
use crate::program::{Builder, DType, Dispatch, Mark};
use crate::runtime::fsdp::Version;
use crate::runtime::optimizer;

impl Training<'_> {
    pub(super) fn phase_end(&mut self, name: &str, micro_batch: u32) {
        let name = if self.job.accumulation > 1 && matches!(name, "fwd" | "ref" | "bwd") {
            format!("{name}{micro_batch}")
        } else {
            name.to_owned()
        };
        self.run.eager.program.mark(Mark::PhaseEnd(name));
    }

    pub(super) fn step(&mut self, first: bool) {
        self.run.eager.program.host(Dispatch::StepOverhead, 1);
        for micro_batch in 0..self.job.accumulation {
            let last = micro_batch + 1 == self.job.accumulation;
            self.run.reduce_gradients = last || self.job.sync_every;
            self.run.keeps_gathered = !last && self.job.keeps_gathered;
            self.run.all_reduces = last || self.job.all_reduce_every;
            self.run.eager.leaves.dtype = self.run.stored_gradient();
            self.graph_begins(first, micro_batch);
            let (mut frames, _) = self.forward(None);
            self.loss(&mut frames, micro_batch);
            self.phase_end(self.forward_ends_as(), micro_batch);
            let (loss, logits) = (frames.loss.take(), std::mem::take(&mut frames.logits));
            self.backward(&mut frames, None, last || !self.job.marks_last);
            if let Some(loss) = loss {
                self.run.eager.release(loss);
            }
            for storage in logits {
                self.run.eager.release(storage);
            }
            self.graph_ends(first, last);
            self.metrics();
            self.phase_end("bwd", micro_batch);
        }
        self.update(first);
        self.read_back();
        let buffers = std::mem::take(&mut self.kept_across);
        for (storage, &buffer) in std::mem::take(&mut self.kept).into_iter().zip(&buffers) {
            self.run.eager.hand_over(storage, buffer);
        }
        self.kept_across = buffers;
    }

    /// Clipping, the optimizer step, zeroing.
    pub(super) fn update(&mut self, mut first: bool) {
        let (job, params, caller) = (self.job, self.run.owned(), self.job.fsdp.version.caller());
        let element = job.trained_bytes();
        let scope = self.scopes.optimizer;
        let program = &mut self.run.eager.program;
        let before = program.enter(scope);
        let on_host = job.fsdp.cpu_offload;
        if job.step_in_backward {
            self.phase_end("opt", 0);
            self.run.eager.program.enter(before);
            return;
        }
        if job.scale_gradients {
            optimizer::scale(program, &params, element);
        }
        if job.clip && !on_host {
            self.clip(&params, element);
        }
        if job.clip {
            self.phase_end("clip", 0);
        }
        self.balance_experts();
        let program = &mut self.run.eager.program;
        if on_host {
            job.optimizer.step_on_host(program, (caller, &params, element), job.clip);
        } else {
            let of_state = if job.master_weights { DType::Fp32.bytes() } else { element };
            // The first step makes the optimizer's state.
            let mut make = |program: &mut Builder| {
                if !std::mem::take(&mut first) {
                    return;
                }
                let make = |program: &mut Builder| job.optimizer.make_state(program, caller, &params, of_state);
                match job.fsdp.version {
                    Version::Two if !job.first_step_differs() => program.first_only(make),
                    _ => make(program),
                }
            };
            // Each part of the model has an optimizer of its own.
            let mut start = 0;
            for &end in &self.layout.ends {
                let end = if self.layout.ends.len() == 1 { params.len() } else { end };
                let own = &params[start..end];
                if job.master_weights {
                    job.optimizer.step_master(program, (caller, own, element), &mut make);
                } else {
                    make(program);
                    job.optimizer.step(program, caller, own, element);
                }
                start = end;
            }
        }
        self.find_scales();
        self.phase_end("opt", 0);
        for storage in std::mem::take(&mut self.of_loss) {
            self.run.eager.release(storage);
        }
        if self.graphs_of_passes.is_some() {
            self.zero_in_place();
        } else {
            self.run.zero_gradients();
        }
        self.phase_end("zero", 0);
        self.run.eager.program.enter(before);
    }
}
