//! Attention by its definition, one row at a time, in double precision on the host: what cuDNN's results are checked
//! against.
//!
//! ```text
//! s = scale·q·k    p = exp(s) / Σ exp(s)    o = Σ p·v
//! dq = scale·Σ p·(dO·v − δ)·k    dk = scale·Σ p·(dO·v − δ)·q    dv = Σ p·dO    δ = dO·o
//! ```

use super::shape::Shape;

/// The vectors of one head, a token after the other.
#[derive(Clone, Copy)]
pub struct Vectors<'a> {
    /// The numbers.
    pub values: &'a [f32],
    /// How many to a token.
    pub width: usize,
}

impl<'a> Vectors<'a> {
    /// Of one token.
    pub fn of(&self, token: u64) -> &'a [f32] {
        &self.values[token as usize * self.width..][..self.width]
    }
}

/// One key-value head.
#[derive(Clone, Copy)]
pub struct Pair<'a> {
    /// Keys.
    pub keys: Vectors<'a>,
    /// Values.
    pub values: Vectors<'a>,
}

/// One query head, as backward needs it.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// Queries.
    pub queries: Vectors<'a>,
    /// Output.
    pub outputs: Vectors<'a>,
    /// Its gradient.
    pub gradients: Vectors<'a>,
    /// Logarithm of each row's sum of exponentials.
    pub statistics: &'a [f32],
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn add(to: &mut [f64], times: f64, from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += times * f64::from(*from);
    }
}

/// Output of query `row`, and the logarithm of its sum of exponentials.
pub fn output(shape: &Shape, row: u64, query: &[f32], pair: Pair<'_>) -> (Vec<f64>, f64) {
    let scale = f64::from(shape.scale());
    let seen: Vec<(u64, f64)> = (0..shape.keys)
        .filter(|key| shape.sees(row, *key))
        .map(|key| (key, scale * dot(query, pair.keys.of(key))))
        .collect();
    let most = seen.iter().map(|(_, score)| *score).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = seen.iter().map(|(_, score)| (score - most).exp()).sum();
    let mut output = vec![0.0; pair.values.width];
    for (key, score) in seen {
        add(&mut output, (score - most).exp() / sum, pair.values.of(key));
    }
    (output, most + sum.ln())
}

/// Gradient of query `row`, from the outputs and statistics that forward left, as a kernel makes it. Where a row sees two keys,
/// dO·v and δ nearly cancel now and then. Then the rounding of an output to bf16 is several per cent of the gradient, and outputs by
/// definition would have another one.
pub fn query_gradient(shape: &Shape, row: u64, head: Queries<'_>, pair: Pair<'_>) -> Vec<f64> {
    let (query, gradient) = (head.queries.of(row), head.gradients.of(row));
    let statistic = f64::from(head.statistics[row as usize]);
    let delta = dot(gradient, head.outputs.of(row));
    let scale = f64::from(shape.scale());
    let mut to = vec![0.0; query.len()];
    for key in (0..shape.keys).filter(|key| shape.sees(row, *key)) {
        let weight = (scale * dot(query, pair.keys.of(key)) - statistic).exp();
        add(&mut to, scale * weight * (dot(gradient, pair.values.of(key)) - delta), pair.keys.of(key));
    }
    to
}

/// Adds what one query head gives to the gradients of key `key` and of its value.
pub fn add_pair_gradient(
    shape: &Shape,
    key: u64,
    head: Queries<'_>,
    pair: Pair<'_>,
    to_key: &mut [f64],
    to_value: &mut [f64],
) {
    let (vector, value) = (pair.keys.of(key), pair.values.of(key));
    let scale = f64::from(shape.scale());
    for row in (0..shape.queries).filter(|row| shape.sees(*row, key)) {
        let (query, gradient) = (head.queries.of(row), head.gradients.of(row));
        let weight = (scale * dot(query, vector) - f64::from(head.statistics[row as usize])).exp();
        let delta = dot(gradient, head.outputs.of(row));
        add(to_key, scale * weight * (dot(gradient, value) - delta), query);
        add(to_value, weight, gradient);
    }
}

/// How far `got` is from `wanted`, relative to its length; what is nearly nothing counts as a hundredth of a vector of
/// ones. Not a number if anything is not.
pub fn distance(got: &[f32], wanted: &[f64]) -> f64 {
    let squares = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>().sqrt();
    let error = squares(&mut got.iter().zip(wanted).map(|(got, wanted)| f64::from(*got) - wanted));
    let length = squares(&mut wanted.iter().copied());
    error / (length + 0.01 * (wanted.len() as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Shape = Shape {
        batch: 1,
        heads: 2,
        kv_heads: 1,
        queries: 6,
        keys: 6,
        head_dim: 8,
        value_dim: 16,
        causal: true,
        window: None,
    };

    /// Numbers without a pattern between −1 and 1.
    fn numbers(seed: u64, count: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(next).collect()
    }

    /// Everything of a tiny attention: two query heads, one key-value head.
    struct Tiny {
        shape: Shape,
        q: [Vec<f32>; 2],
        g: [Vec<f32>; 2],
        k: Vec<f32>,
        v: Vec<f32>,
    }

    impl Tiny {
        fn new(shape: Shape) -> Self {
            let q = [1, 2].map(|seed| numbers(seed, shape.queries * shape.head_dim));
            let g = [3, 4].map(|seed| numbers(seed, shape.queries * shape.value_dim));
            let (k, v) = (numbers(5, shape.keys * shape.head_dim), numbers(6, shape.keys * shape.value_dim));
            Self { shape, q, g, k, v }
        }

        fn of<'a>(&self, values: &'a [f32], width: u64) -> Vectors<'a> {
            Vectors { values, width: width as usize }
        }

        fn pair(&self) -> Pair<'_> {
            Pair { keys: self.of(&self.k, self.shape.head_dim), values: self.of(&self.v, self.shape.value_dim) }
        }

        /// Outputs and statistics of a head.
        fn forward(&self, head: usize) -> (Vec<f32>, Vec<f32>) {
            let queries = self.of(&self.q[head], self.shape.head_dim);
            let rows = (0..self.shape.queries).map(|row| output(&self.shape, row, queries.of(row), self.pair()));
            let (outputs, statistics): (Vec<Vec<f64>>, Vec<f64>) = rows.unzip();
            (outputs.concat().iter().map(|x| *x as f32).collect(), statistics.iter().map(|x| *x as f32).collect())
        }

        /// What the gradients are gradients of.
        fn loss(&self) -> f64 {
            (0..2).map(|head| dot(&self.forward(head).0, &self.g[head])).sum()
        }

        /// The slope of the loss along a number that `pick` finds.
        fn slope(&mut self, pick: impl Fn(&mut Self) -> &mut f32) -> f64 {
            let step = 1e-2f32;
            let was = *pick(self);
            *pick(self) = was + step;
            let above = self.loss();
            *pick(self) = was - step;
            let below = self.loss();
            *pick(self) = was;
            (above - below) / (2.0 * f64::from(step))
        }
    }

    fn shapes() -> [Shape; 3] {
        [SMALL, Shape { causal: false, keys: 9, ..SMALL }, Shape { window: Some(3), ..SMALL }]
    }

    #[test]
    fn gradients_are_the_slopes_of_the_loss() {
        for shape in shapes() {
            let mut tiny = Tiny::new(shape);
            let forward = [tiny.forward(0), tiny.forward(1)];
            let heads: Vec<Queries<'_>> = (0..2)
                .map(|head| Queries {
                    queries: tiny.of(&tiny.q[head], shape.head_dim),
                    outputs: tiny.of(&forward[head].0, shape.value_dim),
                    gradients: tiny.of(&tiny.g[head], shape.value_dim),
                    statistics: &forward[head].1,
                })
                .collect();
            let dq = query_gradient(&shape, 4, heads[1], tiny.pair());
            let (mut dk, mut dv) = (vec![0.0; 8], vec![0.0; 16]);
            for head in heads {
                add_pair_gradient(&shape, 3, head, tiny.pair(), &mut dk, &mut dv);
            }
            let at = |token: u64, width: u64, along: usize| (token * width) as usize + along;
            let near = |got: f64, slope: f64| assert!((got - slope).abs() < 2e-3, "{shape:?}: {got} against {slope}");
            for along in [0, 5] {
                near(dq[along], tiny.slope(|tiny| &mut tiny.q[1][at(4, shape.head_dim, along)]));
                near(dk[along], tiny.slope(|tiny| &mut tiny.k[at(3, shape.head_dim, along)]));
                near(dv[along], tiny.slope(|tiny| &mut tiny.v[at(3, shape.value_dim, along)]));
            }
        }
    }

    #[test]
    fn where_two_keys_nearly_cancel_an_outputs_rounding_is_per_cents_of_the_gradient() {
        let shape = Shape { head_dim: 128, value_dim: 128, ..SMALL };
        let rounded = |x: &f32| f32::from_bits((x.to_bits() + 0x8000) & 0xffff_0000);
        let furthest = (0..400u64).map(|seed| {
            let mut tiny = Tiny::new(shape);
            tiny.v = numbers(1000 + seed, shape.keys * shape.value_dim);
            let (outputs, statistics) = tiny.forward(0);
            let coarse: Vec<f32> = outputs.iter().map(rounded).collect();
            let gradient = |outputs: &[f32]| {
                let queries = Queries {
                    queries: tiny.of(&tiny.q[0], 128),
                    outputs: Vectors { values: outputs, width: 128 },
                    gradients: tiny.of(&tiny.g[0], 128),
                    statistics: &statistics,
                };
                query_gradient(&shape, 1, queries, tiny.pair())
            };
            let single = |numbers: Vec<f64>| numbers.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
            let (got, wanted) = (single(gradient(&coarse)), gradient(&outputs));
            let length = wanted.iter().map(|x| x * x).sum::<f64>().sqrt();
            distance(&got, &wanted) * (length + 0.01 * 128f64.sqrt()) / length
        });
        assert!(furthest.fold(0.0, f64::max) > 0.02);
    }

    #[test]
    fn the_first_query_under_a_causal_mask_sees_one_value() {
        let tiny = Tiny::new(SMALL);
        let (outputs, statistics) = tiny.forward(0);
        assert_eq!(outputs[..16], tiny.v[..16]);
        let score = dot(&tiny.q[0][..8], &tiny.k[..8]) * f64::from(SMALL.scale());
        assert!((f64::from(statistics[0]) - score).abs() < 1e-6);
    }

    #[test]
    fn a_window_of_one_gives_back_the_values() {
        let tiny = Tiny::new(Shape { window: Some(1), ..SMALL });
        assert_eq!(tiny.forward(1).0, tiny.v);
    }

    #[test]
    fn the_distance_of_a_tenth_more_is_a_tenth() {
        let wanted = vec![1.0; 64];
        let got = vec![1.1f32; 64];
        assert!((distance(&got, &wanted) - 0.1 / 1.01).abs() < 1e-6);
        assert!(distance(&[f32::NAN; 64], &wanted).is_nan());
        assert_eq!(distance(&[0.0; 64], &[0.0; 64]), 0.0);
    }
}
