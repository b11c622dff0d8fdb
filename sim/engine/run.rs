//! Runs a job from its first event to its findings.

use super::parts::Event;
use super::state::Engine;
use super::{EngineError, Timeline};

impl Engine<'_> {
    /// Runs to the end.
    pub(super) fn run(mut self) -> Result<Timeline, EngineError> {
        for rank in 0..self.ranks.len() as u32 {
            let host = self.host(rank) as usize;
            self.actors[host].reached = self.plans[self.ranks[rank as usize].class as usize].host[0].cost;
            self.queue.push(self.actors[host].reached, Event::Host { rank });
        }
        while self.open[self.open.len() - 1] > 0 {
            self.instant()?;
            if self.is_checkpoint()
                && let Some(period) = self.check()
            {
                return self.run_last(period);
            }
            if self.is_round() {
                self.look_at_round();
            }
        }
        Ok(self.timeline())
    }
}
