//! A row as written: one JSON object of a file of receipts.
//!
//! The schema is that of `tests/receipts/README.md`. Every number is as its source printed it; what was computed from
//! printed numbers stands under `derived` and is not read. A key that the schema does not have is reported, and the rest of the row
//! is read ([`unread`]).

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::model::ModelConfig;
use crate::near::did_you_mean;

#[cfg(test)]
mod tests;

/// The JSON Schema of a row, `docs/schema/receipt.json`.
pub const SCHEMA: &str = include_str!("../../docs/schema/receipt.json");

/// Lets a group be anything: what it says is for people, or is read by a table's conditions.
type Free = Map<String, Value>;

macro_rules! group {
    ($(#[$doc:meta])* $name:ident { $($key:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields)]
        #[allow(missing_docs, reason = "the schema's own words")]
        pub struct $name { $(#[serde(default)] pub $key: Option<$type>),* }

        impl $name {
            /// The keys of the group.
            pub const KEYS: &'static [&'static str] = &[$(stringify!($key)),*];
        }
    };
}

group!(
    /// The machine.
    Hardware {
        name: String, vendor: String, system: String, device_name: String, memory_gb: f64, mem_bw_tbs: f64,
        power_limit_w: f64, tdp_w: f64, peak_bf16_tflops: f64, count: u64, nodes: u64, gpus_per_node: u64,
        interconnect: String, topology: String, slices: u64, notes: String,
    }
);
group!(
    /// The model.
    Model {
        name: String, arch: String, n_layers: u64, hidden: u64, ffn: u64, n_heads: u64, n_kv_heads: u64, head_dim: u64,
        vocab: u64, tied_embeddings: bool, seq_len: u64, n_experts: u64, top_k: u64, moe_ffn: u64,
        n_shared_experts: u64, shared_expert_ffn: u64, first_k_dense: u64, mla: Free, mamba_state_dim: u64,
        hybrid_pattern: String, pos_emb: String, act: String, n_params: f64, n_params_b: f64, n_params_active: f64,
        n_params_printed: String, make_vocab_divisible_by: u64, global_parameter_scale: u64, dims_source: String,
        registry_key: String, ffn_note: String, vocab_note: String,
    }
);
group!(
    /// The framework.
    Framework { name: String, version: String, deps: Free, docker: String }
);
group!(
    /// How the model is spread over the machine. A degree may be a word (`auto`), which is no number.
    Parallel {
        dp: Value, fsdp: Value, tp: u64, sp: bool, cp: u64, cp_impl: String, pp: u64, vpp: Value, pp_schedule: String,
        pp_layout: String, ep: u64, etp: u64, zero_stage: i64, zero1_group: i64, zero_note: String,
        sharding_strategy: String, note: String, raw: Free,
    }
);
group!(
    /// Batch and sequence.
    Batch {
        micro_batch: f64, local_batch: f64, per_device_batch: f64, batch_per_dp: f64, global_batch: f64,
        grad_accum: u64, grad_accum_printed: u64, seq_len: u64, tokens_per_step: u64, global_tokens: u64,
        global_tokens_printed: String,
    }
);
group!(
    /// Types.
    Precision { compute: String, params: String, grads: String, optimizer: String, mp_mode: String, recipe: String, notes: String }
);
group!(
    /// What the source printed.
    Measured {
        step_time_s: f64, step_time_std_s: f64, step_time_min_s: f64, tok_s_gpu: f64, tok_s_total: f64, seq_s: f64,
        samples_s_gpu: f64, samples4k_s_total: f64, tflops_gpu: f64, pflops_total: f64, mfu_pct: f64, hfu_pct: f64,
        mfu_convention: String, peak_mem_gib: f64, peak_mem_gb_as_printed: f64, peak_mem_kind: String,
        peak_mem_reserved_gib: f64, peak_mem_by_rank: Free, steady_alloc_gib: f64, steady_alloc_gb: f64,
        state_mem_gb: f64, xla_total_mem_gb: f64, xla_argument_gb: f64, xla_temp_gb: f64, oom: bool,
        layer_fwd_ms: f64, layer_bwd_ms: f64, bubble_rate_calc: f64, runtime_min: f64, total_weights: u64,
        n_samples: u64, raw: Free,
    }
);

/// One row.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the schema's own words")]
pub struct Row {
    pub id: String,
    pub lane: String,
    #[serde(default)]
    pub hw_family: Option<String>,
    #[serde(default)]
    pub source: Free,
    #[serde(default)]
    pub hardware: Hardware,
    #[serde(default)]
    pub model: Model,
    #[serde(default)]
    pub framework: Framework,
    #[serde(default)]
    pub parallel: Parallel,
    #[serde(default)]
    pub batch: Batch,
    #[serde(default)]
    pub precision: Precision,
    #[serde(default)]
    pub recompute: Option<String>,
    #[serde(default)]
    pub compile: Option<Value>,
    #[serde(default)]
    pub optimizer: Option<String>,
    #[serde(default)]
    pub switches: Free,
    pub measured: Measured,
    #[serde(default)]
    pub derived: Free,
    #[serde(default)]
    pub quality: Free,
}

/// Keys of a row itself.
const KEYS: [&str; 17] = [
    "id",
    "lane",
    "hw_family",
    "source",
    "hardware",
    "model",
    "framework",
    "parallel",
    "batch",
    "precision",
    "recompute",
    "compile",
    "optimizer",
    "switches",
    "measured",
    "derived",
    "quality",
];

/// Takes keys that the schema does not have out of a row, and says which they were.
pub fn unread(row: &mut Value) -> Vec<String> {
    let mut said = vec![];
    if let Some(whole) = row.as_object_mut() {
        let unknown: Vec<String> = whole.keys().filter(|key| !KEYS.contains(&key.as_str())).cloned().collect();
        for key in unknown {
            whole.remove(&key);
            let hint = did_you_mean(&key, KEYS);
            said.push(format!("there is no key {key}{hint}: it is not read, the rest of the row is"));
        }
    }
    for (part, known) in [
        ("hardware", Hardware::KEYS),
        ("model", Model::KEYS),
        ("framework", Framework::KEYS),
        ("parallel", Parallel::KEYS),
        ("batch", Batch::KEYS),
        ("precision", Precision::KEYS),
        ("measured", Measured::KEYS),
    ] {
        let Some(group) = row.get_mut(part).and_then(Value::as_object_mut) else { continue };
        let unknown: Vec<String> = group.keys().filter(|key| !known.contains(&key.as_str())).cloned().collect();
        for key in unknown {
            group.remove(&key);
            let hint = did_you_mean(&key, known.iter().copied());
            said.push(format!("there is no key {part}.{key}{hint}: it is not read, the rest of the row is"));
        }
    }
    said
}

/// A degree of parallelism that is a number.
pub fn degree(value: &Option<Value>) -> Option<u64> {
    value.as_ref().and_then(Value::as_u64)
}

/// A count that may be written with a point.
pub fn whole(value: Option<f64>) -> Option<u64> {
    value.filter(|v| *v >= 1.0 && v.fract() == 0.0 && *v < 1e15).map(|v| v as u64)
}

impl Row {
    /// Tokens of a sequence.
    pub fn sequence(&self) -> Option<u64> {
        self.batch.seq_len.or(self.model.seq_len)
    }

    /// Sequences per rank and micro-batch.
    pub fn micro(&self) -> Option<u64> {
        let batch = &self.batch;
        whole(batch.micro_batch).or(whole(batch.local_batch)).or(whole(batch.per_device_batch))
    }

    /// Ranks that work on different data, where the row lets it be known.
    pub fn data_parallel(&self) -> Option<u64> {
        let p = &self.parallel;
        // Replicas of a sharded model (MaxText), or the larger of two counts of the same.
        let both = degree(&p.dp).zip(degree(&p.fsdp)).map(|(dp, fsdp)| dp.saturating_mul(fsdp));
        let replicas = both.filter(|&ranks| Some(ranks) == self.hardware.count);
        let stated = replicas.or(degree(&p.dp).into_iter().chain(degree(&p.fsdp)).max());
        let rest = product(&[p.tp.unwrap_or(1), p.pp.unwrap_or(1), p.cp.unwrap_or(1)]);
        let rest = u64::try_from(rest).unwrap_or(0);
        stated.or(self.hardware.count.filter(|&count| rest > 0 && count % rest == 0).map(|count| count / rest))
    }

    /// Degrees of tensor parallelism and of the pipeline that the row leaves out, and what all of them together come to, where the
    /// stated ones leave chips over. A sequence that is not said to be shared is not.
    pub fn open(&self) -> Option<(Vec<&'static str>, u64)> {
        let p = &self.parallel;
        let (dp, count) = (degree(&p.dp).filter(|_| p.fsdp.is_none())?, self.hardware.count?);
        let open: Vec<_> =
            [("tp", p.tp), ("pp", p.pp)].iter().filter(|(_, stated)| stated.is_none()).map(|(name, _)| *name).collect();
        let stated = product(&[dp, p.tp.unwrap_or(1), p.pp.unwrap_or(1), p.cp.unwrap_or(1)]);
        let stated = u64::try_from(stated).ok().filter(|stated| *stated > 0 && count.is_multiple_of(*stated))?;
        (!open.is_empty() && stated < count).then(|| (open, count / stated))
    }

    /// Micro-batches of `micro` sequences per step, stated or following from the batch.
    pub fn accumulation_of(&self, micro: u64) -> Option<u64> {
        self.batch.grad_accum.or_else(|| {
            let (global, dp) = (whole(self.batch.global_batch)?, self.data_parallel()?);
            let part = micro.checked_mul(dp)?;
            (part > 0 && global % part == 0).then(|| global / part)
        })
    }

    /// Tokens of a step of the whole job, as far as the row states its batch.
    pub fn tokens(&self) -> Option<u64> {
        let batch = &self.batch;
        let global =
            whole(batch.global_batch).zip(self.sequence()).and_then(|(global, sequence)| global.checked_mul(sequence));
        global.or(batch.tokens_per_step).or(batch.global_tokens)
    }

    /// How complete the row is.
    pub fn grade(&self) -> &str {
        self.quality.get("grade").and_then(Value::as_str).unwrap_or("")
    }

    /// Family of chips, under which rows are counted.
    pub fn family(&self) -> &str {
        self.hw_family.as_deref().or(self.hardware.name.as_deref()).unwrap_or("unstated")
    }

    /// Whom it was measured with: the model's runs by the same publisher.
    pub fn measured_with(&self) -> String {
        let named = ["repo", "paper", "title"].iter().find_map(|key| self.source.get(*key).and_then(Value::as_str));
        format!("{}: {}", named.unwrap_or("unnamed"), self.model.name.as_deref().unwrap_or("a model")).replace(',', ";")
    }

    /// A stated size of the model that is not that of the model it was matched to. Vocabularies are left out: frameworks pad them.
    pub fn other_model(&self, matched: &ModelConfig) -> Option<String> {
        let (own, has) = (&self.model, matched);
        let sizes = [
            ("n_layers", own.n_layers, has.layers.count()),
            ("hidden", own.hidden, has.width),
            ("n_heads", own.n_heads, has.heads()),
        ];
        let (name, stated, known) =
            sizes.into_iter().find_map(|(name, own, has)| own.filter(|own| *own != has).map(|own| (name, own, has)))?;
        Some(format!("model.{name} = {stated} but {}, which the row is matched to, has {known}", has.name))
    }

    /// Whose chips it ran on; NVIDIA's where it does not say.
    pub fn vendor(&self) -> &str {
        self.hardware.vendor.as_deref().unwrap_or("nvidia")
    }

    /// Statements of the row that cannot all be true; `distrusted` are fields that its framework prints in another sense.
    pub fn contradiction(&self, distrusted: impl Fn(&str) -> bool) -> Option<String> {
        let (p, batch, m) = (&self.parallel, &self.batch, &self.measured);
        let count = self.hardware.count;
        // A degree of FSDP in words is what the others leave.
        let left_open = p.fsdp.as_ref().is_some_and(Value::is_string);
        if let (Some(dp), Some(count), false) = (degree(&p.dp), count, left_open) {
            let (tp, pp, cp) = (p.tp.unwrap_or(1), p.pp.unwrap_or(1), p.cp.unwrap_or(1));
            let ranks = product(&[dp, tp, pp, cp]);
            // Beside a degree of FSDP, it may count replicas (MaxText).
            let replicas = degree(&p.fsdp).map(|fsdp| product(&[dp, fsdp, tp, pp, cp]));
            if ranks != u128::from(count) && replicas != Some(u128::from(count)) && self.open().is_none() {
                return Some(format!("dp·tp·pp·cp = {dp}·{tp}·{pp}·{cp} = {ranks} but hardware.count = {count}"));
            }
        }
        if let (Some(ep), Some(pp), Some(count), Some(1..)) = (p.ep, p.pp, count, p.tp)
            && pp > 0
            && count / pp < ep
        {
            return Some(format!("parallel.ep = {ep} but a stage has hardware.count / pp = {count} / {pp} ranks"));
        }
        if let (Some(micro), Some(accumulation), Some(dp), Some(global)) =
            (whole(batch.micro_batch), batch.grad_accum, degree(&p.dp), whole(batch.global_batch))
            && product(&[micro, accumulation, dp]) != u128::from(global)
        {
            let sequences = product(&[micro, accumulation, dp]);
            return Some(format!(
                "micro_batch·grad_accum·dp = {micro}·{accumulation}·{dp} = {sequences} but global_batch = {global}"
            ));
        }
        let timed = m.step_time_s.or(m.tok_s_gpu).or(m.tok_s_total).or(m.seq_s).is_some();
        if m.oom == Some(true) && timed {
            return Some("the run is out of memory and yet has a step time".to_owned());
        }
        let (tokens, step) = (self.tokens()? as f64, m.step_time_s?);
        let rates = [
            ("measured.tok_s_gpu", m.tok_s_gpu.zip(count).map(|(rate, count)| rate * count as f64)),
            ("measured.tok_s_total", m.tok_s_total),
        ];
        for (name, rate) in rates {
            let Some(rate) = rate.filter(|rate| *rate > 0.0 && !distrusted(name)) else { continue };
            let implied = tokens / rate;
            if (implied / step - 1.0).abs() > AGREEMENT {
                return Some(format!(
                    "{name} and the batch make a step of {implied:.3} s but measured.step_time_s = {step}"
                ));
            }
        }
        None
    }
}

/// A product that no row makes overflow without notice.
fn product(factors: &[u64]) -> u128 {
    factors.iter().fold(1, |all, &factor| u128::saturating_mul(all, factor.into()))
}

/// How far two printed figures of one run may be apart: rounding, and windows over different steps.
const AGREEMENT: f64 = 0.05;
