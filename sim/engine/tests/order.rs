//! One hardware queue for all streams.

use super::random::{case, price, write};
use super::*;
use crate::program::Instr;
use proptest::prelude::*;

fn in_one_queue(program: Program) -> Program {
    Program { one_queue: true, ..program }
}

#[test]
fn in_one_queue_a_kernel_behind_one_that_cannot_begin_waits_though_its_stream_is_free() {
    let write = || {
        step(1, [], |b, []| {
            b.kernel(A, 10);
            b.kernel(B, 100);
            b.kernel(B, 5);
            b.kernel(A, 200);
        })
    };
    assert_eq!(spans(&run(&write(), 0)), [(0, 0, 10), (0, 10, 210), (1, 0, 100), (1, 100, 105)]);
    assert_eq!(spans(&run(&in_one_queue(write()), 0)), [(0, 0, 10), (0, 100, 300), (1, 0, 100), (1, 100, 105)]);
}

#[test]
fn in_one_queue_a_wait_holds_up_what_is_behind_it_on_all_streams() {
    let write = || {
        step(1, [], |b, []| {
            b.kernel(A, 50);
            b.wait_stream(B, A);
            b.kernel(C, 20);
        })
    };
    assert_eq!(spans(&run(&write(), 0)), [(0, 0, 50), (2, 0, 20)]);
    assert_eq!(spans(&run(&in_one_queue(write()), 0)), [(0, 0, 50), (2, 50, 70)]);
}

#[test]
fn what_is_in_front_of_it_in_one_queue_a_kernel_sees_at_once_and_an_event_it_sees_late() {
    let program = step(1, [], |b, []| {
        b.kernel(A, 50);
        b.kernel(B, 30);
        b.wait_stream(C, B);
        b.kernel(C, 20);
    });
    let program = in_one_queue(program);
    let costs = Costs { event_latency: Time(5), ..costs(&program, 0) };
    let timeline = simulate(&program, &costs, ONCE).expect("the program runs");
    assert_eq!(spans(&timeline), [(0, 0, 50), (1, 0, 30), (2, 35, 55)]);
}

#[test]
fn a_second_reduction_in_one_queue_stops_the_computation_behind_it_until_the_first_has_ended() {
    // Backward: a kernel, its reduction beside the next kernel. Reductions take longer than kernels.
    let write = || {
        step(2, [(2, 1)], |b, [group]| {
            for _ in 0..3 {
                b.kernel(A, 10);
                b.wait_stream(B, A);
                b.gather(B, group, 40);
            }
            b.kernel(A, 10);
        })
    };
    let ends = |program: &Program| {
        let of = |stream| spans(&run(program, 0)).into_iter().filter(|span| span.0 == stream).map(|span| span.2).max();
        (of(0), of(1))
    };
    assert_eq!(ends(&write()), (Some(40), Some(130)));
    // The last kernel is behind the third reduction, which begins when the second has ended.
    assert_eq!(ends(&in_one_queue(write())), (Some(100), Some(130)));
}

/// By rank and step: when each operation came to the front of its stream, in the order in which they were issued.
fn begun(program: &Program, timeline: &Timeline) -> Vec<Vec<u64>> {
    let mut of: std::collections::BTreeMap<(u32, u32, u8), Vec<u64>> = std::collections::BTreeMap::new();
    for span in &timeline.spans {
        of.entry((span.rank, span.step, span.stream.0)).or_default().push(span.reached.0);
    }
    let mut keys: Vec<(u32, u32)> = of.keys().map(|&(rank, step, _)| (rank, step)).collect();
    keys.dedup();
    let issued = |(rank, step): (u32, u32)| {
        let mut next = [0; 3];
        let operations = program.step.iter().filter_map(|instr| match *instr {
            Instr::Launch { stream, .. } | Instr::Collective { stream, .. } => Some(stream.0),
            _ => None,
        });
        let one = |stream: u8| {
            let at = &mut next[usize::from(stream)];
            *at += 1;
            of[&(rank, step, stream)][*at - 1]
        };
        operations.map(one).collect()
    };
    keys.into_iter().map(issued).collect()
}

proptest! {
    #[test]
    fn in_one_queue_operations_begin_in_the_order_in_which_they_are_issued((ops, host, options) in case()) {
        let program = in_one_queue(write(&ops));
        let costs = price(&program, host);
        let timeline = simulate(&program, &costs, options).expect("ranks that are alike meet");
        for begun in begun(&program, &timeline) {
            prop_assert!(begun.is_sorted(), "{begun:?}");
        }
    }

    #[test]
    fn one_queue_is_never_faster_where_kernels_do_not_slow_each_other((ops, host, options) in case()) {
        let plain = write(&ops);
        let mut costs = price(&plain, host);
        costs.kernel.iter_mut().for_each(|kernel| (kernel.slowdown, kernel.share) = (1.0, 0.0));
        costs.comm.iter_mut().for_each(|comm| comm.use_of = [0.0; LEVELS]);
        let many = simulate(&plain, &costs, options).expect("ranks that are alike meet");
        let one = simulate(&in_one_queue(plain), &costs, options).expect("ranks that are alike meet");
        prop_assert!(one.step >= many.step || options.steps > 1, "{:?} {:?}", one.step, many.step);
    }

    #[test]
    fn in_one_queue_one_rank_stands_for_all_that_are_alike((ops, host, options) in case()) {
        let program = in_one_queue(write(&ops));
        let costs = price(&program, host);
        let run = |fold| simulate(&program, &costs, Options { fold, ..options }).expect("ranks that are alike meet");
        prop_assert_eq!(run(true).step, run(false).step);
    }
}
