//! Runs a program's allocations and frees through the allocator, step after step, and reads off peaks.
//!
//! The first step makes the optimizer's state and warms the allocator's cache; the third is reported, as PyTorch users
//! read `max_memory_allocated` after warm-up.
//!
//! Rounds that a step has beyond those written ([`Program::further`]) are run like one that is ([`super::rounds`]). Where all blocks lie
//! as they lay some rounds ago, what comes is what came, and is not run again.

use super::caching::{Allocator, BlockId, OutOfMemory, Settings};
use super::calls::DeviceCalls;
use super::fixed;
use super::granted::Granted;
use super::report::{Breakdown, HookSample, MemoryReport, Phase};
use super::rounds::Again;
use crate::program::{BufferId, Category, Discipline, Instr, Mark, Program, Rename};
use crate::units::Bytes;

/// Steps replayed; the last is reported.
const STEPS: u32 = 3;

/// Instructions of rounds that are run again at most, so that the longest step that is accepted is answered in seconds (`tests/limits.rs`).
/// Rounds beyond these are taken to find what those before them found.
const MOST_AGAIN: usize = 1 << 20;

/// Places that are kept of rounds at most, to find out whether one comes again.
const MOST_KNOWN: usize = 1 << 19;

/// Where a block lies and how large it is \[B\].
type Place = (u64, u64);

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
    /// At the most bytes allocated: when that is, and the blocks by category.
    phase_at: Moment,
    phase_held: Breakdown,
    since_sample: u64,
    /// The phase with the most bytes allocated so far.
    most: Option<Most>,
    blocks_of: Granted,
    /// What rounds that are run again have added for good.
    put_by: Vec<(BufferId, BlockId)>,
    reserved: u64,
    failure: Option<OutOfMemory>,
}

/// The most bytes allocated in the phases of a step.
struct Most {
    allocated: u64,
    at: Moment,
    held: Breakdown,
}

/// A moment of a step: how much of it has happened.
#[derive(Clone, Copy, Default)]
struct Moment {
    /// Instructions run.
    instructions: usize,
    /// Blocks whose size was another before.
    changes: usize,
    /// Buffers of rounds that are run again, which stay.
    put_by: usize,
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
        phase_at: Moment::default(),
        phase_held: Breakdown::default(),
        since_sample: 0,
        most: None,
        blocks_of: Granted::new(program.buffers.len()),
        put_by: vec![],
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
        beside: vec![],
        phases: vec![],
        hooks: vec![],
        reserved_by_stream: vec![],
        retries: 0,
        met_limit: false,
        calls: DeviceCalls::default(),
        rounds_missing: false,
        compiled: false,
        out_of_memory: None,
    };
    replay.run(&program.setup, 0, &mut report, false);
    let again = Again::of(program);
    report.rounds_missing = program.further > 0 && again.is_none();
    for step in 0..STEPS {
        let reported = step + 1 == STEPS || replay.failure.is_some();
        replay.phase_at = Moment::default();
        replay.blocks_of.begin();
        let before = (replay.allocator.retries(), replay.allocator.calls());
        let [begin, first, end] = if step == 0 { program.first_step() } else { [&program.step[..], &[], &[]] };
        let (rounds, gone) = again.as_ref().map_or((0, 0), |again| (again.round.end, again.gone));
        replay.run(&begin[..rounds], 0, &mut report, reported);
        if let Some(again) = &again {
            replay.run_again(again, &mut report, reported);
        }
        replay.run(&begin[rounds..gone], rounds, &mut report, reported);
        replay.give_back();
        replay.run(&begin[gone..], gone, &mut report, reported);
        replay.run(first, 0, &mut report, reported);
        replay.run(end, begin.len(), &mut report, reported);
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
        report.peak_at = Some(most.at.instructions).filter(|_| report.out_of_memory.is_none());
        report.beside = again.map_or(vec![], |again| again.kept_by(most.at.put_by));
        replay.blocks_of.settle(most.at.changes);
    }
    report.peak_reserved = Bytes(replay.reserved);
    report.met_limit = replay.allocator.retries() > 0;
    report.reserved_by_stream = (0..program.streams.len()).map(|stream| replay.allocator.reserved_by(stream)).collect();
    report.granted = replay.blocks_of;
    report
}

impl Replay<'_> {
    /// Runs a part of a list, unless a request has failed; `from`: where it stands in it.
    fn run(&mut self, list: &[Instr], from: usize, report: &mut MemoryReport, reported: bool) {
        if self.failure.is_some() {
            return;
        }
        for (place, instr) in list.iter().enumerate() {
            let at = from + place;
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
                    if list.get(place + 1) == Some(&Instr::Free { buffer })
                        && let Some(allocated) = self.allocator.passing(wanted.bytes, stream)
                    {
                        let block = allocated - self.allocator.allocated();
                        self.hold(index, wanted.bytes, block);
                        self.blocks_of.set(index, block);
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
                    self.blocks_of.set(index, size);
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
                    self.rename(from.0 as usize, to.0 as usize);
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

    fn rename(&mut self, from: usize, to: usize) {
        self.blocks[to] = self.blocks[from].take();
        self.categories[to] = self.categories[from];
        self.blocks_of.set(to, self.blocks_of.size(from));
    }

    /// Runs a round as often as told, until all that comes has come before.
    fn run_again(&mut self, again: &Again, report: &mut MemoryReport, reported: bool) {
        let list = &self.program.step[again.round.clone()];
        let moved = again.renamed.iter().map(|&(_, to)| to);
        let moved: Vec<u32> = moved.filter(|&id| !self.grows(again, self.pool(id))).collect();
        let pools: Vec<usize> = (0..2 * self.program.streams.len()).filter(|&pool| !self.grows(again, pool)).collect();
        let mut known: Vec<Vec<Place>> = vec![];
        // Of rounds that are not run, what stays is taken at once.
        let most = u32::try_from(MOST_AGAIN / list.len().max(1)).unwrap_or(u32::MAX);
        let mut left = again.times.min(most);
        for _ in left..again.times {
            again.kept.iter().for_each(|&buffer| self.keep(buffer));
        }
        while left > 0 && self.failure.is_none() {
            for &buffer in &again.kept {
                self.put_by(buffer);
            }
            again.renamed.iter().for_each(|&(from, to)| self.rename(from as usize, to as usize));
            let now = self.lies((&moved, &pools));
            if let Some(period) = known.iter().rev().position(|before| *before == now) {
                let period = period as u32 + 1;
                // What stays makes the last of like rounds the largest.
                let skipped = match again.kept[..] {
                    [] => left / period * period,
                    _ => (left / period).saturating_sub(1) * period,
                };
                for _ in 0..skipped {
                    again.kept.iter().for_each(|&buffer| self.keep(buffer));
                }
                left -= skipped;
                known.clear();
                if left == 0 {
                    let back = again.renamed.iter().rev();
                    back.for_each(|&(from, to)| self.rename(to as usize, from as usize));
                    return;
                }
            } else {
                // As much as is looked through in no time.
                if known.len() * now.len() > MOST_KNOWN {
                    known.clear();
                }
                known.push(now);
            }
            self.run(list, again.round.start, report, reported);
            left -= 1;
        }
    }

    /// Whether what stays of rounds goes into a pool: there no round ends as it began.
    fn grows(&self, again: &Again, pool: usize) -> bool {
        again.kept.iter().any(|&BufferId(id)| self.pool(id) == pool)
    }

    fn pool(&self, id: u32) -> usize {
        let buffer = self.program.buffer(BufferId(id));
        Allocator::pool(buffer.bytes, buffer.stream.0 as usize)
    }

    /// Where these buffers lie, and what the pools hold that do not grow.
    fn lies(&self, (moved, pools): (&[u32], &[usize])) -> Vec<Place> {
        let mut places = Vec::with_capacity(moved.len() + pools.len());
        for &id in moved {
            places.push(self.blocks[id as usize].map_or((0, 0), |block| self.allocator.place(block)));
        }
        let returns = self.allocator.calls().returns;
        for &pool in pools {
            places.push((self.allocator.reserved_by_pool(pool).0, returns));
        }
        places
    }

    /// Keeps what a round has added for good, so that its name is free for the next.
    fn put_by(&mut self, buffer: BufferId) {
        let index = buffer.0 as usize;
        if let Some(block) = self.blocks[index].take() {
            self.put_by.push((buffer, block));
        }
    }

    /// Takes what a round that is not run adds for good.
    fn keep(&mut self, buffer: BufferId) {
        let wanted = self.program.buffer(buffer);
        if self.failure.is_some() || wanted.bytes.0 == 0 {
            return;
        }
        match self.allocator.alloc(wanted.bytes, wanted.stream.0 as usize) {
            Ok(block) => {
                self.hold(buffer.0 as usize, wanted.bytes, self.allocator.size(block));
                self.put_by.push((buffer, block));
            }
            Err(failure) => self.failure = Some(failure),
        }
    }

    /// Gives back what rounds have added for good.
    fn give_back(&mut self) {
        for (buffer, block) in std::mem::take(&mut self.put_by) {
            let size = self.allocator.size(block);
            self.allocator.free(block);
            self.let_go(buffer.0 as usize, self.program.buffer(buffer).bytes, size);
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

    /// Right after an instruction.
    fn moment(&self, at: usize) -> Moment {
        Moment { instructions: at + 1, changes: self.blocks_of.changes(), put_by: self.put_by.len() }
    }

    fn note_peaks(&mut self, at: usize, allocated: Bytes, reported: bool) {
        let allocated = allocated.0;
        if allocated > self.phase_allocated {
            (self.phase_allocated, self.phase_at) = (allocated, self.moment(at));
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
                (self.phase_at, self.phase_held) = (self.moment(at), self.held.clone());
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
