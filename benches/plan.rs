//! A planner's search on one thread: how many plans are decided by the scenario's checks and lower bounds, and how many are simulated.
//!
//! `benches/README.md` says what the figures mean.

#![allow(missing_docs, clippy::unwrap_used)]

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use windtunnel::explore::plan::{Request, Search, Worker};
use windtunnel::scenario::predict::Floors;

const REQUEST: &str = r#"
model = "llama-3.1-70b"
sequence = 8192
global_batch = "4Mtok"
[[machine]]
name = "h200-sxm-141gb"
size = 16
"#;

/// Of all legal plans, every so many-th is simulated.
const EVERY: usize = 97;

fn search(criterion: &mut Criterion) {
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().unwrap();
    let request = || Request::parse("request.toml", REQUEST).unwrap();
    let (asked, worker) = (request(), Worker::new(request()));
    let decide = |exhaustive| Search::new(&asked, &asked.sites[0], &Floors::default(), exhaustive, &|_| ());
    let mut group = criterion.benchmark_group("plan 70B on 128");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    let legal = decide(true).next(usize::MAX);
    group.throughput(Throughput::Elements(legal.len() as u64));
    group.bench_function("decided", |bench| bench.iter(|| decide(false).next(1)));
    let some: Vec<_> = legal.iter().step_by(EVERY).collect();
    group.throughput(Throughput::Elements(some.len() as u64));
    let simulate = |&&place: &&usize| worker.simulate(0, place).unwrap().unwrap();
    group.bench_function("simulated", |bench| bench.iter(|| some.iter().map(simulate).filter(Result::is_ok).count()));
    group.finish();
}

criterion_group!(benches, search);
criterion_main!(benches);
