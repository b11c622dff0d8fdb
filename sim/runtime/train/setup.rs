//! What is there before the first step: parameters, buffers, inputs.

use super::training::Training;
use crate::model::Position;
use crate::model::graph::Stored;
use crate::model::head::Loss;
use crate::model::preference::LogProbs;
use crate::model::style::{Linears, Rope};
use crate::model::transformers::class_of;
use crate::program::{Builder, Category, DType};
use crate::runtime::eager::{COMPUTE, fp8};
use crate::runtime::fsdp::Version;
use crate::runtime::optimizer::Owned;
use crate::units::Bytes;

impl Training<'_> {
    /// Parameters, buffers, inputs.
    pub(super) fn setup(&mut self) {
        let job = self.job;
        let storage = job.fsdp.mixed_precision.storage.bytes();
        let shards = self.run.shards();
        let whose = if self.keeps_reference_logits() { Category::Reference } else { Category::Logits };
        let keeps_logits = self.keeps_logits() || self.keeps_reference_logits();
        let first_of_reference = self.reference.as_ref().and_then(|reference| reference.first);
        let program = &mut self.run.eager.program;
        // The rotary table: complex64, one row per position. Every part of the model has one, or every block before its parameters.
        let by_position = job.style.rope == Rope::ComplexByPosition;
        let table = match job.model.position {
            Position::Rope { dims } => Some(Bytes(job.max_positions * dims / 2 * 8)),
            _ => None,
        };
        let of_blocks = table.filter(|_| by_position);
        let layers = || self.parts.iter().flat_map(|part| part.blocks.clone());
        let mut tables = vec![];
        let mut add = |program: &mut Builder, layer: usize| {
            let made = of_blocks.map(|bytes| program.alloc(bytes, COMPUTE, Category::Buffer, "freqs_cis"));
            tables.extend(made.map(|buffer| (layer, buffer)));
        };
        if job.fsdp.cpu_offload {
            layers().for_each(|layer| add(program, layer));
            shards.iter().for_each(|(_, param)| job.optimizer.keep_on_host(program, param, storage));
        } else {
            for (param, owned) in shards {
                for layer in layers().filter(|&layer| param == Some(self.layout.blocks[layer])) {
                    add(program, layer);
                }
                let name = param.map_or("flat_param", |param| self.layout.names[param]);
                let stored = param.map_or(Stored::Plain, |param| self.layout.params[param].stored);
                let of_reference = param.zip(first_of_reference).is_some_and(|(param, first)| param >= first);
                program.count_as(of_reference.then_some(Category::Reference));
                for bytes in stored.tensors(owned.elements(), storage) {
                    program.alloc(Bytes(bytes), COMPUTE, Category::Parameter, name);
                }
                program.count_as(None);
            }
        }
        // `to_empty` makes a tied table twice; the second goes when FSDP ties the two again before the first step.
        let tied_later = job.model.tied_head && job.fsdp.version != Version::Unsharded;
        let twice = (tied_later && !job.fsdp.cpu_offload).then(|| {
            let bytes = Bytes(self.layout.params[0].padded_shard(job.fsdp.shard) * storage);
            program.alloc(bytes, COMPUTE, Category::Parameter, "output.weight")
        });
        let transformers = class_of(&job.model, job.style).is_some();
        if let Position::Rope { dims } = job.model.position
            && transformers
        {
            // `inv_freq` and `original_inv_freq`.
            for _ in 0..2 {
                program.alloc(Bytes(2 * dims), COMPUTE, Category::Buffer, "inv_freq");
            }
        } else if let (Some(bytes), false) = (table, by_position) {
            // The rotary table: complex64, one row per position. Every part of the model has one.
            for _ in &self.parts {
                program.alloc(bytes, COMPUTE, Category::Buffer, "freqs_cis");
            }
        }
        if job.model.position == Position::Alibi && job.eager.bias_tensor && !transformers {
            let elements = job.model.heads() * job.max_positions * job.max_positions;
            let bytes = Bytes(elements * job.fsdp.mixed_precision.compute().bytes());
            for _ in &self.parts {
                program.alloc(bytes, COMPUTE, Category::Buffer, "attention bias");
            }
        }
        if let Some(twice) = twice {
            program.free(twice);
        }
        self.set_up_reference();
        self.initialise(&tables, table.unwrap_or_default());
        if job.master_weights {
            // `p.detach().clone().float()`
            for elements in self.run.owned().iter().map(Owned::elements) {
                let program = &mut self.run.eager.program;
                let clone = program.alloc(Bytes(elements * storage), COMPUTE, Category::OptimizerState, "clone");
                let bytes = Bytes(elements * DType::Fp32.bytes());
                program.alloc(bytes, COMPUTE, Category::OptimizerState, "master copy");
                program.free(clone);
            }
        }
        self.data_parallel_set_up();
        let program = &mut self.run.eager.program;
        if job.style.linears == Linears::EngineFp8 {
            program.alloc(Bytes(fp8::WORKSPACE), COMPUTE, Category::Buffer, "te cublas workspace");
        }
        if keeps_logits {
            let head = &self.graphs.head;
            let bytes = head.logits.0.iter().map(|&value| Bytes(head.graph.values[value].bytes()));
            self.kept_across =
                bytes.map(|bytes| program.later(bytes, COMPUTE, whose, "logits of the step before")).collect();
        }
        // All that a pipeline takes in a step is there when it begins.
        let batches = if job.pipeline.is_some() { job.accumulation } else { 1 };
        let given: &[_] = match job.loss {
            Loss::Preference(LogProbs::Trl) => &["input_ids", "attention_mask", "completion_mask"],
            _ if by_position => &["tokens", "labels", "positions"],
            _ => &["tokens", "labels"],
        };
        for name in (0..batches).flat_map(|_| given) {
            program.alloc(Bytes(job.batch * job.own_tokens() * DType::Int64.bytes()), COMPUTE, Category::Buffer, name);
        }
    }
}
