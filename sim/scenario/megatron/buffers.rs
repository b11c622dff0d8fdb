//! `megatron.tp_comm_overlap` and how its user buffers are configured (`--tp-comm-overlap-cfg`; `initialize_ub`,
//! `transformer_engine/pytorch/module/base.py`, 2.9), as understood.

use toml::Spanned;

use super::super::written;
use crate::hardware::Topology;
use crate::program::Kernel;
use crate::runtime::megatron::{Implementation, Overlap, Scatter};
use crate::scenario::assumption::Written;
use crate::scenario::change::Change;
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::written::{Megatron, TensorScatter};

const BULK: &str = "megatron.tp_comm_bulk_sm_margin";

/// Whether exchanges of tensor-parallel ranks run beside matmuls, and how.
pub(super) fn asked(
    reader: &mut Reader<'_>,
    table: &Megatron,
    (sequence_parallel, implementation): (bool, Implementation),
    (ranks, topology): (u32, &Topology),
) -> Result<Option<Overlap>, ScenarioError> {
    let written = table.tp_comm_overlap.as_ref().map(|at| *at.get_ref());
    let overlaps = reader.flag(&written::Megatron::tp_comm_overlap, written);
    let Some(at) = table.tp_comm_overlap.as_ref().filter(|_| overlaps) else {
        return means_nothing(reader, table).map(|()| None);
    };
    if ranks == 1 {
        let problem = "tp_comm_overlap hides exchanges of tensor-parallel ranks, and mesh.tp is 1";
        return Err(reader.plan(at, problem, "write megatron.tp_comm_overlap = false, or a larger mesh.tp"));
    }
    if !(sequence_parallel && implementation == Implementation::TransformerEngine) {
        let problem = "tp_comm_overlap hides Transformer Engine's gathers and scatters of a split sequence";
        let remedy = "write tensor_parallel.sequence = true and megatron.implementation = \"transformer_engine\"";
        return Err(reader.plan(at, problem, remedy));
    }
    let chips = topology.ranks_per_node();
    if !(ranks.is_power_of_two() && ranks <= chips) {
        let problem = format!(
            "tp_comm_overlap writes into memory of 2, 4, 8, ... ranks that one switch joins: mesh.tp is {ranks}, and a node has \
             {chips} chips"
        );
        return Err(reader.plan(at, problem, "write another mesh.tp, or megatron.tp_comm_overlap = false"));
    }
    let margin = table.tp_comm_bulk_sm_margin.as_ref().map(|at| *at.get_ref());
    let of_engine = Overlap::default();
    Ok(Some(Overlap {
        bulk_margin: reader.flag_or(BULK, margin, of_engine.bulk_margin),
        proj: scatter(reader, ("megatron.tp_comm_proj_fprop", &table.tp_comm_proj_fprop), of_engine.proj)?,
        fc2: scatter(reader, ("megatron.tp_comm_fc2_fprop", &table.tp_comm_fc2_fprop), of_engine.fc2)?,
    }))
}

fn scatter(
    reader: &mut Reader<'_>,
    (key, written): (&str, &Option<Spanned<TensorScatter>>),
    otherwise: Scatter,
) -> Result<Scatter, ScenarioError> {
    let Some(at) = written else { return Ok(reader.assume(key, otherwise, said(otherwise))) };
    match *at.get_ref() {
        TensorScatter::RingExchange => Ok(Scatter::Ring),
        TensorScatter::Pipeline(0) => Ok(Scatter::Pipeline(0)),
        TensorScatter::Pipeline(processors) => match Kernel::leaves().find(|&leaves| i64::from(leaves) == processors) {
            Some(leaves) => Ok(Scatter::Pipeline(leaves)),
            None => {
                let mut known: Vec<u8> = Kernel::leaves().collect();
                known.sort_unstable();
                let problem = format!("{key} has {processors} processors (num_sm)");
                let remedy = format!("write one of {known:?}, 0 without set_sm_margin, or \"ring_exchange\"");
                Err(reader.plan(at, problem, remedy))
            }
        },
    }
}

fn said(scatter: Scatter) -> Written {
    match scatter {
        Scatter::Pipeline(processors) => Written::Keys(vec![("pipeline".to_owned(), i64::from(processors).into())]),
        Scatter::Ring => "ring_exchange".into(),
    }
}

/// Without exchanges beside matmuls, how they are configured says nothing.
fn means_nothing(reader: &Reader<'_>, table: &Megatron) -> Result<(), ScenarioError> {
    let remedy = |key: &str| {
        let overlap = Change::set("megatron.tp_comm_overlap", true);
        let beside = match reader.reading([&overlap])[..] {
            [] => (
                Change::set("tensor_parallel.sequence", true).and(overlap),
                "write tensor_parallel.sequence = true and megatron.tp_comm_overlap = true",
            ),
            _ => (overlap, "write megatron.tp_comm_overlap = true"),
        };
        reader.remedy(&[beside, (Change::remove(&format!("megatron.{key}")), "remove the key")])
    };
    let problem = |key: &str| format!("{key} is about exchanges that overlap with matmuls, and there are none");
    if let Some(at) = &table.tp_comm_bulk_sm_margin {
        return Err(reader.plan(at, problem("tp_comm_bulk_sm_margin"), remedy("tp_comm_bulk_sm_margin")));
    }
    let scatters = [("tp_comm_proj_fprop", &table.tp_comm_proj_fprop), ("tp_comm_fc2_fprop", &table.tp_comm_fc2_fprop)];
    match scatters.into_iter().find_map(|(key, written)| Some((key, written.as_ref()?))) {
        Some((key, at)) => Err(reader.plan(at, problem(key), remedy(key))),
        None => Ok(()),
    }
}
