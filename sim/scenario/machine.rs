//! The table `[topology]` as understood: the machine, its costs, and its network.

use std::path::Path;
use std::sync::Arc;

use toml::Spanned;

use super::entry::Runtime;
use super::error::ScenarioError;
use super::keys::Key;
use super::paths::relative;
use super::reader::Reader;
use super::written;
use crate::cost::clock::LEAST_LIMIT;
use crate::cost::{Backend, FLEX_OVER_FLASH2, Profile, Regime};
use crate::hardware::{Chip, Size, Topology, Vendor};
use crate::model::ModelConfig;
use crate::units::{Bandwidth, Power};

/// The topology, at its size.
pub(super) fn topology(
    reader: &Reader<'_>,
    written: &written::Topology,
    runtime: Runtime,
) -> Result<Topology, ScenarioError> {
    let size = match (&written.nodes, &written.slice, &written.chips) {
        (Some(nodes), None, None) => Size::Nodes(reader.count(&written::Topology::nodes, nodes)? as u32),
        (None, Some(slice), None) => Size::Slice(slice.get_ref().clone()),
        // Some chips of each node.
        (Some(nodes), None, Some(_)) => Size::Nodes(reader.count(&written::Topology::nodes, nodes)? as u32),
        (None, None, Some(_)) => Size::Nodes(1),
        (None, None, None) => {
            let problem = "the topology has no size";
            let remedy = "write nodes = 1 or chips = 4 (GPUs), or slice = \"4x4\" (TPUs)";
            return Err(reader.plan(&written.name, problem, remedy));
        }
        (_, slice, chips) => {
            let problem = "a topology is sized in nodes and chips of each, or as a slice, not both";
            let place = match (slice, chips) {
                (_, Some(chips)) => reader.place(chips),
                (Some(slice), _) => reader.place(slice),
                _ => reader.place(&written.name),
            };
            let remedy = "remove one of the two keys".to_owned();
            return Err(ScenarioError::Plan { code: None, problem: problem.to_owned(), place, remedy });
        }
    };
    let name = relative(reader.file, written.name.get_ref());
    let read = match reader.how.topology {
        Some(text) => Topology::parse(&name, text, &size),
        None => Topology::load(&name, &size),
    };
    let topology = read.map_err(|problem| ScenarioError::Topology {
        problem: Box::new(problem),
        place: reader.place(&written.name),
    })?;
    if !runtime.runs_on(topology.chip.vendor) {
        let (problem, remedy) = match runtime.vendor() {
            Vendor::Nvidia => (
                format!("{} is not a CUDA machine, and {} runs on CUDA GPUs", topology.name, runtime.name()),
                "name a GPU topology (`windtunnel topology list` shows them), or write runtime = \"xla\"",
            ),
            Vendor::Google => (
                format!("{} has no TPUs, and {} runs on TPUs", topology.name, runtime.name()),
                "name a TPU topology: `windtunnel topology list` shows them",
            ),
        };
        return Err(reader.plan(&written.name, problem, remedy));
    }
    if let Some(at) = &written.slices {
        let slices = reader.count(&written::Topology::slices, at)?;
        if written.slice.is_none() {
            return Err(reader.plan(at, "topology.slices without a slice", "write topology.slice = \"16x16\" too"));
        }
        return Ok(topology.times(slices as u32));
    }
    let Some(at) = &written.chips else { return Ok(topology) };
    let most = topology.node.chips;
    let chips = reader.count_within("topology.chips", at, 1, i64::from(most))?;
    Ok(topology.part(chips as u32))
}

/// What one GPU's NICs carry: its share of the node's cards, and no more than the network behind them.
pub(super) fn rail(
    reader: &mut Reader<'_>,
    written: &written::Topology,
    topology: &Topology,
) -> Result<Option<Bandwidth>, ScenarioError> {
    let shipped = topology.rail();
    let rail = match &written.nic_bandwidth {
        None => shipped,
        Some(at) if at.get_ref().0 > 0.0 => {
            let own = *at.get_ref();
            if topology.nodes > 1 && own.0 > 1.5 * shipped.0 {
                reader.note(format!(
                    "topology.nic_bandwidth = {own} is {:.1} times what one GPU of {} has. It is one GPU's share: four NICs of 400 \
                     Gbit/s for eight GPUs are \"25 GB/s\"",
                    own.0 / shipped.0,
                    topology.name
                ));
            }
            own
        }
        Some(at) => {
            let problem = "topology.nic_bandwidth is not above zero";
            return Err(reader.plan(at, problem, "write what one GPU's NICs carry one way, such as \"6.25 GB/s\""));
        }
    };
    Ok((topology.nodes > 1).then_some(rail))
}

/// The clocks that the chip runs at.
pub(super) fn regime(reader: &mut Reader<'_>, written: &written::Topology) -> Regime {
    match written.clocks {
        Some(written::Clocks::Burst) => Regime::Burst,
        Some(written::Clocks::Sustained) => Regime::Sustained,
        None => reader.assume("topology.clocks", Regime::Sustained, "sustained"),
    }
}

/// What each board may draw.
pub(super) fn power_limit(
    reader: &mut Reader<'_>,
    written: &written::Topology,
    chip: &Chip,
    profile: &Profile,
) -> Result<Option<Power>, ScenarioError> {
    const KEY: &Key = &written::Topology::power_limit;
    let Some(at) = &written.power_limit else {
        // A board that is known by its limit is not asked about.
        let asked =
            KEY.is_read_by(reader.framework) && !profile.is_limited() && written.clocks != Some(written::Clocks::Burst);
        return Ok(match chip.power.filter(|_| asked) {
            Some(own) => Some(reader.assume_for(KEY.path, own, own.to_string().as_str(), "the board's own")),
            None => chip.power,
        });
    };
    let limit = *at.get_ref();
    let Some(own) = chip.power else {
        let problem =
            format!("{} = {limit} without chip.power: {} does not say what its board draws", KEY.path, chip.name);
        return Err(reader.plan(at, problem, "write chip.power in the topology file, such as \"700 W\""));
    };
    let least = Power(LEAST_LIMIT * own.0);
    if !(least.0..=own.0).contains(&limit.0) {
        let problem = format!("{} = {limit} is out of range: {} draws {own}", KEY.path, chip.name);
        return Err(reader.plan(at, problem, format!("write {least} to {own}")));
    }
    if written.clocks == Some(written::Clocks::Burst) {
        reader.idle(KEY.path, "topology.clocks = \"burst\": boards run as before they reach a limit");
    }
    Ok(Some(limit))
}

/// The first compute capability of chips on which cuDNN's attention comes first: Hopper's.
const CUDNN_FIRST: f64 = 9.0;

/// Whose attention kernels PyTorch's `scaled_dot_product_attention` takes: cuDNN's first on compute capability 9 and 10 where
/// cuDNN is newer than 9.15 (`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`, `check_prefer_cudnn_attention`), which
/// wheels have from PyTorch 2.11 on; FlashAttention 2 before, and on other chips.
pub(super) fn pytorch_attention(topology: &Topology) -> (Backend, &'static str) {
    let on_hopper = "what PyTorch 2.11 and newer takes on this chip; before, \"flash2\"";
    cudnn_first(topology, on_hopper, "PyTorch's own kernels")
}

/// Whose attention kernels Transformer Engine takes: cuDNN's on Hopper and newer, FlashAttention before
/// (Transformer Engine 2.9, `pytorch/attention/dot_product_attention/utils.py:1118`).
pub(super) fn engine_attention(topology: &Topology) -> (Backend, &'static str) {
    cudnn_first(topology, "what Transformer Engine takes on Hopper and newer", "FlashAttention 2")
}

/// cuDNN's kernels on Hopper and newer, FlashAttention 2 before, each with why.
fn cudnn_first(topology: &Topology, on_hopper: &'static str, before: &'static str) -> (Backend, &'static str) {
    match topology.chip.compute_capability.is_some_and(|known| known >= CUDNN_FIRST) {
        true => (Backend::Cudnn, on_hopper),
        false => (Backend::Flash2, before),
    }
}

/// The attention kernels asked for must have been measured, or carried over, for this chip.
fn has(
    reader: &Reader<'_>,
    written: &written::Attention,
    profile: &Profile,
    backend: Backend,
) -> Result<(), ScenarioError> {
    match &written.backend {
        Some(at) if !profile.attention.has(backend) && !profile.attention.stands_in(backend) => {
            let known: Vec<String> = Backend::ALL
                .iter()
                .copied()
                .filter(|&backend| profile.attention.has(backend))
                .map(|backend| backend.name().to_owned())
                .collect();
            let problem = format!("the profile {} has no {} attention kernels", profile.name, backend.name());
            Err(reader.plan(at, problem, format!("write one it has: {}", known.join(", "))))
        }
        _ => Ok(()),
    }
}

/// Whose attention kernels run.
pub(super) fn attention(
    reader: &mut Reader<'_>,
    written: &written::Attention,
    profile: &Profile,
    (backend, why): (Backend, &str),
) -> Result<Backend, ScenarioError> {
    let attention = match &written.backend {
        Some(backend) => *backend.get_ref(),
        None if profile.attention.has(backend) => reader.assume_for("attention.backend", backend, backend.name(), why),
        None => {
            let problem =
                format!("{why}, and the profile {} has no {} attention kernels", profile.name, backend.name());
            reader.assume_for("attention.backend", Backend::Flash2, "flash2", problem)
        }
    };
    has(reader, written, profile, attention)?;
    if profile.attention.stands_in(attention) {
        let [forward, backward] = FLEX_OVER_FLASH2.map(|share| 100.0 * share);
        reader.note(format!(
            "the profile {} has no flex kernels: they take flash2's times at {forward} % of its rate forward and {backward} % \
             backward, as PyTorch measured on A100, give or take 20 %",
            profile.name
        ));
    }
    Ok(attention)
}

/// Whose kernels PyTorch's `scaled_dot_product_attention` runs, and whether their backward adds up in one order. Under
/// `torch.use_deterministic_algorithms` it takes no kernels of cuDNN's (`sdp_utils.cpp`, `check_cudnn_deterministic`).
pub(super) fn pytorch_kernels(
    reader: &mut Reader<'_>,
    written: &written::Attention,
    (topology, profile): (&Topology, &Profile),
    model: &ModelConfig,
) -> Result<(Backend, bool), ScenarioError> {
    let asked = written.deterministic.as_ref();
    let deterministic = reader.flag(&written::Attention::deterministic, asked.map(|at| *at.get_ref()));
    let Some(at) = asked.filter(|_| deterministic) else {
        return Ok((attention(reader, written, profile, pytorch_attention(topology))?, false));
    };
    let default = (Backend::Flash2, "under torch.use_deterministic_algorithms PyTorch takes no cuDNN attention");
    let attention = attention(reader, written, profile, default)?;
    if attention == Backend::Cudnn {
        let remedy = "write attention.backend = \"flash2\", or attention.deterministic = false";
        return Err(reader.plan(at, default.1, remedy));
    }
    in_order(reader, at, attention, model, "write attention.deterministic = false")?;
    reader.note(
        "attention.deterministic prices attention's backward; what torch.use_deterministic_algorithms changes in other \
         operators, and its fills of new memory, are not priced",
    );
    Ok((attention, true))
}

/// Refuses a deterministic backward that a library does not have, or that nobody has priced.
pub(super) fn in_order(
    reader: &Reader<'_>,
    at: &Spanned<bool>,
    attention: Backend,
    model: &ModelConfig,
    remedy: &str,
) -> Result<(), ScenarioError> {
    let problem = match attention {
        Backend::Flash3 if model.head_dim() >= 256 => {
            format!("FlashAttention 3 has no deterministic backward for a head dimension of {}", model.head_dim())
        }
        Backend::Flash1 | Backend::Triton | Backend::Splash | Backend::Tokamax => {
            format!("no deterministic backward of {} attention is known", attention.name())
        }
        Backend::Flash2 | Backend::Cudnn | Backend::Flash3 | Backend::Flex => return Ok(()),
    };
    Err(reader.plan(at, problem, format!("{remedy}, or another attention.backend")))
}

/// Refuses FlexAttention where a runtime's own modules call attention.
pub(super) fn no_flex(reader: &Reader<'_>, written: &written::Attention) -> Result<(), ScenarioError> {
    match &written.backend {
        Some(at) if *at.get_ref() == Backend::Flex => {
            let problem = "FlexAttention is simulated in PyTorch's own blocks: under fsdp2, fsdp1 and single_device";
            Err(reader.plan(at, problem, "write another attention.backend, or runtime = \"fsdp2\""))
        }
        _ => Ok(()),
    }
}

/// Its costs: the topology's own profile, or the one named.
pub(super) fn profile(
    reader: &Reader<'_>,
    written: &written::Topology,
    topology: &Topology,
) -> Result<Arc<Profile>, ScenarioError> {
    let at = written.profile.as_ref().unwrap_or(&written.name);
    let failed = |error| ScenarioError::Profile { problem: Box::new(error), place: reader.place(at) };
    match &written.profile {
        None => Profile::shared(&topology.profile).map_err(failed),
        Some(profile) => {
            let name = relative(reader.file, profile.get_ref());
            let own = || Profile::load(Path::new(&name)).map(Arc::new);
            if name.ends_with(".toml") { own() } else { Profile::shared(&name) }.map_err(failed)
        }
    }
}

/// Whether cuBLAS workspaces stay taken once used, where nobody asks for a release of PyTorch: before 2.15 they do
/// (`CublasHandlePool.cpp`; pytorch/pytorch#194311 gives each back unless `TORCH_CUBLAS_WORKSPACE_CACHE` is 1).
pub(super) fn keeps_workspaces(reader: &mut Reader<'_>, framework: &written::Framework) -> bool {
    let why = "PyTorch before 2.15; write false for 2.15 without TORCH_CUBLAS_WORKSPACE_CACHE=1";
    let written = framework.persistent_cublas_workspace;
    written.unwrap_or_else(|| reader.assume_for("framework.persistent_cublas_workspace", true, true, why))
}

/// Another release of cuBLAS than the one that the profile's matmuls were measured with.
pub(super) fn cublas(
    reader: &Reader<'_>,
    written: &written::Framework,
    profile: &Profile,
) -> Result<Option<usize>, ScenarioError> {
    let Some(at) = &written.cublas else { return Ok(None) };
    let named = profile.cublas.iter().position(|entry| entry.versions.contains(at.get_ref()));
    named.map(Some).ok_or_else(|| {
        let known: Vec<&str> = profile.cublas.iter().flat_map(|entry| &entry.versions).map(String::as_str).collect();
        let problem = format!("the profile {} knows nothing of cuBLAS {}", profile.name, at.get_ref());
        let remedy = match known[..] {
            [] => "leave framework.cublas out: the profile's own release is taken".to_owned(),
            _ => format!("leave it out for the profile's own release, or write one of: {}", known.join(", ")),
        };
        reader.plan(at, problem, remedy)
    })
}
