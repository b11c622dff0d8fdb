//! What carrying over is worth, where two chips of one kind were measured.

use crate::cost::{Basis, CostModel, Profile, Regime};
use crate::hardware::{Size, Topology};
use crate::program::{DType, MatmulLayout, MemoryKind, Work};
use crate::units::Bytes;

#[test]
fn a_profile_carried_over_to_a_chip_that_was_measured_is_as_far_off_as_it_says() {
    let of = |name| Profile::find(name).expect("it ships");
    let chip = |name| Topology::load(name, &Size::Smallest).expect("it ships").chip;
    let mut errors = vec![];
    for (from, to) in [("h100-sxm-80gb", "h200-sxm-141gb"), ("h200-sxm-141gb", "h100-sxm-80gb")] {
        let (carried, own) = (of(from).carried_over(&chip(to)), of(to));
        let models = [CostModel::new(&carried, Regime::Burst), CostModel::new(&own, Regime::Burst)];
        let mut compare = |work: Work| {
            let [carried, own] = [&models[0], &models[1]].map(|model| model.work(&work));
            assert!(carried.basis >= Basis::Extrapolated, "{work:?}");
            errors.push((carried.time.seconds() / own.time.seconds() - 1.0).abs());
        };
        for m in [512, 1024, 2048, 4096, 8192, 16384] {
            for n in [1024, 2048, 4096, 8192, 14336] {
                for k in [1024, 4096, 8192, 14336] {
                    compare(Work::Matmul { m, n, k, dtype: DType::Bf16, layout: MatmulLayout::Forward });
                }
            }
        }
        for kind in [MemoryKind::Elementwise, MemoryKind::RmsNorm, MemoryKind::Cast, MemoryKind::Foreach] {
            for bytes in [1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30] {
                compare(Work::Memory { kind, read: Bytes(bytes), written: Bytes(bytes) });
            }
        }
    }
    errors.sort_by(f64::total_cmp);
    let at = |share: f64| errors[(share * (errors.len() - 1) as f64).round() as usize];
    println!("{} kernels: median {:.3}, p90 {:.3}", errors.len(), at(0.5), at(0.9));
    assert!(at(0.9) <= 0.09, "{} at the median, {} at the 90th percentile", at(0.5), at(0.9));
}
