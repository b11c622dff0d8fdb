//! Memory over the step as counters: the program's allocations and frees, at the times at which the host made them.
//!
//! Bytes are those asked for, before the allocator rounds. As in [`crate::memory::replay`] the third step is shown: the
//! first makes the optimizer's state, the second settles what is left over from one step to the next. Changes within one
//! instant of the host make one point; the most that was ever asked for may lie between two of them and is marked.

use std::io::{self, Write};

use super::json::{Events, Field, Value};
use crate::program::{Category, Instr, Program, Rename};
use crate::units::{Bytes, Time};

/// What is live.
#[derive(Clone, Debug)]
pub(in crate::report) struct Live {
    /// By buffer.
    category: Vec<Option<Category>>,
    /// Bytes by category.
    pub(in crate::report) totals: [u64; Category::COUNT],
}

impl Live {
    /// What is live when a steady step begins.
    pub(in crate::report) fn at_start(program: &Program) -> Live {
        let mut live = Live { category: vec![None; program.buffers.len()], totals: [0; Category::COUNT] };
        for instr in program.before_second().chain(&program.step) {
            live.apply(program, instr);
        }
        live
    }

    /// Follows one instruction.
    pub(in crate::report) fn apply(&mut self, program: &Program, instr: &Instr) {
        let (buffer, category) = match *instr {
            Instr::Alloc { buffer } => (buffer, Some(program.buffer(buffer).category)),
            Instr::Free { buffer } => (buffer, None),
            Instr::Recategorize { buffer, category } => (buffer, Some(category)),
            Instr::Rename { rename } => {
                let Rename { from, to } = program.rename(rename);
                self.category[to.0 as usize] = self.category[from.0 as usize].take();
                return;
            }
            _ => return,
        };
        let before = &mut self.category[buffer.0 as usize];
        if before.is_none() && !matches!(instr, Instr::Alloc { .. }) {
            return;
        }
        let bytes = program.buffer(buffer).bytes.0;
        if let Some(before) = std::mem::replace(before, category) {
            self.totals[before as usize] -= bytes;
        }
        if let Some(category) = category {
            self.totals[category as usize] += bytes;
        }
    }

    /// All that is live \[B\].
    pub(in crate::report) fn total(&self) -> u64 {
        self.totals.iter().sum()
    }
}

/// The most that is asked for in the step.
#[derive(Debug)]
struct Peak {
    /// Index of the instruction that asks.
    at: usize,
    totals: [u64; Category::COUNT],
}

/// Writes the counters of a process; `times` are those of the instructions, counted from the beginning of the trace.
pub(super) fn write<W: Write>(
    events: &mut Events<W>,
    program: &Program,
    process: u32,
    track: u32,
    times: &[Time],
) -> io::Result<()> {
    let start = Live::at_start(program);
    let (used, peak) = survey(program, start.clone());
    let mut counters = Counters { events, process, used: &used, written: None };
    let mut live = start;
    let mut now = Time::ZERO;
    for (instr, &time) in program.step.iter().zip(times) {
        if time > now {
            counters.point(now, &live.totals)?;
            now = time;
        }
        live.apply(program, instr);
    }
    counters.point(now, &live.totals)?;

    let Some(peak) = peak else { return Ok(()) };
    let name = format!("peak: {} asked for", Bytes(peak.totals.iter().sum()));
    events.event(&[
        ("ph", Value::Text("i")),
        ("s", Value::Text("p")),
        ("pid", Value::Number(process.into())),
        ("tid", Value::Number(track.into())),
        ("ts", Value::Micros(times[peak.at])),
        ("name", Value::Text(&name)),
        ("cat", Value::Text("memory")),
        ("args", Value::Fields(&series(&used, &peak.totals))),
    ])
}

/// The categories that are used at all in the step, and its peak.
fn survey(program: &Program, mut live: Live) -> (Vec<Category>, Option<Peak>) {
    let mut most = live.totals;
    let mut peak: Option<Peak> = None;
    for (at, instr) in program.step.iter().enumerate() {
        live.apply(program, instr);
        if matches!(instr, Instr::Alloc { .. } | Instr::Recategorize { .. }) {
            most.iter_mut().zip(live.totals).for_each(|(most, now)| *most = now.max(*most));
            if peak.as_ref().is_none_or(|peak| live.total() > peak.totals.iter().sum()) {
                peak = Some(Peak { at, totals: live.totals });
            }
        }
    }
    (Category::ALL.iter().copied().filter(|&category| most[category as usize] > 0).collect(), peak)
}

/// One series for each category, in the order of their declaration, which viewers stack.
fn series(used: &[Category], totals: &[u64; Category::COUNT]) -> Vec<Field<'static>> {
    used.iter().map(|&category| (category.label(), Value::Number(totals[category as usize].into()))).collect()
}

/// Writes points of the counters, leaving out those that change nothing.
struct Counters<'a, W> {
    events: &'a mut Events<W>,
    process: u32,
    used: &'a [Category],
    written: Option<[u64; Category::COUNT]>,
}

impl<W: Write> Counters<'_, W> {
    fn point(&mut self, time: Time, totals: &[u64; Category::COUNT]) -> io::Result<()> {
        let before = self.written.replace(*totals);
        if before.as_ref() == Some(totals) {
            return Ok(());
        }
        self.counter("memory by category", time, &series(self.used, totals))?;
        let sum = |totals: [u64; Category::COUNT]| totals.iter().sum::<u64>();
        if before.map(sum) != Some(sum(*totals)) {
            self.counter("memory", time, &[("asked for", Value::Number(sum(*totals).into()))])?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, time: Time, series: &[Field<'_>]) -> io::Result<()> {
        self.events.event(&[
            ("ph", Value::Text("C")),
            ("pid", Value::Number(self.process.into())),
            ("ts", Value::Micros(time)),
            ("name", Value::Text(name)),
            ("args", Value::Fields(series)),
        ])
    }
}
