//! `megatron.get_batch` as understood: how micro-batches reach the ranks.

use super::super::written;
use super::deepspeed;
use crate::runtime::megatron::{Engine, Loader, Mesh};
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::written::Megatron;

const KEY: &str = "megatron.get_batch";
const MASK: &str = "megatron.create_attention_mask_in_dataloader";

/// Whose it is: NeMo's and Megatron-Bridge's, or Megatron-LM's of 2021, of 2023, from 2024 on, and of 0.16 and 0.17.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GetBatch {
    EachRank,
    Everywhere,
    SizesFirst,
    Broadcast,
    Lengths,
}

impl GetBatch {
    /// That of a release ("0.12", "2.5"). Megatron-LM was at 3.0 before Megatron-Core began at 0.1.
    fn of(written: &str) -> Option<GetBatch> {
        if written == "each_rank" {
            return Some(GetBatch::EachRank);
        }
        let mut numbers = written.split('.').map(|number| number.parse::<u32>().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        match (major, minor) {
            (0, 0) => None,
            (0, 4) => Some(GetBatch::SizesFirst),
            (0, 5..=15 | 18..) => Some(GetBatch::Broadcast),
            (0, 16 | 17) => Some(GetBatch::Lengths),
            (0..=3, _) => Some(GetBatch::Everywhere),
            _ => None,
        }
    }
}

/// Whose loader it is. DeepSpeed's pipeline engine has its own.
pub(super) fn loader(
    reader: &mut Reader<'_>,
    table: &Megatron,
    (engine, mesh): (Engine, Mesh),
) -> Result<Loader, ScenarioError> {
    let mask = &table.create_attention_mask_in_dataloader;
    if engine == Engine::DeepSpeed {
        return deepspeed::loads(reader, table).map(|()| Loader::There);
    }
    let whose = match &table.get_batch {
        Some(at) => match GetBatch::of(at.get_ref()) {
            Some(whose) => whose,
            None => {
                let problem = format!("{KEY} = {:?} is no release of Megatron-LM", at.get_ref());
                return Err(reader.plan(at, problem, "write one, such as \"0.12\", or \"each_rank\" for NeMo"));
            }
        },
        None => reader.assume(KEY, GetBatch::Lengths, "0.16"),
    };
    let early = matches!(whose, GetBatch::Everywhere | GetBatch::SizesFirst);
    if let (Some(at), true) = (mask, early) {
        let problem = "create_attention_mask_in_dataloader is of Megatron-LM 0.6 and after: before 0.5 masks are made on the device";
        return Err(reader.plan(at, problem, "remove the key, or write megatron.get_batch = \"0.6\""));
    }
    let sharded = table.use_megatron_fsdp.as_ref().is_some_and(|at| *at.get_ref());
    if let (Some(at), GetBatch::Everywhere, true) = (&table.get_batch, whose, mesh.cp > 1 || sharded) {
        let problem = format!("Megatron-LM {} has neither context parallelism nor Megatron-FSDP", at.get_ref());
        return Err(reader.plan(
            at,
            problem,
            "write megatron.get_batch = \"0.16\", or mesh.cp = 1 without use_megatron_fsdp",
        ));
    }
    let mask = mask.as_ref().map(|at| *at.get_ref());
    Ok(match whose {
        GetBatch::Everywhere => Loader::SizesFirst { everywhere: true },
        GetBatch::SizesFirst => Loader::SizesFirst { everywhere: false },
        GetBatch::Broadcast => Loader::Broadcast {
            mask: reader.flag(&written::Megatron::create_attention_mask_in_dataloader, mask),
            lengths: false,
        },
        GetBatch::Lengths => Loader::Broadcast {
            mask: reader.flag(&written::Megatron::create_attention_mask_in_dataloader, mask),
            lengths: true,
        },
        GetBatch::EachRank => Loader::EachRank { mask: reader.flag_or(MASK, mask, false) },
    })
}
