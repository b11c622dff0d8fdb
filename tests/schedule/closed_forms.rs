//! Bubbles and activations in flight against the formulas of the papers.

use super::{bubble, build};
use windtunnel::schedule::{self, Shape, in_flight, order};

const SHAPES: [(u32, u32); 7] = [(1, 1), (2, 2), (2, 7), (4, 8), (4, 32), (8, 16), (16, 64)];

fn share(idle: f64, work: f64) -> f64 {
    idle / (work + idle)
}

fn close(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() < 1e-12, "{what}: {found} is not {expected}");
}

#[test]
fn the_bubble_is_the_textbook_one() {
    for (p, m) in SHAPES {
        let (ranks, micro) = (f64::from(p), f64::from(m));
        for name in ["GPipe", "1F1B", "Megatron1F1B", "AFAB"] {
            close(bubble(&build(name, p, 1, m), [1, 1, 1]), share(ranks - 1.0, micro), name);
            close(bubble(&build(name, p, 1, m), [3, 4, 2]), share(ranks - 1.0, micro), name);
        }
        for v in [2, 3].into_iter().filter(|_| m % p == 0) {
            let work = f64::from(v) * micro;
            for name in ["Interleaved1F1B", "LoopedBFS", "MegatronInterleaved"] {
                close(bubble(&build(name, p, v, m), [1, 1, 1]), share(ranks - 1.0, work), name);
            }
            close(bubble(&build("InterleavedZeroBubble", p, v, m), [1, 1, 1]), share(ranks - 1.0, 3.0 * work), "ZB");
        }
        if m >= 2 * p {
            for name in ["ZBVZeroBubble", "DualPipeV"] {
                close(bubble(&build(name, p, 2, m), [1, 1, 1]), share(ranks - 1.0, 6.0 * micro), name);
            }
        }
    }
}

#[test]
fn zb_h1_idles_for_a_forward_and_what_gradients_of_inputs_take_longer_than_those_of_weights() {
    for (p, m) in SHAPES {
        for [f, i, w] in [[1, 1, 1], [2, 2, 1], [5, 5, 3], [4, 4, 4]] {
            let idle = f64::from(p - 1) * (f + i - w) as f64;
            close(bubble(&build("ZB-H1", p, 1, m), [f, i, w]), share(idle, f64::from(m) * (f + i + w) as f64), "ZB-H1");
        }
    }
}

#[test]
fn zb_h2_leaves_no_rank_idle_between_its_first_action_and_its_last() {
    for (p, m) in SHAPES.into_iter().filter(|(p, m)| *m >= 2 * p - 1) {
        let schedule = build("ZB-H2", p, 1, m);
        let one = windtunnel::units::Time(1);
        let costs = schedule::Costs::uniform(schedule.stages, [one; 3], windtunnel::units::Time(0));
        close(schedule::replay(&schedule, &costs).unwrap().bubble_rate(), 0.0, "ZB-H2");
        assert_eq!(in_flight(&schedule, false).into_iter().max(), Some(m.min(2 * p - 1)), "{p} ranks");
    }
}

#[test]
fn as_many_micro_batches_are_in_flight_as_theory_allows() {
    for (p, m) in SHAPES.into_iter().filter(|(p, m)| m >= p) {
        let ranks = || 0..p;
        let of = |name: &str, v: u32| in_flight(&build(name, p, v, m), false);
        assert_eq!(of("GPipe", 1), vec![m; p as usize]);
        assert_eq!(of("1F1B", 1), ranks().map(|r| m.min(p - r)).collect::<Vec<_>>());
        assert!(of("ZB-H1", 1).iter().all(|&flying| flying <= p));
        for v in [2, 3].into_iter().filter(|_| m % p == 0) {
            let interleaved = |r: u32| (v * m).min((v - 1) * p + 2 * (p - 1 - r) + 1);
            assert_eq!(of("Interleaved1F1B", v), ranks().map(interleaved).collect::<Vec<_>>());
            assert_eq!(of("LoopedBFS", v), vec![v * m; p as usize]);
            assert!(of("InterleavedZeroBubble", v).iter().all(|&flying| flying <= v * p));
        }
        if m >= 2 * p {
            assert!(of("ZBVZeroBubble", 2).iter().all(|&flying| flying == 2 * p));
            assert!(of("DualPipeV", 2).iter().all(|&flying| flying <= 2 * p + 1));
        }
    }
}

#[test]
fn megatrons_interleaved_order_is_pytorchs_where_rounds_are_as_long_as_the_pipeline() {
    for (p, v, m) in [(2, 2, 4), (4, 2, 8), (4, 3, 4), (8, 4, 32)] {
        assert_eq!(build("MegatronInterleaved", p, v, m).lists, build("Interleaved1F1B", p, v, m).lists);
    }
}

#[test]
fn megatrons_longer_rounds_end_with_what_is_left_and_hold_more() {
    let shape = Shape { ranks: 4, virtual_stages: 2, microbatches: 14 };
    let settings = order::megatron::Settings { group: 8, ..order::megatron::Settings::of(shape) };
    let longer = order::megatron::interleaved(shape, settings).unwrap();
    let first: Vec<String> = longer.lists.rank(3)[..11].iter().map(ToString::to_string).collect();
    assert_eq!(first.join(" "), "3F0 3F1 3F2 3F3 3F4 3F5 3F6 3F7 7F0 7B0 7F1");
    assert_eq!(in_flight(&longer, false), [15, 13, 11, 9]);
    let with_experts = order::megatron::Settings { overlap_experts: true, ..settings };
    assert_eq!(in_flight(&order::megatron::interleaved(shape, with_experts).unwrap(), false), [16, 14, 12, 10]);
    let full = Shape { microbatches: 4, ..shape };
    let older = order::megatron::Settings { fill_first: true, ..order::megatron::Settings::of(full) };
    assert_eq!(in_flight(&order::megatron::interleaved(full, older).unwrap(), false), [8; 4]);
    let refused = order::megatron::interleaved(Shape { microbatches: 10, ..shape }, settings);
    assert!(
        refused.unwrap_err().to_string().contains("the last round of 2 would be shorter than the 4 pipeline ranks")
    );
}

#[test]
fn without_a_pipeline_each_forward_runs_beside_the_backward_before_it() {
    // `combined_1f1b_schedule_for_no_pipelining` (core/pipeline_parallel/combined_1f1b.py, 0.16.1): the first forward and the last
    // backward alone.
    let issued = |microbatches: u32| {
        let schedule = build("MegatronCombined1F1B", 1, 1, microbatches);
        schedule::lower(&schedule, &schedule::Lowering::default()).unwrap().csv()
    };
    let three = issued(3);
    assert_eq!(three.trim(), "0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0B1)OVERLAP_F_B,0B2");
    assert_eq!(issued(1).trim(), "0F0,0B0");
}

#[test]
fn a_schedule_reads_as_a_picture() {
    let schedule = build("1F1B", 2, 1, 2);
    let costs = schedule::Costs::uniform(2, [windtunnel::units::Time(1); 3], windtunnel::units::Time(0));
    let timeline = schedule::replay(&schedule, &costs).unwrap();
    let picture = schedule::picture::draw(&schedule, &timeline, 100).unwrap();
    let expected = "\
0 │ 0F0 0F1   ·   · 0B0 ═══   · 0B1 ═══
1 │   · 1F0 1B0 ═══ 1F1 1B1 ═══   ·   ·
";
    assert_eq!(picture, expected);
}
