//! Ranks that share a sequence (`mesh.cp`): what goes round their ring, what each computes and keeps, and what it costs.
//!
//! Transformer Engine, `context_parallel.py` (2.9): with c ranks in a ring, forward passes keys and values on c − 1 times;
//! backward passes keys and values c − 1 times, and as often their gradients, of the same size. Gathered, keys and values
//! come once in each pass, and their gradients go once. Where heads change hands, queries, keys, values and the context do,
//! in each pass.

use std::collections::{BTreeMap, BTreeSet};

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

/// The same, shared in another way.
fn by(way: &str, text: &str) -> String {
    text.replace("recompute = ", &format!("cp_comm_type = {way}\nrecompute = "))
}

/// Ways to share, with how many ranks the scenario's two key-value heads allow.
const WAYS: [(&str, u64); 5] = [
    ("\"p2p\"", 4),
    ("\"all_gather\"", 4),
    ("\"a2a\"", 2),
    ("\"a2a+p2p\"\nhierarchical_context_parallel_sizes = [2, 2]", 4),
    ("\"a2a+p2p\"\nhierarchical_context_parallel_sizes = [2, 4]", 8),
];

/// Bytes of a step's collectives, by group and kind.
fn exchanged(program: &Program) -> BTreeMap<(String, &'static str), u64> {
    let mut sums = BTreeMap::new();
    for instr in &program.step {
        if let Instr::Collective { comm, .. } = *instr {
            let comm = program.comm(comm);
            let name = program.group(comm.group).name.clone();
            *sums.entry((name, comm.kind.name())).or_default() += comm.bytes.0;
        }
    }
    sums
}

#[test]
fn what_changes_hands_is_what_each_way_says() {
    let times = LAYERS * MICRO_BATCHES;
    let of = |way: &str, cp: u64, seq: u64| {
        let program = make::program(&by(way, &shared(1, cp, seq)));
        // bf16 keys, and queries, of the tokens of a rank; there are twice as many heads of queries.
        let key = 2 * (seq / cp) * WIDTH * times;
        let found = exchanged(&program);
        let bytes = move |group: &str, kind| found.get(&(group.to_owned(), kind)).copied().unwrap_or(0);
        (bytes, key, sent(&program, "cp") + sent(&program, "cp_p2p"))
    };
    let (bytes, key, round) = of("\"all_gather\"", 4, 128);
    assert_eq!((bytes("cp", "all-gather"), bytes("cp", "reduce-scatter"), round), (2 * 2 * 4 * key, 2 * 4 * key, 0));
    let (bytes, key, round) = of("\"a2a\"", 2, 128);
    assert_eq!((bytes("cp", "all-to-all"), round), (2 * (2 * 2 + 2) * key, 0));
    let (bytes, key, round) = of(WAYS[4].0, 8, 128);
    // Backward is sent the context again beside its gradient.
    assert_eq!(bytes("cp_a2a", "all-to-all"), (2 * (2 * 2 + 2) + 2) * key);
    assert_eq!(round, 3 * (4 - 1) * 2 * key);
}

#[test]
fn ranks_with_other_heads_are_neighbours_and_rings_go_between_them() {
    let program = make::program(&by(WAYS[4].0, &shared(1, 8, 128)));
    let found = |name: &str| program.groups.iter().find(|group| group.name == name).unwrap();
    assert_eq!((found("cp_a2a").size, found("cp_a2a").stride), (2, 1));
    assert_eq!((found("cp_p2p").size, found("cp_p2p").stride), (4, 2));
}

#[test]
fn a_window_bounds_the_keys_that_a_part_of_gathered_ones_attends_to() {
    let shapes = |way: &str| {
        let text = shared(1, 2, 16384).replace("huggingface = \"config.json\"", "name = \"mistral-7b-v0.1\"");
        let program = make::program(&by(way, &text.replace("layers = 4", "layers = 1")));
        let of = |instr: &Instr| match *instr {
            Instr::Launch { kernel, .. } => match program.kernel(kernel).work {
                Work::Attention { shape, .. } => Some((shape.heads, shape.queries, shape.keys, shape.window)),
                _ => None,
            },
            _ => None,
        };
        program.step.iter().filter_map(of).collect::<BTreeSet<_>>()
    };
    assert_eq!(shapes("\"all_gather\""), [(32, 4096, 8192, Some(4096))].into());
    assert_eq!(shapes("\"a2a\""), [(16, 16384, 16384, Some(4096))].into());
}

/// Bytes that a rank sends round the ring in a step.
fn sent(program: &Program, name: &str) -> u64 {
    let of = |instr: &Instr| match *instr {
        Instr::Exchange { exchange, .. } => program
            .exchange(exchange)
            .filter(|end| program.group(end.group).name == name && end.direction == Direction::Send)
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
            assert_eq!(sent(&make::program(&text), "cp"), 3 * (cp - 1) * pair * times, "tp {tp}, cp {cp}");
            // Recomputed, forward's ring goes round again.
            assert_eq!(sent(&make::program(&again(&text)), "cp"), 4 * (cp - 1) * pair * times, "tp {tp}, cp {cp}");
        }
    }
}

/// Pairs of a query and a key that the attention of one pass looks at, over all heads.
fn pairs(program: &Program, wanted: Pass) -> u64 {
    let of = |instr: &Instr| match *instr {
        Instr::Launch { kernel, .. } => match program.kernel(kernel) {
            kernel if kernel.pass != wanted => 0,
            kernel => match kernel.work {
                // Under a causal mask the last query sees all keys, and every other one less than the next.
                Work::Attention { shape, .. } => {
                    let hidden = if shape.causal { shape.queries } else { 0 };
                    shape.batch * shape.heads * shape.queries * (2 * shape.keys - hidden) / 2
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
    for (way, cp) in WAYS {
        let part = make::program(&by(way, &shared(1, cp, 128)));
        for pass in [Pass::Forward, Pass::Backward] {
            assert_eq!(pairs(&part, pass) * cp, pairs(&whole, pass), "{way} {}", pass.name());
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
fn heads_for_tokens_is_no_more_to_keep_and_gathered_keys_are_let_go() {
    let kept = |way: &str, cp: u64| kept(&make::program(&by(way, &shared(1, cp, 64 * cp))));
    let alone = kept("\"p2p\"", 2) - 16 * LAYERS;
    // The context as it was made, with the heads of a rank, besides as it is used.
    let context = 2 * 64 * 2 * WIDTH;
    assert_eq!(kept("\"a2a\"", 2), alone + context * LAYERS);
    assert_eq!(kept(WAYS[3].0, 4), alone + 16 * LAYERS);
    // The context of each of two kernels, their random states, and where sequences end.
    assert_eq!(kept("\"all_gather\"", 4), alone + (context + 16 + 8) * LAYERS);
}

#[test]
fn simulating_every_rank_of_a_ring_changes_nothing() {
    let pipeline = MEGATRON.replace("pp = 2", "pp = 2\ncp = 2");
    let others = WAYS.map(|(way, cp)| by(way, &shared(1, cp, 128)));
    for text in [shared(2, 2, 128), shared(1, 4, 128), shared(1, 8, 128), pipeline].into_iter().chain(others) {
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
