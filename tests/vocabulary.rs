//! A vocabulary that pipeline ranks share: the same work, spread evenly, and what ranks tell one another for that
//! (sail-sg/VocabularyParallelism@6191c3bf).

use std::collections::BTreeMap;

use windtunnel::program::{Category, Collective, Instr, Program, Work};

use crate::make;

/// Four stages of two blocks, twelve micro-batches of 2,048 tokens, 51,200 words of 2,304 numbers.
const GPT: &str = r#"runtime = "megatron"

[topology]
name = "a100-sxm-80gb"
nodes = 1

[model]
name = "gpt-megatron-1.7b"
layers = 8
tied_head = false

[mesh]
pp = 4

[batch]
sequence = 2048
accumulation = 12

[pipeline]
schedule = "Megatron1F1B"

[precision]
param = "fp16"

[megatron]
check_for_nan = true
implementation = "transformer_engine"
hidden_dropout = false
attention_dropout = false
grad_reduce_in_fp32 = false
"#;

const SPREAD: [&str; 3] = ["Vocab1", "Vocab2", "Interlaced"];
const MICRO_BATCHES: u64 = 12;
const TOKENS: u64 = 2048;
const WIDTH: u64 = 2304;

fn with(schedule: &str) -> String {
    GPT.replace("Megatron1F1B", schedule)
}

fn programs(schedule: &str) -> Vec<Program> {
    make::parse(&with(schedule)).job.compile().programs()
}

/// How often a rank issues each collective of the pipeline, by its kind and bytes.
fn collectives(program: &Program) -> BTreeMap<(&'static str, u64), u64> {
    let mut counts = BTreeMap::new();
    for instr in &program.step {
        let Instr::Collective { comm, .. } = *instr else { continue };
        let comm = program.comm(comm);
        if program.group(comm.group).name == "pp" {
            *counts.entry((comm.kind.name(), comm.bytes.0)).or_default() += 1;
        }
    }
    counts
}

#[test]
fn all_ranks_together_compute_what_two_ranks_did_alone() {
    let flops = |schedule| programs(schedule).iter().map(|program| program.flops.0).collect::<Vec<u128>>();
    let plain = flops("Megatron1F1B");
    assert!(plain[3] > plain[0], "the last rank has the head");
    for schedule in SPREAD {
        let spread = flops(schedule);
        assert_eq!(spread.iter().sum::<u128>(), plain.iter().sum(), "{schedule}");
        assert!(spread.iter().all(|flops| *flops == spread[0]), "{schedule}: {spread:?}");
    }
}

#[test]
fn a_rank_keeps_a_share_of_both_tables() {
    let bytes = |program: &Program| -> u64 {
        let held = program.setup.iter().filter_map(|instr| match instr {
            Instr::Alloc { buffer } => Some(program.buffer(*buffer)),
            _ => None,
        });
        held.filter(|buffer| buffer.category == Category::Parameter).map(|buffer| buffer.bytes.0).sum()
    };
    let (plain, spread) = (programs("Megatron1F1B"), programs("Vocab2"));
    let table = 51_200 * WIDTH * 2;
    // Second and third rank had neither table, the last had the head's.
    assert_eq!(bytes(&spread[1]), bytes(&plain[1]) + 2 * table / 4);
    assert_eq!(bytes(&spread[3]), bytes(&plain[3]) - table + 2 * table / 4);
}

#[test]
fn ranks_tell_one_another_what_the_fork_tells() {
    let (hidden, numbers, m) = (TOKENS * WIDTH * 2, TOKENS * 4, MICRO_BATCHES);
    for schedule in SPREAD {
        let mut expected = BTreeMap::new();
        let mut add = |kind: Collective, bytes, count| *expected.entry((kind.name(), bytes)).or_insert(0) += count;
        // Words summed, and the gradients of the head's input; words' gradients sent to all; statistics of the head.
        add(Collective::AllReduce, hidden, 2 * m);
        add(Collective::Broadcast, hidden, m);
        add(Collective::AllReduce, numbers, 3 * m);
        if schedule == "Interlaced" {
            // The last result as it is.
            add(Collective::Broadcast, hidden, m);
        } else {
            // In fp32, from the second on with the gradient of the loss before; that of the last loss alone; and four bytes
            // before words and their gradients.
            add(Collective::Broadcast, 2 * hidden, 1);
            add(Collective::Broadcast, 2 * hidden + numbers, m - 1);
            add(Collective::Broadcast, numbers, 1);
            add(Collective::AllReduce, 4, 2 * m);
        }
        for program in programs(schedule) {
            assert_eq!(collectives(&program), expected, "{schedule}");
        }
    }
}

#[test]
fn only_the_last_rank_reads_losses_back_unless_all_have_them() {
    let read_back = |program: &Program| {
        let names = program.step.iter().filter_map(|instr| match instr {
            Instr::Launch { kernel, .. } => Some(program.kernel(*kernel)),
            _ => None,
        });
        let copies = names.filter(|kernel| matches!(kernel.work, Work::HostCopy { to_host: true, .. }));
        copies.filter(|kernel| kernel.name == "aten.isnan").count() as u64
    };
    // One for each of a rank's three buffers of gradients, and one for each loss.
    for (schedule, others, last) in [
        ("Vocab1", 3, 3 + MICRO_BATCHES),
        ("Vocab2", 3, 3 + MICRO_BATCHES),
        ("Interlaced", 3 + MICRO_BATCHES, 3 + MICRO_BATCHES),
    ] {
        let counts: Vec<u64> = programs(schedule).iter().map(read_back).collect();
        assert_eq!(counts, [others, others, others, last], "{schedule}");
    }
}

#[test]
fn a_step_ends_with_what_it_began_with() {
    for schedule in SPREAD {
        for program in programs(schedule) {
            let mut held = vec![false; program.buffers.len()];
            let before = make::live(&program, program.before_second(), &mut held);
            assert_eq!(make::live(&program, &program.step, &mut held), before, "{schedule}");
            assert_eq!(make::live(&program, &program.step, &mut held), before, "{schedule}");
        }
    }
}

#[test]
fn a_shared_vocabulary_takes_the_bubble_that_the_head_made() {
    let plain = make::fly(GPT);
    for schedule in SPREAD {
        let spread = make::fly(&with(schedule));
        assert_eq!(spread.breakdown.total(), spread.step, "{schedule}");
        assert!(spread.bubble() < plain.bubble(), "{schedule}: {} of {}", spread.bubble(), plain.bubble());
        assert!(spread.step < plain.step, "{schedule}: {:?} of {:?}", spread.step, plain.step);
    }
    let reserved = |schedule| make::fly(&with(schedule)).memory.wanted;
    assert!(reserved("Vocab2") < reserved("Vocab1"), "one barrier, and one micro-batch fewer in flight");
}

#[test]
fn what_has_no_rules_is_refused_in_words() {
    let refused = |text: &str| crate::followed::refusal("my.toml", text);
    let tied = refused(&with("Vocab1").replace("tied_head = false\n", ""));
    assert!(tied.contains("whose head is tied to its embedding"), "{tied}");
    let uneven = with("Vocab1").replace("layers = 8\n", "layers = 9\n").replace("pp = 4", "pp = 3");
    let uneven = refused(&uneven.replace("nodes = 1", "nodes = 3"));
    assert!(uneven.contains("cannot share evenly"), "{uneven}");
}
