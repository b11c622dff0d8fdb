//! Do the kernels compute what their names say? Those that could be wrong without being slow, once each, against the host.

use super::Ready;
use super::catalogue::KERNELS;
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::sweep::{Prepared, Skip};

/// A kernel, how many units, and what must hold of its operands: before and after.
type Rule = fn(&[Vec<f32>], &[Vec<f32>]) -> bool;

const RULES: [(&str, u64, Rule); 8] = [
    ("copy_1r1w", 4096, |before, after| after[1] == before[0]),
    ("add_2r1w", 4096, |before, after| all(&after[2], |at| before[0][at] + before[1][at], 0.01)),
    ("swiglu_2r1w", 4096, |before, after| {
        all(&after[2], |at| before[0][at] / (1.0 + (-before[0][at]).exp()) * before[1][at], 0.01)
    }),
    ("cast_up_1r1w", 4096, |before, after| after[1] == before[0]),
    ("rotary_1r1w", 4001, |before, after| {
        let pairs = before[0].chunks_exact(2).zip(after[1].chunks_exact(2));
        pairs
            .into_iter()
            .all(|(x, y)| near(y[0], 0.8 * x[0] - 0.6 * x[1], 1e-5) && near(y[1], 0.6 * x[0] + 0.8 * x[1], 1e-5))
    }),
    ("rms_norm_4096", 8, |before, after| {
        let rows = before[0].chunks_exact(4096).zip(after[1].chunks_exact(4096));
        rows.into_iter().all(|(x, y)| {
            let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f32>() / 4096.0 + 1e-5).sqrt();
            all(y, |at| x[at] * scale * before[3][at], 0.02)
        })
    }),
    ("log_softmax_128256", 2, |before, after| {
        let rows = before[0].chunks_exact(128_256).zip(after[1].chunks_exact(128_256));
        rows.into_iter().all(|(x, y)| {
            let sum: f64 = x.iter().map(|x| f64::from(*x).exp()).sum();
            all(y, |at| x[at] - sum.ln() as f32, 1e-3)
        })
    }),
    ("cross_entropy_128256", 2, |before, after| {
        let rows = before[0].chunks_exact(128_256).zip(after[2].iter()).zip(&before[1]);
        rows.into_iter().all(|((x, loss), label)| {
            let sum: f64 = x.iter().map(|x| f64::from(*x).exp()).sum();
            near(*loss, sum.ln() as f32 - x[*label as usize], 1e-2)
        })
    }),
];

fn near(got: f32, wanted: f32, slack: f32) -> bool {
    (got - wanted).abs() <= slack * (1.0 + wanted.abs())
}

fn all(got: &[f32], wanted: impl Fn(usize) -> f32, slack: f32) -> bool {
    got.iter().enumerate().all(|(at, got)| near(*got, wanted(at), slack))
}

/// Runs them.
pub fn check(device: &Device) -> Result<String, Skip> {
    for (kernel, units, holds) in RULES {
        let spec = KERNELS.iter().find(|spec| spec.kernel == kernel);
        let spec = spec.ok_or_else(|| Skip::because(format!("no memory-bound kernel {kernel:?}")))?;
        let mut ready = Ready::new(device, spec, units)?;
        let operands = 0..spec.operands.len() + spec.fixed.len();
        let read =
            |ready: &Ready<'_>| operands.clone().map(|at| ready.numbers(at)).collect::<Result<Vec<_>, CudaError>>();
        let before = read(&ready)?;
        if before[0].iter().all(|number| *number == 0.0) {
            return Err(Skip::because("what was written to the device does not come back"));
        }
        ready.launch(0)?;
        if !holds(&before, &read(&ready)?) {
            return Err(Skip::because(format!("{kernel} does not compute what the host does")));
        }
    }
    Ok(format!("{} kernels agree with the host", RULES.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_about_a_kernel_that_is_measured() {
        for (kernel, ..) in RULES {
            assert!(KERNELS.iter().any(|spec| spec.kernel == kernel), "{kernel}");
        }
    }
}
