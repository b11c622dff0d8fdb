//! Training steps: their marks on the host, the kernels launched inside them, and the windows of devices, which run behind.

use std::collections::BTreeMap;

use super::draft::Mark;
use super::id::Id;
use super::parts::{Kernel, Scope, Step, Trace, Window};

/// Marks of steps: those that the format has, or ranges whose name says so.
pub(super) fn find(trace: &Trace, marks: Vec<Mark>) -> Vec<Mark> {
    if !marks.is_empty() {
        return marks;
    }
    // A name is asked once, however many ranges have it.
    let is_step: Vec<bool> = (0..trace.names.len()).map(|at| step(trace.name(Id::new(at))).is_some()).collect();
    let ranges = trace.ops.iter().filter(|op| op.scope == Scope::Range && is_step[op.name.at()]);
    let marks = ranges.map(|op| Mark {
        name: op.name,
        number: step(trace.name(op.name)).flatten(),
        thread: Some(op.thread),
        device: None,
        start: op.start,
        end: op.end(),
    });
    // A loop may mark its steps beside the profiler's own marks.
    let is_profilers = |mark: &Mark| trace.name(mark.name).starts_with("ProfilerStep#");
    let (profilers, others): (Vec<Mark>, Vec<Mark>) = marks.partition(is_profilers);
    if profilers.is_empty() { outermost(others) } else { profilers }
}

/// Whether a range's name marks a step, and the number in it: "ProfilerStep#12", "step 3", "iteration_7", "train_step".
fn step(name: &str) -> Option<Option<u64>> {
    let number = |text: &str| text.trim_matches([' ', '#', '_', ':', '=', '-']).parse().ok();
    if let Some(rest) = name.strip_prefix("ProfilerStep#") {
        return Some(number(rest));
    }
    let lower = name.to_ascii_lowercase();
    let words = ["train_step", "training_step", "train step", "training step", "step", "iteration", "iter"];
    let rest = words.iter().find_map(|word| lower.strip_prefix(word))?;
    if rest.is_empty() { Some(None) } else { number(rest).map(Some) }
}

/// Marks that lie in no other mark of their thread.
fn outermost(mut marks: Vec<Mark>) -> Vec<Mark> {
    marks.sort_by_key(|mark| (mark.thread, mark.start, std::cmp::Reverse(mark.end)));
    let mut last: Option<(Option<Id<_>>, u64)> = None;
    marks.retain(|mark| {
        let is_inside = last.is_some_and(|(thread, end)| thread == mark.thread && mark.start < end);
        if !is_inside {
            last = Some((mark.thread, mark.end));
        }
        !is_inside
    });
    marks
}

/// Makes steps of marks, whose times count from `zero` on, and gives each its kernels and windows.
pub(super) fn assign(trace: &mut Trace, marks: Vec<Mark>, zero: u64) {
    if marks.iter().any(|mark| mark.device.is_some()) {
        return on_devices(trace, marks, zero);
    }
    let mut steps: Vec<Step> = marks
        .into_iter()
        .map(|mark| Step {
            name: Some(mark.name),
            number: mark.number,
            thread: mark.thread,
            start: mark.start.saturating_sub(zero),
            duration: mark.end.saturating_sub(mark.start.max(zero)),
            windows: vec![],
        })
        .collect();
    steps.sort_by_key(|step| (step.start, step.thread));
    if !steps.is_empty() {
        launched(trace, &steps);
    }
    let inside = trace.kernels.iter().filter(|kernel| kernel.step.is_some()).count();
    if inside == 0 {
        let marked = steps.len();
        let whole =
            Step { name: None, number: None, thread: None, start: 0, duration: trace.duration, windows: vec![] };
        steps = vec![whole];
        trace.kernels.iter_mut().for_each(|kernel| kernel.step = Some(Id::new(0)));
        trace.notes.push(match marked {
            0 => "no range marks a training step: the whole trace is taken as one".to_owned(),
            _ => format!("no kernel was launched inside the {marked} marked steps: the whole trace is taken as one"),
        });
    }
    windows(&trace.kernels, &mut steps);
    trace.steps = steps;
}

/// Gives kernels the step in which their process launched them.
fn launched(trace: &mut Trace, steps: &[Step]) {
    let process = |step: &Step| step.thread.map_or(0, |thread| trace.threads[thread.at()].process);
    let is_single = steps.iter().all(|step| process(step) == process(&steps[0]));
    let mut by_process: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, step) in steps.iter().enumerate() {
        by_process.entry(if is_single { 0 } else { process(step) }).or_default().push(at);
    }
    let several = trace.threads.iter().any(|thread| thread.process > 0);
    let own = is_single && several && steps[0].thread.is_some();
    let only = process(&steps[0]);
    let (calls, threads) = (&trace.calls, &trace.threads);
    for kernel in trace.kernels.iter_mut().filter(|kernel| kernel.step.is_none()) {
        let Some(call) = kernel.launch.map(|launch| &calls[launch.at()]) else { continue };
        let process = threads[call.thread.at()].process;
        // Steps of one process say nothing of another's kernels.
        if own && process != only {
            continue;
        }
        let Some(steps_of) = by_process.get(&if is_single { 0 } else { process }) else { continue };
        let after = steps_of.partition_point(|&at| steps[at].start <= call.start);
        let step = after.checked_sub(1).map(|last| steps_of[last]);
        kernel.step = step.filter(|&at| call.start < steps[at].end()).map(Id::new);
    }
}

/// The window of each step on each device: from its first kernel to the first of the next step.
fn windows(kernels: &[Kernel], steps: &mut [Step]) {
    let mut spans: BTreeMap<(u32, usize), (u64, u64)> = BTreeMap::new();
    for kernel in kernels {
        let Some(step) = kernel.step else { continue };
        let span = spans.entry((kernel.device, step.at())).or_insert((kernel.start, kernel.end()));
        *span = (span.0.min(kernel.start), span.1.max(kernel.end()));
    }
    let all: Vec<((u32, usize), (u64, u64))> = spans.into_iter().collect();
    for (at, &((device, step), (start, last))) in all.iter().enumerate() {
        let next = all.get(at + 1).filter(|&&((of, next), (begin, _))| {
            of == device
                && begin >= start
                && steps[next].thread == steps[step].thread
                && follows(&steps[step], &steps[next])
        });
        let (end, is_whole) = next.map_or((last, false), |&(_, (begin, _))| (begin, true));
        steps[step].windows.push(Window { device, start, end, is_whole });
    }
}

/// Makes steps of marks in the time of devices, where the n-th mark of each device is the n-th step.
fn on_devices(trace: &mut Trace, mut marks: Vec<Mark>, zero: u64) {
    marks.sort_by_key(|mark| (mark.device, mark.start));
    let mut steps: Vec<Step> = vec![];
    let mut next = 0;
    for (at, mark) in marks.iter().enumerate() {
        let device = mark.device.unwrap_or(0);
        if at == 0 || marks[at - 1].device != mark.device {
            next = 0;
        }
        let (start, end) = (mark.start.saturating_sub(zero), mark.end.saturating_sub(zero));
        let follower = marks.get(at + 1).filter(|follower| follower.device == mark.device);
        let until = follower.map_or(end, |follower| follower.start.saturating_sub(zero));
        let window = Window { device, start, end: until, is_whole: follower.is_some() };
        match steps.get_mut(next) {
            Some(step) => {
                let first = step.start.min(start);
                step.duration = step.end().max(end) - first;
                step.start = first;
                step.windows.push(window);
            }
            None => steps.push(Step {
                name: Some(mark.name),
                number: mark.number,
                thread: None,
                start,
                duration: end - start,
                windows: vec![window],
            }),
        }
        next += 1;
    }
    for kernel in &mut trace.kernels {
        let inside = |window: &Window| {
            window.device == kernel.device
                && window.start <= kernel.start
                && kernel.start < window.end.max(window.start + 1)
        };
        // Steps of a device are in order, so the last that has begun is the one.
        let after = steps.partition_point(|step| {
            step.windows
                .iter()
                .find(|window| window.device == kernel.device)
                .is_some_and(|window| window.start <= kernel.start)
        });
        let step = after.checked_sub(1).filter(|&at| steps[at].windows.iter().any(inside));
        kernel.step = step.map(Id::new);
    }
    trace.steps = steps;
}

/// Whether nothing was left out between two steps, as far as their numbers tell.
fn follows(step: &Step, next: &Step) -> bool {
    match (step.number, next.number) {
        (Some(number), Some(next)) => number.checked_add(1) == Some(next),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_steps_are_known_and_no_others() {
        assert_eq!(step("ProfilerStep#12"), Some(Some(12)));
        assert_eq!(step("ProfilerStep*"), None);
        assert_eq!(step("Step 3"), Some(Some(3)));
        assert_eq!(step("iteration_7"), Some(Some(7)));
        assert_eq!(step("train_step"), Some(None));
        assert_eq!(step("stepping stone"), None);
        assert_eq!(step("Optimizer.step#AdamW.step"), None);
    }
}
