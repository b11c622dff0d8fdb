//! What kind of run it is, as far as that says how far predictions of such runs have been off.

use serde::{Deserialize, Serialize};

use crate::hardware::Vendor;
use crate::program::DType;
use crate::runtime::Parts;
use crate::scenario::understood::Scenario;

/// What a run has in common with those that predictions erred on alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Kind {
    /// The framework, as a scenario writes it; XLA on GPUs apart.
    pub framework: String,
    /// The machine's topology, which names the chip.
    pub machine: String,
    /// How ranks share the work: `one` device, `data` parallelism alone, or the `model` itself is split.
    pub parallelism: String,
    /// `dense` or `experts`.
    pub blocks: String,
    /// `16-bit` or `8-bit` matmuls.
    pub matmuls: String,
    /// `one` node or slice, or `several`.
    pub nodes: String,
}

/// XLA on GPUs, which has kernels of its own.
const XLA_ON_GPUS: &str = "xla on GPUs";

/// Matmuls in fp8 or int8.
pub(super) const EIGHT: &str = "8-bit";

impl Kind {
    /// The names of its parts, in the order of [`Kind::parts`].
    pub const PARTS: [&'static str; 6] = ["framework", "machine", "parallelism", "blocks", "matmuls", "nodes"];

    /// The kind of a scenario.
    pub fn of(scenario: &Scenario) -> Kind {
        let (job, topology) = (&scenario.job, &scenario.topology);
        let (split, eight) = match job.parts() {
            Parts::Whole(job) => {
                let split = job.tensor.ranks > 1 || job.context > 1 || job.pipeline.is_some();
                (split, job.float8.is_some())
            }
            Parts::Split(split) => {
                let mesh = split.mesh;
                (mesh.tp * mesh.cp * mesh.pp > 1, job.dtype() == DType::Fp8)
            }
            Parts::Compiled(job) => {
                let mesh = job.mesh;
                (mesh.tensor * mesh.context * mesh.pipeline * mesh.dcn_pipeline > 1, job.quantization.is_some())
            }
        };
        let parallelism = match job.ranks() {
            1 => "one",
            _ if split => "model",
            _ => "data",
        };
        // A slice of a torus is one fabric however many hosts it has.
        let several = match topology.chip.vendor {
            Vendor::Google => topology.slices() > 1,
            Vendor::Nvidia => topology.nodes > 1,
        };
        Kind {
            framework: match (job.parts(), topology.chip.vendor) {
                (Parts::Compiled(_), Vendor::Nvidia) => XLA_ON_GPUS,
                _ => scenario.runtime.written(),
            }
            .to_owned(),
            machine: topology.name.clone(),
            parallelism: parallelism.to_owned(),
            blocks: if job.model().experts().is_some() { "experts" } else { "dense" }.to_owned(),
            matmuls: if eight { EIGHT } else { "16-bit" }.to_owned(),
            nodes: if several { "several" } else { "one" }.to_owned(),
        }
    }

    /// Whether times of another library's kernels stand in for those that run: XLA's on GPUs are priced as PyTorch's.
    pub(super) fn stands_in(&self) -> bool {
        self.framework == XLA_ON_GPUS
    }

    /// What it is, in the field's words.
    pub fn words(&self) -> String {
        let parallelism = match self.parallelism.as_str() {
            "one" => "one device",
            "model" => "the model split over ranks",
            _ => "data parallel",
        };
        let layers = if self.blocks == "dense" { "dense layers" } else { "experts" };
        let nodes = if self.nodes == "one" { "one node" } else { "several nodes" };
        format!("{} on {}, {parallelism}, {layers}, {} matmuls, {nodes}", self.framework, self.machine, self.matmuls)
    }

    /// Its parts, in the order of [`Kind::PARTS`].
    pub fn parts(&self) -> [&str; 6] {
        [&self.framework, &self.machine, &self.parallelism, &self.blocks, &self.matmuls, &self.nodes]
    }
}
