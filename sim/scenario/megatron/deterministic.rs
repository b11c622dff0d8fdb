//! `megatron.deterministic_mode` (`--deterministic-mode`; `megatron/training/arguments.py` and, later, `determinism.py`).
//!
//! Megatron asks for `NVTE_ALLOW_NONDETERMINISTIC_ALGO=0`, under which Transformer Engine's attention adds up in one order, and
//! refuses a fused loss and user buffers. What else it does is not priced: `NCCL_ALGO=Ring`, embeddings by an index in
//! place of `F.embedding` (`core/tensor_parallel/layers.py`), PyTorch's own deterministic operators, and the NaN with which
//! PyTorch fills what `torch.empty` returns (`torch.utils.deterministic.fill_uninitialized_memory`).

use crate::cost::Backend;
use crate::model::ModelConfig;
use crate::runtime::megatron::Engine;
use crate::scenario::error::ScenarioError;
use crate::scenario::machine;
use crate::scenario::reader::Reader;
use crate::scenario::written;

const REMEDY: &str = "write megatron.deterministic_mode = false";

/// Whether it is on.
pub(super) fn asked(
    reader: &mut Reader<'_>,
    (scenario, table): (&written::Scenario, &written::Megatron),
    (attention, model): (Backend, &ModelConfig),
    engine: Engine,
) -> Result<bool, ScenarioError> {
    let written = table.deterministic_mode.as_ref();
    if engine == Engine::DeepSpeed {
        let problem = "Megatron-DeepSpeed has no deterministic mode";
        return written.map_or(Ok(false), |at| Err(reader.plan(at, problem, "remove megatron.deterministic_mode")));
    }
    let on = reader.flag(&written::Megatron::deterministic_mode, written.map(|at| *at.get_ref()));
    let Some(at) = written.filter(|_| on) else { return Ok(false) };
    let overlaps = table.tp_comm_overlap.as_ref().is_some_and(|at| *at.get_ref());
    for (given, key) in [
        (table.cross_entropy_loss_fusion == Some(true), "megatron.cross_entropy_loss_fusion"),
        (overlaps, "megatron.tp_comm_overlap"),
    ] {
        if given {
            let problem = format!("Megatron refuses --deterministic-mode with {key}");
            return Err(reader.plan(
                at,
                problem,
                format!("write {key} = false, or megatron.deterministic_mode = false"),
            ));
        }
    }
    let shares = scenario.mesh.get_ref().cp.as_ref().is_some_and(|at| *at.get_ref() > 1);
    if shares && attention == Backend::Flash2 {
        let problem = "FlashAttention 2's deterministic backward is not yet simulated with mesh.cp above 1";
        return Err(reader.plan(at, problem, format!("{REMEDY}, or mesh.cp = 1")));
    }
    machine::in_order(reader, at, attention, model, REMEDY)?;
    reader.note(
        "megatron.deterministic_mode prices attention's backward; NCCL_ALGO=Ring, embeddings by index and PyTorch's other \
         deterministic operators are not priced");
    Ok(true)
}
