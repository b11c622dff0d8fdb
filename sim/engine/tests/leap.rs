//! Rounds that repeat are taken at once, and nobody can tell: random pipelines that do some things over and over again.

use super::fold::{Mesh, Op, case, drained, price, write};
use super::*;
use crate::program::Instr;
use proptest::prelude::*;

/// What each stage does of something, then of a round over and over again, then of something else.
pub(super) fn programs(mesh: Mesh, [before, round, after]: [&[Op]; 3], rounds: usize) -> Vec<Program> {
    let all = std::iter::repeat_n(round, rounds).flatten();
    let ops: Vec<Op> = before.iter().chain(all).chain(after).cloned().collect();
    let stage = |own| {
        let mut program = write(mesh, &ops, own);
        let begin = |at: usize| write(mesh, &ops[..before.len() + at * round.len()], own).step.len() as u32;
        program.rounds = (0..rounds).map(begin).collect();
        program
    };
    (0..mesh.stages).map(stage).collect()
}

/// What comes before a round, the round and what comes after, which may be drained: they are cut at two places.
pub(super) fn parts(mesh: Mesh, ops: &[Op], at: [f64; 2], drains: bool) -> [Vec<Op>; 3] {
    let [from, to] = at.map(|part| (part * ops.len() as f64) as usize);
    let (from, to) = (from.min(to), from.max(to));
    let mut after = ops[to..].to_vec();
    if drains {
        drained(&mut after, mesh.stages);
    }
    [ops[..from].to_vec(), ops[from..to].to_vec(), after]
}

fn prepared<T>(
    mesh: Mesh,
    programs: &[Program],
    paid: [u64; 5],
    options: Options,
    run: impl FnOnce(Prepared<'_>) -> Result<T, EngineError>,
) -> T {
    let costs: Vec<Costs> = programs.iter().zip(0..).map(|(program, stage)| price(program, stage, paid)).collect();
    let classes: Vec<Class<'_>> =
        programs.iter().zip(&costs).map(|(program, costs)| Class { program, costs }).collect();
    let class_of = mesh.class_of();
    let job = prepare(Job { classes: &classes, class_of: &class_of }, options).expect("a sound job");
    run(job).expect("the job runs")
}

fn run(mesh: Mesh, programs: &[Program], paid: [u64; 5], options: Options) -> Timeline {
    prepared(mesh, programs, paid, options, |job| job.run())
}

/// What a step of a program launches.
fn launched(program: &Program) -> Round {
    let mut round = Round {
        kernels: vec![0; program.kernels.len()],
        comms: vec![0; program.comms.len()],
        exchanges: vec![0; program.exchanges.len()],
        flops: Default::default(),
        host: Time::ZERO,
    };
    for instr in &program.step {
        match *instr {
            Instr::Launch { kernel, scope, .. } => {
                round.kernels[kernel.0 as usize] += 1;
                round.flops[scope.part()] += program.kernel(kernel).model_flops();
            }
            Instr::Collective { comm, .. } => round.comms[comm.0 as usize] += 1,
            Instr::Exchange { exchange, .. } => round.exchanges[exchange.0 as usize] += 1,
            _ => {}
        }
    }
    round
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_run_that_takes_rounds_at_once_finds_what_a_run_of_every_round_finds(
        (mesh, ops, paid, options) in case(),
        (begin, end) in (0.0..1.0, 0.0..1.0),
        rounds in 2usize..24,
        steps in 1u32..5,
        fold in any::<bool>(),
        drains in any::<bool>(),
    ) {
        let [before, round, after] = parts(mesh, &ops, [begin, end], drains);
        let mut programs = programs(mesh, [&before[..], &round, &after], rounds);
        let options = Options { steps, fold, record: false, ..options };
        let few = run(mesh, &programs, paid, options);
        programs.iter_mut().for_each(|program| program.rounds.clear());
        let all = run(mesh, &programs, paid, options);
        prop_assert_eq!(&all.ends, &few.ends);
        prop_assert_eq!(&all.breakdown, &few.breakdown);
        prop_assert_eq!(&all.busy, &few.busy);
        prop_assert_eq!(&all.marks, &few.marks);
    }

    #[test]
    fn a_run_of_rounds_that_are_not_written_finds_what_a_run_of_all_written_finds(
        (mesh, ops, paid, options) in case(),
        (begin, end) in (0.0..1.0, 0.0..1.0),
        (rounds, further) in (2usize..12, 1u32..24),
        steps in 1u32..5,
        fold in any::<bool>(),
        drains in any::<bool>(),
    ) {
        let [before, round, after] = parts(mesh, &ops, [begin, end], drains);
        let [short, mut long] =
            [0, further as usize].map(|more| programs(mesh, [&before, &round, &after], rounds + more));
        let options = Options { steps, fold, record: false, ..options };
        if let Some((few, each)) = prepared(mesh, &short, paid, options, |job| job.run_further(further)) {
            long.iter_mut().for_each(|program| program.rounds.clear());
            let all = run(mesh, &long, paid, options);
            prop_assert_eq!(&all.ends, &few.ends);
            prop_assert_eq!(&all.breakdown, &few.breakdown);
            prop_assert_eq!(&all.busy, &few.busy);
            prop_assert_eq!(&all.marks, &few.marks);
            let paid_in = |programs: &[Program]| prepared(mesh, programs, paid, options, |job| Ok(job.host_work()));
            for ((few, all), each) in paid_in(&short).into_iter().zip(paid_in(&long)).zip(&each) {
                prop_assert_eq!(few.0 + each.host.0 * u64::from(further), all.0);
            }
            for ((short, long), each) in short.iter().zip(&long).zip(&each) {
                let (mut few, all) = (launched(short), launched(long));
                let sums = [(&mut few.kernels, &each.kernels), (&mut few.comms, &each.comms), (&mut few.exchanges, &each.exchanges)];
                for (sums, more) in sums {
                    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more * u64::from(further));
                }
                prop_assert_eq!(few, all);
            }
        }
    }
}

#[test]
fn of_a_thousand_rounds_that_are_alike_a_few_are_run() {
    let mesh = Mesh { stages: 3, inner: false };
    let kernel = |stage, time| Op::Kernel { stage, stream: 0, time, percent: 0, communication: false };
    let message = |from| Op::Message { from, by: 1, streams: (1, 2), times: (5, 7), back: false };
    let pass =
        |stage, from, to| [Op::Record { stage, stream: from, event: 0 }, Op::Wait { stage, stream: to, event: 0 }];
    // Each stage computes, sends on its second stream, and the next waits with its first for what its third has received.
    let hop = |from: u32| [pass(from, 0, 1).to_vec(), vec![message(from)], pass(from + 1, 2, 0).to_vec()].concat();
    let round = [vec![kernel(0, 50)], hop(0), vec![kernel(1, 30)], hop(1), vec![kernel(2, 40)]].concat();
    let events = |rounds| {
        let programs = programs(mesh, [&[], &round, &[]], rounds);
        let timeline = run(mesh, &programs, [1; 5], Options { steps: 1, record: false, queue_limit: 8, ..ONCE });
        // The first stage computes all the time, and the others wait for it.
        assert!(timeline.step > Time(50 * rounds as u64), "{}", timeline.step);
        timeline.events
    };
    assert!(events(1000) < 40 * events(1), "{} and {} events", events(1000), events(1));
}
