//! What of a job no runtime simulates yet, and what to write instead.
//!
//! A model that is not simulated can still be described (`windtunnel show model`); everything that would need its program
//! refuses it with [`Scenario::simulable`].

use std::borrow::Cow;

use toml::Value;

use super::by_compiler;
use super::change::Change;
use super::documents;
use super::error::ScenarioError;
use super::names::MEGATRON;
use super::understood::Scenario;
use crate::runtime::megatron::FP8;
use crate::runtime::{Parts, Refusal};

impl Scenario {
    /// Refuses what no runtime here has rules for, before a program is compiled from it.
    #[doc(hidden)]
    pub fn simulable(&self) -> Result<(), ScenarioError> {
        let Some(Refusal { code, problem: what, key, remedy }) = self.job.refuses() else { return Ok(()) };
        let whose = match key {
            Some(FP8) => ": Transformer Engine refuses it, or it is not simulated",
            _ => ", which is described but not simulated yet",
        };
        let refused = ScenarioError::Plan {
            code: Some(code),
            problem: format!("{} needs {what}{whose}", self.job.model().name),
            place: Box::new(if key == Some(documents::KEY) { self.places().documents } else { self.places().model }),
            remedy: remedy.map_or_else(|| self.changes(), Cow::into_owned),
        };
        let compiled = matches!(self.job.parts(), Parts::Compiled(_));
        Err(if compiled { by_compiler::named(refused, &self.topology) } else { refused })
    }

    /// What to write where a refusal does not say it.
    fn changes(&self) -> String {
        let instead = self.instead();
        match self.job.parts() {
            _ if !instead.is_empty() => format!("write {}", instead.join(", or ")),
            Parts::Whole(job) if job.model.experts().is_none() => {
                "`windtunnel show model` describes it; to simulate it, change the key that this speaks of, or take another model"
                    .to_owned()
            }
            Parts::Whole(_) => {
                "`windtunnel show model` describes it; to simulate it, take mixtral-8x7b, qwen3-30b-a3b or a dense model"
                    .to_owned()
            }
            Parts::Split(job) if job.model.experts().is_none() && self.runtime != MEGATRON => {
                "`windtunnel show model` describes it; to simulate it, take another dense model, or runtime = \"megatron\"".to_owned()
            }
            Parts::Split(job) if job.model.experts().is_none() => {
                "`windtunnel show model` describes it; to fly it, change the key of [megatron] or [mesh] that this speaks of, \
                 or take another model"
                    .to_owned()
            }
            Parts::Split(_) | Parts::Compiled(_) => {
                "`windtunnel show model` describes it; to simulate it, take a dense model".to_owned()
            }
        }
    }

    /// Single changes of the file that leave nothing without rules: each is read, none is guessed.
    fn instead(&self) -> Vec<String> {
        // What is written, and a table that then says nothing.
        let whole: [(&str, Value, &str); 9] = [
            ("mesh.tp", 1.into(), "tensor_parallel"),
            ("framework.experts", "torchtitan".into(), ""),
            ("activation_checkpointing.policy", "full".into(), ""),
            ("compile.blocks", false.into(), ""),
            ("framework.cuda_graphs", false.into(), ""),
            ("attention.backend", "flash2".into(), ""),
            ("model.expert_load", "balanced".into(), ""),
            ("loss.kind", "fp32".into(), ""),
            ("runtime", "fsdp2".into(), "fsdp1"),
        ];
        let split: [(&str, Value, &str); 12] = [
            ("mesh.etp", 1.into(), ""),
            ("megatron.moe_token_dispatcher_type", "alltoall".into(), ""),
            ("megatron.implementation", "transformer_engine".into(), ""),
            ("megatron.gradient_accumulation_fusion", true.into(), ""),
            ("megatron.recompute", "none".into(), "megatron.recompute_modules"),
            ("megatron.overlap_moe_expert_parallel_comm", false.into(), ""),
            ("megatron.tp_comm_overlap", false.into(), ""),
            ("megatron.mtp_num_layers", 0.into(), ""),
            ("mesh.cp", 1.into(), ""),
            ("mesh.ep", 1.into(), "mesh.etp"),
            ("mesh.tp", 1.into(), "tensor_parallel"),
            ("runtime", "megatron".into(), ""),
        ];
        let changes: &[_] = match self.job.parts() {
            Parts::Whole(_) => &whole,
            Parts::Split(_) => &split,
            Parts::Compiled(_) => &[],
        };
        let flies = |(key, value, table): &(&str, Value, &str)| {
            let change = Change::remove(table).and(Change::set(key, value.clone()));
            let read = self.draft.changed(&change).tried(None).ok().filter(|read| read.job.refuses().is_none());
            let name = if table.contains('.') { (*table).to_owned() } else { format!("[{table}]") };
            let without = self.draft.get(table).map_or_else(String::new, |_| format!(" without {name}"));
            // A value that stands there already changes nothing.
            let read = read.filter(|_| self.draft.get(key) != Some(value));
            read.map(|_| format!("{key} = {value}{without}"))
        };
        changes.iter().filter_map(flies).collect()
    }
}
