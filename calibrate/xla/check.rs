//! Holds what devices compute against what the host does, with whole numbers that every type has exactly.

use crate::pjrt::ffi::Client;
use crate::points::What;
use crate::stablehlo::Element;

use super::error::Failure;
use super::execute::{Ready, decoded};
use super::programs::{COLLECTIVES, program};

/// Sizes of the products that are checked; not equal, so that a mixed-up axis is noticed.
const SHAPE: [u64; 3] = [24, 40, 56];

/// Checks products in each type and layout, and with two devices or more all collectives. Says what agreed.
pub fn check(client: &Client, devices: u64) -> Result<String, Failure> {
    let mut text = String::new();
    for (dtype, element) in [("bf16", Element::Bf16), ("fp32", Element::F32), ("int8", Element::I32)] {
        for layout in ["forward", "data_gradient", "weight_gradient"] {
            matmul(client, dtype, element, layout)?;
        }
        text += &format!("matmul {dtype}: equal in three layouts\n");
    }
    for (kind, _) in COLLECTIVES.iter().filter(|_| devices > 1) {
        collective(client, kind, devices)?;
        text += &format!("{kind} on {devices} devices: equal\n");
    }
    Ok(text)
}

/// A small whole number for each place of each argument.
fn value(argument: usize, place: usize) -> f64 {
    ((place * 7 + argument * 3) % 5) as f64 - 2.0
}

fn matmul(client: &Client, dtype: &str, element: Element, layout: &str) -> Result<(), Failure> {
    let [m, n, k] = SHAPE;
    let what = What::Matmul { m, n, k, dtype: dtype.to_owned(), layout: layout.to_owned() };
    let ready = Ready::load(client, &program(&what).map_err(Failure::Input)?, |_, at, place| value(at, place))?;
    let found = decoded(element, &ready.run()?[0][0].read()?);
    let [m, n, k] = SHAPE.map(|length| length as usize);
    let a = |row: usize, depth: usize| match layout {
        "weight_gradient" => value(0, depth * m + row),
        _ => value(0, row * k + depth),
    };
    let b = |depth: usize, column: usize| match layout {
        "data_gradient" => value(1, column * k + depth),
        _ => value(1, depth * n + column),
    };
    let entry = |at: usize| (0..k).map(|depth| a(at / n, depth) * b(depth, at % n)).sum::<f64>();
    let expected: Vec<f64> = (0..m * n).map(entry).collect();
    agree(&format!("matmul {dtype} {layout}"), &found, &expected)
}

/// Elements of what a device puts in.
const PIECE: u64 = 24;

fn collective(client: &Client, kind: &str, devices: u64) -> Result<(), Failure> {
    let (ranks, piece) = (devices as usize, (PIECE * devices) as usize);
    let bytes = if kind == "all_gather" { PIECE * devices * devices * 2 } else { PIECE * devices * 2 };
    let what = What::Collective {
        kind: kind.to_owned(),
        ranks: devices,
        nodes: 1,
        bytes,
        in_place: false,
        dtype: "bfloat16".to_owned(),
    };
    let wanted = program(&what).map_err(Failure::Input)?;
    let ready = Ready::load(client, &wanted, |device, _, place| value(device, place))?;
    let share = piece / ranks;
    let sum = |place: usize| (0..ranks).map(|device| value(device, place)).sum::<f64>();
    for (device, results) in ready.run()?.iter().enumerate() {
        let found = decoded(Element::Bf16, &results[0].read()?);
        let expected: Vec<f64> = match kind {
            "all_gather" => (0..ranks * piece).map(|at| value(at / piece, at % piece)).collect(),
            "reduce_scatter" => (0..share).map(|at| sum(device * share + at)).collect(),
            "all_reduce" => (0..piece).map(sum).collect(),
            "all_to_all" => (0..piece).map(|at| value(at / share, device * share + at % share)).collect(),
            _ => (0..piece).map(|at| value((device + ranks - 1) % ranks, at)).collect(),
        };
        agree(&format!("{kind} on device {device}"), &found, &expected)?;
    }
    Ok(())
}

fn agree(name: &str, found: &[f64], expected: &[f64]) -> Result<(), Failure> {
    if found.len() != expected.len() {
        return Err(Failure::Device(format!("{name}: {} numbers came back, not {}", found.len(), expected.len())));
    }
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        Some(at) => {
            Err(Failure::Device(format!("{name}: at {at} it gives {}, by definition {}", found[at], expected[at])))
        }
        None => Ok(()),
    }
}
