//! Runs a program's allocations and frees through the allocator, step after step, and reads off peaks.
//!
//! The first step makes the optimizer's state and warms the allocator's cache; the third is reported, as PyTorch users
//! read `max_memory_allocated` after warm-up.

use super::caching::{Allocator, BlockId, OutOfMemory, Settings};
use super::calls::DeviceCalls;
use super::fixed;
use super::granted::Granted;
use super::report::{Breakdown, HookSample, MemoryReport, Phase};
use crate::program::{Category, Discipline, Instr, Mark, Program, Rename};
use crate::units::Bytes;

/// Steps replayed; the last is reported.
const STEPS: u32 = 3;

struct Replay<'p> {
    program: &'p Program,
    allocator: Allocator,
    blocks: Vec<Option<BlockId>>,
    categories: Vec<Category>,
    /// Bytes asked for, by category, and of the blocks that were handed out for them.
    totals: Breakdown,
    held: Breakdown,
    requested: u64,
    phase_allocated: u64,
    phase_requested: u64,
    phase_breakdown: Breakdown,
    /// At the most bytes allocated: how many instructions of the step have run, and the blocks by category.
    phase_at: usize,
    phase_held: Breakdown,
    since_sample: u64,
    /// The phase with the most bytes allocated so far.
    most: Option<Most>,
    blocks_of: Granted,
    reserved: u64,
    failure: Option<OutOfMemory>,
}

/// The most bytes allocated in the phases of a step.
struct Most {
    allocated: u64,
    at: usize,
    held: Breakdown,
}

/// Replays a program. The report is of the third step, or ends where a request failed; of a compiled one, of its only step.
pub fn replay(program: &Program, settings: Settings) -> MemoryReport {
    if program.memory == Discipline::Static {
        return fixed::replay(program, settings.capacity);
    }
    let mut replay = Replay {
        program,
        allocator: Allocator::new(settings, program.streams.len())
            .keeping(program.graph_pool.map(|pool| pool.0.into())),
        blocks: vec![None; program.buffers.len()],
        categories: program.buffers.iter().map(|buffer| buffer.category).collect(),
        totals: Breakdown::default(),
        held: Breakdown::default(),
        requested: 0,
        phase_allocated: 0,
        phase_requested: 0,
        phase_breakdown: Breakdown::default(),
        phase_at: 0,
        phase_held: Breakdown::default(),
        since_sample: 0,
        most: None,
        blocks_of: Granted::new(program.buffers.len()),
        reserved: 0,
        failure: None,
    };
    let mut report = MemoryReport {
        peak_allocated: Bytes(0),
        peak_reserved: Bytes(0),
        peak_phase: String::new(),
        breakdown: Breakdown::default(),
        peak_at: None,
        granted: Granted::default(),
        phases: vec![],
        hooks: vec![],
        reserved_by_stream: vec![],
        retries: 0,
        met_limit: false,
        calls: DeviceCalls::default(),
        compiled: false,
        out_of_memory: None,
    };
    replay.run(&program.setup, &mut report, false);
    for step in 0..STEPS {
        let reported = step + 1 == STEPS || replay.failure.is_some();
        replay.phase_at = 0;
        replay.blocks_of.begin();
        let before = (replay.allocator.retries(), replay.allocator.calls());
        let parts = if step == 0 { program.first_step() } else { [&program.step[..], &[], &[]] };
        for part in parts {
            if replay.failure.is_none() {
                replay.run(part, &mut report, reported);
            }
        }
        report.retries = replay.allocator.retries() - before.0;
        report.calls = replay.allocator.calls().since(before.1);
        if let Some(failure) = replay.failure {
            report.out_of_memory = Some((failure, step + 1));
            break;
        }
    }
    if let Some(peak) = report.phases.iter().max_by_key(|phase| phase.peak_allocated) {
        report.peak_allocated = peak.peak_allocated;
        report.peak_phase = peak.name.clone();
    }
    if let Some(most) = replay.most {
        report.breakdown = most.held;
        report.peak_at = Some(most.at).filter(|_| report.out_of_memory.is_none());
    }
    report.peak_reserved = Bytes(replay.reserved);
    report.met_limit = replay.allocator.retries() > 0;
    report.reserved_by_stream = (0..program.streams.len()).map(|stream| replay.allocator.reserved_by(stream)).collect();
    report.granted = replay.blocks_of;
    report
}

impl Replay<'_> {
    fn run(&mut self, list: &[Instr], report: &mut MemoryReport, reported: bool) {
        for (at, instr) in list.iter().enumerate() {
            match *instr {
                Instr::Alloc { buffer } => {
                    let index = buffer.0 as usize;
                    let wanted = self.program.buffer(buffer);
                    self.categories[index] = wanted.category;
                    if wanted.bytes.0 == 0 {
                        continue;
                    }
                    let stream = wanted.stream.0 as usize;
                    // A workspace is given back at once: only the peaks see it.
                    if list.get(at + 1) == Some(&Instr::Free { buffer })
                        && let Some(allocated) = self.allocator.passing(wanted.bytes, stream)
                    {
                        let block = allocated - self.allocator.allocated();
                        self.hold(index, wanted.bytes, block);
                        self.blocks_of.set(at, index, block);
                        self.note_peaks(at, allocated, reported);
                        self.let_go(index, wanted.bytes, block);
                        continue;
                    }
                    let block = match self.allocator.alloc(wanted.bytes, stream) {
                        Ok(block) => block,
                        Err(failure) => {
                            self.failure = Some(failure);
                            return;
                        }
                    };
                    self.blocks[index] = Some(block);
                    let size = self.allocator.size(block);
                    self.hold(index, wanted.bytes, size);
                    self.blocks_of.set(at, index, size);
                    self.note_peaks(at, self.allocator.allocated(), reported);
                }
                Instr::Free { buffer } => {
                    let index = buffer.0 as usize;
                    if let Some(block) = self.blocks[index].take() {
                        let size = self.allocator.size(block);
                        self.allocator.free(block);
                        self.let_go(index, self.program.buffer(buffer).bytes, size);
                    }
                }
                Instr::Rename { rename } => {
                    let Rename { from, to } = self.program.rename(rename);
                    let (from, to) = (from.0 as usize, to.0 as usize);
                    self.blocks[to] = self.blocks[from].take();
                    self.categories[to] = self.categories[from];
                    self.blocks_of.set(at, to, self.blocks_of.size(from));
                }
                Instr::Recategorize { buffer, category } => {
                    let index = buffer.0 as usize;
                    if let Some(block) = self.blocks[index] {
                        let (bytes, size) = (self.program.buffer(buffer).bytes, self.allocator.size(block));
                        self.let_go(index, bytes, size);
                        self.categories[index] = category;
                        self.hold(index, bytes, size);
                    }
                }
                Instr::EmptyCache => self.allocator.release_cached(),
                Instr::Mark { mark } => self.mark(at, &self.program.marks[mark as usize], report, reported),
                _ => {}
            }
        }
    }

    /// Counts a buffer with its block.
    fn hold(&mut self, index: usize, bytes: Bytes, block: Bytes) {
        let category = self.categories[index] as usize;
        self.requested += bytes.0;
        self.totals.totals[category] += bytes.0;
        self.held.totals[category] += block.0;
    }

    fn let_go(&mut self, index: usize, bytes: Bytes, block: Bytes) {
        let category = self.categories[index] as usize;
        self.requested -= bytes.0;
        self.totals.totals[category] -= bytes.0;
        self.held.totals[category] -= block.0;
    }

    fn note_peaks(&mut self, at: usize, allocated: Bytes, reported: bool) {
        let allocated = allocated.0;
        if allocated > self.phase_allocated {
            (self.phase_allocated, self.phase_at) = (allocated, at + 1);
            if reported {
                self.phase_held = self.held.clone();
            }
        }
        self.since_sample = self.since_sample.max(allocated);
        self.reserved = self.reserved.max(self.allocator.reserved().0);
        if self.requested > self.phase_requested {
            self.phase_requested = self.requested;
            if reported {
                self.phase_breakdown = self.totals.clone();
            }
        }
    }

    fn mark(&mut self, at: usize, mark: &Mark, report: &mut MemoryReport, reported: bool) {
        let now = self.allocator.allocated();
        match mark {
            Mark::PhaseEnd(name) => {
                if reported {
                    report.phases.push(Phase {
                        name: name.clone(),
                        peak_allocated: Bytes(self.phase_allocated),
                        end_allocated: now,
                        peak_requested: Bytes(self.phase_requested),
                        breakdown: self.phase_breakdown.clone(),
                    });
                    self.sample("phase_end", name.clone(), report);
                    if self.most.as_ref().is_none_or(|most| self.phase_allocated >= most.allocated) {
                        let held = self.phase_held.clone();
                        self.most = Some(Most { allocated: self.phase_allocated, at: self.phase_at, held });
                    }
                }
                self.phase_allocated = now.0;
                self.phase_requested = self.requested;
                self.phase_breakdown = self.totals.clone();
                (self.phase_at, self.phase_held) = (at + 1, self.held.clone());
            }
            Mark::Hook(hook, scope) => {
                if reported {
                    self.sample(hook, self.program.scope(*scope).to_owned(), report);
                }
            }
        }
        self.since_sample = now.0;
    }

    fn sample(&mut self, hook: &'static str, group: String, report: &mut MemoryReport) {
        let now = self.allocator.allocated();
        report.hooks.push(HookSample { hook, group, now, peak: Bytes(self.since_sample.max(now.0)) });
    }
}
