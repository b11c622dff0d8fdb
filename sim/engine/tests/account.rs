//! Where time goes: what is blamed for exposed communication, and what counts as a bubble.

use super::exchange::{receive, send, stages};
use super::*;

#[test]
fn exposed_time_is_blamed_on_what_the_default_stream_waits_for() {
    // A gather in the background on B; the default stream waits for a copy on C behind a gather on C.
    let program = step(8, [(8, 1), (2, 1)], |b, [all, pair]| {
        b.gather(B, all, 100);
        b.kernel(A, 10);
        b.gather(C, pair, 30);
        b.set_pass(Pass::Communication);
        b.kernel(C, 7);
        b.set_pass(Pass::Forward);
        b.wait_stream(A, C);
        b.kernel(A, 20);
    });
    let timeline = run(&program, 0);
    // From 57 on, everything waits for the end of the step: what runs is to blame.
    assert_eq!(parts(&timeline), [30, 70, 0, 0, 0]);
    assert_eq!(timeline.busy[0].comm_exposed, [Time(43), Time(20)]);
    assert_eq!(timeline.busy[0].kernel_exposed, [Time(0), Time(7), Time(0)]);
}

#[test]
fn the_blame_goes_on_where_what_is_waited_for_waits_itself() {
    // A waits for B, B for C; the gather on B runs only after the one on C.
    let program = step(8, [(8, 1), (2, 1), (4, 2)], |b, [all, pair, far]| {
        b.gather(C, pair, 30);
        b.wait_stream(B, C);
        b.gather(B, far, 5);
        b.wait_stream(A, B);
        b.kernel(A, 1);
        b.gather(A, all, 2);
    });
    let timeline = run(&program, 0);
    assert_eq!(timeline.busy[0].comm_exposed, [Time(30), Time(5), Time(2)]);
}

#[test]
fn the_host_that_waits_passes_the_blame_on() {
    let program = step(8, [(8, 1), (2, 1)], |b, [all, pair]| {
        b.gather(B, all, 50);
        b.gather(C, pair, 30);
        let event = b.record(C);
        b.host_wait(event);
        b.kernel(A, 40);
    });
    assert_eq!(run(&program, 0).busy[0].comm_exposed, [Time(0), Time(30)]);
}

#[test]
fn waiting_for_a_stage_is_a_bubble_even_while_a_collective_runs_in_the_background() {
    let first = |b: &mut Builder, line| {
        b.kernel(A, 40);
        b.gather(B, line, 25);
        b.exchange(A, &[send(line, 1, 10)]);
    };
    let second = |b: &mut Builder, line| {
        b.gather(B, line, 25);
        b.exchange(C, &[receive(line, 1, 10)]);
        b.wait_stream(A, C);
        b.kernel(A, 8);
    };
    let timeline = stages([&first, &second], ONCE).expect("the job runs");
    assert_eq!(timeline.step, Time(58));
    let all = timeline.breakdown.iter().map(|parts| [parts.compute.0, parts.exposed_communication.0, parts.bubble.0]);
    assert_eq!(all.collect::<Vec<_>>(), [[40, 10, 8], [8, 10, 40]]);
    assert_eq!(timeline.busy[1].comm_exposed, [Time(0)]);
    assert_eq!(timeline.busy[1].exchange_exposed, [Time(10)]);
}

#[test]
fn a_host_that_is_behind_is_not_a_bubble_though_a_receive_is_posted() {
    let first = |b: &mut Builder, line| b.exchange(A, &[send(line, 1, 10)]);
    let second = |b: &mut Builder, line| {
        b.exchange(C, &[receive(line, 1, 10)]);
        b.host(Dispatch::FsdpHook, 1);
        b.kernel(A, 8);
    };
    let programs = [step(2, [(2, 1)], |b, [x]| first(b, x)), step(2, [(2, 1)], |b, [x]| second(b, x))];
    let mut costs = programs.each_ref().map(|program| costs(program, 0));
    costs[0].dispatch[Dispatch::Collective as usize] = Time(30);
    costs[1].dispatch[Dispatch::FsdpHook as usize] = Time(50);
    let classes = [0, 1].map(|at| Class { program: &programs[at], costs: &costs[at] });
    let timeline = simulate_job(Job { classes: &classes, class_of: &[0, 1] }, ONCE).expect("the job runs");
    let Breakdown { compute, exposed_communication, bubble, host_bound, .. } = timeline.breakdown[1];
    assert_eq!([compute, exposed_communication, bubble, host_bound], [8, 10, 0, 40].map(Time));
}

/// GPipe with free communication: all forwards, then all backwards.
fn gpipe(stage: u64, stages: u64, micros: u64) -> impl Fn(&mut Builder, GroupId) {
    move |b, line| {
        let (next, previous) = (1, stages as u32 - 1);
        for _ in 0..micros {
            if stage > 0 {
                b.exchange(A, &[receive(line, previous, 0)]);
            }
            b.kernel(A, 10);
            if stage + 1 < stages {
                b.wait_stream(B, A);
                b.exchange(B, &[send(line, next, 0)]);
            }
        }
        for _ in 0..micros {
            if stage + 1 < stages {
                b.exchange(A, &[receive(line, next, 0)]);
            }
            b.kernel(A, 20);
            if stage > 0 {
                b.wait_stream(B, A);
                b.exchange(B, &[send(line, previous, 0)]);
            }
        }
    }
}

#[test]
fn the_bubble_of_gpipe_is_the_textbook_one() {
    let write: [_; 4] = std::array::from_fn(|stage| gpipe(stage as u64, 4, 8));
    for steps in [1, 3] {
        let options = Options { steps, record: false, ..ONCE };
        let timeline = stages([&write[0], &write[1], &write[2], &write[3]], options).expect("the job runs");
        assert_eq!(timeline.step, Time((8 + 3) * 30));
        assert_eq!(timeline.bubble(), 3.0 / 11.0);
        assert!(timeline.breakdown.iter().all(|parts| (parts.compute, parts.bubble) == (Time(240), Time(90))));
    }
}
