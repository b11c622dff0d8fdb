//! `[dpo]` as written.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{OTHERS, PAIRS};

words! {
    /// Whose trainer.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum PreferenceCode {
        /// TRL's `DPOTrainer`.
        Trl = "trl",
        /// torchtune's recipes.
        Torchtune = "torchtune",
    }
}

words! {
    /// Where the reference's log-probabilities come from.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Reference {
        /// A second model.
        Model = "model",
        /// The policy without its adapters.
        AdaptersOff = "adapters_off",
        /// The data.
        Precomputed = "precomputed",
    }
}

keys! {
    /// Direct preference optimization (DPO): a loss over pairs of sequences, one chosen and one rejected, against a
    /// reference model. `batch.micro` then counts pairs. `[loss]` is not read.
    #[derive(Debug, Deserialize)]
    ["dpo"] Dpo in Model.instead(&[
        (OTHERS, "preference optimization is simulated under FSDP2 and on one device: remove the table"),
    ]);

    /// What the policy is compared with. model: a second model, which runs forward without gradients. adapters_off:
    /// the policy without its adapters (`[lora]`). precomputed: log-probabilities that come with the data
    /// (`precompute_ref_log_probs`).
    reference: Option<Spanned<Reference>> => PAIRS;
    /// Whose trainer computes log-probabilities and loss, which decides how many copies of the logits are held. trl:
    /// `DPOTrainer` of TRL 1.13. torchtune: the recipes of torchtune 0.6.1.
    implementation: Option<Spanned<PreferenceCode>> => PAIRS;
}
