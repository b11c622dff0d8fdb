//! Pipeline schedules: writing the lists, lowering them, and replaying them.

#![allow(missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use windtunnel::schedule::order::zero_bubble::{Memory, search};
use windtunnel::schedule::{self, Costs, Lowering, Shape};
use windtunnel::units::Time;

/// What a published run looks like.
const RUNS: [(&str, &str, Shape); 4] = [
    // Korthikanti et al. 2022 (arXiv 2205.05198): tensor 8 × pipeline 35 × 3 virtual stages, 280 micro-batches a replica.
    ("530B on 280", "MegatronInterleaved", Shape { ranks: 35, virtual_stages: 3, microbatches: 280 }),
    // Tensor 8 × pipeline 8 × 3 virtual stages in 8 replicas; the number of micro-batches is assumed.
    ("175B on 512", "MegatronInterleaved", Shape { ranks: 8, virtual_stages: 3, microbatches: 192 }),
    ("405B on 16384", "Interleaved1F1B", Shape { ranks: 16, virtual_stages: 8, microbatches: 16 }),
    ("DeepSeek-V3", "DualPipeV", Shape { ranks: 16, virtual_stages: 2, microbatches: 120 }),
];

fn schedules(c: &mut Criterion) {
    for (run, name, shape) in RUNS {
        let mut group = c.benchmark_group(run);
        let schedule = schedule::build(name, shape).expect("a shape it is made for");
        let costs = Costs::uniform(schedule.stages, [Time(10), Time(10), Time(9)], Time(1));
        println!("{run}: {} actions", schedule.lists.all().len());
        group.bench_function("build", |b| b.iter(|| schedule::build(name, black_box(shape))));
        group.bench_function("lower", |b| b.iter(|| schedule::lower(black_box(&schedule), &Lowering::default())));
        group.bench_function("replay", |b| b.iter(|| schedule::replay(black_box(&schedule), &costs)));
        group.finish();
    }
    let shape = Shape { ranks: 16, virtual_stages: 1, microbatches: 128 };
    let costs = Costs::uniform(16, [Time(11_325), Time(11_308), Time(8_109)], Time(378));
    let memory = Memory { activation: 74, for_weights: 32, limit: 2 * 16 * 74 };
    c.bench_function("ZB-2p, 16 ranks, 128 micro-batches", |b| {
        b.iter(|| search("ZB-2p", black_box(shape), &costs, memory));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(2));
    targets = schedules
}
criterion_main!(benches);
