//! The program that stands for a thing to measure, in StableHLO.
//!
//! Matrix products and attention as a framework writes them (two products and a softmax: XLA fuses what it can); kernels that
//! memory bounds as chains of elementwise operations; collectives one at a time over a mesh of one axis.

use super::attention::{self, softmax};
use crate::points::What;
use crate::stablehlo::{Collective, Element, Function, Mesh, Reduction, Spec, Type, Value, module};

/// A program, and what it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// StableHLO.
    pub text: String,
    /// Devices that it runs on.
    pub devices: u32,
    /// What each device puts in.
    pub arguments: Vec<Type>,
}

/// The axis of collectives' mesh.
const AXIS: &str = "x";

/// The program that stands for `what`.
///
/// # Errors
/// Something that XLA does not do, or that is not written yet.
pub fn program(what: &What) -> Result<Program, String> {
    let mut main = Function::new();
    match what {
        What::Matmul { m, n, k, dtype, layout } => {
            let (given, element) = elements(dtype)?;
            matmul(&mut main, [*m, *n, *k], given, element, layout)?;
        }
        What::Attention { .. } => attention::write(&mut main, what)?,
        What::Memory { kernel, read, .. } => memory(&mut main, kernel, *read)?,
        What::Collective { kind, ranks, bytes, dtype, .. } if dtype == "bfloat16" => {
            return collective(kind, *ranks, *bytes);
        }
        _ => return Err("no program is written for it yet".to_owned()),
    }
    let arguments = main.takes();
    Ok(Program { text: module("measured", None, &main), devices: 1, arguments })
}

/// Elements of operands and of the result, by the words of points.
fn elements(dtype: &str) -> Result<(Element, Element), String> {
    match dtype {
        "bf16" => Ok((Element::Bf16, Element::Bf16)),
        "fp32" => Ok((Element::F32, Element::F32)),
        "int8" => Ok((Element::I8, Element::I32)),
        "fp8_tensor" => Ok((Element::F8E4M3Fn, Element::Bf16)),
        other => Err(format!("no program multiplies {other}")),
    }
}

/// `C[m,n]` of operands that lie as forward, the input's gradient or the weight's gradient have them.
fn matmul(
    main: &mut Function,
    [m, n, k]: [u64; 3],
    given: Element,
    element: Element,
    layout: &str,
) -> Result<(), String> {
    let (a, b, contracted) = match layout {
        "forward" => ([m, k], [k, n], [1, 0]),
        "data_gradient" => ([m, k], [n, k], [1, 1]),
        "weight_gradient" => ([k, m], [k, n], [0, 0]),
        other => return Err(format!("no program multiplies in the layout {other}")),
    };
    let (a, b) = (main.parameter(Type::new(given, a), None), main.parameter(Type::new(given, b), None));
    let c = main.dot(&a, &b, (&[], &[]), (&contracted[..1], &contracted[1..]), element);
    main.result(&c, None);
    Ok(())
}

/// Columns of what memory bounds.
const WIDTH: u64 = 4096;

/// Kernels that memory bounds, by name: what of the simulator's family it is, and how many arrays it reads and writes.
pub const KERNELS: [(&str, &str, u64, u64); 5] = [
    ("elementwise", "add_2r1w", 2, 1),
    ("elementwise", "silu_multiply", 2, 1),
    ("norm", "rms_norm", 1, 1),
    ("softmax", "softmax", 1, 1),
    ("copy", "transpose", 1, 1),
];

fn memory(main: &mut Function, kernel: &str, read: u64) -> Result<(), String> {
    let known = KERNELS.iter().find(|(_, name, ..)| *name == kernel);
    let (.., reads, _) = known.ok_or_else(|| format!("no program is called {kernel:?}"))?;
    let rows = read / (reads * WIDTH * Element::Bf16.bytes());
    if rows == 0 || rows * reads * WIDTH * Element::Bf16.bytes() != read {
        return Err(format!("{kernel} reads whole rows of {WIDTH} elements, and {read} B are none"));
    }
    let of = Type::new(Element::Bf16, [rows, WIDTH]);
    let x = main.parameter(of.clone(), None);
    let result = match kernel {
        "add_2r1w" => {
            let y = main.parameter(of, None);
            main.zip("add", &x, &y)
        }
        "silu_multiply" => {
            let y = main.parameter(of, None);
            let gate = main.map("logistic", &x);
            let gated = main.zip("multiply", &x, &gate);
            main.zip("multiply", &gated, &y)
        }
        "rms_norm" => rms_norm(main, &x),
        "softmax" => {
            let wide = main.convert(&x, Element::F32);
            let weights = softmax(main, &wide, 1);
            main.convert(&weights, Element::Bf16)
        }
        _ => main.transpose(&x, &[1, 0]),
    };
    main.result(&result, None);
    Ok(())
}

fn rms_norm(main: &mut Function, x: &Value) -> Value {
    let wide = main.convert(x, Element::F32);
    let squares = main.zip("multiply", &wide, &wide);
    let sum = main.reduce(Reduction::Sum, &squares, &[1]);
    let width = main.constant(WIDTH as f64, sum.of.clone());
    let mean = main.zip("divide", &sum, &width);
    let epsilon = main.constant(1e-5, mean.of.clone());
    let mean = main.zip("add", &mean, &epsilon);
    let scale = main.map("rsqrt", &mean);
    let scale = main.broadcast(&scale, &wide.of.dims, &[0]);
    let normal = main.zip("multiply", &wide, &scale);
    main.convert(&normal, Element::Bf16)
}

/// Collectives, by the words of points.
pub const COLLECTIVES: [(&str, Collective); 5] = [
    ("all_gather", Collective::AllGather),
    ("reduce_scatter", Collective::ReduceScatter),
    ("all_reduce", Collective::AllReduce),
    ("all_to_all", Collective::AllToAll),
    ("send_recv", Collective::Permute),
];

/// `bytes` are of the whole buffer, as nccl-tests counts them.
fn collective(kind: &str, ranks: u64, bytes: u64) -> Result<Program, String> {
    let known = COLLECTIVES.iter().find(|(name, _)| *name == kind);
    let (_, how) = known.ok_or_else(|| format!("no program is a {kind}"))?;
    let elements = bytes / Element::Bf16.bytes();
    let piece = if *how == Collective::AllGather { elements / ranks } else { elements };
    if piece == 0 || piece % ranks != 0 {
        return Err(format!("{bytes} B cannot be cut for {ranks} devices"));
    }
    let devices = u32::try_from(ranks).map_err(|_| format!("{ranks} devices are too many"))?;
    let mesh = Mesh::new([(AXIS, ranks)]);
    let split = Spec::new(&[AXIS]);
    let mut main = Function::new();
    let x = main.parameter(Type::new(Element::Bf16, [piece * ranks]), Some(&split));
    let y = main.collective(*how, &mesh, AXIS, &x);
    main.result(&y, Some(&split));
    let arguments = vec![Type::new(Element::Bf16, [piece])];
    Ok(Program { text: module("measured", Some(&mesh), &main), devices, arguments })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_collective_s_bytes_are_those_of_the_whole_buffer() {
        for (kind, piece) in [("all_gather", 256), ("reduce_scatter", 1024), ("all_reduce", 1024), ("all_to_all", 1024)]
        {
            let program = collective(kind, 4, 2048).unwrap();
            assert_eq!(program.arguments, [Type::new(Element::Bf16, [piece])], "{kind}");
        }
        assert!(collective("all_gather", 4, 6).unwrap_err().contains("cannot be cut"));
    }

    #[test]
    fn what_is_not_written_is_said() {
        let fp4 = What::Matmul { m: 8, n: 8, k: 8, dtype: "fp4".into(), layout: "forward".into() };
        assert_eq!(program(&fp4).unwrap_err(), "no program multiplies fp4");
        let odd = What::Memory { family: "norm".into(), kernel: "rms_norm".into(), read: 100, written: 100 };
        assert!(program(&odd).unwrap_err().contains("whole rows of 4096"));
    }
}
