//! What holds for every program: random ones over random groups, streams, events and costs.

use std::collections::BTreeMap;

use super::*;
use crate::hardware::OUTER;
use crate::network::Sharing;
use crate::program::{EventId, Instr};
use proptest::prelude::*;

const RANKS: u32 = 12;
/// Sizes and strides that tile the ranks.
const GROUPS: [(u32, u32); 8] = [(1, 1), (2, 1), (2, 6), (3, 2), (3, 4), (4, 3), (6, 2), (12, 1)];

#[derive(Clone, Debug)]
pub(super) enum Op {
    Kernel { stream: u8, time: u64, percent: u64, communication: bool },
    Gather { stream: u8, group: usize, time: u64 },
    Record { stream: u8, event: u32 },
    Wait { stream: u8, event: u32 },
    HostWait { event: u32 },
    Host { count: u32 },
    Mark { phase: bool },
}

fn op() -> impl Strategy<Value = Op> {
    let (stream, event) = (0u8..3, 0u32..4);
    prop_oneof![
        4 => (stream.clone(), 0u64..40, 0u64..90, any::<bool>())
            .prop_map(|(stream, time, percent, communication)| Op::Kernel { stream, time, percent, communication }),
        3 => (stream.clone(), 0..GROUPS.len(), 0u64..60).prop_map(|(stream, group, time)| Op::Gather { stream, group, time }),
        2 => (stream.clone(), event.clone()).prop_map(|(stream, event)| Op::Record { stream, event }),
        2 => (stream, event.clone()).prop_map(|(stream, event)| Op::Wait { stream, event }),
        1 => event.prop_map(|event| Op::HostWait { event }),
        1 => (1u32..4).prop_map(|count| Op::Host { count }),
        1 => any::<bool>().prop_map(|phase| Op::Mark { phase }),
    ]
}

/// A program, what its host pays, and options.
pub(super) fn case() -> impl Strategy<Value = (Vec<Op>, [u64; 5], Options)> {
    let options = (1u32..4, 1u32..6).prop_map(|(steps, queue_limit)| Options { steps, queue_limit, ..ONCE });
    (prop::collection::vec(op(), 0..40), prop::array::uniform5(0u64..12), options)
}

pub(super) fn write(ops: &[Op]) -> Program {
    let mut program = step(RANKS, GROUPS, |b, groups| {
        for op in ops {
            match *op {
                Op::Kernel { stream, time, percent, communication } => {
                    b.set_pass(if communication { Pass::Communication } else { Pass::Backward });
                    b.slowed(StreamId(stream), time, percent);
                }
                Op::Gather { stream, group, time } => b.gather(StreamId(stream), groups[group], time),
                Op::Record { stream, event } => {
                    b.push(Instr::Record { stream: StreamId(stream), event: EventId(event) });
                }
                Op::Wait { stream, event } => b.wait(StreamId(stream), EventId(event)),
                Op::HostWait { event } => b.host_wait(EventId(event)),
                Op::Host { count } => b.host(Dispatch::FsdpHook, count),
                Op::Mark { phase: true } => b.mark(Mark::PhaseEnd("fwd".to_owned())),
                Op::Mark { phase: false } => b.mark(Mark::Hook("pre", crate::program::ScopeId::default())),
            }
        }
    });
    program.events = 4;
    program
}

/// The costs of a random program; groups use the fabric by their number.
pub(super) fn price(program: &Program, [launch, record, wait, event_latency, hook]: [u64; 5]) -> Costs {
    let mut costs = costs(program, launch);
    costs.dispatch[Dispatch::FsdpHook as usize] = Time(hook);
    (costs.record, costs.wait, costs.event_latency) = (Time(record), Time(wait), Time(event_latency));
    for (cost, comm) in costs.comm.iter_mut().zip(&program.comms) {
        let group = comm.group.0;
        cost.use_of = [f64::from(group) / 8.0, f64::from(group % 3) / 2.0, f64::from(group % 2) * 0.7, 0.0];
    }
    for (index, kernel) in costs.kernel.iter_mut().enumerate() {
        kernel.share = [0.0, 1.0, 0.625][index % 3];
    }
    costs
}

/// The same costs with nothing that makes parts disturb each other.
fn undisturbed(mut costs: Costs) -> Costs {
    costs.kernel.iter_mut().for_each(|kernel| (kernel.slowdown, kernel.share) = (1.0, 0.0));
    costs.comm.iter_mut().for_each(|comm| comm.use_of = [0.0; LEVELS]);
    costs
}

/// Stream, start and end of what ran, stream after stream.
type Ran = Vec<(u8, u64, u64)>;

/// The obvious slow engine, for costs where nothing disturbs anything: one pass in host order.
/// Returns the steps' ends, what ran, and the last step's host times.
fn in_host_order(program: &Program, costs: &Costs, options: Options) -> (Vec<Time>, Ran, Vec<Time>) {
    let (mut host, mut ready) = (0, [0; 3]);
    let mut ran: [Ran; 3] = Default::default();
    let (mut ends, mut host_times) = (Vec::new(), Vec::new());
    for _ in 0..options.steps {
        host_times.clear();
        let mut events: BTreeMap<u32, (StreamId, u64)> = BTreeMap::new();
        for instr in &program.step {
            let enqueued = match *instr {
                Instr::Launch { stream, kernel, .. } => {
                    let dispatch = program.kernel(kernel).dispatch;
                    Some((stream, costs.kernel[kernel.0 as usize].time.0, costs.dispatch[dispatch as usize].0))
                }
                Instr::Collective { stream, comm, .. } => {
                    let dispatch = Dispatch::Collective;
                    Some((stream, costs.comm[comm.0 as usize].time.0, costs.dispatch[dispatch as usize].0))
                }
                Instr::Record { stream, event } => {
                    host += costs.record.0;
                    let at = host.max(ready[stream.0 as usize]);
                    events.insert(event.0, (stream, at));
                    None
                }
                Instr::Wait { stream, event } => {
                    host += costs.wait.0;
                    if let Some(&(on, at)) = events.get(&event.0)
                        && on != stream
                    {
                        let ready = &mut ready[stream.0 as usize];
                        *ready = host.max(*ready).max(at + costs.event_latency.0);
                    }
                    None
                }
                Instr::HostWait { event } => {
                    host = events.get(&event.0).map_or(host, |&(_, at)| host.max(at));
                    None
                }
                Instr::Host { dispatch, count } => {
                    host += costs.dispatch[dispatch as usize].0 * u64::from(count);
                    None
                }
                _ => None,
            };
            if let Some((stream, time, paid)) = enqueued {
                let index = stream.0 as usize;
                host += paid;
                if let Some(full) = ran[index].len().checked_sub(options.queue_limit as usize) {
                    host = host.max(ran[index][full].2);
                }
                let start = host.max(ready[index]);
                ready[index] = start + time;
                ran[index].push((stream.0, start, start + time));
            }
            host_times.push(Time(host));
        }
        ends.push(Time(ready.into_iter().fold(host, u64::max)));
    }
    (ends, ran.concat(), host_times)
}

/// The audit: how much work each span of one rank did, from nothing but the spans. Between two moments at which
/// anything starts or ends, speeds are constant.
fn work_done(spans: &[Span], costs: &Costs) -> Vec<f64> {
    let mut moments: Vec<u64> = spans.iter().flat_map(|span| [span.start.0, span.end.0]).collect();
    moments.sort_unstable();
    let mut done = vec![0.0; spans.len()];
    for pair in moments.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let running: Vec<usize> =
            (0..spans.len()).filter(|&index| spans[index].start.0 <= from && to <= spans[index].end.0).collect();
        let mut sharing = Sharing::default();
        let mut flows = Vec::new();
        for &index in &running {
            if let What::Comm(id) = spans[index].what {
                let flow = sharing.add_flow(costs.comm[id.0 as usize].use_of, [0.0; OUTER]);
                sharing.cross(flow);
                flows.push(index);
            }
        }
        sharing.end_place();
        for (&index, speed) in flows.iter().zip(sharing.solve()) {
            done[index] += (to - from) as f64 * speed;
        }
        let share = |index: usize| match spans[index].what {
            What::Kernel(id) => costs.kernel[id.0 as usize].share,
            _ => 0.0,
        };
        let wanted: f64 = running.iter().map(|&index| share(index)).sum();
        for &index in &running {
            if let What::Kernel(id) = spans[index].what {
                let slowdown = if flows.is_empty() { 1.0 } else { costs.kernel[id.0 as usize].slowdown };
                let turns = if share(index) > 0.0 { wanted.max(1.0) } else { 1.0 };
                done[index] += (to - from) as f64 / slowdown / turns;
            }
        }
    }
    done
}

proptest! {
    #[test]
    fn a_folded_run_and_a_full_one_agree_to_the_picosecond((ops, paid, options) in case()) {
        let program = write(&ops);
        let costs = price(&program, paid);
        let folded = simulate(&program, &costs, options).expect("the program runs");
        let full = simulate(&program, &costs, Options { fold: false, ..options }).expect("the program runs");
        prop_assert_eq!(&full.ends, &folded.ends);
        prop_assert_eq!(&full.marks, &folded.marks);
        prop_assert_eq!(&full.busy, &folded.busy);
        prop_assert_eq!(&full.host_times, &folded.host_times);
        prop_assert_eq!(&full.host_begins, &folded.host_begins);
        prop_assert!(full.breakdown.iter().all(|parts| *parts == folded.breakdown[0]));
        prop_assert_eq!(full.spans.len(), folded.spans.len() * RANKS as usize);
        for (index, span) in full.spans.iter().enumerate() {
            let expected = folded.spans[index % folded.spans.len()];
            prop_assert_eq!(*span, Span { rank: index as u32 / folded.spans.len() as u32, ..expected });
        }
    }

    #[test]
    fn undisturbed_programs_run_as_one_pass_in_host_order_says((ops, paid, options) in case()) {
        let program = write(&ops);
        let costs = undisturbed(price(&program, paid));
        let timeline = simulate(&program, &costs, options).expect("the program runs");
        let (ends, ran, host_times) = in_host_order(&program, &costs, options);
        prop_assert_eq!(&timeline.ends, &ends);
        prop_assert_eq!(&timeline.host_times, &[host_times]);
        prop_assert_eq!(spans(&timeline), ran);
    }

    #[test]
    fn the_parts_of_a_step_sum_to_the_step_and_the_steps_to_the_run((ops, paid, options) in case()) {
        let program = write(&ops);
        let timeline = simulate(&program, &price(&program, paid), options).expect("the program runs");
        prop_assert_eq!(timeline.breakdown[0].total(), timeline.step);
        let before = timeline.ends.len().checked_sub(2).map_or(Time::ZERO, |index| timeline.ends[index]);
        prop_assert_eq!(before + timeline.step, timeline.ends[timeline.ends.len() - 1]);
        let Busy { kernel_exposed, comm_exposed, .. } = &timeline.busy[0];
        let blamed = kernel_exposed.iter().chain(comm_exposed).copied().sum::<Time>();
        prop_assert_eq!(blamed, timeline.breakdown[0].exposed_communication);
    }

    #[test]
    fn the_same_input_gives_the_same_output((ops, paid, options) in case()) {
        let program = write(&ops);
        let costs = price(&program, paid);
        prop_assert_eq!(simulate(&program, &costs, options), simulate(&program, &costs, options));
    }

    #[test]
    fn where_nothing_disturbs_anything_a_slower_kernel_makes_nothing_end_earlier(
        (ops, paid, options) in case(),
        which in any::<prop::sample::Index>(),
        more in 1u64..50,
    ) {
        let program = write(&ops);
        if program.kernels.is_empty() {
            return Ok(());
        }
        let mut costs = undisturbed(price(&program, paid));
        let fast = simulate(&program, &costs, options).expect("the program runs");
        let kernel = which.index(costs.kernel.len());
        costs.kernel[kernel].time += Time(more);
        let slow = simulate(&program, &costs, options).expect("the program runs");
        let pairs = fast.spans.iter().zip(&slow.spans);
        prop_assert!(pairs.clone().all(|(fast, slow)| fast.start <= slow.start && fast.end <= slow.end));
        prop_assert!(pairs.clone().all(|(fast, slow)| (fast.stream, fast.what) == (slow.stream, slow.what)));
    }

    #[test]
    fn what_ran_is_the_work_that_was_asked_for_at_the_speeds_that_the_overlaps_imply((ops, paid, options) in case()) {
        let program = write(&ops);
        // Long enough for a picosecond not to matter.
        let mut costs = price(&program, paid.map(|time| time * 1000));
        costs.kernel.iter_mut().for_each(|kernel| kernel.time = kernel.time * 1000);
        costs.comm.iter_mut().for_each(|comm| comm.time = comm.time * 1000);
        let timeline = simulate(&program, &costs, options).expect("the program runs");
        for (span, work) in timeline.spans.iter().zip(work_done(&timeline.spans, &costs)) {
            let alone = match span.what {
                What::Kernel(id) => costs.kernel[id.0 as usize].time,
                What::Comm(id) => costs.comm[id.0 as usize].time,
                What::Exchange(_) => unreachable!("these programs send no messages"),
            };
            prop_assert!(span.end - span.start >= alone);
            // Each change of speed rounds to a picosecond.
            let changes = timeline.spans.iter().filter(|other| other.start <= span.end && other.end >= span.start);
            let off = (work - alone.0 as f64).abs();
            prop_assert!(off <= 2.0 * changes.count() as f64, "{:?} did {} of {}", span, work, alone.0);
        }
    }
}
