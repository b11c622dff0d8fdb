//! The horizontal axis that the timeline and memory share: a window of simulated time, in a hundred thousand units.
//!
//! It begins where the host begins the last step, which may be before the step itself begins: the host runs ahead of the device. A
//! compiled step has no such host, and the window is the step.
//! Times on the page count from the beginning of the step.

use maud::{Markup, html};

use super::recorded::Recorded;
use crate::program::Discipline;
use crate::report::trace::view::Window;
use crate::units::Time;

/// Units of the axis.
pub(super) const UNITS: u64 = 100_000;

/// Ticks stand as far apart as a seventh of the axis or more.
const TICKS: f64 = 7.0;

/// A window of simulated time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Where it begins \[ps\].
    pub(super) from: Time,
    /// Where the step begins \[ps\].
    pub(super) begin: Time,
    /// Where the step ends, and the window with it \[ps\].
    pub(super) end: Time,
}

impl Scale {
    /// The window of the last step.
    pub(super) fn of(recorded: &Recorded<'_>) -> Scale {
        let answer = recorded.answer();
        let trace = crate::report::Trace {
            scenario: "",
            programs: answer.programs(),
            class_of: answer.class_of.clone(),
            timeline: &answer.timeline,
            apart: None,
            from_step: None,
        };
        let window = Window::of(&trace);
        let compiled = answer.classes.iter().all(|class| class.program.memory == Discipline::Static);
        let from = if compiled { window.begin } else { window.zero };
        let end = answer.timeline.ends.iter().copied().max().unwrap_or_default();
        Scale { from, begin: window.begin, end }
    }

    /// Its length \[ps\].
    pub(super) fn length(&self) -> Time {
        Time((self.end - self.from).0.max(1))
    }

    /// A time in units.
    pub(super) fn x(&self, time: Time) -> u64 {
        let since = u128::from(time.saturating_sub(self.from).0.min(self.length().0));
        (since * u128::from(UNITS) / u128::from(self.length().0)) as u64
    }

    /// A time since the step began, in words; before that it is negative.
    pub(super) fn at(&self, time: Time) -> String {
        let millis = (time.0 as f64 - self.begin.0 as f64) / 1e9;
        if self.length().seconds() < 10.0 { format!("{millis:.3} ms") } else { format!("{:.6} s", millis / 1e3) }
    }

    /// Where ticks stand on the axis [per cent], with their labels.
    fn ticks(&self) -> Vec<(f64, String)> {
        let (from, length) = ((self.from.0 as f64 - self.begin.0 as f64) / 1e12, self.length().seconds());
        let rough = length / TICKS;
        let decade = libm::pow(10.0, libm::floor(libm::log10(rough)));
        let step = [1.0, 2.0, 5.0].map(|times| times * decade).into_iter().find(|&step| step >= rough);
        let step = step.unwrap_or(10.0 * decade);
        let unit = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")].into_iter().find(|&(unit, _)| step >= 0.1 * unit);
        let (unit, name) = unit.unwrap_or((1e-6, "µs"));
        let digits = if step < unit { 1 } else { 0 };
        let first = libm::ceil(from / step - 1e-9);
        let values = (0..20).map(|count| (first + f64::from(count)) * step);
        let on_axis = values.take_while(|value| *value <= from + length);
        on_axis
            .map(|value| (100.0 * (value - from) / length, format!("{:.digits$} {name}", value / unit + 0.0)))
            .collect()
    }

    /// The axis; the script draws it anew when the timeline is zoomed.
    pub(super) fn axis(&self) -> Markup {
        let from = (self.from.0 as f64 - self.begin.0 as f64) / 1e12;
        html! {
            div.track aria-hidden="true" {
                span {}
                div.axis data-from=(from) data-length=(self.length().seconds()) {
                    @for (at, label) in self.ticks() {
                        @if at < 90.0 { span style=(format!("left:{at:.2}%")) { (label) } }
                    }
                }
            }
        }
    }
}
