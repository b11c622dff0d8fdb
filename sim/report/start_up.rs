//! Cold against steady state: what compiling costs a run, and what each wait for the host does.

use std::fmt;

use super::format::percent;
use super::layout::StartUp;
use super::text::Page;
use crate::program::Dispatch;
use crate::runtime::Parts;
use crate::runtime::spmd::{self, Run};
use crate::scenario::{Prediction, Scenario};
use crate::units::Time;

/// The run of a job that is compiled whole, and how often its host waits in a step.
fn compiled(scenario: &Scenario) -> Option<(Run, u32)> {
    match scenario.job.parts() {
        Parts::Compiled(job) => Some((job.run, job.host_syncs)),
        _ => None,
    }
}

/// A run's time, compiling and all steps.
fn whole(run: Run, steps: u64, step: Time) -> (Time, Time) {
    let (least, most) = run.compiling();
    let running = step.seconds() * steps as f64;
    (Time::from_seconds(least.seconds() + running), Time::from_seconds(most.seconds() + running))
}

/// The section of the report; nothing where nothing is compiled whole.
pub(super) fn text(page: &mut Page, scenario: &Scenario, answer: &Prediction) -> fmt::Result {
    let Some((run, syncs)) = compiled(scenario) else { return Ok(()) };
    let (least, most) = spmd::compiled_in();
    page.heading("Cold against steady state")?;
    let shapes = if run.shapes == 1 { "one shape".to_owned() } else { format!("{} shapes", run.shapes) };
    let each = format!("{shapes}, {least} to {most} each");
    page.line("compiling", &match run.cached {
        true => format!(
            "first run: {each}, kept in the persistent cache; later runs read it, and what loading takes is not known"
        ),
        false => format!("{each} (a run's log; processor time of such steps)"),
    })?;
    match run.steps {
        Some(steps) => {
            let (from, to) = whole(run, steps, answer.step);
            let each = |all: Time| Time::from_seconds(all.seconds() / steps as f64);
            let (low, high) = run.compiling();
            let first = if run.cached { "first run: " } else { "" };
            let (least, most) = (percent(low, from), percent(high, to));
            let (short, long) = (each(from), each(to));
            page.line("cold", &format!(
                "{first}{steps} steps in {from} to {to}: {short} to {long} a step, {least:.1} to {most:.1} % of it compiling"
            ))?;
        }
        None => page.line("cold", "write xla.steps to divide it by the steps of a run")?,
    }
    page.line("steady", &format!("{} a step", answer.step))?;
    if syncs > 0 {
        let cost = answer.classes[0].evidence.dispatch[Dispatch::Synchronize as usize];
        let (once, error) = (cost.time, 100.0 * cost.spread);
        let all = Time::from_seconds(once.seconds() * f64::from(syncs));
        let share = percent(all, answer.step);
        page.line(
            "host syncs",
            &format!(
                "{syncs} a step, {once} each (± {error:.0} %, {}): {all}, {share:.2} % of a step",
                cost.basis.label()
            ),
        )?;
    }
    Ok(())
}

/// The same for a program.
pub(super) fn report(scenario: &Scenario, answer: &Prediction) -> Option<StartUp> {
    let (run, syncs) = compiled(scenario)?;
    let (low, high) = run.compiling();
    let sync = answer.classes[0].evidence.dispatch[Dispatch::Synchronize as usize];
    let cold = |steps: u64| {
        let (from, to) = whole(run, steps, answer.step);
        [from.seconds(), to.seconds()]
    };
    Some(StartUp {
        cold_run_s: run.steps.map(cold),
        compiling_s: [low.seconds(), high.seconds()],
        host_sync_relative_spread: sync.spread,
        host_sync_s: sync.time.seconds(),
        host_syncs_per_step: syncs,
        persistent_cache: run.cached,
        shapes: run.shapes,
        steps: run.steps,
    })
}
