//! What of a timeline a trace shows, and on which processes and tracks.

use crate::engine::{Span, Timeline};
use crate::program::{Program, StreamId};
use crate::scenario::predict::Apart;
use crate::scenario::{Prediction, Scenario};
use crate::units::Time;

/// A timeline and what is needed to read it.
#[derive(Clone, Debug)]
pub struct Trace<'a> {
    /// Name of the scenario.
    pub scenario: &'a str,
    /// The programs, by class.
    #[doc(hidden)]
    pub programs: Vec<&'a Program>,
    /// The class of each rank.
    #[doc(hidden)]
    pub class_of: Vec<u32>,
    /// The run, recorded.
    #[doc(hidden)]
    pub timeline: &'a Timeline,
    /// What ranks that differ do to the step, if they do.
    #[doc(hidden)]
    pub apart: Option<&'a Apart>,
    /// The first step whose spans are shown, from 0; none: the last. Host and memory are those of the last step.
    pub from_step: Option<u32>,
}

impl Prediction {
    /// The last step as a trace for Perfetto or chrome://tracing, to be written by [`Trace::write`]. The prediction must have been made
    /// with [`Settings::record`](crate::scenario::predict::Settings::record).
    pub fn trace<'a>(&'a self, scenario: &'a Scenario) -> Trace<'a> {
        Trace {
            scenario: &scenario.description,
            programs: self.programs(),
            class_of: self.class_of.clone(),
            timeline: &self.timeline,
            apart: self.apart.as_ref(),
            from_step: None,
        }
    }
}

/// What part of a timeline is shown.
#[derive(Clone, Copy, Debug)]
pub(in crate::report) struct Window {
    /// First step.
    pub(in crate::report) step: u32,
    /// Where it begins, which becomes zero \[ps\].
    pub(in crate::report) zero: Time,
    /// Where the last step begins, as reported \[ps\].
    pub(in crate::report) begin: Time,
}

impl Window {
    /// From the step that is asked for to the end.
    pub(in crate::report) fn of(trace: &Trace<'_>) -> Window {
        let ends = &trace.timeline.ends;
        let last = ends.len() - 1;
        let step = trace.from_step.map_or(last, |step| last.min(step as usize));
        let begin_of = |step: usize| step.checked_sub(1).map_or(Time::ZERO, |before| ends[before]);
        let spans = trace.timeline.spans.iter().filter(|span| span.step as usize >= step).map(|span| span.start);
        let hosts = trace.timeline.host_begins.iter().copied();
        let zero = spans.chain(hosts).fold(begin_of(step), Time::min);
        Window { step: step as u32, zero, begin: begin_of(last) }
    }

    /// Whether a span lies in it.
    pub(super) fn shows(&self, span: &Span) -> bool {
        span.step >= self.step
    }

    /// A time as the trace counts it.
    pub(in crate::report) fn at(&self, time: Time) -> Time {
        time.saturating_sub(self.zero)
    }
}

/// The track of what the host does.
pub(super) const HOST: u32 = 1;
/// The track of the phases on the device.
pub(super) const PHASES: u32 = 2;

/// The process of a rank. Some viewers take process and track 0 for an idle processor.
pub(super) fn process(rank: u32) -> u32 {
    rank + 1
}

/// The track of a stream.
pub(super) fn track(stream: StreamId) -> u32 {
    PHASES + 1 + u32::from(stream.0)
}

impl<'a> Trace<'a> {
    /// The last step of a run in which all ranks share one program.
    #[doc(hidden)]
    pub fn new(scenario: &'a str, program: &'a Program, timeline: &'a Timeline) -> Self {
        let class_of = vec![0; program.ranks as usize];
        Trace { scenario, programs: vec![program], class_of, timeline, apart: None, from_step: None }
    }

    /// The first rank of a class, if any.
    pub(in crate::report) fn watched(&self, class: u32) -> Option<u32> {
        self.class_of.iter().zip(0..).find(|&(&of, _)| of == class).map(|(_, rank)| rank)
    }

    /// The simulated rank that stands for a rank.
    pub(super) fn shown(&self, rank: u32) -> u32 {
        let folded = self.timeline.ranks.len() < self.class_of.len();
        if folded { self.timeline.ranks[self.class_of[rank as usize] as usize].rank } else { rank }
    }

    /// What a rank runs.
    pub(super) fn program(&self, rank: u32) -> &'a Program {
        self.programs[self.class_of[rank as usize] as usize]
    }
}
