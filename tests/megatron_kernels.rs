//! Kernels of Megatron's own modules: what they read and write, and whose they are, held against their source
//! (Megatron-LM@bbab79f8: `megatron/fused_kernels/scaled_upper_triang_masked_softmax.h`, `megatron/model/fused_layer_norm.py`,
//! `megatron/p2p_communication.py`).

use windtunnel::cost::{CostModel, Profile, Regime};
use windtunnel::program::{Collective, DType, Direction, Instr, MatmulLayout, MemoryKind, Program, Work};
use windtunnel::receipt::check::{self, Choice};
use windtunnel::receipt::table::Tables;
use windtunnel::units::Bytes;

use crate::make;

/// GPT with LayerNorm and learned positions, of Megatron's own modules, two stages of two tensor-parallel ranks.
const GPT: &str = r#"runtime = "megatron"
[topology]
name = "a100-sxm-80gb"
nodes = 1
[model]
name = "gpt-megatron-175b"
layers = 4
hidden = 1024
ffn = 4096
heads = 16
kv_heads = 16
vocab = 51200
[mesh]
tp = 2
pp = 2
[batch]
sequence = 512
accumulation = 4
[precision]
param = "fp16"
[megatron]
implementation = "local"
attention = "unfused"
"#;

/// Tokens of a micro-batch, heads of a rank, and the model's width.
const S: u64 = 512;
const HEADS: u64 = 8;
const WIDTH: u64 = 1024;

fn with(change: &str) -> Vec<Program> {
    let text = if change.is_empty() { GPT.to_owned() } else { make::apply(GPT, change) };
    make::parse(&text).job.compile().programs()
}

/// Family, bytes read and bytes written of the kernels of one name, each once.
fn moved(program: &Program, name: &str) -> Vec<(MemoryKind, u64, u64)> {
    let mut known: Vec<_> = program
        .kernels
        .iter()
        .filter(|kernel| kernel.name == name)
        .filter_map(|kernel| match kernel.work {
            Work::Memory { kind, read, written } => Some((kind, read.0, written.0)),
            _ => None,
        })
        .collect();
    known.dedup();
    known
}

#[test]
fn the_fused_softmax_reads_what_its_mask_leaves_and_writes_all() {
    // Row i reads i scores, in sectors of 16: 16·(1 + … + S/16) sectors of them for every 16 rows.
    let sectors: u64 = (1..=S).map(|row| row.div_ceil(16)).sum();
    let (seen, all) = (HEADS * sectors * 16 * 2, HEADS * S * S * 2);
    let program = &with("")[0];
    assert_eq!(moved(program, "scaled_upper_triang_masked_softmax"), [(MemoryKind::Softmax, seen, all)]);
    assert_eq!(
        moved(program, "scaled_upper_triang_masked_softmax_backward"),
        [(MemoryKind::Softmax, 2 * seen, all)],
        "the gradient and the softmax, where the mask leaves any"
    );
}

#[test]
fn a_norm_is_the_kernel_that_its_width_has() {
    let bytes = S * WIDTH * 2;
    let kinds = |change: &str, name: &str| moved(&with(change)[0], name);
    let persistent = [(MemoryKind::PersistentNorm, bytes, bytes)];
    assert_eq!(kinds("megatron.layer_norm = 'persistent'", "apex.fast_layer_norm"), persistent);
    assert_eq!(kinds("", "apex.fast_layer_norm"), persistent, "as Megatron does where nothing is said");
    let fused = [(MemoryKind::ApexNormBackward, 2 * bytes, bytes)];
    assert_eq!(kinds("megatron.layer_norm = 'fused'", "apex.fused_layer_norm_backward"), fused);
    let torch = [(MemoryKind::LayerNorm, bytes, bytes)];
    assert_eq!(kinds("megatron.layer_norm = 'torch'", "aten.native_layer_norm"), torch);
    // 1,280 numbers are no width of the persistent kernel.
    let odd = "model.hidden = 1280, megatron.layer_norm = 'persistent'";
    assert!(kinds(odd, "apex.fast_layer_norm").is_empty() && kinds(odd, "apex.fused_layer_norm").len() == 1);
}

#[test]
fn norms_on_a100_take_what_apex_printed() {
    // NVIDIA/apex#1037: 16,384 rows of 1,024 in fp16, microseconds.
    let a100 = Profile::find("a100-sxm-40gb").expect("a shipped profile");
    let costs = CostModel::new(&a100, Regime::Burst);
    let tensor = 16_384 * 1024 * 2;
    for (kind, tensors, us) in [
        (MemoryKind::ApexNorm, 2, 75.1),
        (MemoryKind::ApexNormBackward, 3, 176.2),
        (MemoryKind::PersistentNorm, 2, 53.5),
        (MemoryKind::PersistentNormBackward, 3, 86.6),
    ] {
        let work = Work::Memory { kind, read: Bytes((tensors - 1) * tensor), written: Bytes(tensor) };
        let time = costs.work(&work).time.micros();
        assert!((time / us - 1.0).abs() < 0.02, "{kind:?}: {time} us, printed {us}");
    }
}

#[test]
fn no_chip_streams_faster_than_its_memory() {
    for name in Profile::names() {
        let profile = Profile::find(name).expect("a shipped profile");
        let costs = CostModel::new(&profile, Regime::Burst);
        let bytes = 1u64 << 32;
        let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(bytes / 2), written: Bytes(bytes / 2) };
        let rate = bytes as f64 / costs.work(&work).time.seconds();
        let peak = profile.bf16.chip.bandwidth.0;
        assert!(rate < peak, "{name} streams {:.0} GB/s of {:.0}", rate / 1e9, peak / 1e9);
    }
}

#[test]
fn sustained_matmuls_on_a100_are_those_of_somebody_elses_sweep() {
    // Nothing in the profile is from this sweep, of another library's release two years before.
    let seconds = |[m, n, k, rate]: [f64; 4]| 2.0 * m * n * k / (rate * 1e12);
    let errors = sustained("a100-sxm-80gb", DType::Fp16, include_str!("costs/matmul_a100_sweep.csv"), seconds);
    let (median, p90) = figures(errors.iter().map(|(_, error)| *error));
    assert!(errors.len() > 300 && median.abs() < 0.01 && p90 < 0.07, "{median} {p90}");
}

#[test]
fn nothing_but_matmuls_is_slower_at_the_power_limit_than_matmuls_in_training_on_h200() {
    let seconds = |[.., us]: [f64; 4]| us * 1e-6;
    let errors = sustained("h200-sxm-141gb", DType::Bf16, include_str!("costs/matmul_h200_sustained.csv"), seconds);
    assert!(errors.len() > 1300);
    for (from, to, least, most) in [(0.0, 3.2e-3, -0.16, -0.10), (3.2e-3, 1e-2, -0.10, -0.02), (1e-2, 1.0, -0.03, 0.03)]
    {
        let inside = errors.iter().filter(|(time, _)| (from..to).contains(time));
        let (median, _) = figures(inside.map(|(_, error)| *error));
        assert!((least..most).contains(&median), "from {from} to {to} s: {median}");
    }
}

/// Measured times [s] of a file's matmuls, and predicted sustained over measured times less one.
fn sustained(chip: &str, dtype: DType, file: &str, seconds: impl Fn([f64; 4]) -> f64) -> Vec<(f64, f64)> {
    let profile = Profile::find(chip).expect("a shipped profile");
    let costs = CostModel::new(&profile, Regime::Sustained);
    let error = |line: &str| {
        let mut fields = line.split(',').map(|field| field.parse::<f64>().expect("a number"));
        let row: [f64; 4] = std::array::from_fn(|_| fields.next().expect("three sides, and how fast"));
        let [m, n, k] = [row[0], row[1], row[2]].map(|side| side as u64);
        let work = Work::Matmul { m, n, k, dtype, layout: MatmulLayout::Forward };
        (seconds(row), costs.work(&work).time.seconds() / seconds(row) - 1.0)
    };
    file.lines().filter(|line| !line.starts_with(['#', 'm'])).map(error).collect()
}

/// The median of errors, and their absolute 90th percentile.
fn figures(errors: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut errors: Vec<f64> = errors.collect();
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    errors.iter_mut().for_each(|error| *error = error.abs());
    errors.sort_by(f64::total_cmp);
    (median, errors[errors.len() * 9 / 10])
}

#[test]
fn an_activation_that_all_ranks_hold_is_sent_in_parts_and_gathered() {
    let whole = S * WIDTH * 2;
    let sends = |program: &Program| -> Vec<u64> {
        let sent = program.transfers.iter().filter(|transfer| transfer.direction == Direction::Send);
        sent.map(|transfer| transfer.bytes.0).collect()
    };
    let gathered = |program: &Program| -> usize {
        let of = |instr: &&Instr| match **instr {
            Instr::Collective { comm, .. } => {
                let comm = program.comm(comm);
                comm.kind == Collective::AllGather && comm.bytes.0 == whole
            }
            _ => false,
        };
        program.step.iter().filter(of).count()
    };
    let plain = with("");
    assert!(plain.iter().all(|program| sends(program) == [whole] && gathered(program) == 0));
    let parts = with("pipeline.scatter_gather = true");
    // Two tensor-parallel ranks; each of four micro-batches is received once, an activation or a gradient.
    assert!(parts.iter().all(|program| sends(program) == [whole / 2] && gathered(program) == 4));
}

#[test]
fn the_steps_of_selective_recomputation_are_met() {
    // Korthikanti et al. 2022, Table 5: full and selective recomputation of 22B, 175B and 1T, and 530B.
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/receipts/public.jsonl");
    let mut files = check::read(&[path]).unwrap();
    let of = |id: &str| id.starts_with("nv-korthikanti22-t5") || id == "nv-korthikanti22-530b-dp8";
    files.receipts.entries.retain(|entry| of(&entry.row.id));
    let choice = Choice { lanes: vec!["tp+pp".to_owned()], hardware: vec![], grades: vec![], speed: None };
    let outcome = check::check(&files, &Tables::shipped(), &choice, &|| {});
    let errors: Vec<f64> = outcome.judged.iter().filter_map(|row| row.step.map(|pair| pair.error())).collect();
    assert_eq!(errors.len(), 7, "all seven are flown");
    let mean = errors.iter().map(|error| error.abs()).sum::<f64>() / 7.0;
    assert!(mean < 0.04, "{mean}: {errors:?}");
}
