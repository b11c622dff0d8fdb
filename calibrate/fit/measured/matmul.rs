//! Measured matmuls: points over the published table, or over a wave model of their own, whichever predicts them better.
//!
//! Each measured point is left out (and its twins, [`twins`]) and predicted from the rest in both ways. The published table
//! knows many more shapes than a short run measures; a new library or board may be far from it. What has the smaller
//! median error is written; the other's error is reported beside it. Where neither does better than the base without any
//! points, the base's section stays.
//!
//! A published table is of the same chip: a point far from what it says, by more than all points are, is a bad measurement
//! rather than news, and would move what lies around it. It is left out and named.

use std::fmt::Write as _;

use windtunnel::cost::matmul::Matmul;
use windtunnel::cost::waves::Waves;
use windtunnel::cost::{Basis, Evidence, Shape};

use super::{FitError, Made, Measured};
use crate::fit::layout::{self, Ratios};
use crate::fit::matmul::{Points, Spec, figure, fit_waves, write_waves};
use crate::fit::trial::twins;
use crate::fit::{Residual, error, median, quantile};
use crate::points::What;

/// Points that a wave model of their own needs: its seven parameters, a few times over.
const ENOUGH: usize = 30;
/// Parts into which points are cut when the wave model is fitted without some.
const FOLDS: usize = 5;

/// Gradients of each kind that a layout's factor needs.
const GRADIENTS: usize = 3;
/// How far a point may lie from the base, as a ratio, where the typical point lies on it.
const FARTHEST: f64 = 2.0;
/// Points from which on their own median says what is typical; fewer are held against the base as it is.
const TYPICAL: usize = 5;
/// Where more than one in so many points is far, the base does not know this machine, and all count.
const STRAYS: usize = 4;

/// Formats that no section has: fp8 scaled by rows and by blocks.
pub(super) const SCALED: [&str; 2] = ["fp8_row", "fp8_block"];
/// Layouts that are measured.
pub(super) const LAYOUTS: [&str; 4] = ["forward", "data_gradient", "weight_gradient", "weight_gradient_fp32"];

/// Name in points, name in profiles, bytes of an operand's element.
pub(super) const DTYPES: [(&str, &str, f64); 4] =
    [("bf16", "bf16", 2.0), ("fp8_tensor", "fp8", 1.0), ("tf32", "tf32", 4.0), ("fp32", "fp32", 4.0)];

fn of(what: &What, dtype: &str, layout: &str) -> Option<Shape> {
    match what {
        What::Matmul { m, n, k, dtype: d, layout: l } if d == dtype && l == layout => Some((*m, *n, *k)),
        _ => None,
    }
}

/// Makes the sections `matmul.…` and `layout`.
pub(super) fn fit(measured: &Measured<'_>, made: &mut Made) -> Result<(), FitError> {
    for (dtype, name, size) in DTYPES {
        let mut points = measured.burst(|what| of(what, dtype, "forward"));
        let base = match name {
            "bf16" => &measured.base.bf16,
            "fp8" => &measured.base.fp8,
            "tf32" => &measured.base.tf32,
            _ => &measured.base.fp32,
        };
        strays(made, &mut points, base, name);
        if points.is_empty() {
            continue;
        }
        let model = section(measured, made, &points, base, (name, size))?;
        if name == "bf16" {
            gradients(measured, made, &model);
        }
    }
    for dtype in SCALED {
        let points = measured.burst(|what| of(what, dtype, "forward"));
        let plain = measured.burst(|what| of(what, "fp8_tensor", "forward"));
        let ratios: Vec<f64> = points.iter().filter_map(|(shape, t)| Some(t / plain.get(shape)?)).collect();
        if !points.is_empty() {
            let times = median(&ratios);
            made.leave(points.len(), format!("matmul {dtype}: no prediction uses it yet"));
            if !ratios.is_empty() {
                made.notes.push(format!("matmul {dtype}: {times:.3} times the same in fp8_tensor"));
            }
        }
    }
    let grouped = measured.burst(|what| matches!(what, What::GroupedMatmul { .. }).then_some(what)).len();
    made.leave(grouped, "grouped matmuls: no prediction uses them yet");
    for (dtype, name, _) in DTYPES.iter().filter(|(dtype, ..)| *dtype != "bf16") {
        let gradients = measured.burst(|what| LAYOUTS[1..].iter().find_map(|layout| of(what, dtype, layout)));
        made.leave(gradients.len(), format!("matmul {name}: gradients' layouts are taken from bf16"));
    }
    Ok(())
}

/// Takes out points that are far from the base, and says which is the farthest.
fn strays(made: &mut Made, points: &mut Points, base: &Matmul, name: &str) {
    let ratio = |shape: &Shape, seconds: f64| seconds / without(base, *shape);
    let ratios: Vec<f64> = points.iter().map(|(shape, t)| ratio(shape, *t)).collect();
    let typical = if points.len() < TYPICAL { 1.0 } else { median(&ratios) };
    let off = |shape: &Shape, seconds: f64| libm::fabs(libm::log(ratio(shape, seconds) / typical));
    let far = |shape: &Shape, seconds: f64| off(shape, seconds) > libm::log(FARTHEST);
    let strays: Vec<(Shape, f64)> =
        points.iter().filter(|(shape, t)| far(shape, **t)).map(|(shape, t)| (*shape, *t)).collect();
    let Some(&((m, n, k), seconds)) = strays.iter().max_by(|a, b| off(&a.0, a.1).total_cmp(&off(&b.0, b.1))) else {
        return;
    };
    let expected = typical * without(base, (m, n, k));
    let farthest = format!(
        "the farthest is {m} x {n} x {k}: {} us where {} us are expected",
        figure(seconds * 1e6),
        figure(expected * 1e6)
    );
    if points.len() >= ENOUGH && strays.len() * STRAYS > points.len() {
        made.notes.push(format!(
            "matmul {name}: {} of {} points are more than {FARTHEST} times off the base, {farthest}: the base does not know \
             this machine, and all points count",
            strays.len(),
            points.len()
        ));
        return;
    }
    points.retain(|shape, t| !far(shape, *t));
    made.leave(
        strays.len(),
        format!(
            "matmul {name}: more than {FARTHEST} times off the base, where the typical point is {typical:.2} times"
        ),
    );
    made.notes.push(format!("matmul {name}: {farthest}; measure what is left out again, alone on the device"));
}

/// A model of some points and its errors on each of them, left out.
struct Candidate {
    model: Matmul,
    errors: Vec<f64>,
}

fn own_evidence(points: usize, errors: &[f64], floor: f64, source: &str) -> Evidence {
    let [median, p90] = [0.5, 0.9].map(|share| quantile(errors, share).max(floor));
    Evidence { basis: Basis::Measured, source: source.to_owned(), points: points as u32, median, p90 }
}

/// Errors of a model on points of its own, each left out with its twins; a published table beneath them stays.
pub fn left_out(model: &Matmul, points: &[(Shape, f64)]) -> Vec<f64> {
    points.iter().map(|(shape, seconds)| error(without(model, *shape), *seconds)).collect()
}

/// What a model says of a shape that it has not measured.
fn without(model: &Matmul, shape: Shape) -> f64 {
    let (m, n, k) = shape;
    model.without_measured(|other| twins(other, shape)).cost(m, n, k).time.seconds()
}

/// Points over what the base says.
fn over_base(points: &Points, base: &Matmul, source: &str) -> Result<Candidate, String> {
    let times: Vec<(Shape, f64)> = points.iter().map(|(shape, t)| (*shape, *t)).collect();
    let model = base.clone().with_points(own_evidence(points.len(), &[], 0.0, source), &times)?;
    let errors = left_out(&model, &times);
    Ok(Candidate { model, errors })
}

/// Points over a wave model fitted to them.
fn alone(points: &Points, base: &Matmul, spec: &Spec, source: &str) -> Result<Candidate, String> {
    let make = |waves: Waves, times: &Points| {
        let times: Vec<(Shape, f64)> = times.iter().map(|(shape, t)| (*shape, *t)).collect();
        Matmul::bare(base.evidence.clone(), base.chip, waves, spec.size)
            .with_points(own_evidence(times.len(), &[], 0.0, source), &times)
    };
    let mut folds = vec![];
    for fold in 0..FOLDS {
        let rest = points.iter().enumerate().filter(|(at, _)| at % FOLDS != fold).map(|(_, (s, t))| (*s, *t)).collect();
        folds.push(make(fit_waves(&rest, spec, 1), points)?);
    }
    let predict = |(at, (shape, t)): (usize, (&Shape, &f64))| error(without(&folds[at % FOLDS], *shape), *t);
    let errors = points.iter().enumerate().map(predict).collect();
    Ok(Candidate { model: make(fit_waves(points, spec, 1), points)?, errors })
}

fn section(
    measured: &Measured<'_>,
    made: &mut Made,
    points: &Points,
    base: &Matmul,
    (name, size): (&str, f64),
) -> Result<Matmul, FitError> {
    let wrong = |why: String| FitError::Family { family: "matmul", why };
    let source = measured.source(&["cuda", "cublas"]);
    let bandwidth = measured.base.machine.memory_bandwidth.0 / 1e9;
    let spec = Spec {
        processors: measured.processors(),
        peak: base.chip.peak.0 / 1e12,
        size,
        measured_bandwidth: bandwidth,
        own_bandwidth: bandwidth,
    };
    let published = over_base(points, base, &source).map_err(wrong)?;
    let fresh = if points.len() >= ENOUGH { Some(alone(points, base, &spec, &source).map_err(wrong)?) } else { None };
    let alone_wins = fresh.as_ref().is_some_and(|fresh| median(&fresh.errors) < median(&published.errors));
    let unaided: Vec<f64> = points.iter().map(|(shape, t)| error(without(base, *shape), *t)).collect();
    let mut report = |what: &str, errors: &[f64]| {
        made.residuals.push(Residual::of(format!("matmul {name}: {what}"), points.len(), errors));
    };
    report("the base, unaided", &unaided);
    report("points over the base", &published.errors);
    if let Some(fresh) = &fresh {
        report("points over their own waves", &fresh.errors);
    }
    let best = match fresh {
        Some(fresh) if alone_wins => fresh,
        _ => published,
    };
    let (fitted, alone) = (median(&best.errors), median(&unaided));
    if fitted > alone {
        made.notes.push(format!(
            "matmul {name}: {} points predict each other to {:.1} %, the base without them to {:.1} %: the base's stays",
            points.len(),
            100.0 * fitted,
            100.0 * alone
        ));
        made.leave(points.len(), format!("matmul {name}: the base predicts them better than they each other"));
        return Ok(base.clone());
    }
    let floor = measured.floor(|what| matches!(what, What::Matmul { .. }));
    let e = measured.evidence(&best.errors, points.len(), floor, &source);
    let mut text = String::new();
    if alone_wins {
        write_waves(&mut text, name, spec.peak, &best.model.waves, &e);
    } else if let Some(section) = measured.sections.get(&format!("matmul.{name}")) {
        text.push_str(without_points(&section.text));
    }
    let _ = write!(text, "[matmul.{name}.points]\nevidence = {e}\n# \"m n k: time [us]\"\nrows = [\n",);
    for ((m, n, k), t) in points {
        let _ = writeln!(text, "  \"{m} {n} {k}: {}\",", figure(t * 1e6));
    }
    text.push_str("]\n");
    made.sections.push((format!("matmul.{name}"), text));
    Ok(best.model)
}

/// A base's section without the points it may have.
fn without_points(text: &str) -> &str {
    let end = text.split_inclusive('\n').scan(0, |at, line| {
        let here = *at;
        *at += line.len();
        Some((here, line.trim_end()))
    });
    let cut =
        end.filter(|(_, line)| line.starts_with("[matmul.") && line.ends_with(".points]")).map(|(at, _)| at).next();
    &text[..cut.unwrap_or(text.len())]
}

/// The section `layout`: gradients over the forward matmul of the same shape.
fn gradients(measured: &Measured<'_>, made: &mut Made, model: &Matmul) {
    let launch = model.waves.launch.seconds();
    // As predictions do: the layout changes what the kernel does, not its launch.
    let ratios = |layout: &str| -> Vec<f64> {
        let points = measured.burst(|what| of(what, "bf16", layout));
        let ratio =
            |(&(m, n, k), t): (&Shape, &f64)| (t - launch) / (model.cost(m, n, k).time.seconds() - launch).max(1e-7);
        points.iter().map(ratio).collect()
    };
    // Reading and writing four bytes an element where two would be written.
    let traffic = |(m, n, _): Shape| 6.0 * (m * n) as f64 / (model.chip.bandwidth.0 * model.waves.memory);
    let mains = measured.burst(|what| of(what, "bf16", "weight_gradient_fp32"));
    let main = mains.iter().map(|(&shape, t)| {
        let (m, n, k) = shape;
        (t - traffic(shape) - launch) / (model.cost(m, n, k).time.seconds() - launch).max(1e-7)
    });
    let all = Ratios { data: ratios("data_gradient"), weight: ratios("weight_gradient"), main: main.collect() };
    if all.data.len().min(all.weight.len()) < GRADIENTS {
        let why = format!("gradients' layouts: both data and weight gradients are needed, {GRADIENTS} of each");
        made.leave(all.data.len() + all.weight.len() + all.main.len(), why);
        return;
    }
    let base = &measured.base.layout;
    let of_base = [(&all.data, base.data_gradient), (&all.weight, base.weight_gradient)];
    let unaided = of_base.map(|(ratios, factor)| ratios.iter().map(|ratio| error(factor, *ratio)).collect::<Vec<_>>());
    let (unaided, own) =
        (median(&unaided.concat()), median(&[each_other(&all.data), each_other(&all.weight)].concat()));
    if own > unaided {
        let [own, unaided] = [own, unaided].map(|error| 100.0 * error);
        made.notes.push(format!(
            "gradients' layouts: the points predict each other to {own:.1} %, the base without them to {unaided:.1} %: the base's stay"
        ));
        let points = all.data.len() + all.weight.len() + all.main.len();
        made.leave(points, "gradients' layouts: the base predicts them better than they each other");
        return;
    }
    let section = layout::section(&all, "measured", &measured.source(&["cuda", "cublas"]));
    // Gradients in fp8 are not in these points: the base's factor stays.
    let fp8 = format!("fp8_gradient = {}\nevidence = ", base.fp8_gradient);
    let text = if base.fp8_gradient == 1.0 { section.text } else { section.text.replacen("evidence = ", &fp8, 1) };
    made.residuals.extend(section.residuals);
    made.sections.push(("layout".to_owned(), text));
}

/// Errors of each ratio as the median of the others.
fn each_other(ratios: &[f64]) -> Vec<f64> {
    let others = |at: usize| [&ratios[..at], &ratios[at + 1..]].concat();
    ratios.iter().enumerate().map(|(at, ratio)| error(median(&others(at)), *ratio)).collect()
}
