//! What a file says of attention on TPUs, and whether the compiler takes its kernel.

use toml::Spanned;

use super::super::error::ScenarioError;
use super::super::reader::Reader;
use super::super::written::{self, XlaAttention};
use crate::cost::{Backend, Blocks};
use crate::hardware::Topology;
use crate::plan::xla::vmem::{Kernel, Vmem};
use crate::runtime::spmd::{Attention, XlaPlan};
use crate::units::Bytes;

/// What `DENSE_VMEM_LIMIT_FLAG` lets a kernel have.
const RAISED: Bytes = Bytes(96 << 20);

/// How attention is computed on TPUs.
pub(super) fn attention(reader: &mut Reader<'_>, table: &written::Xla) -> Result<Attention, ScenarioError> {
    if let Some(at) = &table.attention {
        match at.get_ref() {
            XlaAttention::DotProduct => return Ok(Attention::DotProduct),
            XlaAttention::Flash => {}
            XlaAttention::CudnnFlashTe | XlaAttention::CudnnFlashJax => {
                let problem = "cuDNN's attention runs on GPUs, and this is a TPU";
                return Err(reader.plan(at, problem, "write attention = \"flash\""));
            }
        }
    } else {
        reader.assume("xla.attention", (), "flash");
    }
    let fused = table.sa_use_fused_bwd_kernel.as_ref().map(|at| *at.get_ref());
    let fused_backward = reader.flag(&written::Xla::sa_use_fused_bwd_kernel, fused);
    let block = reader.count_or(&written::Xla::sa_block_size, table.sa_block_size.as_ref(), 512)?;
    Ok(Attention::Splash { fused_backward, block })
}

/// Whose kernels of attention run on TPUs, and how large their blocks are.
pub(super) fn splash(
    reader: &mut Reader<'_>,
    (table, topology): (&written::Xla, &Topology),
    job: &XlaPlan,
) -> Result<(Backend, Option<Blocks>), ScenarioError> {
    let blocks = blocks(job.attention);
    let tokamax = table.use_tokamax_splash.as_ref().map(|at| *at.get_ref());
    let tokamax = reader.flag(&written::Xla::use_tokamax_splash, tokamax);
    if let Some(blocks) = blocks.filter(|_| !tokamax) {
        fast_memory(reader, (table, topology), (job, blocks))?;
    }
    Ok((if tokamax { Backend::Tokamax } else { Backend::Splash }, blocks))
}

/// How its kernel is cut, where it is told.
pub(super) fn blocks(attention: Attention) -> Option<Blocks> {
    match attention {
        Attention::Splash { fused_backward, block } => Some(Blocks { size: block, fused: fused_backward }),
        Attention::DotProduct | Attention::Cudnn { .. } => None,
    }
}

/// Whether the compiler takes the kernel with such blocks: it has a limit for what one kernel may hold of VMEM.
fn fast_memory(
    reader: &mut Reader<'_>,
    (table, topology): (&written::Xla, &Topology),
    (job, blocks): (&XlaPlan, Blocks),
) -> Result<(), ScenarioError> {
    let Some(vmem) = Vmem::of(&topology.name) else { return Ok(()) };
    let limit = job.flags.scoped_vmem_kib.map_or(vmem.limit(), |kib| Bytes(kib.saturating_mul(1 << 10)));
    let backward = if blocks.fused { Kernel::FusedBackward } else { Kernel::Backward };
    // A block is no longer than the sequence.
    let size = blocks.size.min(job.seq);
    let taken =
        |size: u64| [Kernel::Forward, backward].map(|kernel| (kernel, vmem.splash(kernel, size, job.model.head_dim())));
    let [_, (_, most)] = taken(size);
    let Some((kernel, over)) = taken(size).into_iter().find(|(_, taken)| taken.least > limit) else {
        if most.most > limit {
            reader.note(format!(
                "Attention's backward takes {} to {} of VMEM in blocks of {size}, and the compiler lets a kernel have {limit}: \
                 `windtunnel compile-check` does not see into the kernel.",
                most.least, most.most
            ));
        }
        return Ok(());
    };
    let name = if kernel == Kernel::Forward { "forward" } else { "backward" };
    let problem = format!(
        "attention's {name} takes {} of VMEM at least in blocks of {size}, and the compiler lets a kernel have {limit} \
         (CompileTimeScopedVmemOom)",
        over.least
    );
    let all_fit = |size: u64, limit: Bytes| taken(size).iter().all(|(_, taken)| taken.most <= limit);
    let raised =
        all_fit(size, RAISED).then(|| "\"DENSE_VMEM_LIMIT_FLAG\" in xla.flags, which allows 96 MiB".to_owned());
    let smaller = (7..size.ilog2()).rev().map(|shift| 1_u64 << shift).find(|&size| all_fit(size, limit));
    let smaller = smaller.map(|size| format!("xla.sa_block_size = {size}"));
    let ways: Vec<String> = raised.into_iter().chain(smaller).collect();
    let remedy = match &ways[..] {
        [] => "write xla.attention = \"dot_product\"".to_owned(),
        ways => format!("write {}", ways.join(", or ")),
    };
    match &table.sa_block_size {
        Some(at) => Err(reader.plan(at, problem, remedy)),
        None => Err(reader.plan(&Spanned::new(0..0, ()), problem, remedy)),
    }
}
