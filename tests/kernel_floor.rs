//! No kernel of any family is priced below what the chip can do: its FLOPs at the peak, and bytes that only HBM can bring.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use windtunnel::cost::{CostModel, Profile, Regime};
use windtunnel::program::{AttentionShape, DType, Grouping, MatmulLayout, MemoryKind, Work};
use windtunnel::units::Bytes;

/// What a kernel must compute \[FLOP\], the share of it that a causal mask leaves, and what HBM must move \[B\].
fn must(work: &Work) -> (f64, f64) {
    let bytes = |groups: u64, (m, n, k): (u64, u64, u64), dtype: DType| {
        groups as f64 * (dtype.bytes() as f64 * (m as f64 * k as f64 + k as f64 * n as f64) + 2.0 * m as f64 * n as f64)
    };
    match *work {
        Work::Matmul { m, n, k, dtype, .. } => (work.flops().0 as f64, bytes(1, (m, n, k), dtype)),
        // Rows of a group are not whole, so its operands are counted apart.
        Work::GroupedMatmul { groups, rows, inputs, outputs, dtype, .. } => {
            let (rows, groups) = (rows as f64, groups.min(rows) as f64);
            let (inputs, outputs, size) = (inputs as f64, outputs as f64, dtype.bytes() as f64);
            // The smallest of the three matmuls' traffic: any of the three operands may be the result, in two bytes.
            let operands = [rows * inputs, rows * outputs, groups * inputs * outputs];
            (work.flops().0 as f64, operands.iter().sum::<f64>() * size.min(2.0))
        }
        Work::Attention { shape: s, dtype, .. } => {
            let causal = if s.causal { 0.5 } else { 1.0 };
            let rows = 2 * s.heads * s.queries + 2 * s.kv_heads * s.keys;
            (work.flops().0 as f64 * causal, (s.batch * rows * s.head_dim * dtype.bytes()) as f64)
        }
        Work::Memory { read, written, .. } => (0.0, (read.0 + written.0) as f64),
        _ => unreachable!("no kernel"),
    }
}

/// A size between 1 and 2 to the power of so much, as likely in each octave.
fn size(octaves: f64) -> impl Strategy<Value = u64> {
    (0.0..octaves).prop_map(|power| power.exp2() as u64)
}

fn any_work() -> impl Strategy<Value = Work> {
    let dtype = prop_oneof![Just(DType::Bf16), Just(DType::Fp8), Just(DType::Fp32)];
    let layout = prop_oneof![
        Just(MatmulLayout::Forward),
        Just(MatmulLayout::DataGradient),
        Just(MatmulLayout::WeightGradient),
        Just(MatmulLayout::MainGradient(DType::Fp32)),
    ];
    let kernels = prop_oneof![Just(Grouping::Streams), Just(Grouping::Batched), Just(Grouping::OneKernel)];
    let matmul = (size(17.0), size(16.0), size(16.0), dtype.clone(), layout.clone())
        .prop_map(|(m, n, k, dtype, layout)| Work::Matmul { m, n, k, dtype, layout });
    let grouped = (size(9.0), size(18.0), size(14.0), size(14.0), dtype, layout, kernels).prop_map(
        |(groups, rows, inputs, outputs, dtype, layout, kernels)| {
            let rows = rows.max(groups);
            Work::GroupedMatmul { groups, rows, inputs, outputs, dtype, layout, kernels }
        },
    );
    let attention = (size(4.0), size(7.0), size(17.0), size(8.0), any::<bool>(), any::<bool>()).prop_map(
        |(batch, heads, queries, head_dim, causal, backward)| {
            let (kv_heads, keys) = (heads.div_ceil(8), queries);
            let (window, squares) = (None, None);
            let shape = AttentionShape { batch, heads, kv_heads, queries, keys, head_dim, causal, window, squares };
            Work::Attention { shape, dtype: DType::Bf16, backward }
        },
    );
    let memory = (proptest::sample::select(MemoryKind::ALL), size(36.0), size(36.0))
        .prop_map(|(kind, read, written)| Work::Memory { kind, read: Bytes(read), written: Bytes(written) });
    prop_oneof![matmul, grouped, attention, memory]
}

#[test]
fn no_kernel_is_faster_than_the_chip_allows() {
    /// The largest cache before HBM of any chip here: what may be there already.
    const CACHE: f64 = 128.0 * 1024.0 * 1024.0;
    let profiles: Vec<Profile> = Profile::names().into_iter().map(|name| Profile::find(name).unwrap()).collect();
    let mut runner = TestRunner::new(Config { cases: 10_000, failure_persistence: None, ..Config::default() });
    let held = runner.run(&any_work(), |work| {
        let (flops, bytes) = must(&work);
        for profile in &profiles {
            let peak = match work {
                Work::Matmul { dtype: DType::Fp8, .. } | Work::GroupedMatmul { dtype: DType::Fp8, .. } => {
                    profile.fp8_peak()
                }
                _ => profile.bf16_peak(),
            };
            let least = (flops / (1.05 * peak.0)).max((bytes - CACHE) / profile.machine.memory_bandwidth.0);
            for regime in [Regime::Burst, Regime::Sustained] {
                let seconds = CostModel::new(profile, regime).work(&work).time.seconds();
                prop_assert!(
                    seconds >= 0.999_999 * least,
                    "{} {regime:?}: {work:?} takes {seconds:e} s where {least:e} are needed",
                    profile.name
                );
            }
        }
        Ok(())
    });
    assert!(held.is_ok(), "{}", held.unwrap_err());
}
