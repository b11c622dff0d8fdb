//! What a run found, as a timeline.

use crate::units::Time;

use super::parts::Passed;
use super::plan::Plan;
use super::spent::{Exposed, Spent, Totals};
use super::state::Engine;
use super::{Busy, MarkTime, Span, Timeline};

/// What a run found, of which the last step is reported.
pub(super) struct Last {
    /// The end of each step \[ps\].
    pub(super) ends: Vec<u64>,
    /// What had been spent when the last step began; none, if it is the first.
    pub(super) before: Option<Totals>,
    /// What had been spent when it ended.
    pub(super) end: Totals,
    /// Busy times of its parts, by class.
    pub(super) busy: Vec<Busy>,
    /// Times of all marks, by class and step.
    pub(super) marks: Vec<Passed>,
}

impl Engine<'_> {
    /// The findings of a run of all steps.
    pub(super) fn timeline(mut self) -> Timeline {
        let (end, before) = (self.totals.pop(), self.totals.pop());
        let last = Last {
            ends: std::mem::take(&mut self.ends),
            busy: self.busy.split_off(self.busy_at(0, self.options.steps - 1)),
            marks: std::mem::take(&mut self.marks),
            before,
            end: end.expect("the last step has ended"),
        };
        self.report(last)
    }

    /// The findings of a run.
    pub(super) fn report(mut self, last: Last) -> Timeline {
        let Last { ends, before, end, mut busy, marks } = last;
        let begin = if ends.len() > 1 { ends[ends.len() - 2] } else { 0 };
        self.spans.sort_by_key(|&Span { rank, stream, start, end, .. }| (rank, stream, start, end));
        let nothing = Spent::default();
        let since =
            |(rank, spent): (usize, &Spent)| spent.since(before.as_ref().map_or(&nothing, |all| &all.spent[rank]));
        let breakdown = end.spent.iter().enumerate().map(since).collect();
        for (class, (busy, mut exposed)) in busy.iter_mut().zip(end.exposed).enumerate() {
            if let Some(before) = &before {
                exposed.less(&before.exposed[class]);
            }
            let Exposed { kernel, comm, exchange } = exposed;
            (busy.kernel_exposed, busy.comm_exposed, busy.exchange_exposed) = (kernel, comm, exchange);
        }
        let (steps, count) = (self.options.steps, self.mark_count);
        let passed = marks.iter().enumerate().filter_map(|(index, &(host, device))| {
            let index = index as u32;
            let (class, step, mark) = (index / count / steps, index / count % steps, index % count);
            host.map(|host| MarkTime { class, step, mark, host, device })
        });
        let host_times = |(plan, acted): (&Plan, &Vec<u64>)| -> Vec<Time> {
            plan.effects.iter().map(|effect| Time(acted[effect.actions as usize] + effect.paid)).collect()
        };
        let recorded = if self.options.record { self.plans.len() } else { 0 };
        Timeline {
            host_begins: self.acted.iter().take(recorded).map(|acted| Time(acted[0])).collect(),
            host_times: self.plans.iter().zip(&self.acted).take(recorded).map(host_times).collect(),
            step: Time(ends[ends.len() - 1] - begin),
            ends: ends.iter().map(|&end| Time(end)).collect(),
            ranks: self.cast.ranks,
            breakdown,
            marks: passed.collect(),
            busy,
            spans: self.spans,
            events: self.events,
        }
    }
}
