//! A program of one rank, walked by itself: when its streams are done if nobody is waited for, and what its tensors hold.
//!
//! Every stream runs what it is given in order; it waits for events of its own rank alone. That is the simulation without the host,
//! without other ranks and without overlapping kernels slowing each other, so nothing ends earlier in the simulation.

use crate::engine::Costs;
use crate::program::{BufferId, Category, Instr, MatmulLayout, Pass, Program, Rename, Work};
use crate::units::Time;

/// What a walk through a step found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Walked {
    /// From the first kernel of forward to the first of backward \[ps\].
    pub forward: Time,
    /// Time of the default stream's kernels of forward \[ps\].
    pub forwards: Time,
    /// Time of its kernels of forward and backward \[ps\].
    pub kernels: Time,
    /// Time of the kernels that make gradients of weights \[ps\].
    pub weights: Time,
    /// Bytes that tensors hold from step to step: the least before forward, as a step may begin with freeing what the last one left,
    /// such as copies of gradients \[B\].
    pub before: u64,
    /// Of these, states of the optimizer \[B\].
    pub optimizer: u64,
    /// Bytes that they hold when backward begins, beyond those \[B\].
    pub kept: u64,
    /// The most that they hold \[B\].
    pub peak: u64,
    /// When the default stream is done with the last kernel of forward and backward: the optimizer's are not counted, as one kernel
    /// for many parameters takes less than many for a few \[ps\].
    pub worked: Time,
    /// The time of the busiest stream without the optimizer \[ps\].
    pub busiest: Time,
}

/// Walks through the steady step of a program.
pub(super) fn walk(program: &Program, costs: &Costs) -> Walked {
    let mut held = Held { bytes: vec![0; program.buffers.len()], live: 0, peak: 0 };
    program.before_second().for_each(|instr| held.take(program, instr));
    held.peak = held.live;
    let states = (0..)
        .zip(&held.bytes)
        .filter(|&(buffer, &bytes)| bytes > 0 && program.buffer(BufferId(buffer)).category == Category::OptimizerState);
    let mut walked = Walked { before: held.live, optimizer: states.map(|(_, bytes)| bytes).sum(), ..Walked::default() };
    let mut clock = vec![Time::ZERO; program.streams.len()];
    let mut busy = vec![0_u64; program.streams.len()];
    let mut events = vec![Time::ZERO; program.events as usize];
    let (mut begun, mut turned) = (None, false);
    for instr in &program.step {
        if begun.is_none() {
            walked.before = walked.before.min(held.live);
        }
        match *instr {
            Instr::Launch { stream, kernel, .. } => {
                let at = stream.0 as usize;
                let (time, pass) = (costs.kernel[kernel.0 as usize].time, program.kernel(kernel).pass);
                match pass {
                    Pass::Forward if begun.is_none() => begun = Some(clock[at]),
                    Pass::Backward | Pass::Recompute if !turned && let Some(begun) = begun => {
                        turned = true;
                        walked.forward = clock[at].saturating_sub(begun);
                        walked.kept = held.live.saturating_sub(walked.before);
                    }
                    _ => {}
                }
                clock[at] += time;
                if at == 0 && matches!(pass, Pass::Forward | Pass::Backward | Pass::Recompute) {
                    walked.kernels += time;
                    walked.forwards += if pass == Pass::Forward { time } else { Time::ZERO };
                }
                if !matches!(pass, Pass::Optimizer | Pass::Communication) {
                    busy[at] += time.0;
                    walked.worked = walked.worked.max(clock[0]);
                }
                if is_of_weights(program, kernel.0 as usize) {
                    walked.weights += time;
                }
            }
            Instr::Collective { stream, comm, .. } => {
                let (at, time) = (stream.0 as usize, costs.comm[comm.0 as usize].time);
                clock[at] += time;
                busy[at] += time.0;
            }
            Instr::Record { stream, event } => events[event.0 as usize] = clock[stream.0 as usize],
            Instr::Wait { stream, event } => {
                let at = stream.0 as usize;
                clock[at] = clock[at].max(events[event.0 as usize]);
            }
            _ => held.take(program, instr),
        }
    }
    walked.busiest = Time(busy.into_iter().max().unwrap_or_default());
    walked.peak = held.peak;
    walked
}

/// Whether a kernel makes the gradient of a weight.
fn is_of_weights(program: &Program, kernel: usize) -> bool {
    let kernel = &program.kernels[kernel];
    matches!(kernel.work, Work::Matmul { layout: MatmulLayout::WeightGradient | MatmulLayout::MainGradient(_), .. })
}

/// What tensors hold.
struct Held {
    /// By buffer \[B\].
    bytes: Vec<u64>,
    live: u64,
    peak: u64,
}

impl Held {
    fn take(&mut self, program: &Program, instr: &Instr) {
        match *instr {
            Instr::Alloc { buffer } => {
                let bytes = program.buffer(buffer).bytes.0;
                self.bytes[buffer.0 as usize] = bytes;
                self.live += bytes;
                self.peak = self.peak.max(self.live);
            }
            Instr::Free { buffer } => self.live -= std::mem::take(&mut self.bytes[buffer.0 as usize]),
            Instr::Rename { rename } => {
                let Rename { from, to } = program.rename(rename);
                self.bytes[to.0 as usize] = std::mem::take(&mut self.bytes[from.0 as usize]);
            }
            _ => {}
        }
    }
}
