//! One prediction, warm and in process: program, allocator replay of three steps, event simulation of three steps.
//!
//! `benches/README.md` says what the figures mean.

#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;

use criterion::{Criterion, criterion_group, criterion_main};
use windtunnel::memory::{self, Settings as AllocatorSettings};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Scenario, predict};
use windtunnel::units::Bytes;

fn scenario(name: &str) -> Scenario {
    Scenario::load(Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name)).unwrap()
}

fn predictions(criterion: &mut Criterion) {
    for (label, file) in
        [("8B on 8", "llama3.1-8b-fsdp2-8xh100.toml"), ("70B on 256", "llama3.1-70b-fsdp2-256xh100.toml")]
    {
        let scenario = scenario(file);
        let mut group = criterion.benchmark_group(format!("predict {label}"));
        group.bench_function("whole", |bench| bench.iter(|| predict(&scenario, Settings::default()).unwrap().step));
        group.bench_function("program", |bench| bench.iter(|| scenario.job.compile().classes[0].step.len()));
        let program = scenario.job.compile().classes.remove(0);
        let settings = AllocatorSettings { expandable_segments: false, capacity: Bytes(1 << 43) };
        group.bench_function("memory", |bench| bench.iter(|| memory::replay(&program, settings).peak_reserved));
        group.finish();
    }
}

criterion_group!(benches, predictions);
criterion_main!(benches);
