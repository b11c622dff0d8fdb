//! Programs of a few instructions, whose time is known.

use super::*;
use crate::pjrt::hlo::{Dot, Group, Sequence};

const BF16: i32 = 16;

fn scenario() -> Scenario {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios/two-narrow-blocks-4xv6e.toml");
    Scenario::parse(file, include_str!("../../../scenarios/two-narrow-blocks-4xv6e.toml")).expect("shipped")
}

fn array(rows: i64, columns: i64, memory: i64) -> Option<Shape> {
    let layout = crate::pjrt::hlo::Layout { memory, ..Default::default() };
    Some(Shape { element: BF16, dimensions: vec![rows, columns], layout: Some(layout), ..Default::default() })
}

fn one(id: i64, opcode: &str, shape: Option<Shape>, operands: &[i64]) -> Instruction {
    Instruction { id, opcode: opcode.to_owned(), shape, operands: operands.to_vec(), ..Default::default() }
}

/// A gather that starts before a matmul of so many rows and ends after it.
fn beside(rows: i64) -> Computation {
    // What it starts from beside what it gives.
    let parts = [array(4096, 4096, 0), array(4096, 4096, 0)];
    let both = Some(Shape { tuple: parts.into_iter().flatten().collect(), ..Shape::default() });
    let all = vec![Group { ids: vec![0, 1, 2, 3] }];
    let gather = Instruction { groups: all, ..one(3, "all-gather-start", both, &[2]) };
    let dot = Instruction { dot: Some(Dot { contracted: vec![1] }), ..one(4, "dot", array(rows, 4096, 0), &[1, 2]) };
    let instructions = vec![
        one(1, "parameter", array(rows, 4096, 0), &[]),
        one(2, "parameter", array(4096, 4096, 0), &[]),
        one(5, "all-gather-done", array(4096, 4096, 0), &[3]),
        dot,
        gather,
    ];
    Computation { id: 1, instructions, ..Default::default() }
}

fn price(computations: Vec<Computation>, entry: i64) -> Priced {
    let order = Sequence { instructions: vec![1, 2, 3, 4, 5] };
    let schedule = crate::pjrt::hlo::Schedule { sequences: [(1, order)].into() };
    let module = Module { computations, entry, schedule: Some(schedule), ..Module::default() };
    let scenario = scenario();
    let predicted = scenario.job.compile().classes.remove(0);
    priced(&module, &scenario, &predicted)
}

#[test]
fn a_collective_runs_beside_what_stands_between_its_start_and_its_end() {
    let (short, long) = (price(vec![beside(256)], 1), price(vec![beside(1 << 18)], 1));
    // Behind a short matmul the step waits for the gather; behind a long one for nothing.
    assert!((short.step_s - short.exchanges_s).abs() < 1e-9 && short.waiting_s > 0.0, "{short:?}");
    assert!((short.waiting_s + short.matmul_s - short.step_s).abs() < 1e-9, "{short:?}");
    assert!(long.waiting_s == 0.0 && (long.step_s - long.matmul_s).abs() < 1e-9, "{long:?}");
    assert!(long.half_s > 0.0 && long.unpriced.is_empty());
}

#[test]
fn a_loop_takes_its_turns() {
    let body = beside(256);
    let turn = price(vec![body.clone()], 1).step_s;
    let turns = br#"{"known_trip_count":{"n":"3"}}"#.to_vec();
    let tuple = Some(Shape::default());
    let whole = Instruction { calls: vec![1, 1], backend: turns, ..one(1, "while", tuple, &[]) };
    let main = Computation { id: 2, instructions: vec![whole], ..Default::default() };
    let step = price(vec![body, main], 2).step_s;
    assert!((step / turn - 3.0).abs() < 1e-9, "{step} in three turns of {turn}");
}

#[test]
fn what_lies_in_fast_memory_moves_nothing_in_hbm() {
    let copy = |memory| {
        let given = one(1, "parameter", array(4096, 4096, memory), &[]);
        let instructions = vec![given, one(2, "copy", array(4096, 4096, memory), &[1])];
        price(vec![Computation { id: 1, instructions, ..Default::default() }], 1)
    };
    assert!(copy(0).memory_s > 0.0);
    assert_eq!(copy(1).memory_s, 0.0);
}
