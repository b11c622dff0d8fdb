//! The optimizer's states in files: ZeRO-Infinity (`swap_tensor/partitioned_optimizer_swapper.py`,
//! `pipelined_optimizer_swapper.py`, `async_swapper.py`).
//!
//! A group of at least 1 MiB has three files: parameters in fp32 and both moments. When its turn comes they are read into pinned
//! buffers, it is stepped there, and they are written back; `pipeline_read` and `pipeline_write` leave the next group's read, and
//! the last one's write, under way meanwhile. Gradients are files, too: each of at least 1 MiB is copied to a pinned buffer as soon
//! as it is reduced, and what such a buffer holds is written when the next gradient finds no room in it, and when the first group
//! is stepped. Smaller ones, and what is left over of the alignment, stay on the device until their group is stepped.

use super::disk::{STATES, STATES_AHEAD, file};
use super::elements;
use super::host::{self, cross};
use super::kernels::FP32;
use crate::plan::zero::Aio;
use crate::plan::zero::{StateFiles, ZeroPlan};
use crate::program::{BufferId, Builder, StreamId};
use crate::runtime::eager::COMPUTE;
use crate::runtime::optimizer::Optimizer;

impl StateFiles {
    /// Buffers that so many groups need: parameters, states and gradients of each that is read, stepped or written at a time.
    pub fn least(self, optimizer: &Optimizer, groups: usize) -> u64 {
        let at_once = 1 + u64::from(self.read_ahead) + u64::from(self.write_behind);
        (files(optimizer, 1).count() as u64 + 1) * at_once.min(groups as u64)
    }
}

/// Bytes of a group's files besides gradients: parameters and the optimizer's states.
fn files(optimizer: &Optimizer, elements: u64) -> impl Iterator<Item = u64> + use<> {
    std::iter::once(elements * FP32).chain(host::states(optimizer, elements))
}

/// Gradients of a group.
#[derive(Clone, Debug, Default)]
struct Gradients {
    /// Bytes of those in files.
    files: Vec<u64>,
    /// On the device: the block, and bytes of what is to be copied from it.
    here: Vec<(BufferId, u64)>,
}

/// States in files, and gradients on their way there.
#[derive(Clone, Debug)]
pub(super) struct States {
    settings: StateFiles,
    aio: Aio,
    optimizer: Optimizer,
    /// Elements of each group.
    groups: Vec<u64>,
    gradients: Vec<Gradients>,
    /// Gradients that a bucket has reduced, with their groups and elements.
    reduced: Vec<(usize, BufferId, u64)>,
    /// Buffers that hold nothing, where gradients have taken them.
    free: Option<u64>,
    /// Those that are being written.
    writing: u64,
    /// Bytes of files in the buffer that is being filled.
    open: Vec<u64>,
    /// Whether the next group is being read, and the last one written.
    reading: bool,
    written: bool,
}

impl States {
    pub(super) fn new(settings: StateFiles, job: &ZeroPlan, groups: &[u64]) -> States {
        States {
            settings,
            aio: job.zero.offload.aio,
            optimizer: job.whole.optimizer,
            groups: groups.to_vec(),
            gradients: vec![Gradients::default(); groups.len()],
            reduced: vec![],
            free: None,
            writing: 0,
            open: vec![],
            reading: false,
            written: false,
        }
    }

    /// Whether a group is in files.
    pub(super) fn holds(&self, group: usize) -> bool {
        self.aio.swappable(self.groups[group] * FP32)
    }

    /// Bytes of a group's files besides gradients, as they lie on a disk.
    fn files(&self, group: usize) -> impl Iterator<Item = u64> {
        files(&self.optimizer, self.groups[group]).map(|bytes| self.aio.aligned(bytes))
    }

    /// Bytes of a buffer.
    fn buffer(&self) -> u64 {
        self.groups.iter().map(|&elements| self.aio.aligned(elements * FP32)).max().unwrap_or(0)
    }

    /// A gradient in fp32 is there, and is dealt with when all of its bucket are.
    pub(super) fn take(&mut self, group: usize, gradient: BufferId, elements: u64) {
        self.reduced.push((group, gradient, elements));
    }

    /// `_swap_out_gradients`: all gradients of a bucket, group by group.
    pub(super) fn spill(&mut self, program: &mut Builder, stream: StreamId) {
        let mut order: Vec<usize> = vec![];
        self.reduced.iter().for_each(|&(group, ..)| {
            if !order.contains(&group) {
                order.push(group);
            }
        });
        let reduced = std::mem::take(&mut self.reduced);
        let mut gone = vec![];
        for group in order {
            let before = gone.len();
            for &(_, gradient, elements) in reduced.iter().filter(|(other, ..)| *other == group) {
                let bytes = elements * FP32;
                let whole = if self.aio.swappable(bytes) { self.aio.whole(bytes) } else { 0 };
                let whole = if self.aio.swappable(whole) { whole } else { 0 };
                if whole > 0 {
                    self.copy_out(program, stream, whole);
                    self.gradients[group].files.push(whole);
                }
                if whole < bytes {
                    self.gradients[group].here.push((gradient, bytes - whole));
                } else {
                    gone.push(gradient);
                }
            }
            // Python lets go of a list from its end.
            gone[before..].reverse();
        }
        gone.into_iter().for_each(|gradient| program.free(gradient));
    }

    /// `_swap_out_tensor`: the host waits for the copy.
    fn copy_out(&mut self, program: &mut Builder, stream: StreamId, bytes: u64) {
        let free = self.free.get_or_insert(self.settings.buffers);
        if self.open.is_empty() {
            *free -= 1;
        } else if self.open.iter().sum::<u64>() + bytes > self.buffer() {
            self.write_open(program);
            if self.free == Some(0) {
                self.await_writes(program);
            }
            self.free = self.free.map(|free| free - 1);
        }
        cross(program, stream, bytes, true);
        program.wait_for_host(stream);
        self.open.push(bytes);
    }

    fn write_open(&mut self, program: &mut Builder) {
        self.open.drain(..).for_each(|bytes| file(program, STATES, bytes, true));
        self.writing += 1;
    }

    fn await_writes(&mut self, program: &mut Builder) {
        program.wait_for_host(STATES);
        self.free = self.free.map(|free| free + std::mem::take(&mut self.writing));
    }

    /// `_flush_gradient_swapper`.
    fn flush(&mut self, program: &mut Builder) {
        if self.free.is_some() {
            self.write_open(program);
            self.await_writes(program);
            self.free = None;
        }
    }

    fn pipelined(&self) -> bool {
        self.settings.read_ahead || self.settings.write_behind
    }

    /// The next group that is in files.
    fn next(&self, group: usize) -> Option<usize> {
        (group + 1..self.groups.len()).find(|&next| self.holds(next))
    }

    /// `swap_in_optimizer_state`.
    pub(super) fn read(&mut self, program: &mut Builder, group: usize) {
        self.flush(program);
        let stream = if self.pipelined() { STATES_AHEAD } else { STATES };
        if !std::mem::take(&mut self.reading) {
            self.ask(program, stream, group);
        }
        if self.pipelined() {
            program.wait_for_host(stream);
        }
        if let Some(next) = self.next(group).filter(|_| self.settings.read_ahead) {
            self.ask(program, stream, next);
            self.reading = true;
        }
    }

    /// Files of a group are asked for, then what of its gradients is on the device is copied. Without a pipeline the host waits
    /// for states, and for gradients.
    fn ask(&mut self, program: &mut Builder, stream: StreamId, group: usize) {
        self.files(group).for_each(|bytes| file(program, stream, bytes, false));
        let gradients = std::mem::take(&mut self.gradients[group]);
        if !self.pipelined() {
            program.wait_for_host(stream);
        }
        gradients.files.iter().for_each(|&bytes| file(program, stream, bytes, false));
        if !self.pipelined() && !gradients.files.is_empty() {
            program.wait_for_host(stream);
        }
        for &(_, bytes) in &gradients.here {
            cross(program, COMPUTE, bytes, true);
            program.wait_for_host(COMPUTE);
        }
        gradients.here.into_iter().for_each(|(gradient, _)| program.free(gradient));
    }

    /// `swap_out_optimizer_state`.
    pub(super) fn write(&mut self, program: &mut Builder, group: usize) {
        if std::mem::take(&mut self.written) {
            program.wait_for_host(STATES);
        }
        self.files(group).for_each(|bytes| file(program, STATES, bytes, true));
        if self.settings.write_behind && self.next(group).is_some() {
            self.written = true;
        } else {
            program.wait_for_host(STATES);
        }
    }

    /// Bytes of pinned buffers, and of files, of gradients of so many elements each by group.
    pub(super) fn sizes(&self, parts: &[u64], sub_group: u64) -> (u64, u64) {
        let groups = elements::of_each(parts, sub_group);
        let states = (0..self.groups.len()).filter(|&group| self.holds(group));
        let states: u64 = states.flat_map(|group| self.files(group)).sum();
        let gradient = |(&part, &group): (&u64, &usize)| {
            let whole = self.aio.whole(part * FP32);
            if self.holds(group) && self.aio.swappable(whole) { whole } else { 0 }
        };
        let gradients: u64 = parts.iter().zip(&groups).map(gradient).sum();
        (self.settings.buffers * self.buffer(), states + gradients)
    }
}
