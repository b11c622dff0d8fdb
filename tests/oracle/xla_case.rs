//! Training steps that XLA's TPU compiler has compiled or refused (`oracles/xla_steps.json`, by `oracles/xla_step.py`), as
//! scenarios.

use std::path::Path;

use serde::Deserialize;
use windtunnel::scenario::Scenario;

/// Bytes that libtpu 0.0.42.1 gives to a program on v6e (what it says when one has more).
pub const LIMIT: f64 = 33_550_237_184.0;

#[derive(Deserialize)]
pub struct Step {
    pub name: String,
    pub case: Case,
    /// What the compiler said instead of compiling it.
    pub refused: Option<String>,
    #[serde(default)]
    pub argument: u64,
    #[serde(default)]
    pub peak: u64,
    #[serde(default)]
    pub collectives: Vec<Ran>,
    #[serde(default)]
    pub matmul_flops: Option<f64>,
}

#[derive(Clone, Deserialize)]
pub struct Case {
    pub d: u64,
    pub ff: u64,
    pub h: u64,
    pub kv: u64,
    pub vocab: u64,
    pub layers: u64,
    pub batch: u64,
    pub seq: u64,
    pub mesh: [u64; 2],
    pub topo: String,
    pub remat: String,
    pub attention: String,
    #[serde(default)]
    pub clip: bool,
    #[serde(default)]
    pub iota: bool,
    #[serde(default)]
    pub loss: String,
    pub scan: Option<bool>,
    #[serde(default)]
    pub tiling: u64,
    /// Experts; 0: none.
    #[serde(default)]
    pub experts: u64,
    /// Experts of each token.
    #[serde(default)]
    pub top_k: u64,
    /// Places of experts over tokens sent; none where rows are sorted.
    pub capacity: Option<f64>,
    /// Chips of the expert axis.
    pub expert: Option<u64>,
    /// Whether tokens are sent over it.
    #[serde(default)]
    pub sent: bool,
    /// Chips of the stage axis.
    pub stage: Option<u64>,
    /// Micro-batches of the pipeline.
    #[serde(default)]
    pub micro_batches: u64,
    /// How often they go around.
    #[serde(default)]
    pub repeats: u64,
    /// Blocks of a stage.
    pub per_stage: Option<u64>,
    /// Whether what is sent takes an iteration on its way.
    #[serde(default)]
    pub delay: bool,
    /// Whether weights are gathered once.
    #[serde(default)]
    pub once: bool,
    /// Whether chips with other tokens are replicas.
    #[serde(default)]
    pub replicas: bool,
}

impl Step {
    /// Bytes that a refused step needs, as the compiler says.
    pub fn needs(&self) -> Option<f64> {
        let (_, said) = self.refused.as_ref()?.split_once("HLO temporaries (")?;
        said.split_once("G)")?.0.parse().ok().map(|gib: f64| gib * f64::from(1 << 30))
    }
}

/// Those that were compiled.
pub fn steps() -> Vec<Step> {
    all().into_iter().filter(|step| step.refused.is_none()).collect()
}

pub fn all() -> Vec<Step> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/xla_steps.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

impl Case {
    /// Tokens of a chip.
    pub fn own_tokens(&self) -> u64 {
        self.sequences() * self.seq
    }

    /// Sequences of a chip.
    fn sequences(&self) -> u64 {
        self.batch / self.shards() / self.stage.unwrap_or(1)
    }

    /// Iterations of the pipeline's loop, with stages.
    pub fn iterations(&self) -> Option<u64> {
        let wasted = (self.stage? - 1) * if self.delay { 2 } else { 1 };
        Some(self.micro_batches * self.repeats + wasted)
    }

    /// Bytes of a chip's part of a micro-batch, with stages.
    pub fn part(&self) -> Option<u64> {
        self.stage.map(|_| 2 * self.batch / self.micro_batches / self.shards() * self.seq * self.d)
    }

    /// What the lane is told of a pipeline.
    fn pipeline(&self) -> String {
        if self.stage.is_none() {
            return String::new();
        }
        format!(
            "num_pipeline_microbatches = {}\nnum_pipeline_repeats = {}\nnum_layers_per_pipeline_stage = {}\n\
             pipeline_delay_activation_forwarding = {}\npipeline_fsdp_ag_once = {}\n",
            self.micro_batches,
            self.repeats,
            self.per_stage.unwrap_or(1),
            self.delay,
            self.once
        )
    }

    /// Chips that a weight of a block's first half lies on, and that have tokens of their own.
    pub fn shards(&self) -> u64 {
        self.mesh[0] * self.expert.unwrap_or(1)
    }

    /// The model's table.
    fn model(&self) -> String {
        match self.experts {
            8 => format!("huggingface = \"xla-mixtral.json\"\nlayers = {}\n", self.layers),
            _ => format!(
                "name = \"llama-3.1-8b\"\nlayers = {}\nhidden = {}\nheads = {}\nkv_heads = {}\nffn = {}\nvocab = {}\n",
                self.layers, self.d, self.h, self.kv, self.ff, self.vocab
            ),
        }
    }

    /// What the lane is told of experts.
    fn experts(&self) -> String {
        let exchange = if self.sent { "tokens" } else { "weights" };
        let exchange = self.expert.map(|_| format!("expert_exchange = \"{exchange}\"\n")).unwrap_or_default();
        self.capacity.map(|factor| format!("capacity_factor = {factor}\n{exchange}")).unwrap_or_default()
    }

    /// The scenario of the same step.
    pub fn scenario(&self) -> Scenario {
        let tensors = |list: &str, keep: &str| list.split(',').map(|name| format!("{name} = {keep:?}\n")).collect();
        let (policy, kept): (&str, String) = match self.remat.split_once(':') {
            None if self.remat == "dots" => ("minimal", String::new()),
            None => (&self.remat, String::new()),
            Some(("names", list)) => ("custom", tensors(list, "device")),
            Some((_, list)) => ("custom", tensors(list, "offload")),
        };
        let attention = if self.attention == "splash" { "flash" } else { "dot_product" };
        let text = format!(
            "runtime = \"xla\"\n[topology]\nname = \"tpu-v6e\"\nslice = \"{}\"\n\
             [model]\n{}[mesh]\npipeline = {}\ndata = {}\nfsdp = {}\nexpert = {}\ntensor = {}\n[batch]\nsequence = {}\nmicro = {}\n\
             [xla]\nremat_policy = \"{policy}\"\nattention = \"{attention}\"\ngradient_clipping = {}\nuse_iota_embed = {}\n\
             targets = \"{}\"\nscan_layers = {}\nnum_vocab_tiling = {}\nactivation_embed = false\nnorm_by_product = true\nfloat32_qk_product = true\nflags = []\n{}{}{kept}",
            self.topo.trim_start_matches("v6e:"),
            self.model(),
            self.stage.unwrap_or(1),
            if self.replicas { self.mesh[0] } else { 1 },
            if self.replicas { 1 } else { self.mesh[0] },
            self.expert.unwrap_or(1),
            self.mesh[1],
            self.seq,
            self.sequences(),
            self.clip,
            self.iota,
            if self.loss == "maxtext" { "one_hot" } else { "indexed" },
            self.scan.unwrap_or(true),
            self.tiling.max(1),
            self.experts(),
            self.pipeline(),
        );
        Scenario::parse("tests/oracles/case.toml", &text).unwrap()
    }
}

/// A collective of a compiled step, as often as a step runs it.
#[derive(Clone, Deserialize)]
pub struct Ran {
    pub kind: String,
    pub bytes: u64,
    pub count: u64,
    /// Ranks between neighbours of a group, where there are three axes.
    pub stride: Option<u64>,
    /// Pairs of a permute that is no ring of all chips.
    pub pairs: Option<u64>,
}
