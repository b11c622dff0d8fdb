//! What the precision-aware optimizer keeps of its master parameters (`optimizer/optimizer_config.py`, core_v0.16.1).

use crate::program::DType;
use crate::runtime::megatron::{Fp8Recipe, Matmuls, Optimizer};
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::written;

/// `store_param_remainders`: 2 bytes of each master, unless the file says otherwise, wherever Transformer Engine keeps
/// masters in fp32 of parameters in bf16. A moment in less than fp32, or the key itself, says that the optimizer is
/// precision-aware.
pub(super) fn remainders(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    optimizer: Optimizer,
    (dtype, matmuls): (DType, Matmuls),
) -> Result<Optimizer, ScenarioError> {
    const KEY: &str = "megatron.store_param_remainders";
    let engines = match matmuls {
        Matmuls::Fp8 { recipe, parameters, .. } => recipe == Fp8Recipe::Delayed && !parameters,
        _ => true,
    };
    let lacks = [
        (
            optimizer.distributed,
            "the precision-aware optimizer is distributed",
            "megatron.distributed_optimizer = true",
        ),
        (dtype == DType::Bf16, "parameters are not in bf16", "precision.param = \"bf16\""),
        (optimizer.master == DType::Fp32, "masters are not in fp32", "megatron.main_params_dtype = \"fp32\""),
        (
            engines,
            "Megatron-Core keeps the masters beside this fp8 itself, in fp32",
            "megatron.fp8 = \"delayed\" alone",
        ),
    ];
    let lacks = lacks.into_iter().find(|(has, ..)| !has);
    let narrow = [optimizer.first_moment, optimizer.second_moment].iter().any(|&moment| moment != DType::Fp32);
    let remainders = match (&table.store_param_remainders, lacks) {
        (Some(at), Some((_, why, instead))) if *at.get_ref() => {
            let problem = format!("store_param_remainders keeps the lower half of fp32 masters, and {why}");
            return Err(reader.plan(at, problem, format!("write {instead}, or remove the key")));
        }
        (Some(at), _) => *at.get_ref(),
        (None, None) if narrow => reader.assume_for(KEY, true, true, "Transformer Engine 2.1 and later"),
        (None, _) => false,
    };
    Ok(Optimizer { remainders, ..optimizer })
}
