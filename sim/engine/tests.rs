//! The engine's behaviour, one sentence per test. In these programs a kernel's time in picoseconds is the number of bytes
//! it reads, its slowdown in percent is the number it writes, and a collective or message takes as long as it has bytes.

mod account;
mod exchange;
mod fold;
mod lanes;
mod leap;
mod order;
mod random;

use super::*;
use crate::network::LEVELS;
use crate::program::builder::Section;
use crate::program::{
    Builder, Category, Collective, Comm, DType, Dispatch, Group, GroupId, Mark, MemoryKind, Pass, StreamId, Work,
};
use crate::units::{Bytes, Time};

const A: StreamId = StreamId(0);
const B: StreamId = StreamId(1);
const C: StreamId = StreamId(2);

/// What the tests write their programs with.
trait Write {
    fn kernel(&mut self, stream: StreamId, time: u64);
    fn slowed(&mut self, stream: StreamId, time: u64, percent: u64);
    fn gather(&mut self, stream: StreamId, group: GroupId, time: u64);
    fn host_wait(&mut self, event: crate::program::EventId);
}

impl Write for Builder {
    fn kernel(&mut self, stream: StreamId, time: u64) {
        self.slowed(stream, time, 0);
    }

    fn slowed(&mut self, stream: StreamId, time: u64, percent: u64) {
        let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(time), written: Bytes(percent) };
        self.launch(stream, "kernel", work, Dispatch::EagerForward);
    }

    fn gather(&mut self, stream: StreamId, group: GroupId, time: u64) {
        let (kind, dtype) = (Collective::AllGather, DType::Bf16);
        self.collective(stream, Comm { kind, group, bytes: Bytes(time), dtype });
    }

    fn host_wait(&mut self, event: crate::program::EventId) {
        self.push(crate::program::Instr::HostWait { event });
    }
}

/// A step for `ranks` ranks with three streams, and groups by size and stride.
fn step<const G: usize>(
    ranks: u32,
    groups: [(u32, u32); G],
    write: impl FnOnce(&mut Builder, [GroupId; G]),
) -> Program {
    let mut builder = Builder::new(ranks, &["a", "b", "c"]);
    builder.section(Section::Step);
    let groups = groups.map(|(size, stride)| builder.add_group(Group::new(format!("{size}x{stride}"), size, stride)));
    write(&mut builder, groups);
    builder.finish()
}

/// The costs that a test program carries in its sizes; every launch costs the host `dispatch`.
fn costs(program: &Program, dispatch: u64) -> Costs {
    let mut costs = Costs::free(program);
    for (cost, kernel) in costs.kernel.iter_mut().zip(&program.kernels) {
        let Work::Memory { read, written, .. } = kernel.work else { unreachable!("test kernels are copies") };
        *cost = KernelCost { time: Time(read.0), slowdown: 1.0 + written.0 as f64 / 100.0, share: 0.0 };
    }
    for (cost, comm) in costs.comm.iter_mut().zip(&program.comms) {
        cost.time = Time(comm.bytes.0);
    }
    for (cost, transfer) in costs.transfer.iter_mut().zip(&program.transfers) {
        cost.time = Time(transfer.bytes.0);
    }
    costs.dispatch[Dispatch::EagerForward as usize] = Time(dispatch);
    costs.dispatch[Dispatch::Collective as usize] = Time(dispatch);
    costs
}

const ONCE: Options = Options { steps: 1, fold: true, record: true, queue_limit: 1024 };

fn run(program: &Program, dispatch: u64) -> Timeline {
    simulate(program, &costs(program, dispatch), ONCE).expect("the program runs")
}

/// Start and end of what ran on each stream, in order.
fn spans(timeline: &Timeline) -> Vec<(u8, u64, u64)> {
    timeline.spans.iter().map(|span| (span.stream.0, span.start.0, span.end.0)).collect()
}

/// Compute, exposed communication, bubble, host-bound and waiting of the first rank.
fn parts(timeline: &Timeline) -> [u64; 5] {
    let Breakdown { compute, exposed_communication, bubble, host_bound, waiting } = timeline.breakdown[0];
    [compute.0, exposed_communication.0, bubble.0, host_bound.0, waiting.0]
}

#[test]
fn kernels_on_one_stream_run_one_after_the_other() {
    let program = step(1, [], |b, []| [30, 20].into_iter().for_each(|time| b.kernel(A, time)));
    assert_eq!(spans(&run(&program, 0)), [(0, 0, 30), (0, 30, 50)]);
}

#[test]
fn kernels_on_two_streams_run_side_by_side() {
    let program = step(1, [], |b, []| [A, B].into_iter().for_each(|stream| b.kernel(stream, 30)));
    let timeline = run(&program, 0);
    assert_eq!(spans(&timeline), [(0, 0, 30), (1, 0, 30)]);
    assert_eq!(parts(&timeline), [30, 0, 0, 0, 0]);
}

#[test]
fn a_wait_orders_two_streams() {
    let program = step(1, [], |b, []| {
        b.kernel(A, 30);
        b.wait_stream(B, A);
        b.kernel(B, 20);
    });
    assert_eq!(spans(&run(&program, 0)), [(0, 0, 30), (1, 30, 50)]);
}

#[test]
fn an_event_becomes_visible_after_its_latency() {
    let program = step(1, [], |b, []| {
        b.kernel(A, 30);
        b.wait_stream(B, A);
        b.kernel(B, 20);
    });
    let costs = Costs { event_latency: Time(5), ..costs(&program, 0) };
    let timeline = simulate(&program, &costs, ONCE).expect("the program runs");
    assert_eq!(spans(&timeline), [(0, 0, 30), (1, 35, 55)]);
    // What runs beside the default stream serves communication.
    assert_eq!(parts(&timeline), [30, 20, 0, 0, 5]);
}

#[test]
fn the_host_sees_an_event_sooner_than_a_stream_does() {
    let program = step(1, [], |b, []| {
        b.kernel(A, 30);
        let event = b.record(A);
        b.wait(B, event);
        b.kernel(B, 20);
        b.host_wait(event);
        b.kernel(A, 10);
    });
    let costs = Costs { event_latency: Time(5), ..costs(&program, 0) };
    let timeline = simulate(&program, &costs, ONCE).expect("the program runs");
    assert_eq!(spans(&timeline), [(0, 0, 30), (0, 30, 40), (1, 35, 55)]);
}

#[test]
fn a_wait_for_an_event_not_yet_recorded_waits_for_nothing() {
    let program = step(1, [], |b, []| {
        let event = crate::program::EventId(0);
        b.wait(B, event);
        b.kernel(B, 20);
        b.kernel(A, 30);
        b.record(A);
    });
    assert_eq!(spans(&run(&program, 0)), [(0, 0, 30), (1, 0, 20)]);
}

#[test]
fn a_step_bound_by_its_host_takes_the_sum_of_its_dispatches() {
    let program = step(1, [], |b, []| (0..10).for_each(|_| b.kernel(A, 3)));
    let timeline = run(&program, 7);
    assert_eq!(timeline.step, Time(10 * 7 + 3));
    assert_eq!(parts(&timeline), [30, 0, 0, 43, 0]);
}

#[test]
fn a_step_bound_by_its_device_takes_the_sum_of_its_kernels_once_the_host_has_a_lead() {
    let program = step(1, [], |b, []| (0..10).for_each(|_| b.kernel(A, 9)));
    let timeline = simulate(&program, &costs(&program, 7), Options { steps: 3, ..ONCE }).expect("it runs");
    assert_eq!(timeline.ends, [Time(97), Time(187), Time(277)]);
    assert_eq!((timeline.step, timeline.is_steady()), (Time(90), true));
    assert_eq!(parts(&timeline), [90, 0, 0, 0, 0]);
    assert_eq!(timeline.busy[0].kernel, [Time(90)]);
}

#[test]
fn host_work_between_launches_delays_the_device() {
    let program = step(1, [], |b, []| {
        b.kernel(A, 5);
        b.host(Dispatch::FsdpHook, 3);
        b.kernel(A, 5);
    });
    let mut costs = costs(&program, 1);
    costs.dispatch[Dispatch::FsdpHook as usize] = Time(10);
    let timeline = simulate(&program, &costs, ONCE).expect("the program runs");
    assert_eq!(spans(&timeline), [(0, 1, 6), (0, 32, 37)]);
}

#[test]
fn a_host_that_waits_for_an_event_issues_nothing_until_it_happens() {
    let program = step(1, [], |b, []| {
        b.kernel(A, 50);
        let event = b.record(A);
        b.host_wait(event);
        b.kernel(B, 5);
    });
    assert_eq!(spans(&run(&program, 1)), [(0, 1, 51), (1, 52, 57)]);
}

#[test]
fn a_full_queue_blocks_the_host() {
    let program = step(1, [], |b, []| {
        (0..3).for_each(|_| b.kernel(A, 50));
        b.kernel(B, 5);
    });
    let options = Options { queue_limit: 2, ..ONCE };
    let timeline = simulate(&program, &costs(&program, 1), options).expect("the program runs");
    // The third launch finds room when the first kernel is done, at 51.
    assert_eq!(spans(&timeline), [(0, 1, 51), (0, 51, 101), (0, 101, 151), (1, 52, 57)]);
}

#[test]
fn prefetching_hides_a_collective_behind_compute() {
    let one_after_the_other = step(8, [(8, 1)], |b, [all]| {
        for _ in 0..2 {
            b.gather(B, all, 40);
            b.wait_stream(A, B);
            b.kernel(A, 60);
            b.wait_stream(B, A);
        }
    });
    let prefetched = step(8, [(8, 1)], |b, [all]| {
        b.gather(B, all, 40);
        let first = b.record(B);
        b.wait(A, first);
        b.gather(B, all, 40);
        let second = b.record(B);
        b.kernel(A, 60);
        b.wait(A, second);
        b.kernel(A, 60);
    });
    assert_eq!(parts(&run(&one_after_the_other, 0)), [120, 80, 0, 0, 0]);
    assert_eq!(parts(&run(&prefetched, 0)), [120, 40, 0, 0, 0]);
}

#[test]
fn a_kernel_slows_down_only_while_a_collective_runs() {
    let program = step(8, [(8, 1)], |b, [all]| {
        b.slowed(A, 100, 50);
        b.kernel(B, 20);
        b.gather(B, all, 30);
    });
    // 20 ps alone, 30 ps beside the collective do 20 ps of work, 60 ps alone.
    assert_eq!(spans(&run(&program, 0)), [(0, 0, 110), (1, 0, 20), (1, 20, 50)]);
}

#[test]
fn collectives_that_meet_on_a_rank_share_its_fabric() {
    let program = step(8, [(8, 1)], |b, [all]| {
        b.gather(B, all, 100);
        b.gather(C, all, 30);
    });
    let mut costs = costs(&program, 0);
    costs.comm.iter_mut().for_each(|comm| comm.use_of = [1.0, 0.0, 0.0, 0.0]);
    let timeline = simulate(&program, &costs, ONCE).expect("the program runs");
    // Both at half speed until the short one is done at 60; the long one then has 70 left.
    assert_eq!(spans(&timeline), [(1, 0, 130), (2, 0, 60)]);
    assert_eq!(timeline.busy[0].comm, [Time(130), Time(60)]);
}

#[test]
fn collectives_on_different_levels_do_not_disturb_each_other() {
    let program = step(8, [(2, 1), (4, 2)], |b, [near, far]| {
        b.gather(B, near, 100);
        b.gather(C, far, 30);
    });
    let mut costs = costs(&program, 0);
    for (level, comm) in costs.comm.iter_mut().enumerate() {
        comm.use_of[level] = 1.0;
    }
    let timeline = simulate(&program, &costs, ONCE).expect("the program runs");
    assert_eq!(spans(&timeline), [(1, 0, 100), (2, 0, 30)]);
}

#[test]
fn copies_around_a_collective_count_as_communication() {
    let program = step(8, [(8, 1)], |b, [all]| {
        b.set_pass(Pass::Communication);
        b.kernel(B, 5);
        b.gather(B, all, 30);
        b.set_pass(Pass::Forward);
        b.kernel(A, 20);
    });
    let timeline = run(&program, 0);
    assert_eq!(parts(&timeline), [20, 15, 0, 0, 0]);
    assert_eq!(timeline.busy[0].comm_exposed, [Time(15)]);
}

#[test]
fn each_instruction_takes_effect_when_the_host_has_paid_for_it_and_is_let_past() {
    let program = step(1, [], |b, []| {
        let buffer = b.alloc(Bytes(1), A, Category::Activation, "buffer");
        b.kernel(A, 30);
        b.host(Dispatch::EagerForward, 2);
        b.free(buffer);
        let event = b.record(A);
        b.host_wait(event);
        b.mark(Mark::PhaseEnd("fwd".to_owned()));
    });
    let options = Options { steps: 2, ..ONCE };
    let timeline = simulate(&program, &costs(&program, 5), options).expect("the program runs");
    assert_eq!(timeline.host_begins, [Time(35)]);
    assert_eq!(timeline.host_times, [[35, 40, 50, 50, 50, 70, 70].map(Time)]);
    let unrecorded = simulate(&program, &costs(&program, 5), Options { record: false, ..options });
    assert!(unrecorded.expect("the program runs").host_times.is_empty());
}

#[test]
fn marks_tell_when_the_host_and_the_device_pass_them() {
    let program = step(1, [], |b, []| {
        b.kernel(A, 50);
        b.mark(Mark::PhaseEnd("fwd".to_owned()));
        b.mark(Mark::Hook("post", crate::program::ScopeId::default()));
    });
    let marks = run(&program, 2).marks;
    let times: Vec<_> = marks.iter().map(|mark| (mark.mark, mark.host, mark.device)).collect();
    assert_eq!(times, [(0, Time(2), Some(Time(52))), (1, Time(2), None)]);
}

/// Writes the step of one class.
type WriteStep<'a> = &'a dyn Fn(&mut Builder, [GroupId; 2]);

/// Two ranks of two classes that share the groups `x` and `y`, both of both ranks.
fn two_classes(write: [WriteStep<'_>; 2]) -> Result<Timeline, EngineError> {
    let programs = write.map(|write| step(2, [(2, 1), (2, 1)], write));
    let costs = [costs(&programs[0], 0), costs(&programs[1], 0)];
    let class = |index: usize| Class { program: &programs[index], costs: &costs[index] };
    simulate_job(Job { classes: &[class(0), class(1)], class_of: &[0, 1] }, Options { fold: false, ..ONCE })
}

#[test]
fn a_collective_starts_when_its_last_member_arrives_and_the_others_wait() {
    let straggle = |time| {
        move |b: &mut Builder, [x, _]: [GroupId; 2]| {
            b.kernel(A, time);
            b.gather(A, x, 10);
        }
    };
    let timeline = two_classes([&straggle(20), &straggle(50)]).expect("the job runs");
    assert_eq!(spans(&timeline), [(0, 0, 20), (0, 50, 60), (0, 0, 50), (0, 50, 60)]);
    assert_eq!(timeline.spans[1].reached, Time(20));
    assert_eq!(parts(&timeline), [20, 10, 30, 0, 0]);
    assert_eq!(timeline.bubble(), 30.0 / 120.0);
    assert_eq!(timeline.busy[0].comm_waiting, [Time(30)]);
    assert_eq!(timeline.busy[1].comm_waiting, [Time(0)]);
}

#[test]
fn collectives_of_different_groups_share_the_one_rank_they_meet_on() {
    // Ranks 0 and 1 gather on x, ranks 1 and 3 on y; rank 2 does nothing.
    let program = |on_x: bool, on_y: bool| {
        step(4, [(2, 1), (2, 2)], move |b, [x, y]| {
            if on_x {
                b.gather(A, x, 100);
            }
            if on_y {
                b.gather(B, y, 40);
            }
        })
    };
    let programs = [program(true, false), program(true, true), program(false, false), program(false, true)];
    let costs = programs.each_ref().map(|program| {
        let mut costs = costs(program, 0);
        costs.comm.iter_mut().for_each(|comm| comm.use_of[0] = 0.8);
        costs
    });
    let classes = [0, 1, 2, 3].map(|index| Class { program: &programs[index], costs: &costs[index] });
    let job = Job { classes: &classes, class_of: &[0, 1, 2, 3] };
    let timeline = simulate_job(job, Options { fold: false, ..ONCE }).expect("the job runs");
    // Both at 0.5 / 0.8 of their speed until 64; then 60 are left of the longer one.
    assert_eq!(spans(&timeline), [(0, 0, 124), (0, 0, 124), (1, 0, 64), (1, 0, 64)]);
}

#[test]
fn a_deadlock_names_who_waits_for_whom() {
    let crossed = |first: StreamId| {
        move |b: &mut Builder, [x, y]: [GroupId; 2]| {
            let second = if first == A { B } else { A };
            b.gather(first, if first == A { x } else { y }, 10);
            b.wait_stream(second, first);
            b.gather(second, if first == A { y } else { x }, 10);
        }
    };
    let error = two_classes([&crossed(A), &crossed(B)]).expect_err("each rank waits for the other");
    assert_eq!(
        error.to_string(),
        "deadlock at 0 ps, 4 hosts and streams wait:\n  \
         rank 0 stream a (step 0, <root>) waits for rank 1 in AllGather on group 2x1\n  \
         rank 0 stream b (step 0, <root>) waits for event 0 of stream a (<root>)\n  \
         rank 1 stream a (step 0, <root>) waits for event 0 of stream b (<root>)\n  \
         rank 1 stream b (step 0, <root>) waits for rank 0 in AllGather on group 2x1"
    );
}

#[test]
fn a_host_that_waits_takes_part_in_a_deadlock() {
    let issue = |alone: bool| {
        move |b: &mut Builder, [x, _]: [GroupId; 2]| {
            b.gather(A, x, 10);
            if !alone {
                b.gather(A, x, 10);
                let event = b.record(A);
                b.host_wait(event);
            }
        }
    };
    let error = two_classes([&issue(true), &issue(false)]).expect_err("a member never comes");
    let EngineError::Deadlock { time, waits } = error else { panic!("not a deadlock: {error}") };
    assert_eq!((time, waits.len()), (Time(10), 2));
    assert_eq!(waits[1].stream, None);
    assert_eq!(waits[1].waits_for, WaitsFor::Event { event: 0, stream: "a", scope: "<root>".to_owned() });
}

#[test]
fn members_that_issue_different_collectives_are_told_apart() {
    let issue = |time| move |b: &mut Builder, [x, _]: [GroupId; 2]| b.gather(A, x, time);
    let error = two_classes([&issue(10), &issue(20)]).expect_err("the sizes differ");
    assert_eq!(
        error.to_string(),
        "rank 1 issues AllGather of 20 B where rank 0 issues AllGather of 10 B on group 2x1: \
         all members must issue the same collectives in the same order"
    );
}

#[test]
fn what_cannot_be_run_is_refused_with_both_numbers() {
    let program = step(12, [(8, 1)], |b, [all]| b.gather(A, all, 1));
    let free = costs(&program, 0);
    let refused = |costs: &Costs, options| simulate(&program, costs, options).expect_err("refused").to_string();
    assert_eq!(
        refused(&free, ONCE),
        "group 8x1 has 8 ranks 1 apart in blocks of 8, but the job has 12 ranks: \
         the number of ranks must be a multiple of the block, and a block holds from 1 to 1 copies"
    );
    assert_eq!(refused(&free, Options { steps: 0, ..ONCE }), "steps is 0: expected 1 or more");
    let none = Costs { comm: Vec::new(), ..free.clone() };
    assert_eq!(
        refused(&none, ONCE),
        "0 costs for 1 collectives: price every one of the program's collectives, in order"
    );
    let over = Costs { comm: vec![CommCost { time: Time(1), use_of: [1.5; LEVELS], ..CommCost::FREE }], ..free };
    assert_eq!(refused(&over, ONCE), "AllGather uses 1.5 of a fabric level: expected a fraction from 0 to 1");
}
