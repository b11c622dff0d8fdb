//! Schedules that spread the vocabulary, against the fork that has them, word by word
//! (`tests/oracles/vocabulary-parallel.json`).

use super::cases;
use super::schedules::{assert_lists, cases_of, words};
use windtunnel::schedule::Kind::{ShareGradient, ShareHidden, SumEmbed, SumOutput};
use windtunnel::schedule::order::vocabulary::{INTERLACED, VOCAB_1, VOCAB_2};
use windtunnel::schedule::{self, Lowering, Shape};

#[test]
fn oracle_every_rank_issues_what_the_fork_issues() {
    let cases = cases_of("vocabulary-parallel.json");
    for (case, schedule) in &cases {
        let id = format!("{} of {} ranks, {} micro-batches", case["schedule"], case["pp"], case["microbatches"]).into();
        let lists = schedule::lower(schedule, &Lowering::default()).unwrap();
        assert_lists(&id, "with communication", &lists, &words(&case["with_comms"]));
    }
    assert!(cases.len() >= 16 || cases::elsewhere(), "only {} cases found", cases.len());
}

#[test]
fn all_ranks_meet_over_the_vocabulary_in_one_order() {
    for entry in [VOCAB_1, VOCAB_2, INTERLACED] {
        for (ranks, microbatches) in [(2, 4), (4, 9), (6, 31), (8, 128)] {
            let schedule = entry.build(Shape { ranks, virtual_stages: 1, microbatches }).unwrap();
            let lists = schedule::lower(&schedule, &Lowering::default()).unwrap();
            let meetings = |rank| {
                let all = lists.rank(rank).iter();
                let shared =
                    all.filter(|action| matches!(action.kind, SumEmbed | ShareGradient | ShareHidden | SumOutput));
                shared.map(|action| (action.kind, action.microbatch)).collect::<Vec<_>>()
            };
            for rank in 1..ranks as usize {
                assert_eq!(meetings(rank), meetings(0), "{} of {ranks} ranks, rank {rank}", entry.name);
            }
        }
    }
}

#[test]
fn the_first_rank_has_as_many_micro_batches_in_flight_as_the_paper_says() {
    // arXiv 2411.05288: p + 2 with two barriers, p + 1 with one, 1.5·p interlaced.
    for (ranks, microbatches) in [(2, 8), (4, 16), (8, 128), (32, 256)] {
        for (entry, first) in [(VOCAB_1, ranks + 2), (VOCAB_2, ranks + 1), (INTERLACED, ranks * 3 / 2)] {
            let schedule = entry.build(Shape { ranks, virtual_stages: 1, microbatches }).unwrap();
            assert_eq!(schedule::in_flight(&schedule, false)[0], first, "{} of {ranks} ranks", entry.name);
        }
    }
}
