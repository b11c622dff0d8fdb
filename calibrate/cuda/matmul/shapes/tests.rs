//! What is planned is what training issues, and no more than a GPU can do in good time.

use super::*;
use crate::plan::ranked;

fn machine(capability: &str) -> Machine {
    Machine { capability: capability.to_owned(), ..Machine::example() }
}

#[test]
fn llama_8b_s_gate_at_8192_tokens_is_planned_in_every_layout() {
    let jobs = matmuls(&machine("9.0"));
    for (layout, shape) in linear(8192, 14_336, 4096) {
        let found = jobs.iter().any(|other| other.what == job(shape, "bf16", layout, 0.0).what);
        assert!(found, "{layout} {shape:?}");
    }
}

#[test]
fn eight_bit_floats_are_planned_where_there_are_tensor_cores_for_them() {
    let planned = |capability: &str| {
        let jobs = matmuls(&machine(capability));
        jobs.iter().any(|job| matches!(&job.what, What::Matmul { dtype, .. } if dtype.starts_with("fp8")))
    };
    assert!(!planned("8.0") && !planned("8.6"));
    assert!(planned("8.9") && planned("9.0") && planned("10.0") && planned("12.0"));
}

#[test]
fn the_first_points_already_span_the_space_of_sizes() {
    let sizes: Vec<[u64; 3]> = between(&machine("9.0"))
        .into_iter()
        .take(60)
        .filter_map(|job| match job.what {
            What::Matmul { m, n, k, .. } => Some([m, n, k]),
            _ => None,
        })
        .collect();
    for side in 0..3 {
        let least = sizes.iter().map(|size| size[side]).min().unwrap_or(0);
        let most = sizes.iter().map(|size| size[side]).max().unwrap_or(0);
        assert!(least <= 256 && most >= 16_384, "side {side}: {least} to {most}");
    }
}

#[test]
fn values_are_shares_of_a_step() {
    let sum: f64 = matmuls(&machine("9.0")).iter().map(|job| job.value).sum();
    assert!(sum > 0.2 && sum <= ISSUED + BETWEEN + 1e-9, "{sum}");
    let sum: f64 = grouped(&machine("9.0")).iter().map(|job| job.value).sum();
    assert!(sum > 0.02 && sum <= EXPERTS + 1e-9, "{sum}");
}

#[test]
fn every_planned_multiplication_has_a_recipe() {
    for job in matmuls(&machine("9.0")) {
        let What::Matmul { dtype, layout, .. } = &job.what else { panic!("{:?}", job.what) };
        assert!(super::super::Recipe::of(dtype, layout).is_ok());
    }
}

#[test]
fn ten_minutes_reach_far_into_the_plan() {
    // At 0.2 s a point, ten minutes are 3000 points for all sweeps; what matmuls are left then must be worth little.
    let jobs = ranked(matmuls(&machine("9.0")));
    let all: f64 = jobs.iter().map(|job| job.value).sum();
    let first: f64 = jobs.iter().take(2000).map(|job| job.value).sum();
    assert!(first > 0.75 * all, "of {} jobs, the first are worth {first} of {all}", jobs.len());
}
