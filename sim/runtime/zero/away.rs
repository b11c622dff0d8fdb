//! States in the host's memory: ZeRO-Offload (`stage_1_and_2.py`, `stage3.py`, `deepspeed/ops/adam/cpu_adam.py`).
//!
//! What is stepped is there, with its moments; gradients cross to it in fp32 as they are reduced, and what has been stepped crosses
//! back in bf16. A gradient that is not the step's last crosses in bf16, comes back for the next, and is added up on the device.
//! Each is looked through for what overflows when it crosses, and the host waits for the answer. Memory is pinned through PyTorch,
//! which takes the next power of two for each block (`aten/src/ATen/core/CachingHostAllocator.h`).

use super::elements;
use super::files;
use super::host::{self, cross};
use super::kernels::{BF16, FP32, elementwise, made, reduced};
use super::reduce::Partition;
use super::states::States;
use crate::plan::zero::{Stage, ZeroPlan};
use crate::program::{BufferId, Builder, Category, HostMemory, StreamId, pinned_block};
use crate::units::Bytes;

/// Elements whose norm ZeRO-3 takes at a time (`_constant_buffered_norm2`).
const NORM: u64 = 250_000_000;

/// ZeRO-3's gradients, each in bf16 in the host's memory as soon as it is reduced (`partition_grads`). It comes back at once, and
/// if it is the step's last its norm is taken, and it is sent in fp32 to what is stepped.
#[derive(Debug)]
pub(super) struct Gradients {
    /// Whether this backward is the step's last.
    pub(super) boundary: bool,
    /// Whether what is stepped of each parameter is on the host.
    on_host: Vec<bool>,
    /// The group of each parameter.
    group: Vec<usize>,
    /// What is stepped, where it is in files.
    pub(super) states: Option<States>,
    /// The part on the device, until the next one is there.
    here: Option<BufferId>,
    norms: Vec<BufferId>,
    /// Of the chip.
    sms: u32,
}

impl Gradients {
    pub(super) fn new(job: &ZeroPlan, elements: &[u64]) -> Gradients {
        let zero = &job.zero;
        let parts = elements::parts(zero, elements);
        let groups = elements::groups(&parts, zero.sub_group);
        let first: u64 = groups[..zero.offload.first_on_host(groups.len())].iter().sum();
        let starts = parts.iter().scan(0, |end, part| {
            *end += part;
            Some(*end - part)
        });
        let on_host = starts.map(|start| start >= first).collect();
        let sms = job.whole.eager.sms;
        let states = zero.offload.states.map(|settings| States::new(settings, job, &groups));
        let group = elements::of_each(&parts, zero.sub_group);
        Gradients { boundary: true, on_host, group, states, here: None, norms: vec![], sms }
    }

    /// A parameter's part of so many elements; earlier ones of the step are added to it. One in fp16 is cast first.
    pub(super) fn send(
        &mut self,
        program: &mut Builder,
        stream: StreamId,
        (param, part): (usize, u64),
        (accumulates, half): (bool, bool),
    ) {
        let bytes = part * BF16;
        let cast = |program: &mut Builder| half.then(|| made(program, stream, "aten._to_copy", (bytes, bytes)));
        let back = |program: &mut Builder| {
            let part = program.alloc(Bytes(bytes), stream, Category::OptimizerTemporary, "gradient from the host");
            cross(program, stream, bytes, false);
            part
        };
        let here = if accumulates {
            let here = back(program);
            self.sent(program);
            let cast = cast(program);
            elementwise(program, stream, "aten.add_", (2 * bytes, bytes));
            cast.into_iter().for_each(|cast| program.free(cast));
            cross(program, stream, bytes, true);
            here
        } else {
            self.sent(program);
            let cast = cast(program);
            cross(program, stream, bytes, true);
            cast.into_iter().for_each(|cast| program.free(cast));
            back(program)
        };
        self.here = Some(here);
        if !self.boundary {
            return;
        }
        let mut norm = None;
        for start in (0..part).step_by(NORM as usize) {
            let taken = NORM.min(part - start);
            let double = made(program, stream, "aten._to_copy", (taken * BF16, 8 * taken));
            let more = reduced(program, stream, "aten.linalg_vector_norm", (taken, 8), self.sms);
            program.free(double);
            match norm {
                None => norm = Some(more),
                Some(_) => program.free(more),
            }
        }
        self.norms.extend(norm);
        let wide = made(program, stream, "aten._to_copy", (bytes, part * FP32));
        let group = self.group[param];
        if let Some(states) = self.states.as_mut().filter(|states| states.holds(group)) {
            return states.take(group, wide, part);
        }
        if self.on_host[param] {
            cross(program, stream, part * FP32, true);
        } else {
            elementwise(program, stream, "aten.copy_", (part * FP32, part * FP32));
        }
        program.free(wide);
    }

    /// All of a bucket have been sent.
    pub(super) fn reduced(&mut self, program: &mut Builder, stream: StreamId) {
        if let Some(states) = &mut self.states {
            states.spill(program, stream);
        }
        self.sent(program);
    }

    /// The part on the device goes.
    fn sent(&mut self, program: &mut Builder) {
        if let Some(here) = self.here.take() {
            program.free(here);
        }
    }

    /// The step begins.
    pub(super) fn take_norms(&mut self) -> Vec<BufferId> {
        std::mem::take(&mut self.norms)
    }
}

/// Blocks that are pinned by PyTorch, and those that are not; bytes of buffers that are locked for disks, and of files.
#[derive(Debug, Default)]
struct Blocks {
    pinned: Vec<u64>,
    others: Vec<u64>,
    locked: u64,
    files: u64,
}

/// What of the host's memory a rank takes.
pub(super) fn host_memory(job: &ZeroPlan) -> HostMemory {
    let zero = &job.zero;
    if !zero.offload.optimizer && !zero.offload.parameters {
        return HostMemory::default();
    }
    let elements = elements::of(&job.whole);
    let blocks = if zero.stage == Stage::Three { of_three(job, &elements) } else { flat(job, &elements) };
    let taken: u64 = blocks.pinned.iter().map(|&bytes| pinned_block(bytes)).sum::<u64>() + blocks.locked;
    let [held, others]: [u64; 2] = [&blocks.pinned, &blocks.others].map(|blocks| blocks.iter().sum());
    HostMemory {
        held: Bytes(held + others + blocks.locked),
        pinned: Bytes(taken),
        all: Bytes(taken + others),
        files: Bytes(blocks.files),
    }
}

/// ZeRO-1 and 2: the rank's part in fp32 with its gradient, moments, and a block in bf16 through which it goes back; as much as the
/// largest parameter; and gradients between micro-batches.
fn flat(job: &ZeroPlan, elements: &[u64]) -> Blocks {
    let partition = Partition::new(job.zero.reduction(), elements);
    let each = partition.each();
    let largest = elements.iter().copied().max().unwrap_or(0);
    let mut blocks =
        Blocks { pinned: vec![each * FP32, each * BF16, each * FP32, largest * BF16], ..Blocks::default() };
    blocks.others.push(host::states(&job.whole.optimizer, each).sum());
    if job.zero.stage == Stage::Two && job.whole.accumulation > 1 {
        let own = partition.of_rank(partition.fullest(true));
        blocks.pinned.extend(own.iter().map(|&(param, _)| elements[param] * BF16));
    }
    blocks
}

/// ZeRO-3: groups stepped on the host, with pinned gradients; parts of gradients in bf16, and of parameters.
fn of_three(job: &ZeroPlan, elements: &[u64]) -> Blocks {
    let parts = elements::parts(&job.zero, elements);
    let own: u64 = parts.iter().sum();
    let mut blocks = Blocks::default();
    let offload = job.zero.offload;
    if offload.files.is_some() {
        let files = files::memory(&job.zero, elements);
        blocks.pinned.extend(files.pinned);
        blocks.locked += files.locked;
        blocks.files += files.files;
    } else if offload.parameters {
        blocks.pinned.push(own * BF16);
    }
    if offload.optimizer {
        blocks.pinned.push(own * BF16);
        let groups = elements::groups(&parts, job.zero.sub_group);
        let states = offload.states.map(|settings| States::new(settings, job, &groups));
        if let Some(states) = &states {
            let (buffers, files) = states.sizes(&parts, job.zero.sub_group);
            blocks.locked += buffers;
            blocks.files += files;
        }
        for (group, elements) in groups.iter().enumerate().skip(offload.first_on_host(groups.len())) {
            if states.as_ref().is_some_and(|states| states.holds(group)) {
                continue;
            }
            blocks.pinned.push(elements * FP32);
            blocks.others.push(elements * FP32 + host::states(&job.whole.optimizer, *elements).sum::<u64>());
        }
    }
    blocks
}
