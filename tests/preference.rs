//! `[dpo]` as files write it: pairs, what a reference takes and runs, what is refused.

use windtunnel::program::{Category, Pass};
use windtunnel::scenario::Scenario;

use crate::make::{self, FILE, TINY};

/// Llama-3.1-8B and its reference on one node.
const LLAMA: &str = include_str!("../scenarios/llama3.1-8b-dpo-8xh100.toml");

/// A small file with pairs.
fn tiny(change: &str) -> String {
    make::apply(TINY, change)
}

fn refusal(text: &str) -> String {
    match Scenario::parse(FILE, text) {
        Err(error) => error.to_string(),
        Ok(scenario) => scenario.simulable().expect_err("it is refused").to_string(),
    }
}

#[test]
fn a_micro_batch_is_of_pairs_and_a_global_batch_of_sequences() {
    let alone = make::parse(TINY);
    let pairs = make::parse(&tiny("dpo.implementation = 'torchtune'"));
    assert_eq!(pairs.job.batch(), 2 * alone.job.batch());
    assert_eq!(pairs.job.tokens(), 2 * alone.job.tokens());
    let global = tiny("dpo.implementation = 'torchtune', batch.global = 32");
    assert_eq!(make::parse(&global).job.micro_batches(), 2);
    let odd = refusal(&tiny("dpo.implementation = 'torchtune', batch.micro = 2, batch.global = 48"));
    assert!(odd.contains("batch.micro = 2 pairs") && odd.contains("write batch.global = 64"), "{odd}");
}

#[test]
fn a_reference_runs_one_forward_and_has_no_optimizer() {
    let runs = make::program(&tiny("dpo.implementation = 'trl', framework.modules = 'transformers'"));
    let given = make::program(&tiny(
        "dpo.implementation = 'trl', dpo.reference = 'precomputed', framework.modules = 'transformers'",
    ));
    let forward = given.flops_of(Pass::Forward).0;
    assert_eq!(runs.flops.0 - given.flops.0, forward);
    assert_eq!(runs.flops_of(Pass::Backward), given.flops_of(Pass::Backward));
    let answer = make::fly(LLAMA);
    let report = &answer.memory.report;
    let reference = report.breakdown.bytes(Category::Reference).0;
    let shard = 2 * make::parse(LLAMA).job.model().params().total / 8;
    assert!(reference >= shard, "{reference} B are the reference's, and its shard alone has {shard} B");
}

#[test]
fn adapters_that_are_off_are_a_reference_without_parameters() {
    let lora = "lora.rank = 8, lora.modules = ['all-linear'], dpo.implementation = 'torchtune'";
    let job = make::parse(&tiny(lora)).job;
    let plan = job.train().unwrap();
    assert_eq!(plan.sequences_of_a_sample(), 2);
    let own = |text: &str| {
        let program = make::program(text);
        let setup = make::live(&program, &program.setup, &mut vec![false; 1 << 20]);
        (setup, program.flops.0)
    };
    let (plain, without) = own(&tiny("lora.rank = 8, lora.modules = ['all-linear'], batch.micro = 2"));
    let (pairs, with) = own(&tiny(lora));
    assert!(pairs < plain + plain / 8, "{pairs} B at the start, and {plain} B without a reference");
    assert!(with > without);
}

#[test]
fn what_no_trainer_of_pairs_has_is_refused_by_name() {
    let lora = "lora.rank = 8, lora.modules = ['all-linear']";
    for (change, words) in [
        ("dpo.reference = 'adapters_off'", "there is no [lora]"),
        (&format!("{lora}, dpo.reference = 'model'"), "write dpo.reference = \"adapters_off\""),
        ("dpo.implementation = 'torchtune', dpo.reference = 'precomputed'", "write dpo.reference = \"model\""),
        (
            &format!("{lora}, lora.implementation = 'torchtune', dpo.implementation = 'trl'"),
            "write lora.implementation = \"peft\"",
        ),
        ("dpo.reference = 'model', loop.train_metrics = 1", "remove loop.train_metrics"),
        ("dpo.reference = 'model', compile.blocks = true", "run without gradients"),
        ("dpo.reference = 'model', mesh.dp_shard = 4, mesh.tp = 2", "under tensor parallelism"),
        ("dpo.reference = 'model', compile.blocks = true, mesh.dp_shard = 4, mesh.cp = 2", "share a sequence"),
        ("dpo.reference = 'model', fsdp.cpu_offload = true", "in the host's memory"),
        ("dpo.reference = 'model', precision.autocast = 'bf16'", "torch.autocast is not simulated with"),
        ("dpo.reference = 'yes'", "expected one of `model`"),
    ] {
        let said = refusal(&tiny(change));
        assert!(said.contains(words), "{change}: {said}");
    }
    let fsdp1 = refusal(&make::replaced(&tiny("dpo.reference = 'model'"), &[("\"fsdp2\"", "\"fsdp1\"")]));
    assert!(fsdp1.contains("not under FSDP1"), "{fsdp1}");
    let megatron = refusal(&make::apply(make::MEGATRON, "dpo.reference = 'model'"));
    assert!(megatron.contains("[dpo] means nothing under runtime = \"megatron\""), "{megatron}");
}
