//! Ranks at paces of their own: the tape says what the event loop on all ranks says.

use super::fold::{Mesh, Op, case, price, write};
use super::leap::{parts, programs};
use super::*;
use crate::engine::lanes::Lanes;
use crate::engine::{RankPace, Stretch, simulate_ranks};
use proptest::prelude::*;

fn stretch(factor: f64) -> Stretch {
    Stretch::new(factor).expect("in range")
}

/// A pace for each of so many ranks, from a list of percents; hosts' are halves ([`priced`]).
fn paces(percents: &[[u32; 4]], ranks: usize) -> Vec<RankPace> {
    let pace = |&[compute, memory, host, link]: &[u32; 4]| {
        let of = |percent: u32| stretch(f64::from(percent) / 100.0);
        RankPace { compute: of(compute), memory: of(memory), host: of(host / 50 * 50), link: of(link) }
    };
    percents.iter().cycle().take(ranks).map(pace).collect()
}

/// The programs and costs of a random pipeline, in which nothing disturbs anything else if so asked.
fn written(mesh: Mesh, ops: &[Op], paid: [u64; 5], alone: bool) -> (Vec<Program>, Vec<Costs>) {
    let programs: Vec<Program> = (0..mesh.stages).map(|stage| write(mesh, ops, stage)).collect();
    let costs = priced(&programs, paid, alone);
    (programs, costs)
}

fn priced(programs: &[Program], paid: [u64; 5], alone: bool) -> Vec<Costs> {
    let price = |(program, stage): (&Program, u32)| {
        let mut costs = price(program, stage, paid);
        // Hosts pay even times, so that paces of halves leave whole picoseconds: what a host pays between two things that are seen is
        // rounded once on the tape and call by call in the event loop, and where a tape is cut decides what is between.
        costs.dispatch.iter_mut().chain([&mut costs.record, &mut costs.wait]).for_each(|cost| cost.0 *= 2);
        if alone {
            costs.kernel.iter_mut().for_each(|kernel| (kernel.slowdown, kernel.share) = (1.0, 0.0));
            costs.comm.iter_mut().chain(&mut costs.transfer).for_each(|cost| cost.use_of = [0.0; LEVELS]);
            // A message's ends ask the same of their links.
            let transfers = costs.transfer.iter_mut().zip(&program.transfers);
            transfers.for_each(|(cost, transfer)| cost.time = Time(transfer.bytes.0));
        }
        costs
    };
    programs.iter().zip(0..).map(price).collect()
}

/// A job's lanes, with further rounds if asked for.
fn lanes(mesh: Mesh, programs: &[Program], costs: &[Costs], options: Options, further: u32) -> Option<Lanes> {
    let classes: Vec<_> = programs.iter().zip(costs).map(|(program, costs)| Class { program, costs }).collect();
    let class_of = mesh.class_of();
    let job = Job { classes: &classes, class_of: &class_of };
    match further {
        0 => Some(Lanes::of(job, options).expect("the job runs")),
        _ => Lanes::of_further(job, options, further).expect("the job runs"),
    }
}

proptest! {
    #[test]
    fn ranks_that_are_alike_do_what_the_event_loop_says((mesh, ops, paid, options) in case()) {
        let (programs, costs) = written(mesh, &ops, paid, false);
        let classes: Vec<_> = programs.iter().zip(&costs).map(|(program, costs)| Class { program, costs }).collect();
        let class_of = mesh.class_of();
        let job = Job { classes: &classes, class_of: &class_of };
        let looped = simulate_job(job, options).expect("the job runs");
        let lanes = Lanes::of(job, options).expect("the job runs");
        let played = lanes.play(&vec![RankPace::NONE; class_of.len()]).expect("it is short");
        prop_assert_eq!(&played.ends, &looped.ends);
        prop_assert_eq!(played.step, looped.step);
    }

    #[test]
    fn ranks_that_differ_do_what_the_event_loop_says_of_all_of_them(
        (mesh, ops, paid, options) in case(),
        percents in prop::collection::vec(prop::array::uniform4(50u32..200), 1..16),
    ) {
        let (programs, costs) = written(mesh, &ops, paid, true);
        let classes: Vec<_> = programs.iter().zip(&costs).map(|(program, costs)| Class { program, costs }).collect();
        let class_of = mesh.class_of();
        let job = Job { classes: &classes, class_of: &class_of };
        let paces = paces(&percents, class_of.len());
        let looped = simulate_ranks(job, &paces, options).expect("the job runs");
        let lanes = Lanes::of(job, options).expect("the job runs");
        let played = lanes.play(&paces).expect("it is short");
        prop_assert_eq!(&played.ends, &looped.ends);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn rounds_that_are_not_written_are_played_as_if_they_were(
        (mesh, ops, paid, options) in case(),
        (begin, end) in (0.0..1.0, 0.0..1.0),
        (rounds, further) in (4usize..12, 1u32..60),
        percents in prop::collection::vec(prop::array::uniform4(50u32..200), 1..16),
        (alone, drains) in (any::<bool>(), any::<bool>()),
    ) {
        let [before, round, after] = parts(mesh, &ops, [begin, end], drains);
        let [short, long] =
            [0, further as usize].map(|more| programs(mesh, [&before, &round, &after], rounds + more));
        let costs = priced(&short, paid, alone);
        if let Some(few) = lanes(mesh, &short, &costs, options, further) {
            let all = lanes(mesh, &long, &costs, options, 0).expect("the job runs");
            prop_assert_eq!(&few.alike.ends, &all.alike.ends);
            let paces = paces(&percents, few.ranks());
            let [few, all] = [few, all].map(|lanes| lanes.play(&paces).expect("it is short"));
            prop_assert_eq!(few, all);
        }
    }
}

/// Four ranks that meet after every kernel.
fn in_step(rounds: u32) -> (Program, Costs) {
    let program = step(4, [(4, 1)], |b, [all]| {
        for _ in 0..rounds {
            b.kernel(A, 1000);
            b.gather(A, all, 100);
        }
    });
    let costs = costs(&program, 0);
    (program, costs)
}

fn play(program: &Program, costs: &Costs, paces: &[RankPace]) -> crate::engine::lanes::Played {
    let class_of = vec![0; program.ranks as usize];
    let job = Job { classes: &[Class { program, costs }], class_of: &class_of };
    Lanes::of(job, ONCE).expect("it runs").play(paces).expect("it is short")
}

#[test]
fn all_ranks_go_at_the_pace_of_the_slowest_that_they_meet() {
    let (program, costs) = in_step(5);
    let mut paces = vec![RankPace::NONE; 4];
    paces[2].memory = stretch(1.2);
    let played = play(&program, &costs, &paces);
    assert_eq!(played.step, Time(5 * (1200 + 100)));
    let [(group, waits)] = &played.waits[..] else { panic!("one group") };
    assert_eq!(group, "4x1");
    assert_eq!(*waits, [1000, 1000, 0, 1000].map(Time));
}

#[test]
fn a_collective_takes_what_its_slowest_link_needs() {
    let (program, costs) = in_step(5);
    let mut paces = vec![RankPace::NONE; 4];
    paces[1].link = stretch(3.0);
    assert_eq!(play(&program, &costs, &paces).step, Time(5 * (1000 + 300)));
}

#[test]
fn a_slow_host_holds_back_only_where_the_device_is_fast() {
    let launched = |dispatch: u64| {
        let program = step(2, [(2, 1)], |b, [all]| {
            (0..10).for_each(|_| b.kernel(A, 1000));
            b.gather(A, all, 100);
        });
        (costs(&program, dispatch), program)
    };
    let mut paces = vec![RankPace::NONE; 2];
    paces[1].host = stretch(2.0);
    let (costs, program) = launched(100);
    assert_eq!(play(&program, &costs, &paces).step, Time(200 + 10_000 + 100));
    let (costs, program) = launched(900);
    assert_eq!(play(&program, &costs, &paces).step, Time(11 * 1800 + 100));
}
