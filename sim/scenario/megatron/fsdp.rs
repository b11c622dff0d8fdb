//! Megatron-FSDP as understood: what it asks of the rest of a file, and what of it is not simulated
//! (`megatron/training/arguments.py`, `core/distributed/fsdp`, 0.16.1).

use toml::Spanned;

use crate::model::ModelConfig;
use crate::program::DType;
use crate::runtime::megatron::{
    Engine, Fsdp, Gradients, Matmuls, MegatronPlan, Mesh, Optimizer, Strategy, refuses, unfit, unit_size,
};
use crate::scenario::change::Change;
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::written;

/// Whether weight gradients are added by the matmuls that make them.
pub(super) const FUSION: &str = "megatron.gradient_accumulation_fusion";

/// The key that turns it on.
type Key<'t> = &'t Spanned<bool>;

/// The key, if it is on and the model and the mesh go with it.
pub(super) fn asked<'t>(
    reader: &mut Reader<'_>,
    (scenario, table): (&'t written::Scenario, &'t written::Megatron),
    (model, mesh, engine): (&ModelConfig, Mesh, Engine),
    (virtual_stages, matmuls, dtype): (u32, Matmuls, DType),
) -> Result<Option<Key<'t>>, ScenarioError> {
    let Some(key) = table.use_megatron_fsdp.as_ref().filter(|key| *key.get_ref()) else {
        let strategy =
            table.data_parallel_sharding_strategy.as_ref().map(|at| ("data_parallel_sharding_strategy", at.span()));
        let size = table.suggested_communication_unit_size.as_ref();
        let size = size.map(|at| ("suggested_communication_unit_size", at.span()));
        let buffer = table.fsdp_double_buffer.as_ref().map(|at| ("fsdp_double_buffer", at.span()));
        let group = table.create_all_gather_group.as_ref().map(|at| ("create_all_gather_group", at.span()));
        return match strategy.or(size).or(buffer).or(group) {
            None => Ok(None),
            Some((name, place)) => {
                let problem = format!("megatron.{name} is Megatron-FSDP's, which is not used");
                let remedy = match engine {
                    Engine::Core => reader.remedy(&[
                        (Change::set("megatron.use_megatron_fsdp", true), "write megatron.use_megatron_fsdp = true"),
                        (Change::remove(&format!("megatron.{name}")), &format!("remove megatron.{name}")),
                    ]),
                    Engine::DeepSpeed => format!("remove {name}"),
                };
                Err(reader.plan(&Spanned::new(place, ()), problem, remedy))
            }
        };
    };
    let one_queue = scenario.framework.device_max_connections.as_ref().filter(|at| *at.get_ref() == 1);
    if let Some(at) = one_queue {
        let problem = "Megatron-FSDP does not start with CUDA_DEVICE_MAX_CONNECTIONS = 1";
        return Err(reader.plan(at, problem, "write framework.device_max_connections = 8, which is CUDA's default"));
    }
    let refuse = |problem: String, remedy: &str| {
        Err(reader.plan(key, problem, format!("{remedy}, or remove megatron.use_megatron_fsdp")))
    };
    if let Some(unfit) = unfit((engine, mesh.pp * virtual_stages), model, (matmuls, dtype)) {
        let remedy = unfit.remedy.as_deref().unwrap_or_default();
        return refuse(format!("{} is not simulated", unfit.problem), remedy);
    }
    if mesh.dp * mesh.cp == 1 {
        let problem = "Megatron-FSDP of one replica has nobody to share with";
        return refuse(problem.to_owned(), "take more chips, or less of mesh.tp");
    }
    if table.distributed_optimizer != Some(true) {
        let problem = "Megatron-FSDP steps its parts in the distributed optimizer alone: any other looks for main gradients that \
                       they do not have";
        return refuse(problem.to_owned(), "write megatron.distributed_optimizer = true");
    }
    Ok(Some(key))
}

/// Whether weight gradients are added by the matmuls that make them. Megatron-FSDP has the head's written by
/// `torch.matmul(out=…)` (`core/tensor_parallel/layers.py`), which takes no other type than the operands'.
pub(super) fn fuses(reader: &mut Reader<'_>, table: &written::Megatron, key: Key<'_>) -> Result<bool, ScenarioError> {
    let written = table.gradient_accumulation_fusion;
    if written == Some(true) {
        let problem = if table.grad_reduce_in_fp32 == Some(false) {
            "Megatron-FSDP with gradient_accumulation_fusion is not simulated"
        } else {
            "with gradient_accumulation_fusion Megatron-FSDP has a bf16 matmul write to gradients in fp32, which PyTorch refuses"
        };
        return Err(reader.plan(key, problem, "write megatron.gradient_accumulation_fusion = false"));
    }
    Ok(reader.flag_or(FUSION, written, false))
}

/// What the keys say, given what has been decided of gradients and the optimizer. How much is gathered ahead is decided with
/// the job ([`unit`]).
pub(super) fn settings(
    reader: &mut Reader<'_>,
    (table, key): (&written::Megatron, Key<'_>),
    (gradients, optimizer): (Gradients, Optimizer),
) -> Result<Fsdp, ScenarioError> {
    const STRATEGY: &str = "megatron.data_parallel_sharding_strategy";
    let strategy = match &table.data_parallel_sharding_strategy {
        None => reader.assume(STRATEGY, Strategy::Whole, "no_shard"),
        Some(at) => match at.get_ref() {
            written::Strategy::NoShard => Strategy::Whole,
            written::Strategy::Optim => Strategy::Optimizer,
            written::Strategy::OptimGrads => Strategy::Gradients,
            written::Strategy::OptimGradsParams => Strategy::Parameters,
        },
    };
    if strategy == Strategy::Whole && !(gradients.overlap_reduce && optimizer.overlap_gather) {
        let problem = "under no_shard Megatron-FSDP reduces gradients beside the last backward or not at all, and gathers \
                       parameters that it has not put together unless the next forward is to";
        let remedy = "megatron.overlap_grad_reduce = true and megatron.overlap_param_gather = true";
        return Err(match &table.data_parallel_sharding_strategy {
            Some(at) => reader.plan(at, problem, format!("write {remedy}")),
            None => {
                let problem = format!("use_megatron_fsdp without {STRATEGY} is no_shard, and {problem}");
                reader.plan(key, problem, format!("write {STRATEGY} = \"optim_grads_params\", or {remedy}"))
            }
        });
    }
    let narrow = [optimizer.master, optimizer.first_moment, optimizer.second_moment];
    if optimizer.remainders || narrow.iter().any(|dtype| *dtype != DType::Fp32) {
        let problem = "Megatron-FSDP with main weights or moments in less than fp32 is not simulated";
        let remedy = "remove megatron.main_params_dtype, exp_avg_dtype, exp_avg_sq_dtype and store_param_remainders";
        return Err(reader.plan(key, problem, remedy));
    }
    let buffer = table.fsdp_double_buffer.as_ref().map(|at| *at.get_ref());
    let group = table.create_all_gather_group.as_ref().map(|at| *at.get_ref());
    Ok(Fsdp {
        strategy,
        unit_size: 0,
        double_buffer: reader.flag_or("megatron.fsdp_double_buffer", buffer, false),
        gather_group: reader.flag_or("megatron.create_all_gather_group", group, false),
    })
}

/// How much is gathered ahead and may wait.
pub(super) fn unit(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    job: &mut MegatronPlan,
) -> Result<(), ScenarioError> {
    const KEY: &str = "megatron.suggested_communication_unit_size";
    let Some(fsdp) = job.fsdp else { return Ok(()) };
    let size = match &table.suggested_communication_unit_size {
        Some(at) => reader.count(&written::Megatron::suggested_communication_unit_size, at)?,
        // What has no rules is refused before it is asked.
        None if refuses(job).is_some() => fsdp.unit_size,
        None => {
            let size = unit_size(job, fsdp.strategy);
            reader.assume(KEY, size, size)
        }
    };
    job.fsdp = Some(Fsdp { unit_size: size, ..fsdp });
    Ok(())
}
