//! The table `[dpo]` as understood: direct preference optimization.

use super::entry::Runtime;
use super::error::ScenarioError;
use super::names::FSDP1;
use super::reader::Reader;
use super::written::{self, Dpo, LoraCode, ModulesStyle, PreferenceCode};
use crate::model::preference::LogProbs;
use crate::model::trained::Code;
use crate::plan::torch::Reference;

/// A loss over pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Preference {
    /// Whose code computes log-probabilities.
    pub log_probs: LogProbs,
    /// What the policy is compared with.
    pub reference: Reference,
}

impl Preference {
    /// Whose adapters the trainer makes.
    pub fn adapters(self) -> Code {
        if self.log_probs == LogProbs::Trl { Code::Peft } else { Code::Torchtune }
    }
}

/// What the file says of pairs, if anything.
pub(super) fn dpo(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    runtime: Runtime,
) -> Result<Option<Preference>, ScenarioError> {
    let Some(at) = &scenario.dpo else { return Ok(None) };
    if runtime.written() == FSDP1 {
        let problem = "[dpo] is simulated under fully_shard and on one device, not under FSDP1";
        return Err(reader.plan(at, problem, "write runtime = \"fsdp2\", or remove the table"));
    }
    let code = implementation(reader, scenario, at.get_ref())?;
    let lora = scenario.lora.is_some();
    let reference = reference(reader, at.get_ref(), (code, lora))?;
    let log_probs = match code {
        PreferenceCode::Trl => LogProbs::Trl,
        PreferenceCode::Torchtune => LogProbs::Torchtune { halves: !lora },
    };
    if let Some(at) = scenario.training_loop.train_metrics.as_ref().filter(|at| *at.get_ref() > 0) {
        let problem = "loop.train_metrics are cross-entropies of one sequence, and [dpo] trains on pairs";
        return Err(reader.plan(at, problem, "remove loop.train_metrics"));
    }
    reader.note("batch.micro counts pairs of sequences, one chosen and one rejected; batch.global counts sequences");
    if reference.runs() {
        reader.note(
            "MFU counts the policy's forward and backward. The reference's forward is in the hardware FLOPs alone \
             (`run --mfu-all`)",
        );
    }
    if log_probs == LogProbs::Trl {
        reader.note("all sequences are as long as batch.sequence, and all tokens are taken to be of the completion");
    }
    Ok(Some(Preference { log_probs, reference }))
}

/// Whose trainer: its adapters are its own.
fn implementation(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    table: &Dpo,
) -> Result<PreferenceCode, ScenarioError> {
    let adapters = scenario.lora.as_ref().and_then(|at| at.get_ref().implementation);
    let Some(at) = &table.implementation else {
        let transformers =
            scenario.framework.modules.as_ref().is_some_and(|at| *at.get_ref() == ModulesStyle::Transformers);
        return Ok(match adapters {
            Some(LoraCode::Peft) => reader.assume("dpo.implementation", PreferenceCode::Trl, "trl"),
            None if transformers => reader.assume("dpo.implementation", PreferenceCode::Trl, "trl"),
            _ => reader.assume("dpo.implementation", PreferenceCode::Torchtune, "torchtune"),
        });
    };
    let (own, other, words) = match *at.get_ref() {
        PreferenceCode::Trl => (LoraCode::Peft, "torchtune", "TRL's adapters are peft's"),
        PreferenceCode::Torchtune => (LoraCode::Torchtune, "trl", "torchtune's recipes have adapters of their own"),
    };
    if let Some(adapters) = adapters.filter(|&adapters| adapters != own) {
        let [theirs, ours] = [adapters, own].map(|code| if code == LoraCode::Peft { "peft" } else { "torchtune" });
        let problem = format!("{words}, and lora.implementation is {theirs:?}");
        let remedy = format!("write lora.implementation = {ours:?}, or dpo.implementation = {other:?}");
        return Err(reader.plan(at, problem, remedy));
    }
    Ok(*at.get_ref())
}

/// The reference, which goes with the adapters that there are.
fn reference(
    reader: &mut Reader<'_>,
    table: &Dpo,
    (code, lora): (PreferenceCode, bool),
) -> Result<Reference, ScenarioError> {
    let key = "dpo.reference";
    let Some(at) = &table.reference else {
        return Ok(match lora {
            true => reader.assume_for(key, Reference::AdaptersOff, "adapters_off", "there are adapters"),
            false => reader.assume_for(key, Reference::Model, "model", "there are no adapters"),
        });
    };
    match (*at.get_ref(), lora) {
        (written::Reference::Model, false) => Ok(Reference::Model),
        (written::Reference::AdaptersOff, true) => Ok(Reference::AdaptersOff),
        (written::Reference::Precomputed, _) if code == PreferenceCode::Trl => Ok(Reference::Precomputed),
        (written::Reference::Precomputed, _) => {
            let own = if lora { "adapters_off" } else { "model" };
            let problem = "torchtune's recipes run their reference in every step";
            Err(reader.plan(at, problem, format!("write dpo.reference = {own:?}, or remove [dpo]")))
        }
        (written::Reference::Model, true) => {
            let problem = "with [lora] the reference is the policy without its adapters, not a second model";
            Err(reader.plan(at, problem, "write dpo.reference = \"adapters_off\", or remove [dpo]"))
        }
        (written::Reference::AdaptersOff, false) => {
            let problem = "dpo.reference = \"adapters_off\" switches adapters off, and there is no [lora]";
            Err(reader.plan(at, problem, "write dpo.reference = \"model\", or remove [dpo]"))
        }
    }
}
