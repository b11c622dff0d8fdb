//! Attention: the splash kernel as a call with its operands and results, or products around a softmax.
//!
//! The splash kernel (jax@0.10.2, `pallas/ops/tpu/splash_attention`) takes queries over √H, B N S H, and gives the result, each
//! row's log-sum-exp on all 128 lanes, and three scratch arrays; its backward takes the log-sum-exp and `Σ dO·O`, and is
//! one kernel for keys and values and one for queries, or one for all, which then gives a dQ for every block of keys.
//! XLA computes nothing of it; around it stands what JAX puts there, in a part that each chip runs on its own heads.

use windtunnel::program::AttentionShape;
use windtunnel::runtime::spmd::Attention;

use super::operators::Made;
use super::{Logical, Writer, kernel};
use crate::stablehlo::{Comparison, Element, Function, Reduction, Spec, Type, Value};

/// Lanes of a vector register: what a row's number is repeated on.
const LANES: u64 = 128;
/// Sublanes: what numbers of a row of scores are repeated on.
const SUBLANES: u64 = 8;
/// What the softmax is given for a key that is not seen.
const UNSEEN: f64 = -1e30;

/// Places of the residuals that the kernel's forward makes: its result, and the log-sum-exp.
pub const MADE_BY_KERNEL: [usize; 2] = [3, 4];

impl Writer<'_> {
    /// Forward. Residuals: queries, keys and values; and of the kernel its result and the log-sum-exp, of the softmax the
    /// powers, their sum, and the shares.
    pub fn attend(&mut self, shape: &AttentionShape, inputs: [&Value; 3]) -> Made {
        match self.job.attention {
            // Steps for GPUs are refused before they are written.
            Attention::Splash { block, .. } => self.splash(shape, inputs, block),
            Attention::DotProduct => dot_product(&mut self.main, shape, inputs),
            Attention::Cudnn { .. } => unreachable!("steps on GPUs are refused before anything is written"),
        }
    }

    /// Gradients of queries, keys and values.
    pub fn attend_backward(&mut self, shape: &AttentionShape, residuals: &[Value], gradient: &Value) -> [Value; 3] {
        match self.job.attention {
            Attention::Splash { fused_backward, block } => {
                self.splash_backward(residuals, gradient, (block, fused_backward))
            }
            Attention::DotProduct => dot_product_backward(&mut self.main, shape, residuals, gradient),
            Attention::Cudnn { .. } => unreachable!("steps on GPUs are refused before anything is written"),
        }
    }

    /// Of arrays of queries, B N S and others.
    fn queries(&self, others: usize) -> Spec {
        let axes = [Logical::Batch, Logical::Tensor, Logical::Sequence];
        self.layout.spec(&[&axes[..], &vec![Logical::Whole; others]].concat())
    }

    /// Of keys and values, B N S H: of whole sequences, from all chips that share them
    /// (`context_parallel_strategy: all_gather`).
    fn keys(&self) -> Spec {
        self.layout.spec(&[Logical::Batch, Logical::Tensor, Logical::Whole, Logical::Whole])
    }

    fn splash(&mut self, shape: &AttentionShape, inputs: [&Value; 3], block: u64) -> Made {
        let [queries, keys, values] = inputs.map(|value| self.main.transpose(value, &[0, 2, 1, 3]));
        let queries = over_root(&mut self.main, &queries, shape.head_dim);
        let (whole, sums, all) = (self.queries(1), self.queries(0), self.keys());
        let (mesh, block) = (self.layout.mesh.clone(), self.kernel_block(block));
        let given = [(&queries, &whole), (&keys, &all), (&values, &all)];
        let made = self.main.manual(&mesh, &given, &[whole.clone(), sums], |main, pieces| {
            let [info, next] = masks(main, [&pieces[0].of, &pieces[1].of], block);
            let places = positions(main, &pieces[0].of, LANES, 0);
            let of = &pieces[0].of;
            let scratch = Type::new(Element::F32, [of.dims[0], block, of.dims[3]]);
            let lanes = Type::new(Element::F32, [of.dims[0], of.dims[1], of.dims[2], LANES]);
            let results = vec![scratch.clone(), scratch.clone(), scratch, of.clone(), lanes];
            let operands = [&info, &next, &pieces[0], &pieces[1], &pieces[2], &places];
            let made = kernel::call(main, "splash_mha_fwd", &operands, results);
            let one = main.slice(&made[4], 3, 0, 1);
            let sums = main.reshape(&one, &of.dims[..3]);
            vec![made[3].clone(), sums]
        });
        let [result, sums] = &made[..] else { unreachable!("two results were asked for") };
        Made {
            output: self.splash_output(result),
            residuals: vec![queries, keys, values, result.clone(), sums.clone()],
        }
    }

    /// What the block reads of the kernel's result.
    pub fn splash_output(&mut self, result: &Value) -> Value {
        self.main.transpose(result, &[0, 2, 1, 3])
    }

    fn splash_backward(&mut self, residuals: &[Value], gradient: &Value, (block, fused): (u64, bool)) -> [Value; 3] {
        let [queries, keys, values, result, sums] = residuals else { unreachable!("the kernel has five residuals") };
        let gradient = self.main.transpose(gradient, &[0, 2, 1, 3]);
        let (whole, rows, all) = (self.queries(1), self.queries(0), self.keys());
        let (mesh, block) = (self.layout.mesh.clone(), self.kernel_block(block));
        let given =
            [(&gradient, &whole), (queries, &whole), (keys, &all), (values, &all), (result, &whole), (sums, &rows)];
        let outputs = [whole.clone(), all.clone(), all.clone()];
        let shared = self.layout.spec(&[Logical::Sequence]);
        let made = self.main.manual(&mesh, &given, &outputs, |main, pieces| {
            let [gradient, queries, keys, values, result, sums] = pieces else { unreachable!("as many as given") };
            let [wide, other] = [result, gradient].map(|value| main.convert(value, Element::F32));
            let along = main.dot(&wide, &other, (&[0, 1, 2], &[0, 1, 2]), (&[3], &[3]), Element::F32);
            let made = backward_kernels(main, [queries, keys, values, gradient], [sums, &along], block, fused);
            let keys = made[1..].iter().map(|value| main.sum_over(value, &shared.0[0], &mesh));
            std::iter::once(made[0].clone()).chain(keys.collect::<Vec<_>>()).collect()
        });
        let head_dim = queries.of.dims[3];
        let of_queries = over_root(&mut self.main, &made[0], head_dim);
        [&of_queries, &made[1], &made[2]].map(|value| self.main.transpose(value, &[0, 2, 1, 3]))
    }

    /// Queries of a block of the kernel: no more than there are.
    fn kernel_block(&self, block: u64) -> u64 {
        block.min(self.job.seq / u64::from(self.job.mesh.context))
    }
}

/// Over √H in fp32.
fn over_root(main: &mut Function, value: &Value, head_dim: u64) -> Value {
    let wide = main.convert(value, Element::F32);
    let root = main.fill((head_dim as f64).sqrt(), &wide.of);
    let scaled = main.zip("divide", &wide, &root);
    main.convert(&scaled, Element::Bf16)
}

/// Which blocks of keys a block of queries sees, and which comes next: numbers that the kernel reads.
fn masks(main: &mut Function, sides: [&Type; 2], block: u64) -> [Value; 2] {
    let [rows, columns] = sides.map(|side| side.dims[2].div_ceil(block));
    let of = Type::new(Element::I8, [1, rows, columns]);
    [main.fill(1.0, &of), main.fill(0.0, &of)]
}

/// Places of queries, repeated along another axis.
fn positions(main: &mut Function, queries: &Type, repeated: u64, axis: usize) -> Value {
    let length = queries.dims[2];
    let line = main.iota(Type::new(Element::I32, [length]), 0);
    let dims = if axis == 0 { [length, repeated] } else { [repeated, length] };
    main.broadcast(&line, &dims, &[axis])
}

/// dQ, dK and dV of a chip's heads.
fn backward_kernels(
    main: &mut Function,
    [queries, keys, values, gradient]: [&Value; 4],
    sums: [&Value; 2],
    block: u64,
    fused: bool,
) -> Vec<Value> {
    let dims = queries.of.dims.clone();
    let scratch = Type::new(Element::F32, [dims[0], block, dims[3]]);
    let [info, next] = masks(main, [&queries.of, &keys.of], block);
    let rows = |main: &mut Function, count: u64| {
        sums.map(|value| main.broadcast(value, &[dims[0], dims[1], count, dims[2]], &[0, 1, 3]))
    };
    let [powers, along] = rows(main, SUBLANES);
    let places = positions(main, &queries.of, SUBLANES, 1);
    let operands = [&info, &next, queries, keys, values, &powers, gradient, &along, &places];
    if fused {
        let blocks = keys.of.dims[2].div_ceil(block);
        let parts = Type::new(Element::Bf16, [dims[0], blocks, dims[1], dims[2], dims[3]]);
        let results = vec![scratch.clone(), scratch, parts, keys.of.clone(), values.of.clone()];
        let made = kernel::call(main, "splash_mha_dqkv", &operands, results);
        let wide = main.convert(&made[2], Element::F32);
        let sum = main.reduce(Reduction::Sum, &wide, &[1]);
        return vec![main.convert(&sum, Element::Bf16), made[3].clone(), made[4].clone()];
    }
    let results = vec![scratch.clone(), scratch.clone(), keys.of.clone(), values.of.clone()];
    let of_keys = kernel::call(main, "splash_mha_dkv", &operands, results);
    let [powers, along] = rows(main, 1);
    let places = positions(main, &queries.of, LANES, 0);
    let operands = [&info, &next, queries, keys, values, &powers, gradient, &along, &places];
    let of_queries = kernel::call(main, "splash_mha_dq", &operands, vec![scratch, queries.of.clone()]);
    vec![of_queries[1].clone(), of_keys[2].clone(), of_keys[3].clone()]
}

/// Products around a softmax over B K G S T: G query heads for each of K key-value heads.
fn dot_product(main: &mut Function, shape: &AttentionShape, [queries, keys, values]: [&Value; 3]) -> Made {
    let (dims, heads) = (queries.of.dims.clone(), keys.of.dims[2]);
    let group = dims[2] / heads;
    let queries = main.reshape(queries, &[dims[0], dims[1], heads, group, dims[3]]);
    let scores = main.dot(keys, &queries, (&[0, 2], &[0, 2]), (&[3], &[4]), Element::F32);
    let scores = main.transpose(&scores, &[0, 1, 4, 3, 2]);
    let root = main.fill((dims[3] as f64).sqrt(), &scores.of);
    let scores = main.zip("divide", &scores, &root);
    let seen = seen(main, shape, &scores.of);
    let never = main.fill(UNSEEN, &scores.of);
    let scores = main.select(&seen, &scores, &never);
    let most = main.reduce(Reduction::Max, &scores, &[4]);
    let most = main.broadcast(&most, &scores.of.dims, &[0, 1, 2, 3]);
    let less = main.zip("subtract", &scores, &most);
    let powers = main.map("exponential", &less);
    let sum = main.reduce(Reduction::Sum, &powers, &[4]);
    let spread = main.broadcast(&sum, &powers.of.dims, &[0, 1, 2, 3]);
    let shares = main.zip("divide", &powers, &spread);
    let shares = main.convert(&shares, Element::Bf16);
    let product = main.dot(values, &shares, (&[0, 2], &[0, 1]), (&[1], &[4]), Element::Bf16);
    let product = main.transpose(&product, &[0, 4, 1, 3, 2]);
    let output = main.reshape(&product, &dims);
    Made { output, residuals: vec![queries, keys.clone(), values.clone(), powers, sum, shares] }
}

/// Which keys each query sees: those up to its own, and no further back than the window.
fn seen(main: &mut Function, shape: &AttentionShape, scores: &Type) -> Value {
    let square = Type::new(Element::I32, scores.dims[3..].to_vec());
    let (row, column) = (main.iota(square.clone(), 0), main.iota(square.clone(), 1));
    let mut seen = main.compare(Comparison::AtLeast, &row, &column);
    if let Some(window) = shape.window {
        let back = main.zip("subtract", &row, &column);
        let length = main.fill(window as f64, &square);
        let near = main.compare(Comparison::Less, &back, &length);
        seen = main.zip("and", &seen, &near);
    }
    main.broadcast(&seen, &scores.dims, &[3, 4])
}

fn dot_product_backward(
    main: &mut Function,
    shape: &AttentionShape,
    residuals: &[Value],
    gradient: &Value,
) -> [Value; 3] {
    let [queries, keys, values, powers, sum, shares] = residuals else { unreachable!("a softmax has six residuals") };
    let dims = queries.of.dims.clone();
    let gradient = main.reshape(gradient, &dims);
    let gradient = main.transpose(&gradient, &[0, 2, 4, 3, 1]);
    let of_shares = main.dot(&gradient, values, (&[0, 1], &[0, 2]), (&[2], &[3]), Element::Bf16);
    let of_values = main.dot(&gradient, shares, (&[0, 1], &[0, 1]), (&[3, 4], &[2, 3]), Element::Bf16);
    let of_values = main.transpose(&of_values, &[0, 3, 1, 2]);
    let of_shares = main.convert(&of_shares, Element::F32);
    // Of a share p = e/Σ: dp/Σ through e, and −Σ dp·e/Σ² through the sum.
    let spread = main.broadcast(sum, &powers.of.dims, &[0, 1, 2, 3]);
    let straight = main.zip("divide", &of_shares, &spread);
    let along = main.zip("multiply", &straight, powers);
    let along = main.reduce(Reduction::Sum, &along, &[4]);
    let along = main.zip("divide", &along, sum);
    let along = main.broadcast(&along, &powers.of.dims, &[0, 1, 2, 3]);
    let of_powers = main.zip("subtract", &straight, &along);
    let of_scores = main.zip("multiply", &of_powers, powers);
    let seen = seen(main, shape, &of_scores.of);
    let nothing = main.fill(0.0, &of_scores.of);
    let of_scores = main.select(&seen, &of_scores, &nothing);
    let root = main.fill((dims[4] as f64).sqrt(), &of_scores.of);
    let of_scores = main.zip("divide", &of_scores, &root);
    let of_scores = main.transpose(&of_scores, &[0, 1, 4, 3, 2]);
    let wide = [&keys, &queries].map(|value| main.convert(value, Element::F32));
    let of_queries = main.dot(&of_scores, &wide[0], (&[0, 1], &[0, 2]), (&[2], &[1]), Element::F32);
    let of_queries = main.transpose(&of_queries, &[0, 2, 1, 3, 4]);
    let of_queries = main.convert(&of_queries, Element::Bf16);
    let of_queries = main.reshape(&of_queries, &[dims[0], dims[1], dims[2] * dims[3], dims[4]]);
    let of_keys = main.dot(&of_scores, &wide[1], (&[0, 1], &[0, 2]), (&[3, 4], &[1, 3]), Element::F32);
    let of_keys = main.transpose(&of_keys, &[0, 2, 1, 3]);
    [of_queries, main.convert(&of_keys, Element::Bf16), of_values]
}
