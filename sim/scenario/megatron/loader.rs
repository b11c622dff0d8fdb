//! `megatron.get_batch` as understood: how micro-batches reach the ranks.

use super::deepspeed;
use crate::runtime::megatron::{Engine, Loader};
use crate::scenario::error::ScenarioError;
use crate::scenario::understood::Reader;
use crate::scenario::written::{GetBatch, Megatron};

const KEY: &str = "megatron.get_batch";
const MASK: &str = "megatron.create_attention_mask_in_dataloader";

/// Whose loader it is. DeepSpeed's pipeline engine has its own.
pub(super) fn loader(reader: &mut Reader<'_>, table: &Megatron, engine: Engine) -> Result<Loader, ScenarioError> {
    let mask = &table.create_attention_mask_in_dataloader;
    if engine == Engine::DeepSpeed {
        return deepspeed::loads(reader, table).map(|()| Loader::There);
    }
    let release = match &table.get_batch {
        Some(at) => *at.get_ref(),
        None => reader.assume(KEY, GetBatch::Lengths, "\"0.16\""),
    };
    if let (Some(at), GetBatch::Everywhere | GetBatch::SizesFirst) = (mask, release) {
        let problem =
            "create_attention_mask_in_dataloader is of Megatron-LM 0.5 and after: before, masks are made on the device";
        return Err(reader.plan(at, problem, "remove the key, or write megatron.get_batch = \"0.5\""));
    }
    let mask = mask.as_ref().map(|at| *at.get_ref());
    Ok(match release {
        GetBatch::Everywhere => Loader::SizesFirst { everywhere: true },
        GetBatch::SizesFirst => Loader::SizesFirst { everywhere: false },
        GetBatch::Broadcast => Loader::Broadcast { mask: reader.flag(MASK, mask, true), lengths: false },
        GetBatch::Lengths => Loader::Broadcast { mask: reader.flag(MASK, mask, true), lengths: true },
        GetBatch::EachRank => Loader::EachRank { mask: reader.flag(MASK, mask, false) },
    })
}
