//! A deterministic backward of attention against PyTorch's own allocations and what its authors measured.

use std::collections::BTreeSet;

use windtunnel::cost::{Backend, CostModel, Profile, Regime, Software};
use windtunnel::program::{AttentionShape, DType, Instr, Work};
use windtunnel::scenario::Scenario;

use crate::make::{self, MEGATRON, TINY, replaced};

fn shape(head_dim: u64, causal: bool) -> AttentionShape {
    AttentionShape {
        batch: 4,
        heads: 64,
        kv_heads: 8,
        queries: 8192,
        keys: 8192,
        head_dim,
        causal,
        window: None,
        squares: None,
    }
}

/// Time of a deterministic backward over the other's.
fn slower(chip: &str, attention: Backend, shape: AttentionShape) -> f64 {
    let profile = Profile::find(chip).unwrap();
    let time = |deterministic| {
        let software = Software { attention, deterministic, ..Software::default() };
        let work = Work::Attention { shape, dtype: DType::Bf16, backward: true };
        CostModel::new(&profile, Regime::Burst).with(software).work(&work).time.seconds()
    };
    time(true) / time(false)
}

#[test]
fn a_deterministic_backward_on_blackwell_takes_what_cudnn_measured() {
    // NVIDIA/cudnn-frontend@3929da2ef4c1, benchmark/sdpa_benchmark_training, GB200, cuDNN 9.22: medians over sequences.
    for (head_dim, causal, factor) in [(128, true, 1.148), (128, false, 1.230), (64, true, 1.295), (160, true, 0.986)] {
        let ours = slower("b200-sxm", Backend::Cudnn, shape(head_dim, causal));
        assert!((ours / factor - 1.0).abs() < 0.01, "{head_dim} {causal}: {ours}, measured {factor}");
    }
    // Nobody measured Hopper's.
    assert!((1.1..1.2).contains(&slower("h100-sxm-80gb", Backend::Cudnn, shape(128, true))));
}

#[test]
fn flash_attention_3_waits_for_its_turn_as_its_author_measured() {
    // Dao-AILab/flash-attention#1893: 2.391 and 2.900 ms.
    let ours = slower("h100-sxm-80gb", Backend::Flash3, shape(128, true));
    assert!((ours - 2.900 / 2.391).abs() < 1e-3, "{ours}");
}

/// The largest blocks that a step takes under a name, each size once, the largest first.
fn sizes(text: &str, name: &str) -> Vec<u64> {
    let program = make::program(text);
    let of = |instr: &Instr| match *instr {
        Instr::Alloc { buffer } => Some(program.buffer(buffer)),
        _ => None,
    };
    let named = program.step.iter().filter_map(of).filter(|buffer| buffer.name == name);
    let sizes: BTreeSet<u64> = named.map(|buffer| buffer.bytes.0).collect();
    sizes.into_iter().rev().collect()
}

#[test]
fn flash_attention_2_takes_the_blocks_that_pytorch_takes() {
    // PyTorch 2.15's own allocations on a chip of 132 multiprocessors, `dq_accum` of `_scaled_dot_product_flash_attention_backward`: batch,
    // heads, key-value heads, sequence, head dimension, bytes, bytes under torch.use_deterministic_algorithms.
    for (batch, heads, kv_heads, sequence, head, once, copied) in [
        (1, 32, 8, 1024, 128, 16_777_216, 83_886_080),
        (2, 16, 16, 1000, 64, 8_388_608, 41_943_040),
        (1, 8, 8, 512, 160, 3_145_728, 53_477_376),
        (1, 200, 200, 128, 64, 6_553_600, 6_553_600),
    ] {
        let keys = format!("layers = 1\nheads = {heads}\nkv_heads = {kv_heads}\nhidden = {}\n[mesh]", heads * head);
        let text = replaced(
            TINY,
            &[("[mesh]", &keys), ("sequence = 128", &format!("sequence = {sequence}\nmicro = {batch}"))],
        );
        let name = "aten._scaled_dot_product_flash_attention_backward";
        for (key, bytes) in [("", once), ("\ndeterministic = true", copied)] {
            let taken = sizes(&format!("{text}\n[attention]\nbackend = \"flash2\"{key}\n"), name);
            assert!(taken.contains(&bytes), "{heads} heads of {head}{key}: {taken:?}, PyTorch takes {bytes}");
        }
    }
}

#[test]
fn pytorch_takes_no_cudnn_attention_under_deterministic_algorithms() {
    let text = format!("{TINY}\n[attention]\ndeterministic = true\n");
    let taken = make::parse(&text).assumption_lines().join("\n");
    assert!(
        taken.contains("attention.backend = \"flash2\"") && taken.contains("prices attention's backward"),
        "{taken}"
    );
    let refused = |attention: &str| {
        let text = format!("{TINY}\n[attention]\ndeterministic = true\nbackend = \"{attention}\"\n");
        Scenario::parse(make::FILE, &text).expect_err("refused").to_string()
    };
    let cudnn = refused("cudnn");
    assert!(cudnn.contains("flash2") && cudnn.contains("scenario.toml:"), "{cudnn}");
}

#[test]
fn megatron_refuses_what_its_deterministic_mode_refuses() {
    let mode = |keys: &str| format!("{MEGATRON}\n[megatron]\ndeterministic_mode = true\n{keys}\n");
    let slower = make::fly(&mode("")).step.seconds() / make::fly(MEGATRON).step.seconds();
    assert!((1.0..1.3).contains(&slower), "{slower}");
    let sequence = "[tensor_parallel]\nsequence = true";
    for key in ["cross_entropy_loss_fusion", "tp_comm_overlap"] {
        let text = mode(&format!("implementation = \"transformer_engine\"\n{key} = true\n{sequence}"));
        let refusal = Scenario::parse(make::FILE, &text).expect_err("refused").to_string();
        assert!(refusal.contains(key) && refusal.contains("deterministic"), "{refusal}");
    }
    let key = format!("{MEGATRON}\n[attention]\ndeterministic = true\n");
    let refusal = Scenario::parse(make::FILE, &key).expect_err("refused").to_string();
    assert!(refusal.contains("megatron.deterministic_mode"), "{refusal}");
}

#[test]
fn a_report_says_whose_kernels_attention_was_priced_as() {
    let named = |attention: &str| {
        let answer = make::fly(&format!("{TINY}\n[attention]\nbackend = \"{attention}\"\n"));
        let names = answer.parts.into_iter().map(|part| part.name);
        names.filter(|name| name.contains("attention")).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let own = ["aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_flash_attention_backward"];
    assert_eq!(named("flash2"), own);
    assert_eq!(named("cudnn"), own.map(|name| format!("{name} (cudnn)")));
}
