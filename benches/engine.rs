//! How fast the engine is: events per second of its queue, and of whole steps.
//!
//! The queue is measured in the hold model (Jones, "An empirical comparison of priority-queue and event-set
//! implementations", 1986): with N events pending, take the next and push one later, at a random distance.
//! The standard heap does the same work beside it. The step is shaped as an 8-billion-parameter model under FSDP2:
//! 32 layers, 3,506 kernels, 131 collectives, gradients reduced on a second axis. The pipeline has a class for each stage.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use windtunnel::engine::lanes::Lanes;
use windtunnel::engine::{
    Class, Costs, EventQueue, Job, Options, RankPace, Stretch, simulate, simulate_job, simulate_ranks,
};
use windtunnel::program::builder::Section;
use windtunnel::program::{
    Builder, Collective, Comm, DType, Direction, Dispatch, Group, MemoryKind, Pass, Program, StreamId, Transfer, Work,
};
use windtunnel::units::{Bytes, Time};

/// The next of a fixed sequence of pseudo-random numbers (xorshift64).
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

fn queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(1));
    for pending in [100u64, 10_000, 1_000_000] {
        let mut state = SEED;
        let mut ours = EventQueue::default();
        (0..pending).for_each(|event| ours.push(random(&mut state) % 1_000_000_000, (event as u32, 0u32, 0u32)));
        group.bench_function(BenchmarkId::new("four children", pending), |bench| {
            bench.iter(|| {
                let (now, event) = ours.pop().expect("events are pending");
                ours.push(now + random(&mut state) % 1_000_000_000, event);
                now
            });
        });

        let mut state = SEED;
        let mut theirs = BinaryHeap::new();
        let mut sequence = 0u64;
        for event in 0..pending {
            theirs.push(Reverse((random(&mut state) % 1_000_000_000, sequence, (event as u32, 0u32, 0u32))));
            sequence += 1;
        }
        group.bench_function(BenchmarkId::new("standard heap", pending), |bench| {
            bench.iter(|| {
                let Reverse((now, _, event)) = theirs.pop().expect("events are pending");
                theirs.push(Reverse((now + random(&mut state) % 1_000_000_000, sequence, event)));
                sequence += 1;
                now
            });
        });
    }
    group.finish();
}

const COMPUTE: StreamId = StreamId(0);
const GATHER: StreamId = StreamId(1);
const REDUCE: StreamId = StreamId(2);
const LAYERS: u64 = 32;

/// `count` kernels of different sizes.
fn kernels(builder: &mut Builder, count: u64, dispatch: Dispatch) {
    for index in 0..count {
        let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(1 + index % 7), written: Bytes(1) };
        builder.launch(COMPUTE, "kernel", work, dispatch);
    }
}

/// One step of fully sharded training, as FSDP2 would issue it with the next layer prefetched.
fn fsdp_step(ranks: u32) -> Program {
    let mut builder = Builder::new(ranks, &["compute", "all-gather", "reduce-scatter"]);
    let all = builder.add_group(Group::new("dp_shard", ranks, 1));
    builder.section(Section::Step);
    let comm = |kind, bytes| Comm { kind, group: all, bytes: Bytes(bytes), dtype: DType::Bf16 };
    let gather = |builder: &mut Builder| {
        builder.set_pass(Pass::Communication);
        builder.launch(
            GATHER,
            "copy-in",
            Work::Memory { kind: MemoryKind::Copy, read: Bytes(1), written: Bytes(1) },
            Dispatch::Extra,
        );
        builder.collective(GATHER, comm(Collective::AllGather, 400 << 20));
        builder.record(GATHER)
    };
    for (pass, per_layer, dispatch) in
        [(Pass::Forward, 31, Dispatch::EagerForward), (Pass::Backward, 64, Dispatch::EagerBackward)]
    {
        let mut gathered = gather(&mut builder);
        for _ in 0..LAYERS {
            builder.host(Dispatch::FsdpHook, 2);
            builder.wait(COMPUTE, gathered);
            gathered = gather(&mut builder);
            builder.set_pass(pass);
            kernels(&mut builder, per_layer, dispatch);
            if pass == Pass::Backward {
                builder.wait_stream(REDUCE, COMPUTE);
                builder.collective(REDUCE, comm(Collective::ReduceScatter, 800 << 20));
                builder.collective(REDUCE, comm(Collective::AllReduce, 100 << 20));
            }
        }
    }
    builder.wait_stream(COMPUTE, REDUCE);
    builder.set_pass(Pass::Optimizer);
    builder.collective(COMPUTE, comm(Collective::AllReduce, 4));
    let norm = builder.record(COMPUTE);
    builder.push(windtunnel::program::Instr::HostWait { event: norm });
    kernels(&mut builder, 400, Dispatch::Foreach);
    builder.finish()
}

fn costs(program: &Program) -> Costs {
    let mut costs = Costs::free(program);
    for (index, cost) in costs.kernel.iter_mut().enumerate() {
        cost.time = Time(40_000_000 + 31_000_000 * index as u64 % 200_000_000);
        cost.slowdown = 1.08;
    }
    for cost in &mut costs.comm {
        cost.time = Time(2_000_000_000);
        cost.use_of = [0.9, 0.0, 0.0, 0.0];
    }
    for cost in &mut costs.transfer {
        cost.time = Time(700_000_000);
        cost.use_of = [0.0, 0.9, 0.0, 0.0];
    }
    costs.dispatch = [Time(6_000_000); Dispatch::COUNT];
    costs
}

fn steps(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("step");
    for (name, ranks, fold) in [("folded", 64, true), ("64 ranks", 64, false)] {
        let program = fsdp_step(ranks);
        let costs = costs(&program);
        let options = Options { steps: 10, fold, ..Options::default() };
        let events = simulate(&program, &costs, options).expect("the program runs").events;
        group.throughput(Throughput::Elements(events));
        group.sample_size(20);
        group.bench_function(BenchmarkId::new("fsdp 8B, 10 steps", name), |bench| {
            bench.iter(|| simulate(black_box(&program), black_box(&costs), options));
        });
    }
    group.finish();
}

const MESSAGES: StreamId = StreamId(3);
const STAGES: u32 = 8;
const SPLIT: u32 = 8;
const MICROS: u32 = 64;

/// One stage's step of 1F1B (Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC 2021):
/// 48 kernels and 4 tensor-parallel collectives forward, twice the kernels backward, messages as one operation where a
/// send and a receive meet.
fn pipeline_step(stage: u32) -> Program {
    let mut builder = Builder::new(STAGES * SPLIT, &["compute", "all-gather", "reduce-scatter", "messages"]);
    let split = builder.add_group(Group::new("tp", SPLIT, 1));
    let line = builder.add_group(Group::new("pp", STAGES, SPLIT));
    builder.section(Section::Step);
    let (first, last) = (stage == 0, stage + 1 == STAGES);
    let end = |direction, ahead| Transfer { direction, group: line, ahead, bytes: Bytes(32 << 20), dtype: DType::Bf16 };
    let (next, previous) = (1, STAGES - 1);
    let [send_on, send_back] =
        [(!last, next), (!first, previous)].map(|(is, peer)| is.then(|| end(Direction::Send, peer)));
    let [from_before, from_behind] =
        [(!first, previous), (!last, next)].map(|(is, peer)| is.then(|| end(Direction::Receive, peer)));
    let exchange = |builder: &mut Builder, ends: &[Option<Transfer>]| {
        let ends: Vec<Transfer> = ends.iter().copied().flatten().collect();
        if !ends.is_empty() {
            builder.wait_stream(MESSAGES, COMPUTE);
            builder.exchange(MESSAGES, &ends);
            builder.wait_stream(COMPUTE, MESSAGES);
        }
    };
    let compute = |builder: &mut Builder, pass, count, dispatch| {
        builder.set_pass(pass);
        for _ in 0..4 {
            kernels(builder, count, dispatch);
            let (kind, bytes, dtype) = (Collective::AllReduce, Bytes(32 << 20), DType::Bf16);
            builder.collective(COMPUTE, Comm { kind, group: split, bytes, dtype });
        }
    };
    let forward = |builder: &mut Builder| compute(builder, Pass::Forward, 12, Dispatch::EagerForward);
    let backward = |builder: &mut Builder| compute(builder, Pass::Backward, 24, Dispatch::EagerBackward);
    let ahead = (STAGES - stage - 1).min(MICROS);
    for _ in 0..ahead {
        exchange(&mut builder, &[from_before]);
        forward(&mut builder);
        exchange(&mut builder, &[send_on]);
    }
    exchange(&mut builder, &[from_before]);
    for micro in ahead..MICROS {
        forward(&mut builder);
        exchange(&mut builder, &[send_on, from_behind]);
        backward(&mut builder);
        exchange(&mut builder, &[send_back, from_before.filter(|_| micro + 1 < MICROS)]);
    }
    for _ in 0..ahead {
        exchange(&mut builder, &[from_behind]);
        backward(&mut builder);
        exchange(&mut builder, &[send_back]);
    }
    builder.finish()
}

fn pipelines(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pipeline");
    let programs: Vec<Program> = (0..STAGES).map(pipeline_step).collect();
    let costs: Vec<Costs> = programs.iter().map(costs).collect();
    let classes: Vec<Class<'_>> =
        programs.iter().zip(&costs).map(|(program, costs)| Class { program, costs }).collect();
    let class_of: Vec<u32> = (0..STAGES * SPLIT).map(|rank| rank / SPLIT).collect();
    let job = Job { classes: &classes, class_of: &class_of };
    for (name, fold) in [("folded", true), ("64 ranks", false)] {
        let options = Options { fold, ..Options::default() };
        let events = simulate_job(job, options).expect("the job runs").events;
        group.throughput(Throughput::Elements(events));
        group.sample_size(20);
        group.bench_function(BenchmarkId::new("1F1B, 8 stages, 64 micro-batches, 3 steps", name), |bench| {
            bench.iter(|| simulate_job(black_box(job), options));
        });
    }
    // Each rank at its own pace: the event loop on all of them, and the tape, written and played or only played again.
    let pace = |rank: u32| {
        let compute = Stretch::new(1.0 + 0.001 * f64::from(rank % 17)).expect("in range");
        RankPace { compute, memory: compute, ..RankPace::NONE }
    };
    let paces: Vec<RankPace> = (0..STAGES * SPLIT).map(pace).collect();
    let options = Options::default();
    let named = |engine: &str| BenchmarkId::new("1F1B, 64 ranks that differ, 3 steps", engine);
    group.bench_function(named("event loop"), |bench| {
        bench.iter(|| simulate_ranks(black_box(job), &paces, options));
    });
    group.bench_function(named("tape"), |bench| {
        bench.iter(|| Lanes::of(black_box(job), options).expect("the job runs").play(&paces));
    });
    let lanes = Lanes::of(job, options).expect("the job runs");
    group.bench_function(named("tape, another draw"), |bench| bench.iter(|| lanes.play(black_box(&paces))));
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    queue(&mut criterion);
    steps(&mut criterion);
    pipelines(&mut criterion);
    criterion.final_summary();
}
