//! Attention as products and a softmax, forward and backward; what XLA fuses of it is XLA's.
//!
//! ```text
//! P = softmax(Q·Kᵀ/√H + mask)     O = P·V
//! dV = Pᵀ·dO     dP = dO·Vᵀ     dS = P∘(dP − Σ P∘dP)/√H     dQ = dS·K     dK = dSᵀ·Q
//! ```
//!
//! Backward computes P again. Shapes: B sequences, S queries, T keys, K key-value heads of G query heads each, H wide.

use crate::points::What;
use crate::stablehlo::{Comparison, Element, Function, Reduction, Type, Value};

/// XLA's own attention, in the words of points.
pub const BACKEND: &str = "xla";

/// Writes what `what` asks for.
///
/// # Errors
/// Something that is not written: a window, heads of two widths, another format, somebody else's kernels.
pub fn write(main: &mut Function, what: &What) -> Result<(), String> {
    let What::Attention { backend, backward, batch, heads, kv_heads, queries, keys, head_dim, value_dim, .. } = what
    else {
        return Err("it is no attention".to_owned());
    };
    let What::Attention { causal, window, dtype, .. } = what else { return Err("it is no attention".to_owned()) };
    let lacks = match () {
        () if backend != BACKEND => Some("kernels but XLA's"),
        () if dtype != "bf16" => Some("formats but bf16"),
        () if window.is_some() => Some("windows"),
        () if value_dim != head_dim => Some("values of another width than keys"),
        () if *kv_heads == 0 || heads % kv_heads != 0 => Some("query heads that are not shared out evenly"),
        () if *causal && queries != keys => Some("a causal mask over unequal lengths"),
        () => None,
    };
    if let Some(lacks) = lacks {
        return Err(format!("no program of attention has {lacks}"));
    }
    let (b, s, t, k, g, h) = (*batch, *queries, *keys, *kv_heads, heads / kv_heads, *head_dim);
    let mut given = |dims: &[u64]| main.parameter(Type::new(Element::Bf16, dims), None);
    let (q_bskgh, k_btkh, v_btkh) = (given(&[b, s, k, g, h]), given(&[b, t, k, h]), given(&[b, t, k, h]));
    if *backward {
        let d_o = given(&[b, k, s, g, h]);
        let p = probabilities(main, &q_bskgh, &k_btkh, *causal);
        return gradients(main, [&q_bskgh, &k_btkh, &v_btkh, &d_o], &p);
    }
    let p = probabilities(main, &q_bskgh, &k_btkh, *causal);
    let p = main.convert(&p, Element::Bf16);
    let o_bksgh = main.dot(&p, &v_btkh, (&[0, 1], &[0, 2]), (&[4], &[1]), Element::Bf16);
    main.result(&o_bksgh, None);
    Ok(())
}

/// P, of B K S G T, in fp32.
fn probabilities(main: &mut Function, q: &Value, k: &Value, causal: bool) -> Value {
    let scores = main.dot(q, k, (&[0, 2], &[0, 2]), (&[4], &[3]), Element::F32);
    let mut scores = scaled(main, &scores, q.of.dims[4]);
    if causal {
        let place = scores.of.of(Element::I32);
        let (row, column) = (main.iota(place.clone(), 2), main.iota(place, 4));
        let seen = main.compare(Comparison::AtLeast, &row, &column);
        let never = main.constant(f64::NEG_INFINITY, scores.of.clone());
        scores = main.select(&seen, &scores, &never);
    }
    softmax(main, &scores, 4)
}

/// Over √H.
fn scaled(main: &mut Function, value: &Value, head_dim: u64) -> Value {
    let scale = main.constant(1.0 / (head_dim as f64).sqrt(), value.of.clone());
    main.zip("multiply", value, &scale)
}

/// dQ, dK and dV as results.
fn gradients(main: &mut Function, [q, k, v, d_o]: [&Value; 4], p: &Value) -> Result<(), String> {
    let narrow = main.convert(p, Element::Bf16);
    let d_v = main.dot(&narrow, d_o, (&[0, 1], &[0, 1]), (&[2, 3], &[2, 3]), Element::Bf16);
    let d_p = main.dot(d_o, v, (&[0, 1], &[0, 2]), (&[4], &[3]), Element::F32);
    let shares = main.zip("multiply", p, &d_p);
    let sum = main.reduce(Reduction::Sum, &shares, &[4]);
    let sum = main.broadcast(&sum, &d_p.of.dims, &[0, 1, 2, 3]);
    let less = main.zip("subtract", &d_p, &sum);
    let d_s = main.zip("multiply", p, &less);
    let d_s = scaled(main, &d_s, q.of.dims[4]);
    let d_s = main.convert(&d_s, Element::Bf16);
    let d_q = main.dot(&d_s, k, (&[0, 1], &[0, 2]), (&[4], &[1]), Element::Bf16);
    let d_k = main.dot(&d_s, q, (&[0, 1], &[0, 2]), (&[2, 3], &[1, 3]), Element::Bf16);
    for gradient in [d_q, d_k, d_v] {
        main.result(&gradient, None);
    }
    Ok(())
}

/// Along an axis, the largest taken off first.
pub fn softmax(main: &mut Function, scores: &Value, axis: usize) -> Value {
    let others: Vec<usize> = (0..scores.of.dims.len()).filter(|other| *other != axis).collect();
    let most = main.reduce(Reduction::Max, scores, &[axis]);
    let most = main.broadcast(&most, &scores.of.dims, &others);
    let less = main.zip("subtract", scores, &most);
    let powers = main.map("exponential", &less);
    let sum = main.reduce(Reduction::Sum, &powers, &[axis]);
    let sum = main.broadcast(&sum, &scores.of.dims, &others);
    main.zip("divide", &powers, &sum)
}
