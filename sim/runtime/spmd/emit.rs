//! From the list of a compiled step to a program: events between units, and memory from first write to last read.

use super::tape::{Tape, UNITS, What};
use crate::program::{BufferId, Builder, Dispatch, EventId, Mark};

/// Writes the list into a program's current section.
pub(super) fn emit(tape: &Tape, program: &mut Builder) {
    let steps = &tape.steps;
    let mut first = vec![None; tape.values.len()];
    let mut last = vec![0; tape.values.len()];
    // Who is waited for by another unit.
    let mut watched = vec![false; steps.len()];
    let mut needs: Vec<Vec<usize>> = Vec::with_capacity(steps.len());
    for (at, step) in steps.iter().enumerate() {
        let mut before: Vec<usize> = step.after.iter().map(|at| at.0 as usize).collect();
        for value in &step.reads {
            last[value.0 as usize] = at;
            before.extend(first[value.0 as usize]);
        }
        for value in &step.writes {
            last[value.0 as usize] = at;
            first[value.0 as usize].get_or_insert(at);
        }
        before.retain(|&earlier| steps[earlier].unit != step.unit);
        before.iter().for_each(|&earlier| watched[earlier] = true);
        needs.push(before);
    }
    let mut buffers: Vec<Option<BufferId>> = vec![None; tape.values.len()];
    let mut events: Vec<Option<EventId>> = vec![None; steps.len()];
    // By unit: up to where in the list it has waited for each other.
    let mut seen = [[None; UNITS.len()]; UNITS.len()];
    for (at, step) in steps.iter().enumerate() {
        program.set_pass(step.pass);
        program.enter(step.scope);
        for (index, value) in step.writes.iter().map(|value| value.0 as usize).enumerate() {
            if first[value] == Some(at) {
                let sized = tape.values[value];
                if step.in_place && index == 0 {
                    let reads = step.reads.iter().map(|read| read.0 as usize);
                    let place = reads.filter(|&read| last[read] == at && tape.values[read].bytes == sized.bytes);
                    if let Some(buffer) = place.filter_map(|read| buffers[read].take()).next() {
                        program.free(buffer);
                    }
                }
                buffers[value] = Some(program.alloc(sized.bytes, step.unit, sized.category, sized.name));
            }
        }
        for &earlier in &needs[at] {
            let known = &mut seen[step.unit.0 as usize][steps[earlier].unit.0 as usize];
            if *known < Some(earlier) {
                *known = Some(earlier);
                if let Some(event) = events[earlier] {
                    program.wait(step.unit, event);
                }
            }
        }
        match step.what {
            What::Kernel(name, work) => program.launch(step.unit, name, work, Dispatch::Static),
            What::Exchange(comm) => program.collective(step.unit, comm),
            What::Phase(name) => program.mark(Mark::PhaseEnd(name.to_owned())),
        }
        if watched[at] {
            events[at] = Some(program.record(step.unit));
        }
        for value in step.reads.iter().chain(&step.writes).map(|value| value.0 as usize) {
            if last[value] == at
                && let Some(buffer) = buffers[value].take()
            {
                program.free(buffer);
            }
        }
    }
}
