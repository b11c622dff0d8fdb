//! `runtime = "ddp"` as files write it: what is reduced and when, what views of buckets save, what is refused.

use windtunnel::program::{Collective, Instr, Program};
use windtunnel::scenario::Scenario;

use crate::make::{self, FILE};

/// A model of 1.5B parameters on each of eight GPUs, of which the embedding is the head, too.
const QWEN: &str = include_str!("../scenarios/qwen2.5-1.5b-ddp-8xh100.toml");

/// Bytes of each all-reduce of a step, in host order.
fn all_reduced(program: &Program) -> Vec<u64> {
    let one = |instr: &Instr| match *instr {
        Instr::Collective { comm, .. } => {
            let comm = program.comm(comm);
            (comm.kind == Collective::AllReduce).then_some(comm.bytes.0)
        }
        _ => None,
    };
    program.step.iter().filter_map(one).collect()
}

fn refusal(text: &str) -> String {
    match Scenario::parse(FILE, text) {
        Err(error) => error.to_string(),
        Ok(scenario) => scenario.simulable().expect_err("it is refused").to_string(),
    }
}

#[test]
fn a_step_reduces_every_gradient_once_with_no_sync_and_once_a_micro_batch_without() {
    let once = all_reduced(&make::program(QWEN));
    let parameters = make::parse(QWEN).job.model().params().total;
    assert_eq!(once.iter().sum::<u64>(), 4 * parameters);
    let each = all_reduced(&make::program(&make::apply(QWEN, "batch.sync_every_micro_batch = true")));
    assert_eq!(each, once.repeat(4));
    // All buckets but the last are filled.
    let (last, filled) = once.split_last().expect("buckets");
    assert!(filled.iter().all(|&bytes| bytes >= 25 << 20) || filled[0] >= 1 << 20, "{once:?}");
    assert!(filled.len() > 20 && *last > 0, "{once:?}");
}

#[test]
fn views_of_buckets_save_the_gradients_second_copy() {
    let peak = |text: &str| make::fly(text).memory.report.peak_allocated.0 as f64;
    // So few tokens that the peak is where gradients are, not where logits are.
    let once = make::replaced(
        QWEN,
        &[
            ("accumulation = 4\nsync_every_micro_batch = false", "accumulation = 1"),
            ("sequence = 4096\nmicro = 2", "sequence = 128\nmicro = 1"),
        ],
    );
    let saved = peak(&make::apply(&once, "ddp.gradient_as_bucket_view = false")) - peak(&once);
    let share = saved / (4 * make::parse(QWEN).job.model().params().total) as f64;
    assert!((0.5..=1.01).contains(&share), "{share}");
}

#[test]
fn reductions_overlap_with_backward_unless_one_bucket_holds_everything() {
    let step = |cap: u32| make::fly(&make::with(QWEN, "ddp", "bucket_cap_mb", i64::from(cap))).step;
    assert!(step(25) < step(1 << 20), "{:?} {:?}", step(25), step(1 << 20));
}

#[test]
fn a_compressed_bucket_is_half_as_large() {
    let plain = all_reduced(&make::program(QWEN));
    let half = all_reduced(&make::program(&make::apply(QWEN, "ddp.comm_hook = 'bf16_compress_hook'")));
    assert_eq!(half, plain.iter().map(|bytes| bytes / 2).collect::<Vec<_>>());
}

#[test]
fn what_is_not_data_parallel_is_refused_by_name() {
    for (change, words) in [
        ("compile.blocks = true", "compile.blocks means nothing under runtime = \"ddp\""),
        ("mesh.tp = 2", "mesh.tp means nothing"),
        ("mesh.cp = 2", "mesh.cp means nothing"),
        ("mesh.pp = 2", "mesh.pp means nothing"),
        ("mesh.ep = 2", "mesh.ep means nothing"),
        ("mesh.dp_shard = 8", "write mesh.dp_replicate"),
        ("mesh.dp_replicate = 4", "every chip has a replica of the model, so there are 8"),
        ("fsdp.wrap = 'block'", "nothing is sharded"),
        ("precision.reduce = 'bf16'", "precision.reduce means nothing"),
        ("ddp.static_graph = true", "static_graph=True with no_sync in the first step"),
        ("ddp.bucket_cap_mb = 0", "ddp.bucket_cap_mb = 0 is out of range"),
        (
            "ddp.find_unused_parameters = true, activation_checkpointing.use_reentrant = true",
            "with which PyTorch stops",
        ),
    ] {
        let said = refusal(&make::apply(QWEN, change));
        assert!(said.contains(words), "{change}: {said}");
    }
    let plain = make::replaced(QWEN, &[("autocast = \"bf16\"", "")]);
    let said = refusal(&make::apply(&plain, "ddp.find_unused_parameters = true, loss.kind = 'fused_linear'"));
    assert!(said.contains("returns other than logits"), "{said}");
    let elsewhere = make::replaced(QWEN, &[("runtime = \"ddp\"", "runtime = \"fsdp2\"")]);
    assert!(refusal(&elsewhere).contains("[ddp] belongs to runtime = \"ddp\""), "{}", refusal(&elsewhere));
}
