//! The timeline as a list: what ran on which stream, from when to when.

use super::describe;
use crate::engine::{Span, What};
use crate::scenario::Prediction;
use crate::units::{Bytes, Time};

/// A kernel, a collective or messages that ran on a stream: an item of [`Prediction::ran`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran<'a> {
    /// The rank; it stands for all ranks of its class, unless all were simulated.
    pub rank: u32,
    /// The stream, such as `default` or `all-gather`.
    pub stream: &'a str,
    /// The pass of a kernel, such as `forward`; else `collective` or `message`.
    pub group: &'static str,
    /// The kernel, or the collective with its group and size.
    pub name: String,
    /// The module that it belongs to, such as `blocks.3`.
    pub scope: &'a str,
    /// The step, from 0.
    pub step: u32,
    /// When the stream reached it \[ps\]; a collective then waits for its other members, a message for its other end.
    pub reached: Time,
    /// When it began to run \[ps\], counted from the beginning of the first step.
    pub start: Time,
    /// When it ended \[ps\].
    pub end: Time,
    /// What a collective or messages move \[B\]; 0 for a kernel.
    pub bytes: Bytes,
}

impl Prediction {
    /// What ran in the simulated steps, by rank, stream and start. It is empty unless
    /// [`Settings::record`](crate::scenario::predict::Settings::record) was set.
    ///
    /// ```
    /// use windtunnel::{Scenario, Settings, Time, predict};
    ///
    /// let scenario = Scenario::builder("two layers on a node")
    ///     .runtime("fsdp2")
    ///     .topology("h100-sxm-80gb")
    ///     .nodes(1)
    ///     .model("llama-3.1-8b")
    ///     .set("model.layers", 2)
    ///     .sequence(2048)
    ///     .build()?;
    /// let prediction = predict(&scenario, Settings { record: true, ..Settings::default() })?;
    /// let last = prediction.ran().map(|ran| ran.step).max();
    /// let gathers = prediction.ran().filter(|ran| Some(ran.step) == last && ran.name.starts_with("all-gather"));
    /// let gathering: Time = gathers.map(|ran| ran.end - ran.start).sum();
    /// assert!(gathering > Time::ZERO);
    /// # Ok::<(), windtunnel::ScenarioError>(())
    /// ```
    pub fn ran(&self) -> impl Iterator<Item = Ran<'_>> {
        self.timeline.spans.iter().map(|span| self.ran_in(span))
    }

    /// What ran in a span.
    pub(in crate::report) fn ran_in(&self, span: &Span) -> Ran<'_> {
        let program = &self.classes[self.class_of[span.rank as usize] as usize].program;
        let (group, name, bytes) = match span.what {
            What::Kernel(id) => {
                let kernel = program.kernel(id);
                (kernel.pass.name(), kernel.name.to_owned(), Bytes(0))
            }
            What::Comm(id) => {
                let comm = program.comm(id);
                ("collective", describe::comm(program, comm), comm.bytes)
            }
            What::Exchange(id) => {
                let bytes = program.exchange(id).map(|end| end.bytes).sum();
                ("message", describe::exchange(program, id), bytes)
            }
        };
        Ran {
            rank: span.rank,
            stream: program.streams[span.stream.0 as usize],
            group,
            name,
            scope: program.scope(span.scope),
            step: span.step,
            reached: span.reached,
            start: span.start,
            end: span.end,
            bytes,
        }
    }
}
