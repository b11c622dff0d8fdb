//! CUDA graphs: what of them is simulated is written, and the rest is named as left out.

use super::list::strings;
use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::settings::Settings;

/// What a part that is left out would change.
const CHANGES: &str =
    "launched one by one here: the host may be behind where it was not, and graphs hold memory of their own";

/// Writes `cuda_graph_impl` and `cuda_graph_scope`.
pub fn graphs(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let Some(by) = settings.word("cuda_graph_impl")?.filter(|found| found.stated && found.value != "none") else {
        let _ = settings.words("cuda_graph_scope")?;
        return Ok(());
    };
    let scope = settings.words("cuda_graph_scope")?.filter(|found| !found.value.is_empty());
    let job = Job::of(settings)?;
    let asked: Vec<String> = scope.as_ref().map(|found| found.value.clone()).unwrap_or_default();
    let kept: Vec<String> = asked.iter().filter(|part| job.captures(part)).cloned().collect();
    let nothing = job.none || asked.is_empty() && job.whole_waits || !asked.is_empty() && kept.is_empty();
    if nothing {
        let value = if asked.is_empty() { by.value.clone() } else { asked.join(", ") };
        out.without("cuda_graph_impl", &value, &settings.comment("cuda_graph_impl"), CHANGES);
        out.put("megatron.cuda_graph_impl", "none", by.why.so("not simulated beside the other switches"));
        return Ok(());
    }
    let left: Vec<String> = asked.iter().filter(|part| !kept.contains(part)).cloned().collect();
    if !left.is_empty() {
        out.without("cuda_graph_scope", &left.join(", "), &settings.comment("cuda_graph_scope"), CHANGES);
    }
    out.put_found("megatron.cuda_graph_impl", Some(by));
    out.put_found("megatron.cuda_graph_scope", scope.map(|found| found.with(strings(&kept))));
    Ok(())
}

/// What decides which parts are simulated as graphs (`sim/scenario/megatron/graphs.rs`).
struct Job {
    /// Nothing is.
    none: bool,
    /// The host waits for counts of rows in whole blocks and whole steps.
    whole_waits: bool,
    fp8: bool,
    latent: bool,
    flex: bool,
    shared: bool,
    /// The router's norm or the experts' activation runs again.
    again: bool,
    /// Experts see a narrower copy of the hidden state.
    narrowed: bool,
    experts: bool,
}

impl Job {
    fn of(settings: &Settings<'_>) -> Result<Job, ImportError> {
        let experts = settings.count("num_experts")?.is_some_and(|found| found.value > 1);
        let modules = settings.words("recompute_modules")?.map(|found| found.value).unwrap_or_default();
        let selective = settings.word("recompute_granularity")?.is_some_and(|found| found.value == "selective");
        let pads = settings.is_set("moe_pad_expert_input_to_capacity")?;
        Ok(Job {
            none: settings.integer("mtp_num_layers")?.is_some_and(|found| found.value > 0)
                || settings.is_set("overlap_moe_expert_parallel_comm")?
                || settings.is_set("use_megatron_fsdp")?,
            whole_waits: experts && !pads,
            fp8: settings.word("fp8")?.is_some(),
            latent: settings.is_set("multi_latent_attention")?,
            flex: settings.word("moe_token_dispatcher_type")?.is_some_and(|found| found.value == "flex"),
            shared: settings.count("moe_shared_expert_intermediate_size")?.is_some(),
            again: selective && modules.iter().any(|name| matches!(name.as_str(), "layernorm" | "moe_act" | "moe")),
            narrowed: settings.count("moe_latent_size")?.is_some(),
            experts,
        })
    }

    fn captures(&self, part: &str) -> bool {
        match part {
            "full_iteration" => !self.fp8 && !self.whole_waits,
            "attn" => !self.fp8 && !self.latent,
            "mlp" => !self.fp8,
            "moe" => !self.fp8 && !self.whole_waits && !self.narrowed,
            "moe_router" => self.routes(),
            "moe_preprocess" => self.routes() && !self.flex,
            _ => true,
        }
    }

    fn routes(&self) -> bool {
        let held_back = self.narrowed || self.again || self.fp8 && self.shared;
        self.experts && !held_back
    }
}
