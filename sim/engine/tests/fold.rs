//! One rank for each class says what all ranks would: random pipelines of stages with ranks of their own, which exchange
//! messages, meet in collectives inside and across stages, and run different programs at different costs.

use super::exchange::{receive, send};
use super::*;
use crate::hardware::Uplink;
use crate::program::{EventId, Instr, ScopeId};
use crate::units::Bandwidth;
use proptest::prelude::*;

/// Ranks of a stage.
const LANES: u32 = 4;

/// How stages and ranks lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mesh {
    pub(super) stages: u32,
    /// Whether the stages are neighbours, and not the ranks of a stage.
    pub(super) inner: bool,
}

/// The groups of a mesh by index: first those inside a stage, then those of all stages, then that of its ends.
const INSIDE: usize = 3;
const ACROSS: std::ops::Range<usize> = 3..6;
const LINE: usize = 3;
const ENDS: usize = 6;

impl Mesh {
    fn groups(self) -> [Group; 7] {
        let (line, lane) = if self.inner { (1, self.stages) } else { (LANES, 1) };
        [
            Group::new("tp", 2, lane),
            Group::new("dp", 2, 2 * lane),
            Group::new("stage", LANES, lane),
            Group::new("pp", self.stages, line),
            Group::new("tp and pp", 2 * self.stages, if self.inner { 1 } else { 2 }),
            Group::new("world", LANES * self.stages, 1),
            Group::ends("ends", self.stages, line),
        ]
    }

    pub(super) fn class_of(self) -> Vec<u32> {
        let ranks = 0..LANES * self.stages;
        ranks.map(|rank| if self.inner { rank % self.stages } else { rank / LANES }).collect()
    }
}

/// What happens next in the job. Stages, streams and groups are counted round.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Kernel { stage: u32, stream: u8, time: u64, percent: u64, communication: bool },
    Inside { stage: u32, stream: u8, group: usize, time: u64 },
    Across { stream: u8, group: usize, time: u64 },
    Ends { stream: u8, time: u64 },
    Message { from: u32, by: u32, streams: (u8, u8), times: (u64, u64), back: bool },
    Ring { stage: u32, stream: u8, group: usize, ahead: u32, time: u64 },
    Record { stage: u32, stream: u8, event: u32 },
    Wait { stage: u32, stream: u8, event: u32 },
    HostWait { stage: u32, event: u32 },
    Host { stage: u32, count: u32 },
    Mark { stage: u32, phase: bool },
}

fn op() -> impl Strategy<Value = Op> {
    let (stage, stream, event, time) = (0u32..4, 0u8..3, 0u32..4, 0u64..60);
    let pair = (stream.clone(), stream.clone());
    prop_oneof![
        4 => (stage.clone(), stream.clone(), 0u64..40, 0u64..90, any::<bool>()).prop_map(
            |(stage, stream, time, percent, communication)| Op::Kernel { stage, stream, time, percent, communication }),
        3 => (stage.clone(), stream.clone(), 0..INSIDE, time.clone())
            .prop_map(|(stage, stream, group, time)| Op::Inside { stage, stream, group, time }),
        1 => (stream.clone(), ACROSS, time.clone()).prop_map(|(stream, group, time)| Op::Across { stream, group, time }),
        1 => (stream.clone(), time.clone()).prop_map(|(stream, time)| Op::Ends { stream, time }),
        6 => (stage.clone(), 0u32..4, pair, (time.clone(), time.clone()), any::<bool>())
            .prop_map(|(from, by, streams, times, back)| Op::Message { from, by, streams, times, back }),
        1 => (stage.clone(), stream.clone(), 0..INSIDE, 0u32..4, time)
            .prop_map(|(stage, stream, group, ahead, time)| Op::Ring { stage, stream, group, ahead, time }),
        2 => (stage.clone(), stream.clone(), event.clone())
            .prop_map(|(stage, stream, event)| Op::Record { stage, stream, event }),
        2 => (stage.clone(), stream, event.clone()).prop_map(|(stage, stream, event)| Op::Wait { stage, stream, event }),
        1 => (stage.clone(), event).prop_map(|(stage, event)| Op::HostWait { stage, event }),
        1 => (stage.clone(), 1u32..4).prop_map(|(stage, count)| Op::Host { stage, count }),
        1 => (stage, any::<bool>()).prop_map(|(stage, phase)| Op::Mark { stage, phase }),
    ]
}

/// Writes what a stage does of all that happens. Every stage finds its part in the order in which it happens to all, so
/// that each can go on when those before have, and there is no deadlock.
pub(super) fn write(mesh: Mesh, ops: &[Op], own: u32) -> Program {
    let n = mesh.stages;
    let mut b = Builder::new(LANES * n, &["a", "b", "c"]);
    b.section(Section::Step);
    let groups = mesh.groups().map(|group| b.add_group(group));
    let sizes = mesh.groups().map(|group| group.size);
    for op in ops {
        match *op {
            Op::Across { stream, group, time } => b.gather(StreamId(stream), groups[group], time),
            Op::Ends { stream, time } if own == 0 || own + 1 == n => b.gather(StreamId(stream), groups[ENDS], time),
            Op::Message { from, by, streams, times, back } if n > 1 => {
                let (from, by) = (from % n, 1 + by % (n - 1));
                let (there, home) = (groups[LINE], n - by);
                // A reply in the same operation; it is listed last by both.
                let count = if back { 2 } else { 1 };
                if own == from {
                    b.exchange(StreamId(streams.0), &[send(there, by, times.0), receive(there, by, times.1)][..count]);
                } else if own == (from + by) % n {
                    b.exchange(
                        StreamId(streams.1),
                        &[receive(there, home, times.0), send(there, home, times.1)][..count],
                    );
                }
            }
            Op::Kernel { stage, stream, time, percent, communication } if stage % n == own => {
                b.set_pass(if communication { Pass::Communication } else { Pass::Backward });
                b.slowed(StreamId(stream), time, percent);
            }
            Op::Inside { stage, stream, group, time } if stage % n == own => {
                b.gather(StreamId(stream), groups[group], time);
            }
            Op::Ring { stage, stream, group, ahead, time } if stage % n == own => {
                let size = sizes[group];
                let ahead = 1 + ahead % (size - 1);
                let ends = [send(groups[group], ahead, time), receive(groups[group], size - ahead, time)];
                b.exchange(StreamId(stream), &ends);
            }
            Op::Record { stage, stream, event } if stage % n == own => {
                b.push(Instr::Record { stream: StreamId(stream), event: EventId(event) });
            }
            Op::Wait { stage, stream, event } if stage % n == own => b.wait(StreamId(stream), EventId(event)),
            Op::HostWait { stage, event } if stage % n == own => b.host_wait(EventId(event)),
            Op::Host { stage, count } if stage % n == own => b.host(Dispatch::FsdpHook, count),
            Op::Mark { stage, phase: true } if stage % n == own => b.mark(Mark::PhaseEnd("fwd".to_owned())),
            Op::Mark { stage, phase: false } if stage % n == own => b.mark(Mark::Hook("pre", ScopeId::default())),
            _ => {}
        }
    }
    let mut program = b.finish();
    program.events = 4;
    program
}

/// Costs of a stage; groups use the fabric by their number, stages differ a little.
pub(super) fn price(program: &Program, stage: u32, [launch, record, wait, event_latency, hook]: [u64; 5]) -> Costs {
    let mut costs = costs(program, launch + u64::from(stage % 2));
    costs.dispatch[Dispatch::FsdpHook as usize] = Time(hook);
    (costs.record, costs.wait, costs.event_latency) = (Time(record), Time(wait), Time(event_latency));
    let use_of = |group: GroupId| {
        let group = group.0;
        [f64::from(group) / 8.0, f64::from(group % 3) / 2.0, f64::from(group % 2) * 0.7, 0.0]
    };
    costs.comm.iter_mut().zip(&program.comms).for_each(|(cost, comm)| cost.use_of = use_of(comm.group));
    for (cost, transfer) in costs.transfer.iter_mut().zip(&program.transfers) {
        cost.use_of = use_of(transfer.group);
        cost.use_of[0] = 1.0;
        cost.time += Time(u64::from(stage) * 3);
    }
    costs.kernel.iter_mut().enumerate().for_each(|(index, kernel)| kernel.share = [0.0, 1.0, 0.625][index % 3]);
    costs
}

/// A mesh, what happens, what each stage's host pays, and options.
pub(super) fn case() -> impl Strategy<Value = (Mesh, Vec<Op>, [u64; 5], Options)> {
    let mesh = (1u32..=4, any::<bool>()).prop_map(|(stages, inner)| Mesh { stages, inner });
    let options = (1u32..4, 1u32..6).prop_map(|(steps, queue_limit)| Options { steps, queue_limit, ..ONCE });
    (mesh, prop::collection::vec(op(), 0..60), prop::array::uniform5(0u64..12), options)
}

/// Uplinks of a mesh that all ranks of a stage find alike: below one lie halves of stages or one rank of each, and below the next
/// twice as many.
fn uplinks(mesh: Mesh) -> Vec<Uplink> {
    let chips = if mesh.inner { mesh.stages } else { LANES / 2 };
    let uplink = |(level, chips)| Uplink { level, chips, positions: 1, capacity: Bandwidth(1.0) };
    [(2, chips), (3, 2 * chips)].map(uplink).to_vec()
}

/// Costs on these uplinks: groups use them by their number, and no group fills one with all its copies.
fn on_uplinks(mut costs: Costs, program: &Program, mesh: Mesh) -> Costs {
    costs.uplinks = uplinks(mesh);
    let most = f64::from(costs.uplinks[1].chips);
    let outer =
        |group: GroupId| [f64::from(1 + group.0 % 4) / (4.0 * most), f64::from(group.0 % 3) / (2.0 * most), 0.0, 0.0];
    costs.comm.iter_mut().zip(&program.comms).for_each(|(cost, comm)| cost.outer = outer(comm.group));
    costs.transfer.iter_mut().zip(&program.transfers).for_each(|(cost, of)| cost.outer = outer(of.group));
    costs
}

proptest! {
    #[test]
    fn a_pipeline_folded_to_its_stages_and_a_full_one_agree_to_the_picosecond(
        (mesh, ops, paid, options) in case(),
        shared in any::<bool>(),
    ) {
        let programs: Vec<Program> = (0..mesh.stages).map(|stage| write(mesh, &ops, stage)).collect();
        let priced = |(program, stage)| {
            let costs = price(program, stage, paid);
            if shared { on_uplinks(costs, program, mesh) } else { costs }
        };
        let costs: Vec<Costs> = programs.iter().zip(0..).map(priced).collect();
        let classes: Vec<Class<'_>> =
            programs.iter().zip(&costs).map(|(program, costs)| Class { program, costs }).collect();
        let class_of = mesh.class_of();
        let job = Job { classes: &classes, class_of: &class_of };
        let folded = simulate_job(job, options).expect("the job runs");
        let full = simulate_job(job, Options { fold: false, ..options }).expect("the job runs");
        prop_assert_eq!(folded.ranks.len(), mesh.stages as usize);
        prop_assert_eq!(full.ranks.len(), class_of.len());
        prop_assert_eq!(&full.ends, &folded.ends);
        prop_assert_eq!(&full.marks, &folded.marks);
        prop_assert_eq!(&full.busy, &folded.busy);
        prop_assert_eq!(&full.host_times, &folded.host_times);
        prop_assert_eq!(&full.host_begins, &folded.host_begins);
        prop_assert_eq!(full.bubble(), folded.bubble());
        for (&class, parts) in class_of.iter().zip(&full.breakdown) {
            prop_assert_eq!(*parts, folded.breakdown[class as usize]);
            prop_assert_eq!(parts.total(), full.step);
        }
        let of = |timeline: &Timeline, rank: u32| -> Vec<Span> {
            timeline.spans.iter().filter(|span| span.rank == rank).map(|&span| Span { rank: 0, ..span }).collect()
        };
        for (rank, &class) in (0..).zip(&class_of) {
            prop_assert_eq!(of(&full, rank), of(&folded, folded.ranks[class as usize].rank));
        }
        for (busy, parts) in folded.busy.iter().zip(&folded.breakdown) {
            let blamed = busy.kernel_exposed.iter().chain(&busy.comm_exposed).chain(&busy.exchange_exposed);
            prop_assert_eq!(blamed.copied().sum::<Time>(), parts.exposed_communication);
        }
    }
}

/// What happens at the end of a step whose loss is read back: all ranks meet, and every host waits for its streams.
pub(super) fn drained(ops: &mut Vec<Op>, stages: u32) {
    ops.push(Op::Across { stream: 0, group: ACROSS.end - 1, time: 7 });
    for (stage, stream) in (0..stages).flat_map(|stage| (0..3).map(move |stream| (stage, stream))) {
        let event = u32::from(stream);
        ops.extend([Op::Record { stage, stream, event }, Op::HostWait { stage, event }]);
    }
}

proptest! {
    #[test]
    fn a_run_that_stops_where_steps_repeat_finds_what_a_run_of_all_steps_finds(
        (mesh, mut ops, paid, options) in case(),
        steps in 3u32..7,
        drains in prop::bool::weighted(0.8),
        shared in any::<bool>(),
    ) {
        if drains {
            drained(&mut ops, mesh.stages);
        }
        let programs: Vec<Program> = (0..mesh.stages).map(|stage| write(mesh, &ops, stage)).collect();
        let costs: Vec<Costs> = programs.iter().zip(0..).map(|(program, stage)| {
            let costs = price(program, stage, paid);
            if shared { on_uplinks(costs, program, mesh) } else { costs }
        }).collect();
        let classes: Vec<Class<'_>> =
            programs.iter().zip(&costs).map(|(program, costs)| Class { program, costs }).collect();
        let class_of = mesh.class_of();
        let job = Job { classes: &classes, class_of: &class_of };
        let run = |record| simulate_job(job, Options { steps, record, ..options }).expect("the job runs");
        // Whoever wants every span gets every step.
        let (all, few) = (run(true), run(false));
        prop_assert_eq!(&all.ends, &few.ends);
        prop_assert_eq!(all.step, few.step);
        prop_assert_eq!(&all.breakdown, &few.breakdown);
        prop_assert_eq!(&all.busy, &few.busy);
        prop_assert_eq!(&all.marks, &few.marks);
        prop_assert!(few.events <= all.events);
    }
}

#[test]
fn of_a_hundred_steps_that_are_alike_not_much_more_than_one_is_run() {
    let mesh = Mesh { stages: 2, inner: false };
    let kernel = |stage| Op::Kernel { stage, stream: 0, time: 9, percent: 0, communication: false };
    let message = |from| Op::Message { from, by: 1, streams: (0, 0), times: (5, 5), back: false };
    let mut ops: Vec<Op> = (0..40).flat_map(|_| [kernel(0), message(0), kernel(1), message(1)]).collect();
    drained(&mut ops, 2);
    let programs: Vec<Program> = (0..2).map(|stage| write(mesh, &ops, stage)).collect();
    let costs: Vec<Costs> = programs.iter().zip(0..).map(|(program, stage)| price(program, stage, [1; 5])).collect();
    let classes: Vec<Class<'_>> =
        programs.iter().zip(&costs).map(|(program, costs)| Class { program, costs }).collect();
    let job = Job { classes: &classes, class_of: &mesh.class_of() };
    let events = |steps| {
        let options = Options { steps, record: false, ..ONCE };
        simulate_job(job, options).expect("the job runs").events as f64
    };
    let ratio = events(100) / events(1);
    assert!((1.0..1.5).contains(&ratio), "{ratio} times the events of one step");
}

/// Stages of two ranks that send on; the inner two are of one class.
fn line_of_four(fold: bool) -> Result<Timeline, EngineError> {
    let ends = |receives: bool, sends: bool| {
        let mut b = Builder::new(8, &["a", "b", "c"]);
        b.section(Section::Step);
        let line = b.add_group(Group::new("pp", 4, 2));
        let group = Group::new("pp", 4, 2);
        if receives {
            b.exchange(A, &[receive(line, group.ahead(-1), 5)]);
        }
        if sends {
            b.exchange(A, &[send(line, group.ahead(1), 5)]);
        }
        b.finish()
    };
    let programs = [ends(false, true), ends(true, true), ends(true, false)];
    let costs = programs.each_ref().map(|program| costs(program, 0));
    let classes = [0, 1, 2].map(|at| Class { program: &programs[at], costs: &costs[at] });
    simulate_job(Job { classes: &classes, class_of: &[0, 0, 1, 1, 1, 1, 2, 2] }, Options { fold, ..ONCE })
}

#[test]
fn ranks_that_meet_different_classes_cannot_be_folded() {
    assert_eq!(line_of_four(false).expect("the job runs").step, Time(15));
    assert_eq!(
        line_of_four(true)
            .expect_err("the second stage receives from the first, the third from the second")
            .to_string(),
        "ranks 2 and 4 are of class 1, but over group pp the first meets class 0 and the other class 1: \
         give them classes of their own, or run the job with fold = false"
    );
}

#[test]
fn a_folded_rank_is_named_as_the_first_of_its_class() {
    let stage = |late: u64| {
        let mut b = Builder::new(6, &["a", "b", "c"]);
        b.section(Section::Step);
        let line = b.add_group(Group::new("pp", 2, 3));
        b.kernel(A, late);
        b.gather(A, line, 7);
        b.finish()
    };
    let programs = [stage(10), stage(20)];
    let costs = programs.each_ref().map(|program| costs(program, 0));
    let classes = [0, 1].map(|at| Class { program: &programs[at], costs: &costs[at] });
    let timeline = simulate_job(Job { classes: &classes, class_of: &[1, 1, 1, 0, 0, 0] }, ONCE).expect("it runs");
    let ranks: Vec<_> = timeline.ranks.iter().map(|r| (r.rank, r.class, r.stands_for)).collect();
    assert_eq!(ranks, [(3, 0, 3), (0, 1, 3)]);
    let gathers: Vec<_> = timeline.spans.iter().filter(|span| span.reached != span.start).map(|s| s.rank).collect();
    assert_eq!(gathers, [3]);
    assert_eq!(timeline.breakdown[0].bubble, Time(10));
}

#[test]
fn a_rank_outside_a_group_cannot_issue_on_it() {
    let stage = |write: bool| {
        let mut b = Builder::new(6, &["a", "b", "c"]);
        b.section(Section::Step);
        let ends = b.add_group(Group::ends("embedding", 3, 2));
        if write {
            b.gather(A, ends, 7);
        }
        b.finish()
    };
    let programs = [stage(true), stage(false)];
    let costs = programs.each_ref().map(|program| costs(program, 0));
    let classes = [0, 1].map(|at| Class { program: &programs[at], costs: &costs[at] });
    let run = |class_of: &[u32]| simulate_job(Job { classes: &classes, class_of }, ONCE);
    assert_eq!(run(&[0, 0, 1, 1, 0, 0]).expect("the job runs").step, Time(7));
    assert_eq!(
        run(&[0, 0, 1, 0, 0, 0]).expect_err("rank 3 is in the middle").to_string(),
        "rank 3 of class 0 issues on group embedding, to which it does not belong"
    );
}

/// Two stages of four ranks, each of which gathers over two groups that leave their leaves and fill an uplink together.
#[test]
fn stages_on_one_leaf_share_its_uplink_and_those_on_leaves_of_their_own_do_not() {
    let run = |mesh: Mesh, chips: u32, fold: bool| {
        let gather = |stage| Op::Inside { stage, stream: 0, group: 1, time: 100 };
        let programs: Vec<Program> = (0..2).map(|stage| write(mesh, &[gather(0), gather(1)], stage)).collect();
        let priced = |program: &Program| {
            let mut costs = price(program, 0, [0; 5]);
            costs.uplinks = vec![Uplink { level: 2, chips, positions: 1, capacity: Bandwidth(1.0) }];
            costs.comm.iter_mut().for_each(|cost| (cost.use_of, cost.outer) = ([0.0; 4], [0.5, 0.0, 0.0, 0.0]));
            costs
        };
        let costs: Vec<Costs> = programs.iter().map(priced).collect();
        let classes: Vec<Class<'_>> =
            programs.iter().zip(&costs).map(|(program, costs)| Class { program, costs }).collect();
        let job = Job { classes: &classes, class_of: &mesh.class_of() };
        simulate_job(job, Options { fold, ..ONCE }).expect("the job runs").step
    };
    for fold in [true, false] {
        // Ranks of both stages lie below each leaf.
        assert_eq!(run(Mesh { stages: 2, inner: true }, 4, fold), Time(200), "folded: {fold}");
        // A leaf has ranks of one stage.
        assert_eq!(run(Mesh { stages: 2, inner: false }, 2, fold), Time(100), "folded: {fold}");
        // Nothing leaves a leaf of all.
        assert_eq!(run(Mesh { stages: 2, inner: true }, 8, fold), Time(100), "folded: {fold}");
    }
}
