//! Memory that a compiler gives out before a program runs: what is live at once, in the order of the compiled schedule.
//!
//! XLA packs buffers best fit, largest first (`xla/service/heap_simulator`), and comes close to what is live: fragmentation
//! is left out. Arguments live throughout; results take their place where they are donated.

use super::caching::OutOfMemory;
use super::granted::Granted;
use super::report::{Breakdown, MemoryReport, Phase};
use crate::program::{Category, Instr, Mark, Program};
use crate::units::Bytes;

/// The memory of a compiled program on a device of `capacity`.
pub(super) fn replay(program: &Program, capacity: Bytes) -> MemoryReport {
    let mut live = Live { totals: vec![0; Category::COUNT], sum: 0 };
    for instr in &program.setup {
        live.pass(program, instr);
    }
    let mut phases = vec![];
    let mut most: Option<(u64, usize, Breakdown)> = None;
    let mut phase = (live.sum, live.breakdown());
    for (at, instr) in program.step.iter().enumerate() {
        live.pass(program, instr);
        if live.sum > phase.0 {
            phase = (live.sum, live.breakdown());
        }
        if most.as_ref().is_none_or(|(peak, _, _)| live.sum > *peak) {
            most = Some((live.sum, at + 1, live.breakdown()));
        }
        if let Instr::Mark { mark } = instr
            && let Mark::PhaseEnd(name) = &program.marks[*mark as usize]
        {
            let (peak, breakdown) = std::mem::replace(&mut phase, (live.sum, live.breakdown()));
            phases.push(Phase {
                name: name.clone(),
                peak_allocated: Bytes(peak),
                end_allocated: Bytes(live.sum),
                peak_requested: Bytes(peak),
                breakdown,
            });
        }
    }
    let (peak, at, breakdown) = most.unwrap_or((live.sum, 0, live.breakdown()));
    let busiest = phases.iter().max_by_key(|phase| phase.peak_allocated).map(|phase| phase.name.clone());
    // The compiler refuses such a program: it never runs.
    let failure = OutOfMemory { requested: Bytes(peak), allocated: Bytes(peak), reserved: Bytes(peak) };
    MemoryReport {
        peak_allocated: Bytes(peak),
        peak_reserved: Bytes(peak),
        peak_phase: busiest.unwrap_or_default(),
        breakdown,
        peak_at: Some(at),
        granted: Granted::default(),
        beside: vec![],
        phases,
        hooks: vec![],
        reserved_by_stream: vec![Bytes(peak)],
        retries: 0,
        met_limit: peak > capacity.0,
        calls: super::DeviceCalls::default(),
        rounds_missing: false,
        compiled: true,
        out_of_memory: (peak > capacity.0).then_some((failure, 0)),
    }
}

/// Bytes live now, by category.
struct Live {
    totals: Vec<u64>,
    sum: u64,
}

impl Live {
    fn pass(&mut self, program: &Program, instr: &Instr) {
        match *instr {
            Instr::Alloc { buffer } => {
                let buffer = program.buffer(buffer);
                self.totals[buffer.category as usize] += buffer.bytes.0;
                self.sum += buffer.bytes.0;
            }
            Instr::Free { buffer } => {
                let buffer = program.buffer(buffer);
                self.totals[buffer.category as usize] -= buffer.bytes.0;
                self.sum -= buffer.bytes.0;
            }
            _ => {}
        }
    }

    fn breakdown(&self) -> Breakdown {
        Breakdown::of(&self.totals)
    }
}
