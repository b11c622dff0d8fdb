//! Questions that take many predictions: how long a sequence fits ([`mod@ceiling`], and [`variants`] of it side by side),
//! what makes two runs differ ([`mod@compare`]), and what every combination of some keys' values does ([`mod@sweep`]). And one that takes
//! many trainings: what is left of their time once they are interrupted ([`mod@goodput`]).
//!
//! Every answer is made of real predictions of an edited file ([`Draft`](crate::scenario::Draft)), so that `windtunnel run` on
//! that file says the same. Predictions may run side by side; what comes out does not depend on how many do. To ask another question: a
//! file here, and a subcommand in `sim/cli/`.

pub mod ceiling;
pub mod compare;
mod fixed;
pub mod goodput;
pub mod plan;
mod plot;
mod point;
pub mod prices;
mod quantity;
pub mod sweep;
mod tick;
pub mod values;
pub mod variants;
pub mod why;
mod words;

pub use ceiling::{Ceiling, ceiling};
pub use compare::{Comparison, Side, compare};
pub use point::Point;
pub use tick::Tick;

use crate::report::text::WIDTH;
use crate::scenario::{Scenario, ScenarioError};

impl Scenario {
    /// Finds the longest sequence that fits in device memory.
    ///
    /// ```
    /// use windtunnel::{CeilingOptions, Scenario};
    ///
    /// let scenario = Scenario::builder("two layers on a node")
    ///     .runtime("fsdp2")
    ///     .topology("h100-sxm-80gb")
    ///     .nodes(1)
    ///     .model("llama-3.1-8b")
    ///     .set("model.layers", 2)
    ///     .sequence(2048)
    ///     .build()?;
    /// let ceiling = scenario.ceiling(CeilingOptions { step: 16_384, max: Some(65_536) })?;
    /// let longest = ceiling.longest.expect("the shortest length fits");
    /// assert!(longest.memory.fits());
    /// println!("{} tokens, {} a step", longest.sequence, longest.step);
    /// # Ok::<(), windtunnel::ScenarioError>(())
    /// ```
    pub fn ceiling(&self, options: ceiling::Options) -> Result<Ceiling, ScenarioError> {
        ceiling(&self.draft, options, &|| ())
    }

    /// Says what this scenario and another differ in, and what each difference does to time, memory and MFU.
    ///
    /// ```
    /// use windtunnel::Scenario;
    ///
    /// let short = Scenario::builder("two layers on a node")
    ///     .runtime("fsdp2")
    ///     .topology("h100-sxm-80gb")
    ///     .nodes(1)
    ///     .model("llama-3.1-8b")
    ///     .set("model.layers", 2)
    ///     .sequence(2048)
    ///     .build()?;
    /// let long = short.to_builder().sequence(4096).build()?;
    /// let comparison = short.compare(&long)?;
    /// assert_eq!(comparison.rows[0].differences[0].key, "batch.sequence");
    /// assert!(comparison.total.step() > 0);
    /// println!("{}", comparison.text());
    /// # Ok::<(), windtunnel::ScenarioError>(())
    /// ```
    pub fn compare(&self, other: &Scenario) -> Result<Comparison, ScenarioError> {
        compare(&Side::of(self), &Side::of(other))
    }
}

impl Ceiling {
    /// The report that `windtunnel ceiling` prints.
    pub fn text(&self, scenario: &Scenario) -> String {
        ceiling::text::report(scenario, self, WIDTH)
    }

    /// The answer as `windtunnel ceiling --json` writes it.
    pub fn json(&self, scenario: &Scenario) -> serde_json::Value {
        ceiling::json::report(scenario, self)
    }
}

impl Comparison {
    /// The report that `windtunnel compare` prints.
    pub fn text(&self) -> String {
        compare::text::report(self, WIDTH, compare::Fold::Long)
    }

    /// The comparison as `windtunnel compare --json` writes it.
    pub fn json(&self) -> serde_json::Value {
        compare::json::report(self)
    }
}
