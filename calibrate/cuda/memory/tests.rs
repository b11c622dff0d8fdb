//! The catalogue agrees with its kernels; the kernels compile where there is a compiler.

use super::*;
use crate::cuda::device::compile;
use crate::cuda::library::{Libraries, Library};

#[test]
fn what_is_planned_is_what_is_prepared() {
    for spec in &KERNELS {
        for units in [1, 7, 4096] {
            let What::Memory { read, written, .. } = spec.what(units) else { panic!("{}", spec.kernel) };
            assert_eq!(spec.units(read, written), units, "{}", spec.kernel);
        }
    }
}

#[test]
fn every_kernel_declares_the_operands_that_it_is_given() {
    for spec in &KERNELS {
        let start = SOURCE.find(&format!("void {}(", spec.function));
        let start = start.unwrap_or_else(|| panic!("{} is not in the source", spec.function));
        let declared = SOURCE[start..].split(')').next().unwrap_or_default().split(',').count();
        assert_eq!(declared, spec.operands.len() + spec.fixed.len() + 1, "{}", spec.kernel);
    }
}

#[test]
fn operands_are_as_large_as_what_is_read_and_written() {
    for spec in &KERNELS {
        let touched = spec.read + spec.written;
        let held: u64 = spec.operands.iter().map(|operand| operand.bytes).sum();
        // In-place kernels read and write one operand; tables are apart.
        assert!(held <= touched && touched <= 3 * held + (8 << 12), "{}: {held} held, {touched} touched", spec.kernel);
    }
}

#[test]
fn families_are_the_simulator_s() {
    let known = ["elementwise", "norm", "norm_backward", "softmax", "gather", "scatter", "foreach", "copy", "complex"];
    for spec in &KERNELS {
        assert!(known.contains(&spec.family), "{}", spec.family);
    }
    for family in known {
        assert!(KERNELS.iter().any(|spec| spec.family == family), "no kernel of {family}");
    }
}

#[test]
fn kernels_compile_for_every_chip_where_nvrtc_is_here() {
    let libraries = match Libraries::look(&[]) {
        Ok(libraries) if libraries.has(Library::Nvrtc) => libraries,
        _ => return eprintln!("skipped: NVRTC is not here"),
    };
    eprintln!("compiling with {}", libraries.from(Library::Nvrtc).unwrap_or_default());
    for capability in [(8, 0), (9, 0), (10, 0)] {
        let mut known = vec![];
        for spec in KERNELS.iter().filter(|spec| capability == (9, 0) || spec.defines.len() == 1) {
            let defines: Vec<String> = spec.defines.iter().map(|define| (*define).to_owned()).collect();
            if !known.contains(&defines) {
                let image = compile(SOURCE, capability, &defines).unwrap_or_else(|error| panic!("{error}"));
                assert!(image.starts_with(b"\x7fELF"), "{}: no machine code", spec.kernel);
                known.push(defines);
            }
        }
    }
}

#[test]
fn a_kernel_that_does_not_compile_says_where() {
    let Ok(true) = Libraries::look(&[]).map(|libraries| libraries.has(Library::Nvrtc)) else {
        return eprintln!("skipped: NVRTC is not here");
    };
    let Err(error) = compile("__global__ void wrong() { int x = ; }", (9, 0), &[]) else { panic!("it compiled") };
    assert!(error.to_string().contains("(1)"), "{error}");
}
