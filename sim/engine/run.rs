//! Runs a job from its first event to its findings.

use super::parts::Event;
use super::ranks::Noted;
use super::rounds::{Like, Round, Rounds};
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

    /// Runs every step, none taken for another, with further rounds in each, and notes how long everything took that is written: what
    /// comes behind the rounds takes as long as it does behind all of them. Also which round the further ones are like: by step, class and
    /// stream, the operations from one to another. None if no round repeats.
    pub(super) fn noting(mut self, further: u32) -> Result<Option<(Timeline, Noted, Like)>, EngineError> {
        let sizes = self.plans.iter().map(|plan| (plan.ops.len(), plan.legs.len()));
        self.noted = Some(Noted::new(sizes, self.options.steps as usize));
        self.watch.stop();
        match further {
            0 => self.rounds = Rounds::default(),
            _ => self.rounds.further = further,
        }
        if let End::NoRound = self.until_end()? {
            return Ok(None);
        }
        let (noted, run_like) = (self.noted.take().unwrap_or_default(), std::mem::take(&mut self.rounds.run_like));
        let streams = |(from, to): &(Vec<u32>, Vec<u32>), class: u32| {
            let first = self.ranks.iter().position(|rank| rank.class == class).unwrap_or(0) * self.width as usize;
            let streams = first..first + self.width as usize - 1;
            streams.map(|actor| from[actor] as usize..to[actor] as usize).collect()
        };
        let classes = 0..self.plans.len() as u32;
        let like =
            run_like.iter().map(|places| classes.clone().map(|class| streams(places, class)).collect()).collect();
        Ok(Some((self.timeline(), noted, like)))
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
