//! torch's `Muon` (`torch/optim/_muon.py`, PyTorch 2.15) for the matrices of layers, then its `AdamW` for all else, as the example in
//! its documentation has it: embeddings, head, vectors, and experts that are one tensor of three dimensions, which Muon refuses.
//!
//! Newton–Schulz runs in bf16 on the whole matrix. With X of m rows and n ≥ m columns, a step is three matmuls:
//! `A = X·Xᵀ`, `B = b·A + c·A·A`, `X = a·X + B·X`, so `4·m²·n + 2·m³` FLOPs. Of sharded parameters it runs as DTensor has it.

use super::contract::{Asked, Caller, Facts, Pass, Rules, Setting, State};
use super::kernels::Step;
use super::param::{Owned, Role, Shape};
use super::placed::{Matrix, Place, Ranks, matmul, redistribute};
use crate::plan::optimizer::{Adam, Decay, How, Muon};
use crate::program::{BufferId, Collective, Comm, DType, StreamId};
use crate::units::Bytes;

/// What is known of it. The implementation is `AdamW`'s: Muon has one.
pub const MUON: Facts = Facts {
    name: "muon",
    callers: &[(Caller::Fsdp2, How::Foreach), (Caller::SingleDevice, How::Foreach)],
    on_host: &[],
    implementations: &[How::Fused, How::Foreach, How::ForLoop],
    settings: &[Setting::Nesterov],
    weight_decay: Some(0.1),
    refusals: &[],
};

/// Iterations (`DEFAULT_NS_STEPS`).
const ITERATIONS: u32 = 5;

impl Muon {
    pub(super) fn new(asked: &Asked) -> Muon {
        let decay = if asked.decays { Decay::OfWeights } else { Decay::None };
        Muon { nesterov: asked.nesterov, iterations: ITERATIONS, rest: Adam::new(asked.how, decay, false) }
    }

    /// Whether it steps a parameter itself.
    fn takes(param: &Owned) -> bool {
        let of_layers = matches!(param.role, Role::Matrix | Role::Expert | Role::Adapter);
        of_layers && param.shape.matrices == 1 && !param.shape.is_vector()
    }

    /// One matrix: its update, which the next one's takes the name of.
    fn matrix(self, step: &mut Step<'_>, param: &Owned, before: &mut Option<BufferId>) {
        let numbers = param.elements() * step.element;
        step.kernel("aten.lerp_", 2 * numbers, numbers);
        let update = self.nesterov.then(|| {
            let update = step.temporary(numbers, "aten.lerp");
            step.kernel("aten.lerp", 2 * numbers, numbers);
            update
        });
        if let Some(before) = before.take() {
            step.program.free(before);
        }
        let (made, mut x) = self.orthogonal(step, param);
        if let Some(update) = update {
            step.program.free(update);
        }
        step.kernel("aten.mul_", numbers, numbers);
        let ranks = ranks(step, param);
        let Shape { rows, .. } = param.shape;
        if x.rows != rows || param.shape.rows > param.shape.cols {
            x = x.turned();
        }
        let (_, moved) = redistribute(step, ranks, x, place(param));
        step.kernel("aten.add_", numbers + param.elements() * DType::Bf16.bytes(), numbers);
        if let Some(moved) = moved {
            step.program.free(moved);
        }
        *before = Some(made);
    }

    /// `_zeropower_via_newtonschulz`.
    fn orthogonal(self, step: &mut Step<'_>, param: &Owned) -> (BufferId, Matrix) {
        let ranks = ranks(step, param);
        let Shape { rows, cols, .. } = param.shape;
        let own = Matrix { rows, cols, place: place(param), plain: true };
        let mut x = if rows > cols { own.turned() } else { own };
        let bytes = x.bytes(ranks.count);
        let mut made = step.temporary(bytes, "aten._to_copy");
        step.kernel("aten._to_copy", param.elements() * step.element, bytes);
        norm(step, ranks, param.elements());
        step.kernel("aten.div_", bytes, bytes);
        let (mut gram, mut change): (Option<BufferId>, Option<BufferId>) = (None, None);
        let renew = |step: &mut Step<'_>, name: &mut Option<BufferId>, to: BufferId| {
            if let Some(gone) = name.replace(to) {
                step.program.free(gone);
            }
        };
        for _ in 0..self.iterations {
            let (a, buffer) = matmul(step, ranks, (None, x, x.turned()));
            renew(step, &mut gram, buffer);
            let (b, buffer) = matmul(step, ranks, (Some(a), a, a));
            renew(step, &mut change, buffer);
            let (next, buffer) = matmul(step, ranks, (Some(x), b, x));
            step.program.free(std::mem::replace(&mut made, buffer));
            x = next;
        }
        for gone in [gram, change].into_iter().flatten() {
            step.program.free(gone);
        }
        (made, x)
    }
}

/// How `fully_shard` has placed a parameter.
fn place(param: &Owned) -> Place {
    match param.over {
        None => Place::Whole,
        Some(_) if param.shard.cols == param.shape.cols => Place::Rows,
        Some(_) => Place::Columns,
    }
}

fn ranks(step: &Step<'_>, param: &Owned) -> Ranks {
    let count = param.over.map_or(1, |group| u64::from(step.program.ranks_of(group)));
    Ranks { count, group: param.over }
}

/// `ortho_grad.norm().clamp(min=eps)`: a number, over all ranks where they share the matrix.
fn norm(step: &mut Step<'_>, ranks: Ranks, elements: u64) {
    const NORM: &str = "aten.linalg_vector_norm";
    let number = DType::Bf16.bytes();
    let mut sum = step.temporary(number, NORM);
    // A block of 512 threads reads 16 numbers a thread; more blocks than the device holds do not start
    // (`aten/src/ATen/native/cuda/Reduce.cuh`, `setReduceConfig`).
    let of_thread = elements / 512;
    if of_thread >= 256 {
        let blocks = (of_thread.div_ceil(16)).min(528).max(of_thread.div_ceil(256));
        let [staged, semaphores] = [4 * blocks, 4].map(|bytes| step.temporary(bytes, NORM));
        step.program.free(semaphores);
        step.program.free(staged);
    }
    step.kernel(NORM, elements * number, number);
    let clamp = |step: &mut Step<'_>| {
        let clamped = step.temporary(number, "aten.clamp");
        step.kernel("aten.clamp", number, number);
        clamped
    };
    let Some(group) = ranks.group else {
        let clamped = clamp(step);
        step.program.free(sum);
        return step.program.free(clamped);
    };
    // Norms are raised to the second power, summed, and taken the root of.
    let squared = step.temporary(number, "aten.pow");
    step.kernel("aten.pow", number, number);
    step.program
        .collective(StreamId(0), Comm { kind: Collective::AllReduce, group, bytes: Bytes(number), dtype: DType::Bf16 });
    let reduced = step.temporary(number, "all_reduce");
    let root = step.temporary(number, "aten.pow");
    step.kernel("aten.pow", number, number);
    [squared, reduced].into_iter().for_each(|gone| step.program.free(gone));
    let clamped = clamp(step);
    step.program.free(root);
    step.program.free(std::mem::replace(&mut sum, clamped));
    step.program.free(sum);
}

impl Rules for Muon {
    fn states(&self, param: &Owned, element: u64) -> Vec<State> {
        match Muon::takes(param) {
            true => vec![State::like(param, "momentum_buffer", element)],
            false => self.rest.states(param, element),
        }
    }

    fn counts_on_device(&self) -> bool {
        false
    }

    fn step(&self, step: &mut Step<'_>) {
        let (matrices, rest): (Vec<Owned>, Vec<Owned>) = step.params.iter().partition(|param| Muon::takes(param));
        let mut before = None;
        for param in &matrices {
            self.matrix(step, param, &mut before);
        }
        if let Some(before) = before {
            step.program.free(before);
        }
        if !rest.is_empty() {
            let Step { element, launches, .. } = *step;
            self.rest.step(&mut Step { program: step.program, params: &rest, element, launches });
        }
    }

    fn on_host(&self, _caller: Caller, _params: &[Owned], _element: u64) -> Option<Pass> {
        None
    }

    fn compiled(&self, _params: &[Owned], _element: u64) -> Option<Pass> {
        None
    }

    fn slimmer(&self) -> Option<How> {
        self.rest.slimmer()
    }

    fn decays_for_free(&self) -> bool {
        false
    }
}
