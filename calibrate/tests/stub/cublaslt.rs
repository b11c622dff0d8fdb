//! A cuBLASLt that multiplies nothing but refuses what the real one's documentation says that it refuses: 8-bit operands
//! that are not both contiguous along `k`, scales that are missing or not aligned, two operands of the wide 8-bit format,
//! columns that overlap, results in unknown formats, a workspace smaller than what the heuristic was told of.

#![allow(non_snake_case)]

use std::collections::BTreeMap;
use std::ffi::c_void;

/// `cublasStatus_t`.
const FINE: i32 = 0;
const INVALID: i32 = 7;
const UNSUPPORTED: i32 = 15;

/// `cudaDataType_t`.
const FP32: u32 = 0;
const BF16: u32 = 14;
const E4M3: u32 = 28;
const E5M2: u32 = 29;

#[derive(Default)]
struct Operation {
    compute: u32,
    scale: u32,
    attributes: BTreeMap<u32, u64>,
}

struct Layout {
    format: u32,
    rows: u64,
    columns: u64,
    stride: i64,
}

fn value(from: *const c_void, size: usize) -> u64 {
    let mut bytes = [0u8; 8];
    unsafe { std::ptr::copy_nonoverlapping(from.cast(), bytes.as_mut_ptr(), size.min(8)) };
    u64::from_le_bytes(bytes)
}

fn out<T, U>(at: *mut *mut U, made: T) -> i32 {
    unsafe { at.write(Box::into_raw(Box::new(made)).cast()) };
    FINE
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    130_200
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetCudartVersion() -> usize {
    std::env::var("STUB_CUBLAS_FOR").ok().and_then(|text| text.parse().ok()).unwrap_or(13_000)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtCreate(handle: *mut *mut c_void) -> i32 {
    out(handle, 0u64)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutCreate(
    layout: *mut *mut c_void,
    format: u32,
    rows: u64,
    columns: u64,
    stride: i64,
) -> i32 {
    out(layout, Layout { format, rows, columns, stride })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutDestroy(layout: *mut Layout) -> i32 {
    drop(unsafe { Box::from_raw(layout) });
    FINE
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescCreate(operation: *mut *mut c_void, compute: u32, scale: u32) -> i32 {
    out(operation, Operation { compute, scale, ..Operation::default() })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescSetAttribute(
    operation: *mut Operation,
    attribute: u32,
    from: *const c_void,
    size: usize,
) -> i32 {
    // Sizes as `cublasLt.h` has them: operations and modes four bytes, addresses eight, fast accumulation one.
    let right = match attribute {
        3 | 4 | 31 | 32 => 4,
        17 | 18 => 8,
        25 => 1,
        _ => return UNSUPPORTED,
    };
    if size != right {
        return INVALID;
    }
    unsafe { &mut *operation }.attributes.insert(attribute, value(from, size));
    FINE
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescDestroy(operation: *mut Operation) -> i32 {
    drop(unsafe { Box::from_raw(operation) });
    FINE
}

type Preference = BTreeMap<u32, u64>;

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceCreate(preference: *mut *mut c_void) -> i32 {
    out(preference, Preference::new())
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    preference: *mut Preference,
    attribute: u32,
    from: *const c_void,
    size: usize,
) -> i32 {
    if size != if attribute == 1 { 8 } else { 4 } {
        return INVALID;
    }
    unsafe { &mut *preference }.insert(attribute, value(from, size));
    FINE
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceDestroy(preference: *mut Preference) -> i32 {
    drop(unsafe { Box::from_raw(preference) });
    FINE
}

/// Whether the real library would do it.
fn check(operation: &Operation, a: &Layout, b: &Layout, c: &Layout) -> i32 {
    let get = |attribute| operation.attributes.get(&attribute).copied();
    let (turned_a, turned_b) = (get(3) == Some(1), get(4) == Some(1));
    let sides = |layout: &Layout, turned: bool| match turned {
        true => (layout.columns, layout.rows),
        false => (layout.rows, layout.columns),
    };
    let ((m, k), (k_too, n)) = (sides(a, turned_a), sides(b, turned_b));
    let packed = [a, b, c].iter().all(|layout| layout.stride as u64 >= layout.rows);
    if k != k_too || (c.rows, c.columns) != (m, n) || !packed || operation.scale != FP32 {
        return INVALID;
    }
    let eight = |format| matches!(format, E4M3 | E5M2);
    match (a.format, b.format) {
        (BF16, BF16) if matches!(c.format, BF16 | FP32) && operation.compute == 68 => FINE,
        // 68 is CUBLAS_COMPUTE_32F, 77 its TF32.
        (FP32, FP32) if c.format == FP32 && matches!(operation.compute, 68 | 77) => FINE,
        (first, second) if eight(first) && eight(second) => {
            let sixteenths = m % 16 == 0 && k % 16 == 0 && n % 16 == 0;
            let both_wide = first == E5M2 && second == E5M2;
            if !turned_a || turned_b || both_wide || !sixteenths || !matches!(c.format, BF16 | FP32) {
                return UNSUPPORTED;
            }
            let aligned = |scale: Option<u64>| scale.is_some_and(|at| at != 0 && at % 16 == 0);
            let modes = (get(31).unwrap_or(0), get(32).unwrap_or(0));
            let known = matches!(modes, (0, 0) | (3, 3) | (4, 4) | (4, 5) | (5, 4));
            if known && aligned(get(17)) && aligned(get(18)) { FINE } else { UNSUPPORTED }
        }
        _ => UNSUPPORTED,
    }
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
pub struct Chosen {
    algorithm: [u64; 8],
    workspace: usize,
    state: i32,
    waves: f32,
    reserved: [i32; 4],
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _: *mut c_void,
    operation: &Operation,
    a: &Layout,
    b: &Layout,
    c: &Layout,
    _: &Layout,
    preference: &Preference,
    asked: i32,
    chosen: *mut Chosen,
    count: *mut i32,
) -> i32 {
    let told: Vec<Option<u64>> = [1, 5, 6, 7].iter().map(|key| preference.get(key).copied()).collect();
    if asked != 1 || told != [Some(32 << 20), Some(256), Some(256), Some(256)] {
        return INVALID;
    }
    let state = check(operation, a, b, c);
    unsafe { count.write(i32::from(state == FINE)) };
    if state == FINE {
        let workspace = 32 << 20;
        unsafe { chosen.write(Chosen { algorithm: [66; 8], workspace, state, waves: 1.5, reserved: [0; 4] }) };
    }
    state
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulAlgoConfigGetAttribute(
    _: *const c_void,
    attribute: u32,
    to: *mut c_void,
    size: usize,
    written: *mut usize,
) -> i32 {
    let right = if matches!(attribute, 7 | 8) { 2 } else { 4 };
    if size < right {
        return INVALID;
    }
    unsafe {
        std::ptr::copy_nonoverlapping((attribute + 1).to_le_bytes().as_ptr(), to.cast(), right);
        written.write(right);
    }
    FINE
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmul(
    _: *mut c_void,
    operation: &Operation,
    alpha: &f32,
    a: u64,
    a_layout: &Layout,
    b: u64,
    b_layout: &Layout,
    beta: &f32,
    c: u64,
    c_layout: &Layout,
    d: u64,
    _: &Layout,
    algorithm: &[u64; 8],
    workspace: u64,
    workspace_bytes: usize,
    _: *mut c_void,
) -> i32 {
    let aligned = [a, b, c, d, workspace].iter().all(|at| *at != 0 && at % 256 == 0);
    let main_gradient = *beta == 1.0;
    if !aligned || c != d || *alpha != 1.0 || workspace_bytes < 32 << 20 || algorithm[0] != 66 {
        return INVALID;
    }
    if main_gradient && c_layout.format != FP32 {
        return INVALID;
    }
    unsafe extern "C" {
        fn stub_work(microseconds: u64);
    }
    unsafe { stub_work(25) };
    check(operation, a_layout, b_layout, c_layout)
}
