//! XLA on NVIDIA GPUs, against what jaxlib 0.7.2 compiled for H100 (`oracles/xla-gpu.json`, by `oracles/xla_gpu.py`) and closed forms.

use std::path::Path;

use serde::Deserialize;
use windtunnel::program::{Collective, Instr};
use windtunnel::runtime::Plan;
use windtunnel::scenario::Scenario;
use windtunnel::scenario::predict::{COMPILED_ON_GPUS, Prediction, Settings, predict};

#[derive(Deserialize)]
struct Oracle {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    layers: u64,
    scan: bool,
    remat: String,
    data: u64,
    flags: Option<Flags>,
    /// Bytes of parameters, moments and tokens.
    argument: u64,
    /// Bytes of the heap besides.
    temp: u64,
    all_gathers: usize,
    reduce_scatters: usize,
}

#[derive(Deserialize)]
struct Flags {
    all_gather: u64,
    reduce_scatter: u64,
    all_reduce: u64,
}

impl Case {
    fn text(&self) -> String {
        let flags = self.flags.as_ref().map_or(String::new(), |flags| {
            format!(
                "flags = [\"xla_gpu_all_gather_combine_threshold_bytes={}\", \"xla_gpu_reduce_scatter_combine_threshold_bytes={}\", \
                 \"xla_gpu_all_reduce_combine_threshold_bytes={}\", \"xla_gpu_enable_pipelined_all_gather=true\"]\n",
                flags.all_gather, flags.reduce_scatter, flags.all_reduce
            )
        });
        format!(
            "runtime = \"xla\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = {data}\n[model]\nname = \"llama-2-7b\"\n\
             config = {{ num_hidden_layers = {layers} }}\n[mesh]\ndata = {data}\nfsdp = 8\n[batch]\nsequence = 4096\nmicro = 2\n\
             [xla]\nremat_policy = \"{remat}\"\nuse_iota_embed = true\nscan_layers = {scan}\n{flags}",
            data = self.data,
            layers = self.layers,
            remat = self.remat,
            scan = self.scan,
        )
    }

    fn predict(&self) -> Prediction {
        predicted(&self.text())
    }
}

fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/xla-gpu.json");
    let oracle: Oracle = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    oracle.cases
}

fn predicted(text: &str) -> Prediction {
    let scenario = Scenario::parse("gpu.toml", text).unwrap();
    predict(&scenario, Settings { remedies: false, ..Settings::default() }).unwrap()
}

fn refused(text: &str) -> String {
    let refused = Scenario::parse("gpu.toml", text).map(|scenario| scenario.job.refuses().map(|why| why.problem));
    match refused {
        Err(error) => error.to_string(),
        Ok(why) => why.expect("it is refused").into_owned(),
    }
}

/// How often a step issues a collective of a kind over more than `least` bytes.
fn issued(prediction: &Prediction, kind: Collective, least: u64) -> usize {
    let program = &prediction.classes[0].program;
    let comms = program.step.iter().filter_map(|instr| match instr {
        Instr::Collective { comm, .. } => Some(program.comm(*comm)),
        _ => None,
    });
    comms.filter(|comm| comm.kind == kind && comm.bytes.0 > least).count()
}

const WRITTEN_OUT: &str = "scan_layers = false";

fn of_four_layers() -> String {
    cases().into_iter().find(|case| case.name == "apart-l4").unwrap().text()
}

#[test]
fn arguments_are_the_compilers_and_the_closed_form() {
    for case in cases() {
        let program = case.predict().classes.remove(0).program;
        // Parameters, moments, tokens.
        let held: u64 = program.buffers.iter().take(3).map(|buffer| buffer.bytes.0).sum();
        let layer: u64 = 4 * 4096 * 4096 + 3 * 4096 * 11_008;
        let sharded = (case.layers * layer + 2 * 32_000 * 4096) / 8;
        let norms = (2 * case.layers + 1) * 4096;
        let closed = 12 * (sharded + norms) + 2 * 4 * 2 * 4096;
        assert!(closed.abs_diff(case.argument) < 4096, "{}: {closed} and {}", case.name, case.argument);
        assert_eq!(held, closed, "{}", case.name);
    }
}

#[test]
fn written_out_layers_gather_and_scatter_as_often_as_the_compiler_has_it() {
    let written: Vec<Case> = cases().into_iter().filter(|case| !case.scan).collect();
    assert!(written.len() >= 4 && written.iter().any(|case| case.flags.is_some()));
    for case in written {
        let prediction = case.predict();
        let count = |kind| issued(&prediction, kind, 0);
        assert_eq!(count(Collective::AllGather), case.all_gathers, "{}", case.name);
        assert_eq!(count(Collective::ReduceScatter), case.reduce_scatters, "{}", case.name);
    }
}

#[test]
fn the_peak_is_no_more_than_the_compilers_and_less_by_no_more_than_we_say() {
    for case in cases() {
        let theirs = (case.argument + case.temp) as f64;
        let error = case.predict().memory.report.peak_allocated.0 as f64 / theirs - 1.0;
        assert!((-COMPILED_ON_GPUS..=0.0).contains(&error), "{}: {:+.1} %", case.name, 100.0 * error);
    }
}

#[test]
fn without_the_scheduler_that_hides_them_collectives_take_time_of_their_own() {
    let beside = predicted(&of_four_layers());
    let flag = "scan_layers = false\nflags = [\"xla_gpu_enable_latency_hiding_scheduler=false\"]";
    let waited = predicted(&of_four_layers().replace(WRITTEN_OUT, flag));
    let exchanged: f64 = waited
        .parts
        .iter()
        .filter(|part| part.name.starts_with("all-gather") || part.name.starts_with("reduce-scatter"))
        .map(|part| part.busy.seconds())
        .sum();
    let longer = waited.step.seconds() - beside.step.seconds();
    assert!(exchanged > 0.0 && longer > 0.5 * exchanged, "{longer} s longer of {exchanged} s exchanged");
}

#[test]
fn a_loop_gathers_its_first_weights_while_it_waits_unless_that_is_pipelined() {
    let looped = of_four_layers().replace(WRITTEN_OUT, "scan_layers = true");
    let pipelined = format!("{looped}flags = [\"xla_gpu_enable_pipelined_all_gather=true\"]\n");
    assert!(predicted(&pipelined).step < predicted(&looped).step);
}

#[test]
fn jax_takes_three_quarters_of_the_memory_unless_told() {
    let job = |text: &str| match Scenario::parse("gpu.toml", text).unwrap().job {
        Plan::Xla(job) => job,
        _ => panic!("of XLA"),
    };
    let [default, told] = ["", "python_client_mem_fraction = 0.9\n"].map(|key| job(&(of_four_layers() + key)).hbm.0);
    assert!((default as f64 / told as f64 - 0.75 / 0.9).abs() < 1e-6);
}

#[test]
fn keys_of_the_other_machine_are_refused_with_what_to_write() {
    for (from, to, words) in [
        (WRITTEN_OUT, "sa_block_size = 512", "splash attention, a kernel for TPUs"),
        (WRITTEN_OUT, "use_tokamax_splash = true", "splash attention, a kernel for TPUs"),
        (WRITTEN_OUT, "attention = \"flash\"", "cudnn_flash_te"),
        (WRITTEN_OUT, "flags = [\"CF_FOR_ALL_GATHER\"]", "no flag of XLA:GPU"),
        (WRITTEN_OUT, "quantization = \"fp8_full\"", "eight bits, on XLA for GPUs"),
        (WRITTEN_OUT, "num_vocab_tiling = 4", "a loss in parts, on XLA for GPUs"),
        (WRITTEN_OUT, "python_client_mem_fraction = 2.0", "a share of the memory"),
        ("fsdp = 8", "fsdp = 8\ndcn_data = 2", "mesh.data = N"),
        ("fsdp = 8", "fsdp = 4\ncontext = 2", "shared sequences, on XLA for GPUs"),
    ] {
        let said = refused(&of_four_layers().replace(from, to));
        assert!(said.contains(words), "{to}: {said}");
    }
    let tpu = "runtime = \"xla\"\n[topology]\nname = \"tpu-v6e\"\nslice = \"2x4\"\n[model]\nname = \"llama-2-7b\"\n[mesh]\n\
               [batch]\nsequence = 4096\nmicro = 1\n[xla]\n";
    for (key, words) in
        [("attention = \"cudnn_flash_te\"", "this is a TPU"), ("python_client_mem_fraction = 0.9", "this is a TPU")]
    {
        let said = refused(&format!("{tpu}{key}\n"));
        assert!(said.contains(words), "{key}: {said}");
    }
}

#[test]
fn what_jax_does_not_take_of_a_gpus_memory_is_no_room() {
    let memory = |fraction: f64| {
        let text = format!(
            "runtime = \"xla\"\n[topology]\nname = \"h100-sxm-80gb\"\nchips = 4\n[model]\nname = \"llama-3.1-8b\"\nlayers = 2\n[mesh]\n\
             fsdp = 4\n[batch]\nsequence = 4096\n[xla]\npython_client_mem_fraction = {fraction}\n"
        );
        let scenario = Scenario::parse("pool.toml", &text).unwrap();
        let has = scenario.topology.chip.memory.0 as f64;
        let memory = predict(&scenario, Settings::default()).unwrap().memory;
        (memory.capacity.0 as f64 / has, memory.outside.0 as f64 / has, memory.on_device)
    };
    for fraction in [0.9, 0.6, 0.05] {
        let (capacity, outside, fits) = memory(fraction);
        assert!((capacity - (fraction + outside).min(1.0)).abs() < 1e-6, "{fraction}: {capacity}");
        // Two blocks, the embedding and the head take some 9 GiB.
        assert_eq!(fits, fraction > 0.5);
    }
}
