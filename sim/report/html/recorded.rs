//! The run that the timeline shows: a prediction keeps its spans only when it is asked to.

use crate::scenario::predict::Settings;
use crate::scenario::{Prediction, Scenario, predict, reason};

/// A prediction whose spans were kept.
pub(super) struct Recorded<'a> {
    run: Run<'a>,
    /// Micro-batches of the run and of the step, where the run has fewer.
    pub(super) shortened: Option<(u32, u32)>,
}

enum Run<'a> {
    /// The prediction that the page is of.
    Given(&'a Prediction),
    /// Another of the same step, or of a shorter one.
    Made(Box<Prediction>),
}

impl<'a> Recorded<'a> {
    /// The prediction itself if it was recorded, or a second one. A step that is too long to be recorded is shown with fewer
    /// micro-batches; where even these are too long, the error says why there is no timeline.
    pub(super) fn of(scenario: &Scenario, answer: &'a Prediction) -> Result<Recorded<'a>, String> {
        if !answer.timeline.host_times.is_empty() {
            return Ok(Recorded { run: Run::Given(answer), shortened: None });
        }
        let settings = Settings { record: true, remedies: false, ..Settings::default() };
        let made = |scenario: &Scenario| predict(scenario, settings).map(|answer| Run::Made(Box::new(answer)));
        let refused = match made(scenario) {
            Ok(run) => return Ok(Recorded { run, shortened: None }),
            Err(refused) => reason(&refused),
        };
        let Some(job) = scenario.recordable() else {
            return Err(refused);
        };
        let shortened = Some((job.micro_batches(), scenario.job.micro_batches()));
        let shorter = scenario.with(job, scenario.expandable_segments);
        let run = made(&shorter).map_err(|_| refused)?;
        Ok(Recorded { run, shortened })
    }

    /// The recorded prediction.
    pub(super) fn answer(&self) -> &Prediction {
        match &self.run {
            Run::Given(answer) => answer,
            Run::Made(answer) => answer,
        }
    }
}
