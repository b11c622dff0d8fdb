//! Runs a job from its first event to its findings.

use super::parts::Event;
use super::plan::Plan;
use super::ranks::Noted;
use super::rounds::{Round, Rounds};
use super::state::Engine;
use super::watch::Period;
use super::{EngineError, Timeline};

/// How a run ended.
enum End {
    /// All steps were run.
    Steps,
    /// All later steps repeat this one.
    Repeats(Period),
    /// No round of a step repeats, and further ones were to be run.
    NoRound,
}

impl Engine<'_> {
    /// Runs to the end.
    pub(super) fn run(mut self) -> Result<Timeline, EngineError> {
        match self.until_end()? {
            End::Repeats(period) => self.run_last(period),
            End::Steps | End::NoRound => Ok(self.timeline()),
        }
    }

    /// The same with further rounds in each step; none if no round repeats. Also what each of them launches, by class.
    pub(super) fn run_further(mut self, rounds: u32) -> Result<Option<(Timeline, Vec<Round>)>, EngineError> {
        self.rounds.further = rounds;
        let end = self.until_end()?;
        let each = std::mem::take(&mut self.rounds.each);
        let timeline = match end {
            End::NoRound => return Ok(None),
            End::Repeats(period) => self.run_last(period)?,
            End::Steps => self.timeline(),
        };
        Ok(Some((timeline, each)))
    }

    /// Runs every step, none taken for another, and notes how long everything took.
    pub(super) fn noting(mut self) -> Result<(Timeline, Noted, Vec<Plan>), EngineError> {
        let none = || self.plans.iter().map(|_| vec![]).collect();
        self.noted = Some(Noted { ops: none(), legs: none() });
        self.watch.stop();
        self.rounds = Rounds::default();
        self.until_end()?;
        let (noted, plans) = (self.noted.take().unwrap_or_default(), self.plans.clone());
        Ok((self.timeline(), noted, plans))
    }

    fn until_end(&mut self) -> Result<End, EngineError> {
        for rank in 0..self.ranks.len() as u32 {
            let host = self.host(rank) as usize;
            self.actors[host].reached = self.host_cost(rank, 0);
            self.queue.push(self.actors[host].reached, Event::Host { rank });
        }
        while self.open[self.open.len() - 1] > 0 {
            self.instant()?;
            if self.is_checkpoint()
                && let Some(period) = self.check()
            {
                return Ok(End::Repeats(period));
            }
            if self.is_round() {
                self.look_at_round();
            }
            if self.rounds.missed(self.actors[0].step) {
                return Ok(End::NoRound);
            }
        }
        Ok(End::Steps)
    }
}
