//! Compiled blocks with torchao's linears in fp8, against inductor (`tests/oracles/float8.json`).

use serde::Deserialize;
use windtunnel::model::block;
use windtunnel::model::fuse::float8::Recipe;
use windtunnel::model::fuse::{self, Compiled, Float8, Kernel, Launch, Options, Policy};
use windtunnel::model::style::Style;
use windtunnel::model::tensor::TensorParallel;
use windtunnel::program::{Collective, DType, MatmulLayout, Work};

use super::cases::{self, Dims};

#[derive(Deserialize)]
struct Case {
    recipe: String,
    ac: String,
    /// Tensor-parallel ranks.
    tp: u64,
    /// Gathers, reduce-scatters and all-reduces, in forward and in backward.
    collectives: [[usize; 3]; 2],
    /// Kept for backward, the result aside \[B\].
    saved: u64,
    /// `_scaled_mm` in backward that accumulate fast (forward run again), and that do not.
    backward_fast: usize,
    backward_slow: usize,
    forward_fast: usize,
    /// Bytes that casts write, in forward and in backward.
    forward_narrow: u64,
    backward_narrow: u64,
}

#[derive(Deserialize)]
struct File {
    batch: u64,
    seq: u64,
    model_dims: serde_json::Value,
    cases: Vec<Case>,
    pipelined: Pipelined,
}

/// What exchanges and matmuls are fused: for each gather its matmuls and whether it returns the whole, and scatters.
#[derive(Debug, PartialEq, Deserialize)]
struct Pipelined {
    forward_gathers: Vec<(usize, bool)>,
    forward_scatters: usize,
    backward_gathers: Vec<(usize, bool)>,
    backward_scatters: usize,
    backward_reduce_scatters: usize,
}

fn read() -> Option<File> {
    cases::read("float8.json").map(|file| serde_json::from_value(file).unwrap())
}

fn compiled(file: &File, case: &Case, pipelined: bool) -> Compiled {
    let dims: Dims = serde_json::from_value(file.model_dims.clone()).unwrap();
    let model = cases::model(&dims);
    let tensor = match case.tp {
        1 => TensorParallel::NONE,
        ranks => TensorParallel { ranks, sequence: true, loss: true, asynchronous: false },
    };
    let dims = block::dims(&model, file.batch, file.seq, tensor);
    let style = Style { repeat_kv: true, ..Style::default() };
    let graph = block::block(&model, dims, DType::Bf16, model.layers.at(0), style);
    let policy = match case.ac.as_str() {
        "none" => Policy::MinCut,
        "full" => Policy::Input,
        _ => Policy::ComputeIntensive,
    };
    let recipe = if case.recipe == "rowwise" { Recipe::Rowwise } else { Recipe::Tensorwise };
    let float8 = Float8 { recipe, all_gather: false, precompute_scale: false };
    let float8 = (case.recipe != "bf16").then_some(float8);
    fuse::compile(&graph, policy, Options { float8, pipelined })
}

/// Matmuls in fp8, forward's and gradients'.
fn scaled(kernels: &[Kernel]) -> [usize; 2] {
    let count = |forward: bool| {
        let wanted = |kernel: &&Kernel| match kernel.launch {
            Launch::Matmul(Work::Matmul { dtype: DType::Fp8, layout, .. }) => {
                (layout == MatmulLayout::Forward) == forward
            }
            _ => false,
        };
        kernels.iter().filter(wanted).count()
    };
    [count(true), count(false)]
}

fn narrow(compiled: &Compiled, kernels: &[Kernel]) -> u64 {
    let cast = |&&tensor: &&usize| compiled.tensors[tensor].name == "fp8";
    kernels.iter().flat_map(|kernel| &kernel.writes).filter(cast).map(|&tensor| compiled.tensors[tensor].bytes).sum()
}

#[test]
fn oracle_float8_blocks_multiply_as_often_and_save_as_much() {
    let Some(file) = read() else { return };
    let mut table = String::new();
    for case in &file.cases {
        let ours = compiled(&file, case, false);
        let [fast, slow] = scaled(&ours.backward);
        let counts = (scaled(&ours.forward)[0], fast, slow);
        assert_eq!(counts, (case.forward_fast, case.backward_fast, case.backward_slow), "{} {}", case.recipe, case.ac);
        let saved = ours.saved_bytes() as f64 / case.saved.max(1) as f64 - 1.0;
        table += &format!("{} {}: saved {} for {}\n", case.recipe, case.ac, ours.saved_bytes(), case.saved);
        assert!(case.ac == "full" || saved.abs() < 0.002, "{table}");
    }
    println!("{table}");
}

/// Gathers, reduce-scatters and all-reduces.
fn exchanges(kernels: &[Kernel]) -> [usize; 3] {
    [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce].map(|wanted| {
        let of = |kernel: &&Kernel| matches!(kernel.launch, Launch::Exchange { kind, .. } if kind == wanted);
        kernels.iter().filter(of).count()
    })
}

#[test]
fn oracle_split_blocks_exchange_as_often_as_inductor_lets_them() {
    let Some(file) = read() else { return };
    for case in file.cases.iter().filter(|case| case.tp > 1) {
        let ours = compiled(&file, case, false);
        let mut forward = exchanges(&ours.forward);
        if case.recipe == "tensorwise" {
            // Inductor finds the scale of the last weight a second time, at the end, for backward.
            forward[2] += 1;
        }
        assert_eq!([forward, exchanges(&ours.backward)], case.collectives, "{}", case.recipe);
    }
    assert!(file.cases.iter().any(|case| case.tp > 1) || cases::elsewhere());
}

fn fused(kernels: &[Kernel]) -> (Vec<(usize, bool)>, usize) {
    let gather = |kernel: &Kernel| match &kernel.launch {
        Launch::GatherMatmuls { works, keeps, .. } => Some((works.len(), *keeps)),
        _ => None,
    };
    let scatter = |kernel: &&Kernel| matches!(kernel.launch, Launch::MatmulScatter { .. });
    (kernels.iter().filter_map(gather).collect(), kernels.iter().filter(scatter).count())
}

#[test]
fn oracle_split_blocks_fuse_exchanges_with_the_matmuls_that_inductor_fuses_them_with() {
    let Some(file) = read() else { return };
    for case in file.cases.iter().filter(|case| case.tp > 1) {
        let ours = compiled(&file, case, true);
        let (forward_gathers, forward_scatters) = fused(&ours.forward);
        let (backward_gathers, backward_scatters) = fused(&ours.backward);
        let ours = Pipelined {
            forward_gathers,
            forward_scatters,
            backward_gathers,
            backward_scatters,
            backward_reduce_scatters: exchanges(&ours.backward)[1],
        };
        assert_eq!(ours, file.pipelined, "{}", case.recipe);
    }
}

#[test]
fn oracle_float8_blocks_cast_as_many_bytes_as_inductor() {
    let Some(file) = read() else { return };
    let mut table = String::new();
    for case in file.cases.iter().filter(|case| case.tp == 1) {
        let ours = compiled(&file, case, false);
        let pairs = [
            (narrow(&ours, &ours.forward), case.forward_narrow),
            (narrow(&ours, &ours.backward), case.backward_narrow),
        ];
        for (ours, theirs) in pairs {
            let off = ours as f64 / theirs as f64 - 1.0;
            table += &format!("{} {}: {ours} for {theirs}, {:+.1} %\n", case.recipe, case.ac, 100.0 * off);
            // Inductor gives queries, keys and values a copy each of their input, where it reads too little to be a
            // buffer of its own; here they share one.
            assert!((-0.18..=0.02).contains(&off), "{table}");
        }
    }
    println!("{table}");
}
