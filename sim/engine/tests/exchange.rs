//! Sends and receives between stages: one rank per stage, programs written stage by stage.

use super::*;
use crate::program::{Direction, Transfer};

/// Writes the step of a stage; the group joins all stages in a line.
pub(super) type Stage<'a> = &'a dyn Fn(&mut Builder, GroupId);

fn transfer(direction: Direction, group: GroupId, ahead: u32, time: u64) -> Transfer {
    Transfer { direction, group, ahead, bytes: Bytes(time), dtype: DType::Bf16 }
}

pub(super) fn send(group: GroupId, ahead: u32, time: u64) -> Transfer {
    transfer(Direction::Send, group, ahead, time)
}

pub(super) fn receive(group: GroupId, ahead: u32, time: u64) -> Transfer {
    transfer(Direction::Receive, group, ahead, time)
}

/// Runs stages of one rank each.
pub(super) fn stages<const N: usize>(write: [Stage<'_>; N], options: Options) -> Result<Timeline, EngineError> {
    let programs = write.map(|write| step(N as u32, [(N as u32, 1)], |b, [line]| write(b, line)));
    let costs = programs.each_ref().map(|program| {
        let mut costs = costs(program, 0);
        costs.transfer.iter_mut().for_each(|cost| cost.use_of[0] = 1.0);
        costs
    });
    let classes: [Class<'_>; N] = std::array::from_fn(|at| Class { program: &programs[at], costs: &costs[at] });
    let class_of: Vec<u32> = (0..N as u32).collect();
    simulate_job(Job { classes: &classes, class_of: &class_of }, options)
}

/// Rank, stream, reached, start and end of every exchange.
fn exchanges(timeline: &Timeline) -> Vec<(u32, u8, u64, u64, u64)> {
    let exchanges = timeline.spans.iter().filter(|span| matches!(span.what, What::Exchange(_)));
    exchanges.map(|s| (s.rank, s.stream.0, s.reached.0, s.start.0, s.end.0)).collect()
}

#[test]
fn a_message_runs_when_both_ends_are_there_and_holds_both_streams() {
    let first = |b: &mut Builder, line| {
        b.kernel(A, 30);
        b.exchange(A, &[send(line, 1, 10)]);
        b.kernel(A, 5);
    };
    let second = |b: &mut Builder, line| {
        b.exchange(A, &[receive(line, 1, 10)]);
        b.kernel(A, 20);
    };
    let timeline = stages([&first, &second], ONCE).expect("the job runs");
    assert_eq!(exchanges(&timeline), [(0, 0, 30, 30, 40), (1, 0, 0, 30, 40)]);
    assert_eq!(timeline.step, Time(60));
    assert_eq!(timeline.busy[1].exchange, [Time(10)]);
    assert_eq!(timeline.busy[1].exchange_waiting, [Time(30)]);
    assert_eq!(timeline.busy[1].exchange_exposed, [Time(10)]);
    let parts = timeline.breakdown.map_parts();
    // The first has nothing left to do at 45, the second waits until 30.
    assert_eq!(parts, [[35, 10, 15], [20, 10, 30]]);
    assert_eq!(timeline.bubble(), 45.0 / 120.0);
}

/// Compute, exposed communication and bubble.
trait Parts {
    fn map_parts(&self) -> Vec<[u64; 3]>;
}

impl Parts for Vec<Breakdown> {
    fn map_parts(&self) -> Vec<[u64; 3]> {
        self.iter().map(|parts| [parts.compute.0, parts.exposed_communication.0, parts.bubble.0]).collect()
    }
}

#[test]
fn an_exchange_ends_with_the_last_of_its_messages() {
    let middle = |b: &mut Builder, line| {
        b.exchange(A, &[send(line, 1, 10), receive(line, 2, 25)]);
        b.kernel(A, 5);
    };
    let last = |b: &mut Builder, line| b.exchange(A, &[receive(line, 2, 10)]);
    let first = |b: &mut Builder, line| {
        b.kernel(A, 7);
        b.exchange(A, &[send(line, 1, 25)]);
    };
    let timeline = stages([&first, &middle, &last], ONCE).expect("the job runs");
    assert_eq!(exchanges(&timeline), [(0, 0, 7, 7, 32), (1, 0, 0, 0, 32), (2, 0, 0, 0, 10)]);
    assert_eq!(timeline.step, Time(37));
    assert_eq!(timeline.busy[1].exchange, [Time(32)]);
    assert_eq!(timeline.busy[1].exchange_waiting, [Time(0)]);
}

#[test]
fn links_carry_both_ways_at_once_and_share_one_way() {
    let both = |b: &mut Builder, line| b.exchange(A, &[send(line, 1, 40), receive(line, 1, 40)]);
    let timeline = stages([&both, &both], ONCE).expect("the job runs");
    assert_eq!(exchanges(&timeline), [(0, 0, 0, 0, 40), (1, 0, 0, 0, 40)]);
    // Two senders to one receiver.
    let to = |ahead| move |b: &mut Builder, line| b.exchange(A, &[send(line, ahead, 40)]);
    let from_both = |b: &mut Builder, line| b.exchange(A, &[receive(line, 1, 40), receive(line, 2, 40)]);
    let timeline = stages([&to(2), &to(1), &from_both], ONCE).expect("the job runs");
    assert_eq!(timeline.step, Time(80));
}

#[test]
fn a_message_shares_its_links_with_a_collective() {
    let stage = |transfer: fn(GroupId, u32, u64) -> Transfer| {
        move |b: &mut Builder, line| {
            b.exchange(A, &[transfer(line, 1, 30)]);
            b.gather(B, line, 100);
        }
    };
    let programs = [stage(send), stage(receive)].map(|write| step(2, [(2, 1)], |b, [line]| write(b, line)));
    let costs = programs.each_ref().map(|program| {
        let mut costs = costs(program, 0);
        costs.transfer.iter_mut().chain(&mut costs.comm).for_each(|cost| cost.use_of[0] = 1.0);
        costs
    });
    let classes = [0, 1].map(|at| Class { program: &programs[at], costs: &costs[at] });
    let timeline = simulate_job(Job { classes: &classes, class_of: &[0, 1] }, ONCE).expect("the job runs");
    // Half speed for both until the message is through.
    assert_eq!(spans(&timeline), [(0, 0, 60), (1, 0, 130), (0, 0, 60), (1, 0, 130)]);
}

#[test]
fn the_slower_end_decides_how_long_a_message_takes() {
    let stage = |transfer: fn(GroupId, u32, u64) -> Transfer| {
        move |b: &mut Builder, line| b.exchange(A, &[transfer(line, 1, 10)])
    };
    let programs = [stage(send), stage(receive)].map(|write| step(2, [(2, 1)], |b, [line]| write(b, line)));
    let mut costs = programs.each_ref().map(|program| costs(program, 0));
    costs[1].transfer[0].time = Time(17);
    let classes = [0, 1].map(|at| Class { program: &programs[at], costs: &costs[at] });
    let timeline = simulate_job(Job { classes: &classes, class_of: &[0, 1] }, ONCE).expect("the job runs");
    assert_eq!(timeline.step, Time(17));
}

#[test]
fn messages_match_in_the_order_in_which_the_hosts_issue_them() {
    // The receiver takes the second message on a stream that is free first.
    let sender = |b: &mut Builder, line| {
        b.exchange(A, &[send(line, 1, 10)]);
        b.exchange(A, &[send(line, 1, 20)]);
    };
    let receiver = |b: &mut Builder, line| {
        b.kernel(A, 50);
        b.exchange(A, &[receive(line, 1, 10)]);
        b.exchange(B, &[receive(line, 1, 20)]);
    };
    let timeline = stages([&sender, &receiver], Options { steps: 2, ..ONCE }).expect("the job runs");
    let second = exchanges(&timeline).into_iter().filter(|span| (span.0, span.1) == (1, 1)).collect::<Vec<_>>();
    assert_eq!(second, [(1, 1, 0, 60, 80), (1, 1, 80, 120, 140)]);
}

#[test]
fn ends_of_different_sizes_are_told_apart() {
    let sender = |b: &mut Builder, line| b.exchange(A, &[send(line, 1, 10)]);
    let receiver = |b: &mut Builder, line| b.exchange(A, &[receive(line, 1, 20)]);
    let error = stages([&sender, &receiver], ONCE).expect_err("the sizes differ");
    assert_eq!(
        error.to_string(),
        "rank 0 sends 10 B to rank 1, which expects 20 B, on group 2x1: both ends of a message must have one size"
    );
}

#[test]
fn stages_that_all_receive_first_wait_for_each_other() {
    let stage = |b: &mut Builder, line| {
        b.exchange(A, &[receive(line, 1, 10)]);
        b.exchange(A, &[send(line, 1, 10)]);
    };
    let error = stages([&stage, &stage], ONCE).expect_err("nobody sends");
    assert_eq!(
        error.to_string(),
        "deadlock at 0 ps, 2 hosts and streams wait:\n  \
         rank 0 stream a (step 0, <root>) waits for rank 1 to send 10 B on group 2x1\n  \
         rank 1 stream a (step 0, <root>) waits for rank 0 to send 10 B on group 2x1"
    );
    let together = |b: &mut Builder, line| b.exchange(A, &[receive(line, 1, 10), send(line, 1, 10)]);
    assert_eq!(stages([&together, &together], ONCE).expect("one operation").step, Time(10));
}

#[test]
fn every_end_of_a_message_costs_its_host_a_call_and_waits_in_one_queue_place() {
    let sender = |b: &mut Builder, line| {
        b.exchange(A, &[send(line, 1, 3), send(line, 1, 4)]);
        b.kernel(A, 1);
    };
    let receiver = |b: &mut Builder, line| b.exchange(A, &[receive(line, 1, 3), receive(line, 1, 4)]);
    let programs = [step(2, [(2, 1)], |b, [x]| sender(b, x)), step(2, [(2, 1)], |b, [x]| receiver(b, x))];
    let costs = programs.each_ref().map(|program| costs(program, 5));
    let classes = [0, 1].map(|at| Class { program: &programs[at], costs: &costs[at] });
    let options = Options { queue_limit: 1, ..ONCE };
    let timeline = simulate_job(Job { classes: &classes, class_of: &[0, 1] }, options).expect("the job runs");
    // Both messages from 10 on, the longer until 14; the kernel's launch, paid for at 15, finds room.
    assert_eq!(timeline.step, Time(16));
}

#[test]
fn a_peer_that_is_none_is_refused() {
    let alone = |ahead| move |b: &mut Builder, line| b.exchange(A, &[send(line, ahead, 3)]);
    let error = stages([&alone(0), &alone(1)], ONCE).expect_err("it names itself");
    assert_eq!(error.to_string(), "a message on group 2x1 names a peer 0 places ahead: expected from 1 to 1");
    let error = stages([&alone(1), &alone(2)], ONCE).expect_err("it goes round");
    assert_eq!(error.to_string(), "a message on group 2x1 names a peer 2 places ahead: expected from 1 to 1");
}
