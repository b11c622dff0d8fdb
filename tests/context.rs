//! Ranks that share a sequence (`mesh.cp`): what goes round their ring, what each computes and keeps, and what it costs.
//!
//! Transformer Engine, `context_parallel.py` (2.4): with c ranks, forward passes keys and values on c − 1 times; backward
//! passes keys and values c − 1 times, and as often their gradients, of the same size.

use windtunnel::program::{Category, Direction, Instr, Pass, Program, Work};
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings;
use windtunnel::units::Time;

use crate::make::{self, MEGATRON};

/// Heads of keys and of values times their dimension, layers and micro-batches of the scenario.
const WIDTH: u64 = 2 * 16;
const LAYERS: u64 = 4;
const MICRO_BATCHES: u64 = 4;

/// The scenario with `cp` ranks to a sequence of `seq` tokens, on one pipeline rank.
fn shared(tp: u64, cp: u64, seq: u64) -> String {
    let mesh = format!("tp = {tp}\ncp = {cp}");
    let text = MEGATRON.replace("tp = 2\npp = 2", &mesh).replace("sequence = 128", &format!("sequence = {seq}"));
    format!("{text}\n[megatron]\nrecompute = \"none\"\n")
}

fn again(text: &str) -> String {
    text.replace("recompute = \"none\"", "recompute = \"core_attn\"")
}

/// Bytes that a rank sends round the ring in a step.
fn sent(program: &Program) -> u64 {
    let of = |instr: &Instr| match *instr {
        Instr::Exchange { exchange, .. } => program
            .exchange(exchange)
            .filter(|end| program.group(end.group).name == "cp" && end.direction == Direction::Send)
            .map(|end| end.bytes.0)
            .sum(),
        _ => 0,
    };
    program.step.iter().map(of).sum()
}

#[test]
fn keys_and_values_go_round_once_in_forward_and_twice_as_much_in_backward() {
    for tp in [1, 2] {
        for cp in [2, 4, 8].into_iter().filter(|cp| tp * cp <= 8) {
            let text = shared(tp, cp, 128);
            // bf16 keys and values of the tokens and heads of a rank.
            let pair = 2 * 2 * (128 / cp) * WIDTH / tp;
            let times = LAYERS * MICRO_BATCHES;
            assert_eq!(sent(&make::program(&text)), 3 * (cp - 1) * pair * times, "tp {tp}, cp {cp}");
            // Recomputed, forward's ring goes round again.
            assert_eq!(sent(&make::program(&again(&text))), 4 * (cp - 1) * pair * times, "tp {tp}, cp {cp}");
        }
    }
}

/// Pairs of a query and a key that the attention of one pass looks at, over all heads.
fn pairs(program: &Program, wanted: Pass) -> u64 {
    let of = |instr: &Instr| match *instr {
        Instr::Launch { kernel, .. } => match program.kernel(kernel) {
            kernel if kernel.pass != wanted => 0,
            kernel => match kernel.work {
                // Half of a square under a causal mask.
                Work::Attention { shape, .. } => {
                    shape.batch * shape.heads * shape.queries * shape.keys / if shape.causal { 2 } else { 1 }
                }
                _ => 0,
            },
        },
        _ => 0,
    };
    program.step.iter().map(of).sum()
}

#[test]
fn each_rank_has_an_equal_part_of_the_masks_pairs() {
    let whole = make::program(&shared(1, 1, 128));
    for cp in [2, 4, 8] {
        let part = make::program(&shared(1, cp, 128));
        for pass in [Pass::Forward, Pass::Backward] {
            assert!(pairs(&whole, pass) > 0);
            assert_eq!(pairs(&part, pass) * cp, pairs(&whole, pass), "{cp} {}", pass.name());
        }
    }
}

#[test]
fn a_rank_multiplies_its_tokens_alone() {
    let flops = |program: &Program| -> u128 {
        let of = |instr: &Instr| match *instr {
            Instr::Launch { kernel, .. } => match program.kernel(kernel).work {
                work @ Work::Matmul { .. } => work.flops().0,
                _ => 0,
            },
            _ => 0,
        };
        program.step.iter().map(of).sum()
    };
    let whole = flops(&make::program(&shared(1, 1, 128)));
    for cp in [2, 4, 8] {
        assert_eq!(flops(&make::program(&shared(1, cp, 128))) * u128::from(cp), whole);
    }
}

/// Activations that live when the first backward kernel of a step is launched \[B\].
fn kept(program: &Program) -> u64 {
    let mut live = 0;
    for instr in &program.step {
        let of = |buffer| {
            let buffer = program.buffer(buffer);
            if buffer.category == Category::Activation { buffer.bytes.0 } else { 0 }
        };
        match *instr {
            Instr::Alloc { buffer } => live += of(buffer),
            Instr::Free { buffer } => live -= of(buffer).min(live),
            Instr::Launch { kernel, .. } if program.kernel(kernel).pass == Pass::Backward && live > 0 => return live,
            _ => {}
        }
    }
    live
}

#[test]
fn a_ring_keeps_what_a_rank_with_as_many_tokens_of_its_own_keeps() {
    let alone = kept(&make::program(&shared(1, 1, 64)));
    for cp in [2, 4, 8] {
        // But for a random state of 16 B for each step: the own keys and values go, those that came last stay.
        let together = kept(&make::program(&shared(1, cp, 64 * cp)));
        assert_eq!(together, alone + 16 * (cp - 1) * LAYERS, "{cp}");
    }
}

#[test]
fn simulating_every_rank_of_a_ring_changes_nothing() {
    let pipeline = MEGATRON.replace("pp = 2", "pp = 2\ncp = 2");
    for text in [shared(2, 2, 128), shared(1, 4, 128), shared(1, 8, 128), pipeline] {
        let scenario = make::parse(&text);
        let fly = |fold| predict(&scenario, Settings { fold, ..Settings::default() }).unwrap();
        let (folded, full) = (fly(true), fly(false));
        assert_eq!(full.timeline.ranks.len(), 8);
        assert_eq!((folded.step, folded.interval, folded.breakdown), (full.step, full.interval, full.breakdown));
        assert_eq!((folded.parts, folded.shares), (full.parts, full.shares));
    }
}

/// How long messages of the ring run in a step, and how much of that nothing hides, on 16 ranks of two nodes.
fn ring_time(seq: u64) -> (f64, f64) {
    let text = shared(1, 16, seq).replace("huggingface = \"config.json\"", "name = \"llama-3.1-8b\"");
    let answer = make::fly(&text.replace("nodes = 1", "nodes = 2").replace("layers = 4", "layers = 2"));
    let (program, busy) = (answer.programs()[0], &answer.timeline.busy[0]);
    let of = |times: &[Time]| -> f64 {
        let ring = |exchange: &&Vec<_>| {
            let first: windtunnel::program::TransferId = exchange[0];
            program.group(program.transfers[first.0 as usize].group).name == "cp"
        };
        program.exchanges.iter().zip(times).filter(|(exchange, _)| ring(exchange)).map(|(_, time)| time.seconds()).sum()
    };
    (of(&busy.exchange), of(&busy.exchange_exposed))
}

#[test]
fn long_parts_hide_the_ring_and_short_ones_do_not() {
    // A kernel grows with the square of a part, a message with its length. Both directions of a message are counted as
    // running, so that half of the time is as much as can be exposed.
    let ((short, bare), (long, hidden)) = (ring_time(16 * 1024), ring_time(16 * 8192));
    assert!(short > 0.0 && long > short, "{short} {long}");
    assert!(bare > 0.1 * short, "{bare} of {short}");
    assert!(hidden < 0.01 * long, "{hidden} of {long}");
}

#[test]
fn ranks_that_share_a_sequence_share_its_gradients() {
    let flight = make::parse(&shared(2, 4, 128)).job.compile();
    let program = &flight.classes[0];
    let reduces = |instr: &Instr| matches!(*instr, Instr::Collective { comm, .. } if program.group(program.comm(comm).group).name == "dp_cp");
    assert!(program.step.iter().any(reduces));
    assert_eq!(make::parse(&shared(2, 4, 128)).job.tokens(), 128 * MICRO_BATCHES);
}

/// Two parts of a sequence for each of its ranks, and under sequence parallelism equal parts of those.
#[test]
fn a_shorter_sequence_is_proposed_only_if_its_ranks_can_share_it() {
    let scenario = make::parse(&shared(2, 4, 128));
    let mut job = scenario.job.split().unwrap().clone();
    assert_eq!([8, 12, 16, 20, 24].map(|seq| job.splits(seq)), [true, false, true, false, true]);
    job.mesh.tp = 4;
    job.sequence_parallel = true;
    assert_eq!([8, 12, 16, 20, 24].map(|seq| job.splits(seq)), [false, false, true, false, false]);
}
